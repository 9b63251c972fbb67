// The parts of the console that need no page. TestConsoleLogic runs this with
// `node --test`, in a directory with a copy of the console.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

import { afterClose, backoff, Connection, offersFor, ROOT } from './ahp.js';
import { Bucket, contentOf, wayTo } from './canvas.js';
import { answerOf, Store, text, version } from './state.js';
import { describe as inWords, statusWord, toolWord } from './words.js';

const chat = 'ahp-chat:/1';

function storeWith(state, fromSeq = 10) {
  const store = new Store('me');
  store.snapshot({ resource: chat, state: { turns: [], ...state }, fromSeq });
  return store;
}

/** Applies actions to the chat, numbered from 11. */
function play(store, ...actions) {
  actions.forEach((action, i) => store.apply({ channel: chat, action, serverSeq: 11 + i }));
  return store.get(chat);
}

const started = { type: 'chat/turnStarted', turnId: 't', startedAt: '2026-01-01T00:00:00Z', message: { text: 'hi' } };
const part = { type: 'chat/responsePart', turnId: 't', part: { kind: 'markdown', id: 'p', content: 'a' } };
const delta = { type: 'chat/delta', turnId: 't', partId: 'p', content: 'b' };
const tool = [
  { type: 'chat/toolCallStart', turnId: 't', toolCallId: 'c', toolName: 'shell' },
  { type: 'chat/toolCallReady', turnId: 't', toolCallId: 'c', invocationMessage: { markdown: 'run' } },
];

test('a turn grows and ends', () => {
  const store = storeWith();
  const state = play(store, started, part, delta, delta);
  assert.equal(state.activeTurn.responseParts[0].content, 'abb');
  assert.equal(version(state.activeTurn.responseParts[0]), 2);
  store.apply({ channel: chat, action: { type: 'chat/turnComplete', turnId: 't', duration: 5 }, serverSeq: 20 });
  assert.equal(state.activeTurn, undefined);
  assert.equal(state.turns[0].state, 'complete');
});

test('what the snapshot holds is not applied again', () => {
  const state = storeWith({ activeTurn: { id: 't', responseParts: [{ kind: 'markdown', id: 'p', content: 'a' }] } });
  state.apply({ channel: chat, action: delta, serverSeq: 10 });
  state.apply({ channel: chat, action: delta, serverSeq: 11 });
  state.apply({ channel: chat, action: delta, serverSeq: 11 });
  assert.equal(state.get(chat).activeTurn.responseParts[0].content, 'ab');
});

test('a tool call waits, and the first answer counts', () => {
  const confirm = (approved) => ({ type: 'chat/toolCallConfirmed', turnId: 't', toolCallId: 'c', approved });
  const state = play(storeWith(), started, ...tool, confirm(true), confirm(false));
  const call = state.activeTurn.responseParts[0].toolCall;
  assert.equal(call.status, 'running');
  assert.equal(text(call.invocationMessage), 'run');
});

test('a turn that ends takes its tool calls along', () => {
  const end = { type: 'chat/turnCancelled', turnId: 't', duration: 1 };
  assert.equal(play(storeWith(), started, ...tool, end).turns[0].responseParts[0].toolCall.status, 'cancelled');
});

test('errors come in a field or in a part', () => {
  const error = { errorType: 'x', message: 'broken' };
  assert.equal(play(storeWith(), started, { type: 'chat/error', turnId: 't', error }).turns[0].error.message, 'broken');
  const inPart = { type: 'chat/error', turnId: 't', part: { kind: 'error', error } };
  assert.equal(play(storeWith(), started, inPart).turns[0].responseParts[0].error.message, 'broken');
});

test('earlier turns are put in front, once', () => {
  const store = storeWith({ turns: [{ id: '3' }], turnsNextCursor: 'x' });
  const state = play(store, { type: 'chat/turnsLoaded', turns: [{ id: '2' }, { id: '3' }] });
  assert.deepEqual(state.turns.map((t) => t.id), ['2', '3']);
  assert.equal(state.turnsNextCursor, undefined);
});

test('truncating keeps what came before', () => {
  const turns = [{ id: '1' }, { id: '2' }];
  const ids = (action) => play(storeWith({ turns: [...turns] }), { type: 'chat/truncated', ...action }).turns.map((t) => t.id);
  assert.deepEqual(ids({ turnId: '1' }), ['1']);
  assert.deepEqual(ids({ turnId: 'no such' }), ['1', '2']);
  assert.deepEqual(ids({}), []);
});

