// Tests for the service worker, sw.ts. TestConsolesScriptsPass runs this file.

import assert from 'node:assert/strict';
import { test } from 'node:test';

const handlers = new Map<string, (event: any) => void>();

// An app shares a text with the console: the worker puts it into the page's address, and the browser opens that address.
// The worker fetches the page anew. The server must not get the text, which may be for a sealed host.
test('a text that an app shares is not sent with the request for the page', async () => {
  const sent: string[] = [];
  Object.assign(globalThis, {
    SHELL: [], LANGUAGES: {}, self: { location: { href: 'https://relay.example/sw.js', origin: 'https://relay.example' }, addEventListener: (type: string, act: any) => { handlers.set(type, act); } },
    caches: { match: async () => new Response('kept'), delete: async () => true },
    fetch: async (to: any) => { sent.push(typeof to === 'string' ? to : to.url); return new Response('new'); },
  });
  Response.redirect = (to) => new Response(null, { status: 303, headers: { Location: String(to) } }); // Node.js takes no relative address
  await import('../src/sw');
  const answer = async (request: object) => {
    let given: Promise<Response> | undefined;
    handlers.get('fetch')!({ request, respondWith: (response: Promise<Response>) => { given = response; } });
    return given!;
  };
  const form = new FormData();
  form.set('text', 'secret words');
  const { headers } = await answer({ method: 'POST', url: 'https://relay.example/share', formData: async () => form });
  const url = new URL(headers.get('Location')!, 'https://relay.example').href;
  assert.ok(url.includes('secret'));
  for (const opened of [url, 'https://relay.example/']) {
    const page = await answer({ method: 'GET', mode: 'navigate', destination: 'document', url: opened });
    assert.equal(await page.text(), 'new');
  }
  assert.equal(sent.length, 2);
  assert.ok(!sent.some((s) => s.includes('secret')), sent[0]);
});

// A proxy in front of the relay answers while the relay restarts. The worker must then give what it has kept: the page,
// and the module with the device's key, without which the page shows the form for a sign-in. Other refusals are answers.
test('the answer of a proxy whose relay is away takes the place of no file', async () => {
  let status = 200;
  Object.assign(globalThis, {
    caches: { match: async () => new Response('kept'), open: async () => ({ put: async () => {} }) },
    fetch: async () => new Response('of the server', { status }),
  });
  const page = { method: 'GET', mode: 'navigate', destination: 'document', url: 'https://relay.example/' };
  const keys = { method: 'GET', mode: 'cors', destination: 'script', url: 'https://relay.example/pages/keys.js' };
  const answer = async (request: object) => {
    let given: Promise<Response> | undefined;
    handlers.get('fetch')!({ request, respondWith: (response: Promise<Response>) => { given = response; } });
    return (await given!).text();
  };
  for (const request of [page, keys]) {
    for (const [said, want] of [[200, 'of the server'], [403, 'of the server'], [500, 'kept'], [502, 'kept'], [503, 'kept'], [504, 'kept']] as [number, string][]) {
      status = said;
      assert.equal(await answer(request), want, `${request.url} at ${said}`);
    }
  }
});

// Fetches what the worker caches from now on while the browser has no room for it. The page must get the answers.
test('a full disk keeps no file from the page', async () => {
  Object.assign(globalThis, {
    LANGUAGES: { de: '/de-AAAAAAAA.js' }, fetch: async () => new Response('of the server'),
    caches: { match: async () => undefined, open: async () => ({ put: async () => { throw new DOMException('The quota has been exceeded.', 'QuotaExceededError'); } }) },
  });
  for (const path of ['/de-AAAAAAAA.js', '/pages/keys.js']) {
    let given: Promise<Response> | undefined;
    handlers.get('fetch')!({ request: { method: 'GET', mode: 'cors', destination: 'script', url: `https://relay.example${path}` }, respondWith: (response: Promise<Response>) => { given = response; } });
    assert.equal(await given!.then((answer) => answer.text(), (err) => err.message), 'of the server', path);
  }
});

// Installs the worker during a rolling update, in which a relay of the version before gives the page. That page would need files
// that the new worker does not cache, so the install must fail; the browser tries again.
test('the page of a different version is not cached', async () => {
  const cached: string[] = [];
  const cache = { addAll: async (all: string[]) => { cached.push(...all); }, add: async () => {}, put: async (path: string) => { cached.push(path); }, match: async () => undefined };
  (globalThis as any).self.skipWaiting = async () => {};
  (globalThis as any).self.navigator = {};
  const install = async (main: string) => {
    Object.assign(globalThis, { SHELL: ['/main-AAAAAAAA.js', '/told-BBBBBBBB.js'], caches: { open: async () => cache, match: async () => undefined }, fetch: async () => new Response(`<script src="/${main}.js">`) });
    let done: Promise<void> | undefined;
    handlers.get('install')!({ waitUntil: (work: Promise<void>) => { done = work; } });
    return done!.then(() => 'installed', (err) => err.message);
  };
  assert.deepEqual([await install('main-OLDEROLD'), cached], ['not the page of this version', []]);
  assert.deepEqual([await install('main-AAAAAAAA'), cached], ['installed', ['/favicon.svg', '/main-AAAAAAAA.js', '/told-BBBBBBBB.js', '/']]);
});

// Takes over from an earlier version's worker while a page of that version is open. The relay does not have that page's
// files any more, of which the page loads some only when they are needed. The install of a version in between has failed.
// The new page comes from the new cache.
test('an open page of the version before finds its files', async () => {
  const all = new Map([['shell /a-OLDEROLD.js', ['/', '/a-OLDEROLD.js']], ['shell /a-BEFORE00.js', ['/', '/a-BEFORE00.js']], ['shell /a-FAILED00.js', []], ['shell ', ['/']]]
    .map(([name, paths]: any) => [name, new Map(paths.map((path: string) => [path, `${path} of ${name}`]))] as [string, Map<string, string>]));
  const pathOf = (what: any) => (typeof what === 'string' ? what : new URL(what.url).pathname);
  Object.assign(globalThis, {
    caches: {
      keys: async () => [...all.keys()], delete: async (name: string) => all.delete(name), open: async (name: string) => ({ put: async () => {}, keys: async () => [...all.get(name)!.keys()] }),
      match: async (what: any, { cacheName = undefined as string | undefined } = {}) => {
        const found = [...all].find(([name, files]) => (cacheName ?? name) === name && files.has(pathOf(what)));
        return found && new Response(found[1].get(pathOf(what)));
      },
    },
    fetch: async () => { throw new TypeError('Failed to fetch'); },
  });
  (globalThis as any).self.clients = { claim: async () => {} };
  let done: Promise<void> | undefined;
  handlers.get('activate')!({ waitUntil: (work: Promise<void>) => { done = work; } });
  await done;
  assert.deepEqual([...all.keys()], ['shell /a-BEFORE00.js', 'shell ']);
  const answer = async (request: object) => {
    let given: Promise<Response> | undefined;
    handlers.get('fetch')!({ request, respondWith: (response: Promise<Response>) => { given = response; } });
    return (await given)?.text();
  };
  assert.equal(await answer({ method: 'GET', mode: 'cors', destination: 'script', url: 'https://relay.example/a-BEFORE00.js' }), '/a-BEFORE00.js of shell /a-BEFORE00.js');
  assert.equal(await answer({ method: 'GET', mode: 'navigate', destination: 'document', url: 'https://relay.example/' }), '/ of shell ');
});
