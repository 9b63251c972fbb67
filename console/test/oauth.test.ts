// Tests how tokens are obtained, without a network.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { askable, clientAt, discover, metadataPlaces, typed, visit, wantedOf } from '../src/oauth';

const origin = 'https://relay.example.com';
const issuer = 'https://login.example/tenant';
const good = {
  issuer, authorization_endpoint: 'https://login.example/authorize', token_endpoint: 'https://login.example/token', registration_endpoint: 'https://login.example/register',
  device_authorization_endpoint: 'https://login.example/device', code_challenge_methods_supported: ['S256'], token_endpoint_auth_methods_supported: ['none'],
};
const wanted = wantedOf({ resource: 'https://api.example/', authorization_servers: [issuer], scopes_supported: ['a', 'b'] });

/** A network of answers by address; undefined: nothing is heard. */
function net(answers) {
  const asked = [];
  const ask = async (url, post) => {
    asked.push({ url, ...post });
    const a = answers[url];
    const answer = typeof a === 'function' ? a(post) : a;
    if (answer === undefined) throw new TypeError('Failed to fetch');
    return answer;
  };
  return { ask, asked };
}
const ok = (body) => ({ status: 200, body });
const place = metadataPlaces(issuer)[0];

test('needed resources are read from both forms', () => {
  assert.deepEqual(wanted.scopes, ['a', 'b']);
  assert.deepEqual(wantedOf({ resource: 'r', scopes_supported: ['a'] }, { requiredScopes: ['c', 5], oauthClient: { clientId: 'x' } }), { resource: 'r', servers: [], scopes: ['c'], clientId: 'x', clientSecret: '', byHost: true });
  assert.deepEqual(wantedOf({ resource: 'r', scopes_supported: ['a'] }, { requiredScopes: [] }).scopes, []); // authoritative
  for (const bad of ['http://login.example/', 'javascript:x', 'https://u@login.example/', 'file:///x', 'x', '']) assert.equal(askable(bad), '', bad);
  assert.equal(askable('http://127.0.0.1:5/x'), 'http://127.0.0.1:5/x');
  for (const here of ['http://127.0.0.1:5/x', 'http://localhost/x', 'https://localhost/x', 'https://a.localhost./x', 'https://[::1]/x', 'https://127.1.2.3/x', 'https://0/x']) {
    assert.equal(askable(here, issuer), '', here);
    assert.equal(askable(here, 'http://localhost:7'), askable(here), here);
  }
});

test('metadata addresses follow the RFCs', () => {
  assert.deepEqual(metadataPlaces(issuer), ['https://login.example/.well-known/oauth-authorization-server/tenant',
    'https://login.example/.well-known/openid-configuration/tenant', 'https://login.example/tenant/.well-known/openid-configuration']);
  assert.deepEqual(metadataPlaces('https://login.example/'), ['https://login.example/.well-known/oauth-authorization-server', 'https://login.example/.well-known/openid-configuration']);
});