test('unknown actions are counted, and nothing breaks on strange ones', () => {
  const store = storeWith();
  const odd = ['chat/new', '__proto__', 'constructor', 7, undefined].map((type) => ({ type }));
  play(store, ...odd, started, { type: 'chat/responsePart', turnId: 't', part: null }, { ...delta, turnId: 5 });
  assert.equal(store.unknownCount, 5);
  store.apply(null);
  store.apply({ channel: chat, action: null, serverSeq: 99 });
  store.snapshot({ resource: 'x', state: null });
  store.notification('root/sessionAdded', {});
  store.notification('no/such', null);
});

test('a prompt is shown until the host has it', () => {
  const send = (store) => store.sent(chat, 1, { turnId: 't', startedAt: '', message: { text: 'hi' } });
  const origin = { clientId: 'me', clientSeq: 1 };
  let store = storeWith();
  send(store);
  store.apply({ channel: chat, action: started, serverSeq: 11, origin: { clientId: 'other', clientSeq: 1 } });
  assert.equal(store.pending.length, 1);
  store.apply({ channel: chat, action: started, serverSeq: 12, origin });
  assert.equal(store.pending.length, 0);

  store = storeWith();
  send(store);
  store.apply({ channel: chat, action: started, serverSeq: 11, origin, rejectionReason: 'no' });
  assert.match(store.pending[0].failed, /Refused: no/);
  assert.equal(store.get(chat).activeTurn, undefined);

  store = storeWith(); // the connection drops: replayed, it has arrived
  send(store);
  store.sync({ fresh: false, snapshots: [], actions: [{ channel: chat, action: started, serverSeq: 11, origin }], missing: [] });
  assert.equal(store.pending.length, 0);

  store = storeWith(); // or it has not
  send(store);
  store.sync({ fresh: false, snapshots: [], actions: [], missing: [] });
  assert.match(store.pending[0].failed, /lost/);
  store.snapshot({ resource: chat, state: { turns: [{ id: 't' }] }, fromSeq: 12 }); // or it has after all
  assert.equal(store.pending.length, 0);
});

test('what the user said to a tool is taken back when refused', () => {
  const store = storeWith();
  const { activeTurn } = play(store, started, ...tool);
  const [waiting] = activeTurn.responseParts;
  store.answered(activeTurn, waiting, 'allow');
  assert.equal(answerOf(waiting.toolCall), 'allow');
  // The relay refuses with a number that has been seen.
  const origin = { clientId: 'me', clientSeq: 7 };
  store.apply({ channel: chat, action: { type: 'x' }, serverSeq: 11, origin, rejectionReason: 'may only read' });
  assert.equal(answerOf(waiting.toolCall), undefined);
  assert.match(store.refusal, /may only read/);
});

test('what close codes ask for', () => {
  for (const [code, want] of [[1001, 'now'], [1006, 'later'], [1009, 'later'], [1012, 'now'], [1013, 'later'], [4100, 'later'],
    [4499, 'later'], [4500, 'stop'], [4501, 'token'], [4999, 'stop'], [5000, 'later']]) assert.equal(afterClose(code), want, code);
  assert.equal(backoff(0, () => 0), 250);
  assert.equal(backoff(50, () => 1), 15_000);
  assert.deepEqual(offersFor(['^0.7.0', '1.2.3']), ['0.7.0', '1.2.3']);
  assert.deepEqual(offersFor(undefined), []);
});

test('words', () => {
  assert.equal(statusWord(24 | 32), 'needs you');
  assert.equal(statusWord(8), 'working');
  assert.equal(statusWord('odd'), '');
  assert.equal(toolWord({ status: 'completed', success: false }), 'failed');
  const host = { state: 'offline', since: '2020-01-01T00:00:00Z' };
  const said = inWords({ name: 'greeting', resuming: true }, { away: true, host });
  assert.match(said.text, /^Host offline since .* waiting for the host$/);
});

// ---- the connection, on a socket that is none

class FakeSocket {
  readyState = 0;
  sent = [];
  open() {
    this.readyState = 1;
    this.onopen();
  }
  send(data) {
    this.sent.push(JSON.parse(data));
  }
  close() {
    this.readyState = 3;
  }
  lose(code, reason = '') {
    this.readyState = 3;
    this.onclose({ code, reason });
  }
  give(message) {
    this.onmessage({ data: JSON.stringify(message) });
  }
  /** Answers the latest request, whose method must be this. */
  async answer(method, answer) {
    const request = this.sent.at(-1);
    assert.equal(request.method, method);
    this.give({ jsonrpc: '2.0', id: request.id, ...answer });
    await new Promise((done) => { setImmediate(done); });
    return request.params;
  }
}

