// Tests of app.ts: which connections stay open when the page gets a new token. TestConsolesScriptsPass
// runs this file.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

const kept = new Map<string, string>();
const storage = { getItem: (k: string) => kept.get(k) ?? null, setItem: (k: string, v: string) => kept.set(k, v), removeItem: (k: string) => kept.delete(k) };

/** A WebSocket to a host that answers each request. */
class Socket {
  static all: Socket[] = [];
  static refuses = false; // to take another token
  static sessions: object[] = [];
  readyState = 0;
  protocol = 'ahp';
  bufferedAmount = 0;
  onopen: any;
  onmessage: any;
  onclose: any;
  said: any[] = [];

  constructor(readonly url: string, readonly protocols: string[]) {
    Socket.all.push(this);
    setImmediate(() => { this.readyState = 1; this.onopen?.({}); });
  }

  send(message: string) {
    const { id, method, params } = JSON.parse(message);
    this.said.push({ method, params });
    if (id === undefined) return;
    let answer: any = { result: {} };
    if (method === 'initialize') answer = { result: { protocolVersion: '1.1.0', serverSeq: 0, snapshots: [{ resource: 'ahp-root://', state: { agents: [] }, fromSeq: 0 }] } };
    else if (method === 'listSessions') answer = { result: { items: Socket.sessions } };
    else if (method === 'relay/refreshToken' && Socket.refuses) answer = { error: { code: -32009, message: 'the token is for a different subject; reconnect with it' } };
    setImmediate(() => this.onmessage?.({ data: JSON.stringify({ jsonrpc: '2.0', id, ...answer }) }));
  }

  close() { this.readyState = 3; }
}

Object.assign(globalThis, {
  sessionStorage: storage, localStorage: storage, WebSocket: Socket, location: { hash: '', origin: 'https://relay.example', hostname: 'relay.example' },
  history: { state: null, replaceState(state: any, _: string, to: string) { (globalThis as any).location.hash = to; } },
  document: { hidden: false, addEventListener() {} }, addEventListener() {},
  fetch: async () => ({ ok: true, status: 200, text: async () => JSON.stringify({ hosts: [{ host: 'desk', state: 'online' }], token: {} }) }),
});

async function until(what: string, is: () => boolean) {
  for (const end = Date.now() + 60_000; !is();) {
    assert.ok(Date.now() < end, what);
    await new Promise((resolve) => { setImmediate(resolve); });
  }
}

const tokensGiven = () => Socket.all.flatMap((s) => s.said.filter((m) => m.method === 'authenticate').map((m) => [s.protocols[1], m.params.token]));

test('a host behind a different token gets nothing from the previous host', async () => {
  const { App } = await import('../src/app');
  const app = new App();
  app.useToken('#token=of.one.tenant&host=desk');
  await until('a connection', () => Boolean(app.link?.live));
  const { link } = app;
  await link!.authenticate('https://api.example/', 'secret');
  app.lender.lend(link!, 'ahp-session:/1', ['camera']);
  // A new token of the same person: the relay accepts it on the same connection.
  app.useToken('of.one.person');
  await until('the relay to be told', () => Socket.all[0]!.said.some((m) => m.method === 'relay/refreshToken'));
  await new Promise((resolve) => { setImmediate(resolve); });
  assert.equal(app.link, link);
  assert.deepEqual(app.lender.lent(link!, 'ahp-session:/1'), ['camera']);
  // A token of a different person, with a host of the same name.
  Socket.refuses = true;
  app.useToken('of.another.tenant');
  await until('another connection', () => Socket.all.length === 2 && Boolean(app.link?.live));
  await until('what is said first', () => Socket.all[1]!.said.some((m) => m.method === 'listSessions'));
  await new Promise((resolve) => { setTimeout(resolve, 0); });
  assert.deepEqual(Socket.all[1]!.protocols, ['ahp', 'bearer.of.another.tenant']);
  assert.deepEqual(tokensGiven(), [['bearer.of.one.tenant', 'secret']]);
  assert.equal(app.link!.tokens.size, 0);
  assert.deepEqual(app.lender.lent(app.link!, 'ahp-session:/1'), []);
  app.forget();
});