test('a server\'s metadata gives the flows for a page', async () => {
  const found = async (answers, w = wanted, from = origin) => discover(net(answers).ask, w, from);
  const of = async (metadata, w = wanted, from = origin) => {
    const { server, why } = await found({ [place]: ok(metadata) }, w, from);
    return server ? [server.window, server.code] : why;
  };
  assert.deepEqual(await of(good), [true, true]);
  assert.deepEqual(await of({ ...good, code_challenge_methods_supported: ['plain'] }), [false, true]);
  assert.deepEqual(await of({ ...good, token_endpoint_auth_methods_supported: ['client_secret_basic'] }), [false, true]);
  assert.deepEqual(await of({ ...good, authorization_endpoint: 'http://login.example/authorize' }), [false, true]);
  // A web site cannot make the page post to this machine.
  for (const name of ['token_endpoint', 'registration_endpoint']) assert.equal(typeof await of({ ...good, [name]: 'http://127.0.0.1:8080/do' }), 'string', name);
  assert.deepEqual(await of({ ...good, device_authorization_endpoint: 'http://localhost/do' }), [true, false]);
  // The user sees where a sign-in leads.
  assert.equal((await found({ [place]: ok({ ...good, authorization_endpoint: 'https://bank.example/authorize' }) })).server!.site, 'bank.example');
  assert.match(await of({ ...good, registration_endpoint: undefined }) as string, /knows only clients that were registered/);
  assert.deepEqual(await of({ ...good, registration_endpoint: undefined, client_id_metadata_document_supported: true }), [true, true]);
  assert.match(await of({ ...good, registration_endpoint: undefined, client_id_metadata_document_supported: true }, wanted, 'http://relay.lan') as string, /knows only/); // it cannot read that
  assert.deepEqual(await of({ ...good, registration_endpoint: undefined }, { ...wanted, clientId: 'c' }), [true, true]);
  assert.match(await of({ ...good, issuer: 'https://other.example' }) as string, /says that it is https:\/\/other\.example/);
  // The next location and the next server are tried.
  assert.ok((await found({ [place]: { status: 404, body: null }, [metadataPlaces(issuer)[2]]: ok(good) })).server);
  assert.match((await found({ [place]: { status: 404, body: null } })).why, /does not say how one signs in/);
  assert.match((await found({})).why, /CORS/);
  assert.ok((await found({ [place]: ok(good) }, { ...wanted, servers: ['https://dead.example', issuer] })).server);
  // If the host names no servers, the resource's own metadata counts. It must describe
  // that resource.
  const unnamed = wantedOf({ resource: 'https://api.example/mcp' });
  const said = (resource) => ({ 'https://api.example/.well-known/oauth-protected-resource/mcp': ok({ resource, authorization_servers: [issuer] }), [place]: ok(good) });
  assert.ok((await found(said('https://api.example/mcp'), unnamed)).server);
  assert.match((await found(said('https://other.example/'), unnamed)).why, /names no authorization server/);
});

test('the page gets a client id', async () => {
  const server = (metadata, at = issuer) => ({ issuer: at, metadata, window: true, code: true, site: '' });
  const { ask, asked } = net({ [good.registration_endpoint]: { status: 201, body: { client_id: 'made' } } });
  assert.deepEqual(await clientAt(ask, server(good), { ...wanted, clientId: 'given', clientSecret: 's' }, origin), { client_id: 'given', client_secret: 's' });
  assert.deepEqual(await clientAt(ask, server({ ...good, client_id_metadata_document_supported: true }), wanted, origin), { client_id: `${origin}/oauth-client.json` });
  assert.equal(asked.length, 0);
  for (let i = 0; i < 2; i++) assert.equal((await clientAt(ask, server(good), wanted, origin)).client_id, 'made');
  assert.equal(asked.length, 1); // one registration is enough
  assert.deepEqual(asked[0].json.redirect_uris, [`${origin}/signed-in.html`]);
  const refused = net({ [good.registration_endpoint]: { status: 400, body: { error: 'no', error_description: 'Not today.' } } });
  await assert.rejects(clientAt(refused.ask, server(good, 'https://b.example'), wanted, origin), /Not today/);
});

test('sign-in in a new window', async () => {
  const server = { issuer, metadata: { ...good, authorization_response_iss_parameter_supported: true }, window: true, code: false, site: '' };
  let verifier = '';
  const { ask } = net({ [good.token_endpoint]: ({ form }) => {
    if (form.grant_type === 'refresh_token') return form.refresh_token === 'r1' ? ok({ access_token: 't2' }) : { status: 400, body: { error: 'invalid_grant' } };
    verifier = form.code_verifier;
    return ok({ access_token: 't1', refresh_token: 'r1' });
  } });
  const v = await visit(ask, server, { ...wanted, clientId: 'c' }, origin);
  const q = new URL(v.url).searchParams;
  assert.deepEqual([q.get('response_type'), q.get('client_id'), q.get('redirect_uri'), q.get('scope'), q.get('resource'), q.get('state')], ['code', 'c', `${origin}/signed-in.html`, 'a b', 'https://api.example/', v.state]);
  await assert.rejects(v.finish({ code: 'x', iss: 'https://evil.example' }), /not from login\.example/);
  await assert.rejects(v.finish({ code: 'x' }), /not from login\.example/); // it says that it always says so
  await assert.rejects(v.finish({ error: 'access_denied', iss: issuer }), /access_denied/);
  const granted = await v.finish({ code: 'x', iss: issuer });
  assert.equal(granted.token, 't1');
  const challenge = Buffer.from(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier))).toString('base64url');
  assert.equal(q.get('code_challenge'), challenge);
  const next = await granted.renew();
  assert.equal(next.token, 't2');
  assert.equal((await next.renew()).token, 't2'); // the server goes on with the one that it gave
});