function connection() {
  const made = { sockets: [], syncs: [], get socket() { return this.sockets.at(-1); } };
  const conn = new Connection({
    clientId: 'me',
    open: () => made.sockets[made.sockets.push(new FakeSocket()) - 1],
    on: { state() {}, sync: (s) => made.syncs.push(s), action() {}, notification() {} },
  });
  made.conn = conn;
  return made;
}

async function live() {
  const c = connection();
  c.conn.start();
  c.socket.open();
  await c.socket.answer('initialize', { result: { protocolVersion: '0.9.0', serverSeq: 5, snapshots: [] } });
  assert.equal(c.conn.state.name, 'live');
  return c;
}

test('a host of another version is offered that', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  t.after(() => mock.timers.reset());
  const c = connection();
  c.conn.start();
  c.socket.open();
  const refusal = { error: { code: -32005, message: 'no', data: { supportedVersions: ['^0.7.0'] } } };
  assert.deepEqual((await c.socket.answer('initialize', refusal)).protocolVersions, ['0.9.0', '0.8.0']);
  assert.deepEqual((await c.socket.answer('initialize', refusal)).protocolVersions, ['0.7.0']);
  assert.equal(c.conn.state.name, 'ended');
});

test('after a drop, the host is asked for what was missed', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  t.after(() => mock.timers.reset());
  const c = await live();
  c.socket.give({ jsonrpc: '2.0', method: 'action', params: { channel: ROOT, serverSeq: 9 } });
  const call = c.conn.request('listSessions', {});
  c.socket.lose(1012, 'resync');
  await assert.rejects(call, /lost/);
  mock.timers.tick(500);
  c.socket.open();
  const replay = { type: 'replay', actions: [{ channel: ROOT, serverSeq: 10 }], missing: ['gone'] };
  const params = await c.socket.answer('reconnect', { result: replay });
  assert.deepEqual([params.clientId, params.lastSeenServerSeq, params.subscriptions], ['me', 9, [ROOT]]);
  assert.deepEqual(c.syncs.at(-1), { fresh: false, snapshots: [], actions: replay.actions, missing: ['gone'] });
  assert.equal(c.conn.lastSeen, 10);

  c.socket.lose(4100, 'host offline'); // the host is started anew, and knows nobody
  mock.timers.tick(15_000);
  c.socket.open();
  await c.socket.answer('reconnect', { error: { code: -32008, message: 'who?' } });
  await c.socket.answer('initialize', { result: { serverSeq: 1 } });
  assert.equal(c.syncs.at(-1).fresh, true);
  assert.equal(c.conn.lastSeen, 1);
  c.conn.stop();
});

test('codes from 4500 on end it', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  t.after(() => mock.timers.reset());
  const c = await live();
  c.socket.lose(4503, 'forbidden');
  mock.timers.tick(60_000);
  assert.equal(c.sockets.length, 1);
  assert.deepEqual([c.conn.state.name, c.conn.state.action], ['ended', 'stop']);
});

test('silence is answered by a ping, and then by leaving', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'Date'] });
  t.after(() => mock.timers.reset());
  const c = await live();
  mock.timers.tick(15_000);
  assert.equal(c.socket.sent.at(-1).method, 'ping');
  mock.timers.tick(30_000);
  assert.equal(c.conn.state.name, 'retrying');
  c.conn.stop();
});

test('requests of the host are refused with their own id', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  t.after(() => mock.timers.reset());
  const c = await live();
  for (const id of [1, 'one', null]) {
    c.socket.give({ jsonrpc: '2.0', id, method: 'resourceRead', params: { uri: 'file:///etc/passwd' } });
    assert.deepEqual([c.socket.sent.at(-1).id, c.socket.sent.at(-1).error.code], [id, -32601]);
  }
  c.socket.onmessage({ data: 'not JSON' });
  c.socket.onmessage({ data: '[]' });
  c.conn.stop();
});