// Loses the connection while it gets a newer token. With a key of this browser, that token belongs to the same person, so the
// page must resume the connection, with the state that it has.
test('a connection with a key that is lost with its newer token resumes', async () => {
  Socket.refuses = false;
  const { App } = await import('../src/app');
  const app = new App();
  app.useToken('#token=of.one.person&host=desk');
  await until('a connection', () => Boolean(app.link?.live));
  const { conn, store } = app.link!;
  const socket = Socket.all.at(-1)!;
  socket.send = () => { socket.close(); socket.onclose({ code: 1006, reason: '' }); };
  app.byDeviceAt = () => true;
  app.useToken('newer');
  await until('the loss', () => conn!.state.name !== 'live');
  await until('a connection', () => Boolean(app.link?.live));
  assert.deepEqual([app.link!.conn === conn, app.link!.store === store, Socket.all.at(-1)!.said[0].method], [true, true, 'reconnect']);
  app.forget();
});

test('equal URIs at two hosts share no model, file or context', async () => {
  const { app } = await import('../src/app');
  const { attach } = await import('../src/ui/composer');
  const { placeOf } = await import('../src/words');
  const { conversation } = app;
  const files = (host: string) => (conversation.attachments.get(placeOf(host, 'ahp-chat:/1')) ?? []).map((f) => f.label);
  Object.assign(app, { host: 'desk', session: 'ahp-session:/1', chat: 'ahp-chat:/1' });
  conversation.chooseModel('large');
  conversation.addContext({}, 'Map', 'north');
  attach('desk', 'ahp-chat:/1', [{ label: 'note.txt', data: '', contentType: 'text/plain' }]);
  assert.deepEqual([conversation.models.get(placeOf('desk', 'ahp-session:/1')), conversation.context.length, files('desk')], [{ id: 'large' }, 1, ['note.txt']]);
  app.host = 'laptop';
  conversation.chooseModel('');
  assert.deepEqual([conversation.context.length, files('laptop')], [0, []]);
  app.host = 'desk';
  assert.deepEqual(conversation.models.get(placeOf('desk', 'ahp-session:/1')), { id: 'large' });
});

// Presses a notification about a question in a session's second chat, which was in view at the last visit. The page must
// open that chat: the host's list of chats, which is not known yet, begins with another. A dialog that was left open must
// not hide the question. One press of Back must leave it.
test('a press on a notification opens the chat of its question', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] });
  t.after(() => mock.timers.reset());
  let pressed: any;
  const had = Object.getOwnPropertyDescriptor(globalThis, 'navigator');
  Object.defineProperty(globalThis, 'navigator', { configurable: true, value: { serviceWorker: { addEventListener: (_: string, act: any) => { pressed = act; } } } });
  t.after(() => { if (had) Object.defineProperty(globalThis, 'navigator', had); else delete (globalThis as any).navigator; });
  let pushed = 0; // entries that the button Back passes
  Object.assign((globalThis as any).history, { pushState: (_: any, __: string, to: string) => { pushed++; (globalThis as any).location.hash = to; } });
  Socket.refuses = false;
  const { App } = await import('../src/app');
  const { follow } = await import('../src/events');
  const app = new App();
  app.useToken('#token=of.one.tenant&host=desk');
  await until('a connection', () => Boolean(app.link?.live));
  follow(app);
  app.link!.past.set('ahp-session:/1', { chat: 'ahp-chat:/second', state: { turns: [] } as any, at: 1 });
  app.open({ kind: 'told' });
  pressed({ data: { open: { host: 'desk', session: 'ahp-session:/1', chat: 'ahp-chat:/second', asks: true } } });
  assert.deepEqual([app.session, app.chat, app.sought, app.dialog, pushed], ['ahp-session:/1', 'ahp-chat:/second', 'asks', null, 1]);
  app.link!.store.snapshot({ resource: 'ahp-session:/1', state: { chats: [{ resource: 'ahp-chat:/first' }, { resource: 'ahp-chat:/second' }] } as any, fromSeq: 1 });
  assert.equal(app.chatUri, 'ahp-chat:/second');
  app.forget();
});

