// Tests lending without a page: see lend.ts. TestConsolesScriptsPass runs this file.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

import { Lender, pageAddress } from '../src/lend';
import { Store } from '../src/store';

const session = 'demo:/1';
const here = 'relay.example.net';

globalThis.sessionStorage = { getItem: () => null, setItem() {} } as any;

/** A link to a host whose session lists canvases, and what was dispatched there. */
function linked(protocolVersion = '0.9.0', canvases: any = []) {
  const sent: any[] = [];
  const store = new Store('me');
  store.snapshot({ resource: session, state: { title: 'Work', canvases }, fromSeq: 1 });
  const conn = { clientId: 'me', info: { protocolVersion }, dispatch: (channel: string, action: any) => sent.push({ channel, ...action }) };
  return { link: { host: 'h', live: true, conn, store } as any, sent };
}

function lending(kinds: any[] = ['browser', 'camera']) {
  const { link, sent } = linked();
  const lender = new Lender(() => {}, () => here);
  lender.lend(link, session, kinds);
  const ask = (method: string, params: any) => lender.asked(link, method, { channel: session, instanceId: 'i', canvasId: 'browser', ...params })!;
  return { lender, link, sent, ask };
}

const because = (code: string) => (err: any) => err.code === -32012 && err.data.code === code;
const page = (url: string) => ({ input: { url } });

test('only public web pages are shown', () => {
  for (const url of ['https://example.com/', 'https://a.b.example.com:8443/x?y#z']) assert.equal(pageAddress(url, here).href, url);
  for (const url of [
    undefined, '', 7, 'x', 'http://example.com/', 'javascript:alert(1)', 'data:text/html,x', 'file:///etc/passwd', 'https://u:p@example.com/',
    'https://127.0.0.1/', 'https://2130706433/', 'https://0x7f.1/', 'https://[::1]/', 'https://192.168.1.1/', 'https://localhost/', 'https://x.localhost/',
    'https://router/', 'https://nas.local/', 'https://x.home.arpa/', 'https://relay.example.net/', 'https://a.relay.example.net/', 'https://example.net/', `https://example.com/${'x'.repeat(9000)}`,
  ]) assert.throws(() => pageAddress(url, here), because('canvas_bad_address'), String(url));
});

test('nothing is lent without consent', async () => {
  const { lender, link, sent, ask } = lending([]);
  lender.tell(link, session);
  assert.deepEqual(sent, []);
  await assert.rejects(ask('canvasOpen', page('https://example.com/')), because('canvas_provider_unavailable'));
  assert.equal(lender.asked(link, 'resourceRead', {}), undefined);
});

test('lending is declared once, and again to a restarted host', () => {
  const { lender, link, sent } = lending(['camera']);
  lender.tell(link, session);
  assert.equal(sent.length, 1);
  assert.equal(sent[0].type, 'session/activeClientSet');
  assert.deepEqual(sent[0].activeClient.canvasProviders.map((c: any) => c.canvasId), ['camera']);
  lender.forget(link);
  lender.tell(link, session);
  assert.equal(sent.length, 2);
  lender.lend(link, session, []);
  assert.deepEqual(sent[2], { channel: session, type: 'session/activeClientRemoved', clientId: 'me' });
});

test('hosts without canvases get no declaration, older hosts their own form', () => {
  const lender = new Lender(() => {}, () => here);
  const other = linked('1.1.0', null);
  lender.lend(other.link, session, ['camera']);
  assert.deepEqual(other.sent, []);
  const old = linked('0.8.0');
  lender.lend(old.link, session, ['camera']);
  assert.equal(old.sent[0].type, 'session/activeClientChanged');
});

test('each site needs consent', async () => {
  const { lender, link, ask } = lending();
  const opened = ask('canvasOpen', page('https://one.example.com/a'));
  assert.deepEqual(lender.asks.map((a) => [a.what, a.site]), [['page', 'one.example.com']]);
  lender.asks[0]!.answer(true);
  assert.deepEqual(await opened, { url: 'https://one.example.com/a', title: 'one.example.com' });
  const go = (url: string) => ask('canvasInvokeAction', { actionName: 'go', ...page(url) });
  assert.deepEqual(await go('https://one.example.com/b'), { value: { url: 'https://one.example.com/b' } });
  const refused = go('https://two.example.com/');
  lender.asks[0]!.answer(false);
  await assert.rejects(refused, because('canvas_refused'));
  await assert.rejects(go('https://192.168.0.1/'), because('canvas_bad_address'));
  const did = async (actionName: string) => (await ask('canvasInvokeAction', { actionName })).value.url;
  assert.equal(await did('where'), 'https://one.example.com/b');
  assert.equal(await did('back'), 'https://one.example.com/a');
  await assert.rejects(did('eval'), because('canvas_action_no_handler'));
  const state = { instanceId: 'i', provider: { kind: 'client', clientId: 'me' } };
  assert.equal(lender.instanceOf(link, session, state)!.url, 'https://one.example.com/a');
  assert.equal(lender.instanceOf(link, session, { ...state, provider: { kind: 'client', clientId: 'other' } }), undefined);
  assert.deepEqual(await ask('canvasOpen', page('https://three.example.com/')), { url: 'https://one.example.com/a', title: 'one.example.com' }, 'opened again, as it is after a drop');
  await ask('canvasClose', {});
  await assert.rejects(did('where'), because('canvas_provider_unavailable'));
});