test('how canvases are loaded is decided by their address', () => {
  const there = 'https://relay.example/#host=a';
  const here = 'http://127.0.0.1:8484/';
  for (const [url, page, name, why] of [
    ['ahp-canvas-content:/c%201/index.html?x#y', there, 'inband'],
    ['ahp-canvas-content:/c 1/', there, 'inband'],
    ['ahp-canvas-content:/c', there, 'none', 'another'],
    ['ahp-canvas-content:/c%25201/', there, 'none', 'another'],
    ['ahp-canvas-content:///c%201/', there, 'none', 'another'],
    ['ahp-canvas-content:/%zz/', there, 'none', 'another'],
    ['data:text/html,hello', there, 'inband'],
    ['https://example.com/app', there, 'direct'],
    ['HTTPS://EXAMPLE.com/app', here, 'direct'],
    ['https://relay.example/', there, 'none', 'relay itself'],
    ['https://relay.example:8443/', there, 'direct'],
    ['https://me@example.com/', there, 'none', 'user name'],
    ['http://127.0.0.1:8484/', here, 'none', 'relay itself'],
    ['http://127.0.0.1:3000/app', here, 'direct'],
    ['http://localhost:3000/app', here, 'direct'],
    ['http://127.0.0.1:3000/app', there, 'none', 'own machine'],
    ['http://localhost.example/', here, 'none', 'not safe'],
    ['http://127.0.0.1.example/', here, 'none', 'not safe'],
    ['http://127.1/', here, 'direct'], // which is 127.0.0.1
    ['http://10.0.0.1/', here, 'none', 'not safe'],
    ['javascript:alert(1)', here, 'none', 'javascript:'],
    ['java\nscript:alert(1)', here, 'none', 'javascript:'],
    [' file:///etc/passwd', here, 'none', 'file:'],
    ['about:blank', here, 'none', 'about:'],
    ['blob:http://127.0.0.1:8484/1', here, 'none', 'blob:'],
    ['/relative', here, 'none', 'cannot be read'],
    ['', here, 'none', 'no address'],
    [undefined, here, 'none', 'no address'],
  ]) {
    const way = wayTo(url, 'c 1', page);
    assert.equal(way.name, name, `${url} on ${page}: ${JSON.stringify(way)}`);
    if (why) assert.match(way.why, new RegExp(why));
  }
});

test('content comes as text or as bytes', () => {
  const content = (c) => contentOf({ contents: [c] });
  assert.deepEqual(content({ text: '' }), { data: '', type: 'text/plain' });
  assert.deepEqual(content({ text: 'a', mimeType: 'Text/HTML; charset=utf-8' }), { data: 'a', type: 'text/html' });
  assert.deepEqual(content({ blob: 'AAH/', mimeType: 'image/png' }), { data: new Uint8Array([0, 1, 255]), type: 'image/png' });
  assert.deepEqual(content({ blob: 'w6k=', mimeType: 'text/css' }), { data: 'é', type: 'text/css' });
  for (const bad of [undefined, {}, { contents: [] }, { contents: [{}] }, { contents: [{ blob: 1 }] }]) assert.throws(() => contentOf(bad));
});

test('a bucket allows bursts, and so much per second', () => {
  const bucket = new Bucket(10, 3, 0);
  assert.deepEqual([0, 0, 0, 0].map((t) => bucket.take(t)), [true, true, true, false]);
  assert.deepEqual([50, 100, 101, 10_000].map((t) => bucket.take(t)), [false, true, false, true]);
});

test('canvases are listed, updated, and spoken to', () => {
  const store = storeWith({});
  const session = 'ahp-session:/1';
  const canvas = 'ahp-canvas:/x';
  store.snapshot({ resource: session, state: { openCanvases: null }, fromSeq: 10 });
  assert.deepEqual(store.canvasesOf(session), []);
  store.apply({ channel: session, serverSeq: 11, action: { type: 'session/openCanvasesChanged', openCanvases: [{ channel: canvas }, null, {}] } });
  assert.deepEqual(store.canvasesOf(session), [{ channel: canvas }]);
  store.snapshot({ resource: canvas, state: { title: 'T', status: 'S', url: 'u', availability: 'ready' }, fromSeq: 11 });
  store.apply({ channel: canvas, serverSeq: 12, action: { type: 'canvas/updated', status: null, url: 'v', provider: 'other' } });
  assert.deepEqual(store.get(canvas), { title: 'T', url: 'v', availability: 'ready' });
  const said = (serverSeq, payload, more) => store.apply({ channel: canvas, serverSeq, action: { type: 'canvas/message', payload }, ...more });
  said(12, 'seen before');
  said(13, 'from a view', { origin: { clientId: 'me', clientSeq: 1 } });
  said(14, 'from the provider');
  store.apply({ channel: 'ahp-canvas:/other', serverSeq: 15, action: { type: 'canvas/message', payload: 'not subscribed' } });
  assert.deepEqual(store.takeMessages(), [{ channel: canvas, payload: 'from the provider' }]);
  assert.deepEqual(store.takeMessages(), []);
});