// Sends a message over a slow line, and one over a line that stalls. The page must not offer to send it again while the
// connection may still carry it, because the host would get it twice: a silent connection is given up after 40 s at most. Nor
// may it after a sleep, before the next connection shows the state of the host.
test('a message that is on its way is not offered again', async (t) => {
  const { follow } = await import('../src/events');
  const { Store } = await import('../src/store');
  mock.timers.enable({ apis: ['setInterval', 'Date'] });
  const had = Object.getOwnPropertyDescriptor(globalThis, 'navigator');
  Object.defineProperty(globalThis, 'navigator', { configurable: true, value: {} });
  t.after(() => {
    mock.timers.reset();
    if (had) Object.defineProperty(globalThis, 'navigator', had); else delete (globalThis as any).navigator;
  });
  const store = new Store('me');
  const socket = { bufferedAmount: 1 };
  const none = { follow() {}, wake() {}, flush() {}, load() {}, tick() {} };
  follow({ token: '', links: new Map([['desk', { store, conn: { socket } }]]), hosts: { asked: 0 }, past: none, sessions: none, questions: none, absent: none, draw() {} } as any);
  store.sent('c:/1', 1, { turnId: 't', startedAt: '', message: { text: 'hi' } });
  const failed = (after: number) => {
    for (; after > 0; after -= 1000) mock.timers.tick(1000);
    return store.pending[0].failed;
  };
  assert.equal(failed(300_000), '');
  socket.bufferedAmount = 0;
  assert.equal(failed(40_000), '');
  mock.timers.setTime(Date.now() + 600_000); // the phone sleeps
  assert.equal(failed(1000), '');
  assert.equal(failed(40_000), '');
  assert.match(failed(40_000), /not accepted/);
});

// Loads the page at a session, as a press on a notification does. The page must mark the session as read when its host has
// listed it, and only once: the user may mark it as unread.
test('a session at which the page is loaded is read', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] });
  const had = Object.getOwnPropertyDescriptor(globalThis, 'navigator');
  Object.defineProperty(globalThis, 'navigator', { configurable: true, value: {} });
  t.after(() => {
    mock.timers.reset();
    Socket.sessions = [];
    if (had) Object.defineProperty(globalThis, 'navigator', had); else delete (globalThis as any).navigator;
  });
  Socket.sessions = [{ resource: 'ahp-session:/1', status: 1 }];
  const { App } = await import('../src/app');
  const { follow } = await import('../src/events');
  kept.set('ahp-relay-token', 'of.one.person');
  (globalThis as any).location.hash = '#host=desk&session=ahp-session:/1';
  const app = new App();
  app.route();
  follow(app);
  await until('the list', () => app.link!.store.sessions.size > 0 && app.hosts.grant !== null);
  const reads = () => Socket.all.at(-1)!.said.filter((m) => m.params?.action?.type === 'session/isReadChanged').map((m) => m.params.action.isRead);
  for (let n = 0; n < 3; n++) mock.timers.tick(1000);
  assert.deepEqual(reads(), [true]);
  app.sessions.markRead(app.link!, 'ahp-session:/1', false);
  mock.timers.tick(1000);
  assert.deepEqual(reads(), [true, false]);
  app.forget();
  mock.timers.tick(1000);
});