test('consent to a site ends with the lending', async () => {
  const { lender, link, ask } = lending();
  const agreed = async () => {
    const opened = ask('canvasOpen', page('https://one.example.com/a'));
    const asked = lender.asks.length;
    lender.asks[0]?.answer(true);
    await opened;
    await ask('canvasClose', {});
    return asked;
  };
  assert.equal(await agreed(), 1);
  assert.equal(await agreed(), 0);
  lender.lend(link, session, []);
  lender.lend(link, session, ['browser']);
  assert.equal(await agreed(), 1);
  // A different token may lead to a different host of the same name, which gets
  // nothing.
  const had = ask('canvasOpen', page('https://one.example.com/a'));
  await had;
  const waiting = ask('canvasOpen', { ...page('https://two.example.com/'), instanceId: 'j' });
  lender.takeBack('other');
  assert.deepEqual([lender.lent(link, session), lender.asks.length], [['browser'], 1]);
  lender.takeBack('h');
  await assert.rejects(waiting, because('canvas_refused'));
  assert.deepEqual(lender.lent(link, session), []);
  await assert.rejects(ask('canvasInvokeAction', { actionName: 'where' }), because('canvas_provider_unavailable'));
  await assert.rejects(ask('canvasOpen', page('https://one.example.com/a')), because('canvas_provider_unavailable'));
  lender.lend(link, session, ['browser']);
  assert.equal(await agreed(), 1);
});

test('a newly listed canvas is shown once', async () => {
  const { lender, link, ask } = lending();
  const opened = ask('canvasOpen', { canvasId: 'camera' });
  lender.asks[0]!.answer(true);
  await opened;
  assert.equal(lender.fresh(link, session), undefined);
  link.store.snapshot({ resource: session, state: { canvases: [], openCanvases: [{ channel: 'ahp-canvas:/other', instanceId: 'o' }, { channel: 'ahp-canvas:/1', instanceId: 'i' }] }, fromSeq: 2 });
  assert.equal(lender.fresh(link, session), 'ahp-canvas:/1');
  assert.equal(lender.fresh(link, session), undefined);
});

test('no picture leaves without consent, or while the camera is off', async () => {
  const { lender, ask } = lending();
  const opened = ask('canvasOpen', { canvasId: 'camera' });
  lender.asks[0]!.answer(true);
  await opened;
  lender.camera.picture = async () => ({ data: 'x' });
  const take = () => ask('canvasInvokeAction', { canvasId: 'camera', actionName: 'takePicture' });
  let taken = take();
  lender.asks[0]!.answer(false);
  await assert.rejects(taken, because('canvas_refused'));
  taken = take();
  lender.asks[0]!.answer(true);
  assert.deepEqual(await taken, { value: { data: 'x' } });
  lender.camera.picture = async () => { throw new Error('The camera is off.'); };
  taken = take();
  lender.asks[0]!.answer(true);
  await assert.rejects(taken, because('canvas_camera_off'));
});

test('open questions are bounded and expire', async () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  try {
    const { lender, ask } = lending();
    const asked = [1, 2, 3, 4].map((n) => ask('canvasOpen', { instanceId: `i${n}`, ...page(`https://s${n}.example.com/`) }));
    await assert.rejects(ask('canvasOpen', page('https://s5.example.com/')), because('canvas_too_many'));
    mock.timers.tick(60_000);
    for (const a of asked) await assert.rejects(a, because('canvas_refused'));
    assert.equal(lender.asks.length, 0);
  } finally {
    mock.timers.reset();
  }
});

test('the end of lending closes canvases and answers questions', async () => {
  const { lender, link, ask } = lending();
  const opened = ask('canvasOpen', page('https://one.example.com/'));
  lender.asks[0]!.answer(true);
  await opened;
  const going = ask('canvasInvokeAction', { actionName: 'go', ...page('https://two.example.com/') });
  lender.lend(link, session, ['camera']);
  await assert.rejects(going, because('canvas_refused'));
  await assert.rejects(ask('canvasInvokeAction', { actionName: 'where' }), because('canvas_provider_unavailable'));
});