test('sign-in by device code', async () => {
  const server = { issuer, metadata: good, window: false, code: true, site: '' };
  const run = async (answers, said = {}) => {
    const waits = [];
    const { ask } = net({
      [good.device_authorization_endpoint]: ok({ device_code: 'd', user_code: 'ABCD', verification_uri: 'https://login.example/type', expires_in: 60, interval: 5, ...said }),
      [good.token_endpoint]: () => answers.shift(),
    });
    const gone = new AbortController();
    const code = await typed(ask, server, { ...wanted, clientId: 'c' }, origin, async (ms) => { waits.push(ms / 1000); });
    try {
      return { token: (await code.finish(gone.signal)).token, waits };
    } catch (err) {
      return { why: err.message, waits };
    }
  };
  const error = (name) => ({ status: 400, body: { error: name } });
  assert.deepEqual(await run([error('authorization_pending'), error('slow_down'), undefined, ok({ access_token: 't' })]), { token: 't', waits: [5, 5, 10, 20] });
  assert.match((await run([error('access_denied')])).why, /access_denied/);
  assert.match((await run([error('expired_token')])).why, /expired/);
  assert.deepEqual((await run(Array(99).fill(error('authorization_pending')))).waits.length, 12); // a minute
  await assert.rejects(run([], { verification_uri: 'javascript:alert(1)' }), /no code/);
});

test('a code of the host-agent ends with its word, and a cancelled one is cancelled there', async () => {
  const { signInAtHost } = await import('../src/oauth');
  const sent: string[] = [];
  const host = { codes: new Map<string, (error: string) => void>(), request: async (method: string) => { sent.push(method); return { id: 'i', code: 'AB-CD', where: 'https://x.example/device', whole: 'javascript:alert(1)' }; } };
  const code = await signInAtHost(host, 'ahp-root://', 'r', new AbortController().signal);
  assert.ok('code' in code);
  assert.deepEqual([code.code, code.where, code.whole], ['AB-CD', 'https://x.example/device', '']);
  host.codes.get('i')!('');
  await code.finish();
  const refused = await signInAtHost(host, 'ahp-root://', 'r', new AbortController().signal);
  host.codes.get('i')!('the code has expired');
  await assert.rejects(refused.finish(), /expired/);
  const gone = new AbortController();
  const cancelled = await signInAtHost(host, 'ahp-root://', 'r', gone.signal);
  gone.abort();
  await assert.rejects(cancelled.finish());
  assert.equal(sent.at(-1), 'relay/signInCancel');
  await assert.rejects(signInAtHost({ ...host, request: async () => ({ id: 'i', code: 'c', where: 'javascript:alert(1)' }) }, 'c', 'r', gone.signal));
});

test('a sign-in that sends the browser back takes its address to the host-agent', async () => {
  const { signInAtHost } = await import('../src/oauth');
  const sent: unknown[] = [];
  const host = { codes: new Map<string, (error: string) => void>(), request: async (method: string, params: unknown) => { sent.push([method, params]); return { id: 'i', url: 'https://x.example/authorize?a', redirect: 'http://127.0.0.1:1/' }; } };
  const by = await signInAtHost(host, 'ahp-root://', 'r', new AbortController().signal);
  assert.ok('url' in by);
  assert.deepEqual([by.url, by.redirect], ['https://x.example/authorize?a', 'http://127.0.0.1:1/']);
  await by.back('http://127.0.0.1:1/?code=c');
  assert.deepEqual(sent.at(-1), ['relay/signInBack', { channel: 'ahp-root://', address: 'http://127.0.0.1:1/?code=c' }]);
  await assert.rejects(signInAtHost({ ...host, request: async () => ({ id: 'i', url: 'javascript:alert(1)' }) }, 'c', 'r', new AbortController().signal), /no code/);
});