// Lists more hosts than the page connects to, again and again. The host in view must be among the connected ones.
test('the page is connected to 16 hosts at most', async (t) => {
  const had = globalThis.fetch;
  t.after(() => { globalThis.fetch = had; });
  const hosts = Array.from({ length: 20 }, (_, i) => ({ host: `h${i}`, state: 'online' }));
  (globalThis as any).fetch = async () => ({ ok: true, status: 200, text: async () => JSON.stringify({ hosts, token: {} }) });
  const { App } = await import('../src/app');
  const app = new App();
  app.useToken('#token=of.one.person&host=h19');
  for (let n = 0; n < 3; n++) await app.hosts.refresh();
  const connected = [...app.links.values()].filter((l) => l.conn).map((l) => l.host);
  assert.deepEqual([connected.length, connected.includes('h19')], [16, true]);
  app.forget();
});

// Lists 16 sealed hosts with which this browser is not paired, and further hosts after them. The connections to the
// sealed hosts have ended at once, so they must leave room for the others.
test('hosts that this browser cannot open leave room for others', async (t) => {
  const had = globalThis.fetch;
  t.after(() => { globalThis.fetch = had; });
  const hosts = Array.from({ length: 20 }, (_, i) => ({ host: `h${i}`, state: 'online', sealed: i < 16 }));
  (globalThis as any).fetch = async () => ({ ok: true, status: 200, text: async () => JSON.stringify({ hosts, token: {} }) });
  const { App } = await import('../src/app');
  const app = new App();
  app.useToken('of.one.person');
  for (let n = 0; n < 3; n++) {
    await app.hosts.refresh();
    for (let i = 0; i < 20; i++) await new Promise((resolve) => { setImmediate(resolve); });
  }
  assert.deepEqual([...app.links.values()].filter((l) => l.live).map((l) => l.host).sort(), ['h16', 'h17', 'h18', 'h19']);
  app.forget();
});

// Ends a link to a session of a sealed host. Its keys must go with its token: with them, the page would offer the next user
// of the tab no pairing with the host.
test('the keys of an ended link are forgotten', async (t) => {
  const had = globalThis.sessionStorage;
  t.after(() => { Object.assign(globalThis, { sessionStorage: had }); });
  const tab = Object.create({ getItem(k: string) { return this[k] ?? null; }, setItem(k: string, v: string) { this[k] = v; }, removeItem(k: string) { delete this[k]; } });
  Object.assign(globalThis, { sessionStorage: tab });
  const { App } = await import('../src/app');
  const { keepLink, linkOf } = await import('../src/pins');
  const app = new App();
  app.useToken('of.one.person');
  keepLink('vault', 'hostkey link');
  app.refused();
  assert.deepEqual([linkOf('vault'), Object.keys(tab).filter((k) => k.includes('vault')), app.token], [null, [], '']);
});

// Has a further account permit less than that of the host in view. At its hosts, the page must offer only what this account
// permits.
test('a host of a further account offers what that account permits', async (t) => {
  const had = globalThis.fetch;
  const { accounts, tookChange } = await import('../src/accounts');
  kept.set('ahp-accounts', JSON.stringify([{ name: 'work', relay: 'https://b.example', token: 'of.work' }]));
  tookChange(null);
  t.after(() => { globalThis.fetch = had; kept.delete('ahp-accounts'); tookChange(null); });
  (globalThis as any).fetch = async () => ({ ok: true, status: 200, text: async () => JSON.stringify({ hosts: [], token: { access: 'talk' } }) });
  const { app } = await import('../src/app');
  await app.accounts.ask(accounts()[0]);
  Object.assign(app, { host: 'desk', token: 'of.one.person' });
  app.hosts.grant = { access: 'own' };
  assert.deepEqual(['desk', 'lab@work'].map((host) => app.rights.mayOperateAt(host)), [true, false]);
  assert.deepEqual(['desk', 'lab@work'].map((host) => app.sessions.mayBegin({ host, live: true, store: { agents: [{}] } } as any)), [true, false]);
  app.hosts.all = ['desk', 'lab@work'].map((host) => ({ host, state: 'asleep', wakes: true }) as any);
  app.byDeviceAt = () => true;
  for (const host of ['desk', 'lab@work']) {
    app.host = host;
    assert.deepEqual(['desk', 'lab@work'].map((h) => app.hosts.mayWake(h)), [true, false], `with ${host} in view`);
  }
  delete (app as any).byDeviceAt;
  app.forget();
});

