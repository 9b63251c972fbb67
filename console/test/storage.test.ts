// Tests a page without storage, because the browser denies it, and with a full one. TestConsolesScriptsPass runs this file.

import assert from 'node:assert/strict';
import { test } from 'node:test';

// Opens the page with a token in a browser that blocks all cookies, in which each access to the storage fails, and in
// one without storage. The page must work; it keeps the token until it is closed.
test('a page without storage takes a token', async () => {
  Object.defineProperty(globalThis, 'localStorage', { configurable: true, get() { throw new DOMException('Access is denied for this document.', 'SecurityError'); } });
  Object.defineProperty(globalThis, 'sessionStorage', { configurable: true, value: null });
  Object.assign(globalThis, {
    location: { hash: '#token=of.one.person&host=desk', origin: 'https://relay.example', hostname: 'relay.example' },
    history: { state: null, replaceState(state: any, _: string, to: string) { (globalThis as any).location.hash = to; } },
    document: { hidden: false, addEventListener() {} }, addEventListener() {}, fetch: () => new Promise(() => {}), WebSocket: class { close() {} },
  });
  const { App } = await import('../src/app');
  const { stored } = await import('../src/relay');
  const { draftOf } = await import('../src/ui/drafts');
  const { keepDraft } = await import('../src/unsent');
  const app = new App();
  app.route();
  assert.deepEqual([app.token, app.host, app.kept, stored()], ['of.one.person', 'desk', false, 'of.one.person']);
  keepDraft('desk', 'c:/1', 'go on');
  assert.equal(draftOf('desk', 'c:/1', ''), 'go on');
  app.forget();
  assert.equal(stored(), '');
});

// Opens the page with a token, and lends the device, in a browser without room. Both must work until the page is closed.
test('a page whose storage is full takes a token', async () => {
  const full = { getItem: () => null, removeItem() {}, setItem() { throw new DOMException('The quota has been exceeded.', 'QuotaExceededError'); } };
  const { App } = await import('../src/app');
  Object.assign(globalThis, { localStorage: full, sessionStorage: full });
  const app = new App();
  app.useToken('#token=of.one.person&host=desk');
  assert.deepEqual([app.token, app.host], ['of.one.person', 'desk']);
  app.lender.lend(app.link!, 's:/1', ['camera']);
  assert.deepEqual(app.lender.lent(app.link!, 's:/1'), ['camera']);
  app.forget();
  assert.equal(app.token, '');
});