/** A database with one store, as far as the pins need it. */
function database() {
  const kept = new Map<string, unknown>();
  const later = (act: () => void) => { setTimeout(act, 0); };
  const store = {
    get: (key: string) => { const request: any = {}; later(() => { request.result = structuredClone(kept.get(key)); }); return request; },
    put: (value: unknown, key: string) => { kept.set(key, structuredClone(value)); return {}; },
  };
  const db = { close() {}, transaction: () => { const t: any = { objectStore: () => store }; later(() => later(() => t.oncomplete?.())); return t; } };
  return { open: () => { const open: any = { result: db }; later(() => open.onsuccess()); return open; } };
}

// Mutes a session for an hour on a device with a clock that is two hours late. By the relay's clock, which ends the mute, it must
// be an hour, and the page must show the mute until then.
test('a mute is as long as the person chooses, by the relay’s clock', async (t) => {
  const { app } = await import('../src/app');
  const { mute } = await import('../src/notify');
  const { muted } = await import('../src/told');
  const { relayNow, setClock } = await import('../src/words');
  const had = globalThis.fetch;
  t.after(() => { globalThis.fetch = had; setClock(''); });
  setClock(new Date(Date.now() + 7_200_000).toISOString());
  let sent: any;
  (globalThis as any).fetch = async (_: any, { body }: any) => {
    if (body) sent = JSON.parse(body);
    return { ok: true, status: 200, text: async () => JSON.stringify(sent ?? {}) };
  };
  app.token = 'of.one.person';
  await mute('desk', 'ahp-session:/1', 1);
  assert.ok(Math.abs(Date.parse(sent.mutes[0].until) - relayNow() - 3_600_000) < 60_000, `until ${sent.mutes[0].until} at ${new Date(relayNow()).toISOString()}`);
  assert.ok(muted('desk', 'ahp-session:/1'));
  setClock(new Date(Date.now() + 7_200_000 + 3_700_000).toISOString());
  assert.equal(muted('desk', 'ahp-session:/1'), undefined);
  app.forget();
});

// Mutes a session at a sealed host, and one at another host. The relay must not get the URI of the sealed
// host's session: its notifications do not name sessions, so the whole host is muted. Nor may the page offer the
// relay's links to the sealed host's sessions.
test('the relay learns no session of a sealed host from a mute or a link', async (t) => {
  const [had, sent] = [globalThis.fetch, [] as string[]];
  Object.assign(globalThis, { indexedDB: database(), fetch: async (url: any, init: any) => { sent.push(`${url} ${init?.body ?? ''}`); return had(url, init); } });
  Object.defineProperty(globalThis, 'navigator', { configurable: true, value: {} });
  t.after(() => { globalThis.fetch = had; delete (globalThis as any).indexedDB; delete (globalThis as any).navigator; });
  const { app } = await import('../src/app');
  const { pin } = await import('../src/pins');
  const { mute } = await import('../src/notify');
  const { DEVICE } = await import('../src/device');
  app.token = 'of.one.person';
  await pin({ relay: 'https://relay.example', host: 'laptop', key: new Uint8Array(32), grants: [], subject: 'ada', level: 'admin', end: 1, since: 1 });
  await mute('laptop', 'ahp-session:/secret');
  await mute('desk', 'ahp-session:/1');
  const mutes = sent.filter((s) => s.includes('api/notify/times')).map((s) => JSON.parse(s.slice(s.indexOf(' '))).mutes);
  assert.deepEqual(mutes, [[{ host: 'laptop' }], [{ host: 'desk', session: 'ahp-session:/1' }]]);
  assert.ok(!sent.some((s) => s.includes('secret')));
  app.token = DEVICE;
  app.linkTo('laptop').pinned = true;
  app.linkTo('desk').pinned = false;
  assert.deepEqual(['laptop', 'desk'].map((host) => app.sharesAt(host)), [false, true]);
  app.forget();
});
