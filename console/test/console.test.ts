// Tests the parts of the console that need no page. TestConsolesScriptsPass runs this file
// with `node --test`.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

import { afterClose, backoff, Connection, offersFor, ROOT } from '../src/rpc';
import { Conversation } from '../src/conversation';
import { Link } from '../src/link';
import { signInAtHost } from '../src/oauth';
import { forgetUnsent, keepUnsent } from '../src/unsent';
import { Sessions } from '../src/sessions';
import { Bucket, contentOf, elsewhere, isContentOf, wayTo } from '../src/canvas';
import { McpCalls } from '../src/mcp';
import { appOf, argumentsOf, Bridge, codeOf, htmlOf, resultOf, sandboxFor } from '../src/mcp-app';
import { Store, text } from '../src/store';
import { describe as inWords, statusWord, toolWord } from '../src/words';

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
  assert.equal(play(store, started, part, delta, delta).activeTurn.responseParts[0].content, 'abb');
  store.apply({ channel: chat, action: { type: 'chat/turnComplete', turnId: 't', duration: 5 }, serverSeq: 20 });
  const state = store.get(chat);
  assert.equal(state.activeTurn, undefined);
  assert.equal(state.turns[0].state, 'complete');
});

test('actions in the snapshot are not applied again', () => {
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

test('the end of a turn ends its tool calls', () => {
  const end = { type: 'chat/turnCancelled', turnId: 't', duration: 1 };
  assert.equal(play(storeWith(), started, ...tool, end).turns[0].responseParts[0].toolCall.status, 'cancelled');
});

test('errors come in a field or in a part', () => {
  const error = { errorType: 'x', message: 'broken' };
  assert.equal(play(storeWith(), started, { type: 'chat/error', turnId: 't', error }).turns[0].error.message, 'broken');
  const inPart = { type: 'chat/error', turnId: 't', part: { kind: 'error', error } };
  assert.equal(play(storeWith(), started, inPart).turns[0].responseParts[0].error.message, 'broken');
});

test('earlier turns are prepended once', () => {
  const store = storeWith({ turns: [{ id: '3' }], turnsNextCursor: 'x' });
  store.loading = chat;
  const state = play(store, { type: 'chat/turnsLoaded', turns: [{ id: '2' }, { id: '3' }] });
  assert.deepEqual(state.turns.map((t) => t.id), ['2', '3']);
  assert.equal(state.turnsNextCursor, undefined);
});

// The host gives the turns that one client requests to all of them. Two pages of a person have different turns.
test('earlier turns that a different page has requested leave no gap', async () => {
  const store = storeWith({ turns: [{ id: '50' }], turnsNextCursor: 'before 50' });
  const other = { type: 'chat/turnsLoaded', turns: [{ id: '20' }], turnsNextCursor: 'before 20' };
  const own = { type: 'chat/turnsLoaded', turns: [{ id: '40' }], turnsNextCursor: 'before 40' };
  const others = (serverSeq: number) => store.apply({ channel: chat, action: other, serverSeq });
  others(11);
  const state = store.get(chat);
  assert.deepEqual([state.turns.map((t) => t.id), state.turnsNextCursor], [['50'], 'before 50']);
  const page: any = { link: { store, conn: {} }, chatUri: chat, draw() {} };
  const conversation = new Conversation(page);
  page.link.conn.request = async () => { throw new Error('connection closed'); };
  await conversation.earlier();
  others(12);
  assert.equal(store.get(chat).turnsNextCursor, 'before 50');
  page.link.conn.request = async () => store.apply({ channel: chat, action: own, serverSeq: 20 });
  await conversation.earlier();
  assert.deepEqual(store.get(chat).turns.map((t) => t.id), ['40', '50']);
  others(21);
  assert.equal(store.get(chat).turnsNextCursor, 'before 40');
});

// Two pages request their own earlier turns at the same time. Each gets the turns of both, its own with the answer to its request.
test('two pages that request earlier turns at once have no gap', async () => {
  const store = storeWith({ turns: [{ id: '50' }], turnsNextCursor: 'before 50' });
  const loaded = (id: number, serverSeq: number) => store.apply({ channel: chat, serverSeq, action: { type: 'chat/turnsLoaded', turns: [{ id: `${id}` }], turnsNextCursor: `before ${id}` } });
  const request = async () => { loaded(20, 11); loaded(40, 12); };
  const conversation = new Conversation({ link: { store, conn: { request } }, chatUri: chat, draw() {} } as any);
  await conversation.earlier();
  loaded(10, 13);
  const { turns, turnsNextCursor } = store.get(chat);
  assert.deepEqual([turns.map((t) => t.id), turnsNextCursor], [['40', '50'], 'before 40']);
});

// A host may answer before it gives the turns.
test('earlier turns may follow the answer to their request', async () => {
  const store = storeWith({ turns: [{ id: '50' }], turnsNextCursor: 'before 50' });
  const conversation = new Conversation({ link: { store, conn: { request: async () => {} } }, chatUri: chat, draw() {} } as any);
  await conversation.earlier();
  store.apply({ channel: chat, serverSeq: 11, action: { type: 'chat/turnsLoaded', turns: [{ id: '40' }], turnsNextCursor: 'before 40' } });
  assert.deepEqual(store.get(chat).turns.map((t) => t.id), ['40', '50']);
});

test('truncating keeps the earlier turns', () => {
  const turns = [{ id: '1' }, { id: '2' }];
  const ids = (action) => play(storeWith({ turns: [...turns] }), { type: 'chat/truncated', ...action }).turns.map((t) => t.id);
  assert.deepEqual(ids({ turnId: '1' }), ['1']);
  assert.deepEqual(ids({ turnId: 'no such' }), ['1', '2']);
  assert.deepEqual(ids({}), []);
});

test('unknown actions are counted, and malformed actions are harmless', () => {
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

test('a prompt is shown until the host confirms it', () => {
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

test('a refused answer to a tool call is undone', () => {
  const store = storeWith();
  const { activeTurn } = play(store, started, ...tool);
  const [waiting] = activeTurn.responseParts;
  const { toolCallId } = waiting.toolCall;
  store.answered(chat, toolCallId, 'allow');
  assert.equal(store.answerOf(chat, toolCallId), 'allow');
  // The relay rejects with a number that was seen before.
  const origin = { clientId: 'me', clientSeq: 7 };
  store.apply({ channel: chat, action: { type: 'x' }, serverSeq: 11, origin, rejectionReason: 'may only read' });
  assert.equal(store.answerOf(chat, toolCallId), undefined);
  assert.match(store.refusal, /may only read/);
});

test('close codes map to reactions', () => {
  for (const [code, want] of [[1001, 'now'], [1006, 'later'], [1009, 'later'], [1012, 'now'], [1013, 'later'], [4100, 'later'],
    [4499, 'later'], [4500, 'stop'], [4501, 'token'], [4999, 'stop'], [5000, 'later']]) assert.equal(afterClose(code), want, code);
  assert.equal(backoff(0, () => 0), 250);
  assert.equal(backoff(50, () => 1), 15_000);
  assert.deepEqual(offersFor(['^0.7.0', '1.2.3']), ['0.7.0', '1.2.3']);
  assert.deepEqual(offersFor(undefined), []);
});

test('states are described in words', () => {
  assert.equal(statusWord(24 | 32), 'needs you');
  assert.equal(statusWord(8), 'working');
  assert.equal(statusWord('odd'), '');
  assert.equal(toolWord({ status: 'completed', success: false }), 'failed');
  const host = { state: 'offline', since: '2020-01-01T00:00:00Z' };
  const said = inWords({ name: 'greeting', resuming: true }, { away: true, host });
  assert.match(said.text, /^Host offline since .* waiting for the host$/);
});

// ---- the connection, on a fake socket

class FakeSocket {
  readyState = 0;
  bufferedAmount = 0;
  sent = [];
  open() {
    this.readyState = 1;
    this.onopen();
  }
  send(data) {
    this.sent.push(JSON.parse(data));
    this.bufferedAmount += data.length; // a browser counts a message until a later task, also on a dead connection
    queueMicrotask(() => { this.bufferedAmount -= data.length; });
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

function connection(renews) {
  const made = { sockets: [], syncs: [], get socket() { return this.sockets.at(-1); } };
  const conn = new Connection({
    clientId: 'me', renews,
    open: () => made.sockets[made.sockets.push(new FakeSocket()) - 1],
    on: { state() {}, sync: (s) => made.syncs.push(s), action() {}, notification() {} },
  });
  made.conn = conn;
  return made;
}

async function live(renews) {
  const c = connection(renews);
  c.conn.start();
  c.socket.open();
  await c.socket.answer('initialize', { result: { protocolVersion: '0.9.0', serverSeq: 5, snapshots: [] } });
  assert.equal(c.conn.state.name, 'live');
  return c;
}

test('a host\'s own version is offered after a refusal', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  t.after(() => mock.timers.reset());
  const c = connection();
  c.conn.start();
  c.socket.open();
  const refusal = { error: { code: -32005, message: 'no', data: { supportedVersions: ['^0.7.0'] } } };
  assert.deepEqual((await c.socket.answer('initialize', refusal)).protocolVersions, ['1.1.0', '1.0.0', '0.10.0', '0.9.0', '0.8.0']);
  assert.deepEqual((await c.socket.answer('initialize', refusal)).protocolVersions, ['0.7.0']);
  assert.equal(c.conn.state.name, 'ended');
});

// Sends requests while the connection is lost, and while its next socket opens. They must fail at once: nobody would
// send them later, and a dialog would wait for ever.
test('a request without a connection fails', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  t.after(() => mock.timers.reset());
  const c = await live();
  const fails = async () => {
    for (const call of [c.conn.request('createSession', {}), c.conn.mcp('mcp://h/1', 'tools/list', {}).result]) {
      const said = await Promise.race([call.then(() => 'answered', (err) => err.message), new Promise((resolve) => { setImmediate(resolve, 'waits'); })]);
      assert.equal(said, 'not connected');
    }
  };
  c.socket.lose(1012, 'resync');
  await fails();
  mock.timers.tick(500);
  assert.equal(c.conn.state.name, 'connecting');
  await fails();
  c.conn.stop();
});

test('after a drop, missed actions are requested', async (t) => {
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

// Has a relay refuse the answer to reconnect, because it is too long, and the host refuse initialize on the same connection,
// which it has resumed: it also sends an action there. The next connection must begin anew. If it resumed after that action, the
// actions before it would be missing for good.
test('a client that cannot resume begins anew', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  t.after(() => mock.timers.reset());
  const c = await live();
  c.socket.lose(1012, 'resync');
  mock.timers.tick(500);
  c.socket.open();
  await c.socket.answer('reconnect', { error: { code: -32603, message: 'too long' } });
  c.socket.give({ jsonrpc: '2.0', method: 'action', params: { channel: 'c:/1', serverSeq: 90, action: { type: 'chat/delta' } } });
  await c.socket.answer('initialize', { error: { code: -32601, message: 'Method not found: initialize' } });
  mock.timers.tick(15_000);
  c.socket.open();
  await c.socket.answer('initialize', { result: { serverSeq: 1 } });
  assert.equal(c.syncs.at(-1).fresh, true);
  c.socket.lose(1012, 'resync');
  mock.timers.tick(15_000);
  c.socket.open();
  await c.socket.answer('reconnect', { error: { code: -32603, message: 'not now' } });
  c.socket.lose(1012, 'resync'); // before the answer to initialize
  mock.timers.tick(15_000);
  c.socket.open();
  await c.socket.answer('reconnect', { result: { type: 'replay', actions: [] } });
  c.conn.stop();
});

test('close codes from 4500 on end the connection', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  t.after(() => mock.timers.reset());
  const c = await live();
  c.socket.lose(4503, 'forbidden');
  mock.timers.tick(60_000);
  assert.equal(c.sockets.length, 1);
  assert.deepEqual([c.conn.state.name, c.conn.state.action], ['ended', 'stop']);
});

// Ends the token of a connection whose next socket has a newer token, as after a phone's sleep. The connection must resume at
// once, so that the page reports no loss, and wait between the attempts of a relay that ends each token at once.
test('a connection with a key outlives its token', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  t.after(() => mock.timers.reset());
  const c = await live(() => true);
  let waits = 0;
  for (let n = 0; n < 6; n++) {
    c.socket.lose(4501, 'token expired');
    assert.deepEqual([c.conn.state.name, c.conn.state.code], ['retrying', 4501]);
    waits = c.conn.state.at - Date.now();
    if (n === 0) assert.ok(waits <= 0, `${waits} ms before the first attempt`);
    mock.timers.tick(15_000);
    assert.equal(c.sockets.length, n + 2);
    c.socket.open();
    await c.socket.answer('reconnect', { result: { type: 'replay', actions: [] } });
  }
  assert.ok(waits > 4000, `${waits} ms before the sixth attempt`);
  c.conn.stop();
});

test('silence causes a ping, then a new connection', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'Date'] });
  t.after(() => mock.timers.reset());
  const c = await live();
  mock.timers.tick(15_000);
  assert.equal(c.socket.sent.at(-1).method, 'ping');
  mock.timers.tick(30_000);
  assert.equal(c.conn.state.name, 'retrying');
  c.conn.stop();
});

// Sends a photo over a phone's slow line, which takes two minutes, and has the network fail at the next one. The connection
// must stay while bytes leave, although the ping waits behind them, and be given up when none leave any more.
test('a long message does not end its connection', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'Date'] });
  t.after(() => mock.timers.reset());
  const c = await live();
  for (c.socket.bufferedAmount = 5_000_000; c.socket.bufferedAmount > 0; c.socket.bufferedAmount -= 200_000) {
    assert.equal(c.conn.state.name, 'live', `with ${c.socket.bufferedAmount} bytes to send`);
    mock.timers.tick(5000);
  }
  c.socket.give({ jsonrpc: '2.0', method: 'x/y' });
  c.socket.bufferedAmount = 5_000_000;
  mock.timers.tick(100);
  c.conn.wake(true); // the user has looked at a different page
  c.socket.bufferedAmount -= 20_000;
  mock.timers.tick(2000);
  assert.deepEqual([c.sockets.length, c.conn.state.name], [1, 'live']);
  for (let n = 0; n < 9; n++) mock.timers.tick(5000);
  assert.equal(c.sockets.length, 2);
  c.conn.stop();
});

// Has what a connection needs before its socket, such as a token, never come. The page must say so and try again. A socket
// that comes after all is closed.
test('a socket that does not come is given up', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'Date'], now: 1_800_000_000_000 });
  t.after(() => mock.timers.reset());
  const asked = [];
  const conn = new Connection({ clientId: 'me', open: () => new Promise((resolve) => { asked.push(resolve); }), on: { state() {}, sync() {}, action() {}, notification() {}, mcp() {} } });
  conn.start();
  mock.timers.tick(30_000);
  assert.deepEqual([conn.state.name, conn.state.reason], ['retrying', 'no answer for 25 s']);
  mock.timers.tick(1000);
  assert.deepEqual([conn.state.name, asked.length], ['connecting', 2]);
  const late = new FakeSocket();
  asked[0](late);
  await new Promise((done) => { setImmediate(done); });
  assert.deepEqual([late.readyState, conn.socket], [3, null]);
  conn.stop();
});

test('a wake replaces a dead connection and keeps a slow connection', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'Date'] });
  t.after(() => mock.timers.reset());
  const settle = () => new Promise((done) => { setImmediate(done); });
  const wake = async (c) => {
    mock.timers.tick(100);
    c.conn.wake(true);
    await settle();
    mock.timers.tick(300);
    await settle();
  };
  const dead = await live();
  await wake(dead);
  assert.deepEqual([dead.sockets.length, dead.conn.state.name], [2, 'live']);
  const lost = dead.conn.request('listSessions', {});
  dead.sockets[1].open();
  await assert.rejects(lost, /lost/);
  assert.deepEqual([dead.sockets[0].readyState, dead.sockets[1].sent.at(-1).method], [3, 'reconnect']);
  await dead.sockets[1].answer('reconnect', { result: { type: 'replay', actions: [] } });
  assert.equal(dead.conn.state.name, 'live');
  await wake(dead);
  mock.timers.tick(1200); // no word on either: it is said that there is no connection
  assert.deepEqual([dead.sockets.length, dead.conn.state.name], [3, 'connecting']);
  mock.timers.tick(400);
  await wake(dead); // another network
  assert.deepEqual([dead.sockets.length, dead.sockets[2].readyState], [4, 3]);
  dead.conn.stop();

  const slept = await live(); // the browser says only now that it has gone
  slept.conn.wake(true);
  slept.socket.lose(1006);
  mock.timers.tick(1);
  assert.equal(slept.sockets.length, 2);
  slept.socket.lose(1006); // and again: no sooner than else
  mock.timers.tick(100);
  assert.equal(slept.sockets.length, 2);
  slept.conn.stop();

  const slow = await live();
  await wake(slow);
  slow.sockets[0].give({ jsonrpc: '2.0', id: slow.sockets[0].sent.at(-1).id, result: {} });
  slow.sockets[1].open();
  assert.deepEqual([slow.sockets.map((s) => s.readyState), slow.conn.state.name, slow.sockets[1].sent], [[1, 3], 'live', []]);
  await wake(slow);
  slow.sockets[0].give({ jsonrpc: '2.0', method: 'x/y' });
  mock.timers.tick(5000);
  assert.deepEqual([slow.sockets.map((s) => s.readyState), slow.conn.state.name], [[1, 3, 3], 'live']);
  slow.conn.stop();
});

test('host requests are refused with their own id', async (t) => {
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

test('a canvas\'s address decides how it is loaded', () => {
  const there = 'https://relay.example/#host=a';
  const here = 'http://127.0.0.1:8484/';
  for (const [url, page, name, why] of [
    ['ahp-canvas-content:/c%201/index.html?x#y', there, 'inband'],
    ['ahp-canvas-content:/c 1/', there, 'inband'],
    ['ahp-canvas-content:/c', there, 'none', 'different canvas'],
    ['ahp-canvas-content:/c%25201/', there, 'none', 'different canvas'],
    ['ahp-canvas-content:///c%201/', there, 'none', 'different canvas'],
    ['ahp-canvas-content:/%zz/', there, 'none', 'different canvas'],
    ['data:text/html,hello', there, 'inband'],
    ['https://example.com/app', there, 'direct'],
    ['HTTPS://EXAMPLE.com/app', here, 'direct'],
    ['https://relay.example/', there, 'none', 'on this relay'],
    ['https://relay.example:8443/', there, 'direct'],
    ['https://me@example.com/', there, 'none', 'user name'],
    ['http://127.0.0.1:8484/', here, 'none', 'on this relay'],
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
    ['/relative', here, 'none', 'malformed'],
    ['', here, 'none', 'no address'],
    [undefined, here, 'none', 'no address'],
  ]) {
    const way = wayTo(url, 'c 1', page);
    assert.equal(way.name, name, `${url} on ${page}: ${JSON.stringify(way)}`);
    if (why) assert.match(way.why, new RegExp(why));
  }
});

test('a canvas ticket\'s address is at a different origin', () => {
  const page = 'https://relay.example.com';
  for (const address of ['https://c1.canvas.example.com/.ahp-canvas/t/', 'http://c1.localhost:8484/', 'https://relay.example.com:8443/']) assert.equal(elsewhere(address, page), address);
  for (const address of [undefined, 1, '', '/x', 'javascript:alert(1)', ' JAVASCRIPT:alert(1)', 'data:text/html,x', 'blob:https://relay.example.com/1', 'about:blank', 'file:///etc/passwd', 'https://relay.example.com/x']) {
    assert.equal(elsewhere(address, page), '', String(address));
  }
});

test('a canvas reads only its own content', () => {
  for (const [uri, is] of [
    ['ahp-canvas-content:/c%201/', true],
    ['ahp-canvas-content:/c 1/a/b.js?x=..#/../', true],
    ['ahp-canvas-content:/c%201/a..b/...', true],
    ['ahp-canvas-content:/c%201', true],
    ['ahp-canvas-content:/c%201/../d/', false],
    ['ahp-canvas-content:/c%201/%2e%2E/d/', false],
    ['ahp-canvas-content:/c%201/..%2fd/', false],
    ['ahp-canvas-content:/c%201/..%5cd/', false],
    ['ahp-canvas-content:/c%201/a\u0000', false],
    ['ahp-canvas-content:/c%201/%0a', false],
    ['ahp-canvas-content:/c%201/%zz', false],
    ['ahp-canvas-content:/c%201%2f../', false],
    ['ahp-canvas-content:/d/', false],
    [' ahp-canvas-content:/c%201/', false],
    ['AHP-CANVAS-CONTENT:/c%201/', false],
    ['https://example.com/ahp-canvas-content:/c%201/', false],
    [`ahp-canvas-content:/c%201/${'x'.repeat(9000)}`, false],
    [{ toString: () => 'ahp-canvas-content:/c%201/' }, false],
    [undefined, false],
    [null, false],
  ]) assert.equal(isContentOf(uri, 'c 1'), is, String(uri));
  assert.equal(isContentOf('ahp-canvas-content:///', ''), false);
});

test('content is text or bytes', () => {
  const content = (c) => contentOf({ contents: [c] });
  assert.deepEqual(content({ text: '' }), { data: '', type: 'text/plain' });
  assert.deepEqual(content({ text: 'a', mimeType: 'Text/HTML; charset=utf-8' }), { data: 'a', type: 'text/html' });
  assert.deepEqual(content({ blob: 'AAH/', mimeType: 'image/png' }), { data: new Uint8Array([0, 1, 255]), type: 'image/png' });
  assert.deepEqual(content({ blob: 'w6k=', mimeType: 'text/css' }), { data: 'é', type: 'text/css' });
  for (const bad of [undefined, {}, { contents: [] }, { contents: [{}] }, { contents: [{ blob: 1 }] }]) assert.throws(() => contentOf(bad));
});

test('a bucket allows bursts and a rate', () => {
  const bucket = new Bucket(10, 3, 0);
  assert.deepEqual([0, 0, 0, 0].map((t) => bucket.take(t)), [true, true, true, false]);
  assert.deepEqual([50, 100, 101, 10_000].map((t) => bucket.take(t)), [false, true, false, true]);
});

test('canvases since 0.10 are listed in the chat and replaced whole', () => {
  const store = new Store('me');
  const [session, chat, canvas] = ['mock:/1', 'ahp-chat:/1', 'ahp-canvas:/x'];
  store.snapshot({ resource: session, state: { chats: [{ resource: chat }] }, fromSeq: 1 });
  store.snapshot({ resource: chat, state: { turns: [], canvases: [{ resource: canvas }, null] }, fromSeq: 1 });
  assert.deepEqual(store.canvasesOf(session), [{ title: 'Canvas', channel: canvas, registered: true }]);
  store.snapshot({ resource: canvas, state: { instanceId: 'i', title: 'T', url: 'u' }, fromSeq: 1 });
  assert.equal(store.canvasesOf(session)[0].title, 'T');
  store.apply({ channel: canvas, serverSeq: 2, action: { type: 'canvas/stateChanged', canvas: { instanceId: 'i', url: 'v' } } });
  assert.deepEqual(store.get(canvas), { instanceId: 'i', url: 'v' });
  store.apply({ channel: chat, serverSeq: 3, action: { type: 'chat/canvasesChanged' } });
  assert.deepEqual(store.canvasesOf(session), []);
});

test('canvases are listed, updated and messaged', () => {
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

// ---- MCP servers

const session = 'demo:/1';
const ready = { type: 'mcpServer', id: 'm', name: 'tasks', enabled: true, state: { kind: 'ready' }, channel: 'mcp://h/1', mcpApp: { capabilities: {} } };

function sessionWith(customizations) {
  const store = new Store('me');
  store.snapshot({ resource: session, state: { customizations }, fromSeq: 1 });
  let seq = 1;
  const act = (action) => store.apply({ channel: session, action, serverSeq: ++seq });
  return { store, act, server: (id = 'm') => store.mcpServer(session, id) };
}

test('MCP servers are found, alone or in a container, and follow actions', () => {
  for (const nested of [false, true]) {
    const { act, server } = sessionWith(nested ? [null, { type: 'plugin', id: 'p', children: [null, { ...ready }] }] : [{ ...ready }]);
    assert.equal(server().channel, 'mcp://h/1');
    act({ type: 'session/mcpServerStateChanged', id: 'm', state: { kind: 'authRequired', reason: 'expired' } });
    assert.deepEqual([server().state.kind, server().channel], ['authRequired', undefined]);
    act({ type: 'session/mcpServerStateChanged', id: 'm', state: { kind: 'ready' }, channel: 'mcp://h/2' });
    assert.equal(server().channel, 'mcp://h/2');
    act({ type: 'session/mcpServerStateChanged', id: 'other', state: { kind: 'ready' }, channel: 'mcp://h/3' });
    act({ type: 'session/customizationToggled', id: 'm', enabled: false });
    assert.deepEqual([server().channel, server().enabled], ['mcp://h/2', false]);
    act({ type: 'session/customizationRemoved', id: 'm' });
    assert.equal(server(), undefined);
    act({ type: 'session/customizationUpdated', customization: { ...ready, name: 'again' } });
    assert.equal(server().name, 'again');
    act({ type: 'session/customizationUpdated', customization: { ...ready, name: 'and again' } });
    assert.equal(server().name, 'and again');
    act({ type: 'session/customizationsChanged', customizations: [] });
    assert.equal(server(), undefined);
  }
});

test('an MCP tool call waits for a token in newer versions\' form', () => {
  const contributor = { kind: 'mcp', customizationId: 'm' };
  const begin = [{ ...tool[0], contributor, _meta: { ui: { resourceUri: 'ui://a/b' } } }, { ...tool[1], confirmed: 'not-needed' }];
  const about = { turnId: 't', toolCallId: 'c' };
  const store = storeWith();
  const now = () => store.get(chat).activeTurn.responseParts[0].toolCall;
  play(store, started, ...begin, { type: 'chat/toolCallAuthRequired', ...about, auth: { reason: 'expired' } });
  let call = now();
  assert.deepEqual([call.status, call.auth.reason, toolWord(call), appOf(call)], ['auth-required', 'expired', 'waits for you', 'ui://a/b']);
  store.apply({ channel: chat, action: { type: 'chat/toolCallAuthResolved', ...about }, serverSeq: 20 });
  call = now();
  assert.deepEqual([call.status, call.auth], ['running', undefined]);
  store.apply({ channel: chat, action: { type: 'chat/toolCallComplete', ...about, result: { success: false, content: [{ type: 'terminal' }], structuredContent: { a: 1 }, error: { message: 'no' } } }, serverSeq: 21 });
  call = now();
  assert.deepEqual(resultOf(call), { content: [{ type: 'text', text: 'no' }], structuredContent: { a: 1 }, isError: true });
});

test('apps are found with their arguments and results', () => {
  const mcp = { contributor: { kind: 'mcp', customizationId: 'm' } };
  assert.equal(appOf({ ...mcp, _meta: { 'ui/resourceUri': 'ui://a/b' } }), 'ui://a/b');
  for (const call of [undefined, {}, mcp, { _meta: { ui: { resourceUri: 'ui://a/b' } } }, { ...mcp, _meta: { ui: { resourceUri: 'https://a/b' } } },
    { ...mcp, _meta: { ui: { resourceUri: 1 } } }, { contributor: { kind: 'client' }, _meta: { ui: { resourceUri: 'ui://a/b' } } }]) {
    assert.equal(appOf(call), '');
  }
  assert.deepEqual(argumentsOf({ toolInput: '{"a":1}' }), { a: 1 });
  for (const toolInput of [undefined, '', 'x', '[1]', 'null', '1', { uri: 'x' }]) assert.deepEqual(argumentsOf({ toolInput }), {});
  const type = 'text/html;profile=mcp-app';
  assert.deepEqual(htmlOf({ contents: [{ uri: 'ui://x', mimeType: type, text: 'no' }, { uri: 'ui://a', mimeType: type, text: '<p>', _meta: { ui: { prefersBorder: false } } }] }, 'ui://a'),
    { html: '<p>', meta: { prefersBorder: false } });
  assert.equal(htmlOf({ contents: [{ uri: 'ui://a', mimeType: 'text/html; profile=mcp-app', blob: btoa('<p>') }] }, 'ui://a').html, '<p>');
  for (const contents of [undefined, [], [{ uri: 'ui://a', mimeType: 'text/html', text: '<p>' }], [{ uri: 'ui://a', mimeType: type }], [null]]) {
    assert.throws(() => htmlOf({ contents }, 'ui://a'));
  }
  assert.deepEqual(codeOf({ csp: { resourceDomains: ['blob:', "'unsafe-eval'", 'x', "'unsafe-hashes'"] } }), ['eval', 'worker']);
  assert.deepEqual([codeOf({}), codeOf({ csp: { resourceDomains: "'unsafe-eval'", connectDomains: ['blob:'] } })], [[], []]);
  assert.equal(sandboxFor({}, ['wasm', 'worker']), 'mcp-app.html?allow=wasm&allow=worker');
  assert.equal(sandboxFor({}), 'mcp-app.html');
  assert.equal(sandboxFor({ csp: { connectDomains: ['https://a.b', 7], resourceDomains: ['x&y=z'] } }), 'mcp-app.html?connect=https%3A%2F%2Fa.b&resource=x%26y%3Dz');
});

const everything = { serverTools: { listChanged: true }, serverResources: {}, logging: {}, sampling: { tools: {} } };

/** A bridge, with what it has sent to the app and asked of the server. */
function bridgeTo(capabilities = everything, more = {}) {
  const sent = [];
  const calls = [];
  const knows = [];
  const kept = [];
  const opened = [];
  const bridge = new Bridge({
    send: (m) => sent.push(m),
    capabilities: () => capabilities,
    surroundings: () => ({ theme: 'dark' }),
    context: (text) => { knows.push(text); return !text.startsWith('not now'); },
    download: async (files) => { kept.push(...files.map(({ name, data }) => [name, new TextDecoder().decode(data)])); return files[0].name !== 'no'; },
    display: (mode) => mode,
    call: (method, params) => {
      const call = { method, params, cancelled: undefined };
      call.result = new Promise((resolve, reject) => Object.assign(call, { resolve, reject }));
      calls.push(call);
      return { result: call.result, cancel: (reason) => { call.cancelled = reason; } };
    },
    notify: (method, params) => calls.push({ method, params }),
    tools: async () => [{ name: 'both' }, { name: 'model', _meta: { ui: { visibility: ['model'] } } }],
    say: async (text) => text !== 'no',
    open: async (url) => Boolean(opened.push(url)),
    resize: (height) => calls.push({ height }),
    called: () => {},
    ended: () => calls.push({ ended: true }),
    ...more,
  }, 'app', 0);
  let now = 0;
  const ask = (id, method, params) => bridge.heard({ jsonrpc: '2.0', id, method, params }, (now += 100));
  const tell = (method, params) => bridge.heard({ jsonrpc: '2.0', method, params }, (now += 100));
  return { bridge, sent, calls, knows, kept, opened, ask, tell, last: () => sent.at(-1) };
}

test('an app learns the host\'s capabilities, then its input and result', async () => {
  const { bridge, sent, ask, tell, last } = bridgeTo();
  bridge.tell('ui/notifications/tool-input', { arguments: {} });
  await ask(1, 'ui/initialize', { protocolVersion: '2025-11-21' });
  assert.equal(last().result.protocolVersion, '2025-11-21');
  assert.deepEqual(last().result.hostCapabilities, { openLinks: {}, downloadFile: {}, message: { text: {} }, updateModelContext: { text: {}, structuredContent: {} }, sandbox: {}, serverTools: { listChanged: true }, serverResources: {}, logging: {}, sampling: { tools: {} } });
  assert.deepEqual(last().result.hostContext, { theme: 'dark' });
  assert.equal(sent.length, 1);
  await tell('ui/notifications/initialized');
  assert.deepEqual(last(), { jsonrpc: '2.0', method: 'ui/notifications/tool-input', params: { arguments: {} } });
  await ask('x', 'ui/initialize', { protocolVersion: '1999-01-01' });
  assert.equal(last().result.protocolVersion, '2026-01-26');
});

test('an app\'s context replaces its previous context', async () => {
  const { knows, ask, last } = bridgeTo();
  const know = async (params) => { await ask(1, 'ui/update-model-context', params); return last().error?.code ?? last().result; };
  assert.deepEqual(await know({ content: [{ type: 'text', text: 'a' }, { type: 'text', text: 'b' }], structuredContent: { n: 1 } }), {});
  assert.deepEqual(await know({}), {});
  assert.deepEqual(await know({ structuredContent: {} }), {});
  assert.deepEqual(knows, ['a\nb\n{\n  "n": 1\n}', '', '']);
  assert.equal(await know({ content: [{ type: 'image', data: '' }] }), -32602);
  assert.equal(await know({ content: 'a' }), -32602);
  assert.equal(await know({ content: [{ type: 'text', text: 'x'.repeat(70000) }] }), -32602);
  assert.equal(await know({ content: [{ type: 'text', text: 'not now' }] }), -32000);
});

test('an app\'s files are saved under safe names', async () => {
  const { kept, opened, calls, ask, last } = bridgeTo();
  const keep = async (...contents) => { await ask(1, 'ui/download-file', { contents }); return last().error?.code ?? last().result; };
  const file = (uri, text = 'x') => ({ type: 'resource', resource: { uri, text } });
  assert.deepEqual(await keep(file('file:///a/b.txt'), { type: 'resource', resource: { uri: 'ui://x/c%2Fd.bin?e', blob: btoa('bin') } }), {});
  assert.deepEqual(kept.splice(0), [['b.txt', 'x'], ['c_d.bin', 'bin']]);
  for (const [uri, name] of [['file:///..', 'download'], ['a/..\\..\\x:y', 'x_y'], ['.bashrc', 'bashrc'], ['%00\u202e', '__'], ['', 'download'], ['%zz', '%zz']]) {
    await keep(file(uri));
    assert.equal(kept.splice(0)[0][0], name, uri);
  }
  assert.deepEqual(await keep(file('no')), { isError: true });
  assert.deepEqual(await keep({ type: 'resource_link', uri: 'https://example.com/file' }), {});
  assert.deepEqual(opened, ['https://example.com/file']);
  for (const bad of [[], [{ type: 'text', text: 'a' }], [file('a', 1)], [{ type: 'resource', resource: { uri: 'a', blob: '*' } }]]) assert.equal(await keep(...bad), -32602);
  kept.length = calls.length = 0;
  const linked = ask(2, 'ui/download-file', { contents: [{ type: 'resource_link', uri: 'tasks://all', name: 'all.txt' }] });
  await new Promise(setImmediate);
  assert.deepEqual([calls[0].method, calls[0].params], ['resources/read', { uri: 'tasks://all' }]);
  calls[0].resolve({ contents: [{ uri: 'tasks://all', text: 'all' }] });
  await linked;
  assert.deepEqual(kept, [['all.txt', 'all']]);
});

test('an app gets a display mode that it supports', async () => {
  const { ask, last } = bridgeTo();
  const mode = async (mode) => { await ask(1, 'ui/request-display-mode', { mode }); return last().result.mode; };
  assert.equal(await mode('fullscreen'), 'inline'); // it has not said that it can
  await ask(2, 'ui/initialize', { protocolVersion: '2026-01-26', appCapabilities: { availableDisplayModes: ['inline', 'fullscreen'] } });
  assert.deepEqual([await mode('fullscreen'), await mode('pip'), await mode(undefined)], ['fullscreen', 'inline', 'inline']);
});

test('an app can call only promised methods', async () => {
  const methods = { 'tools/list': 'serverTools', 'tools/call': 'serverTools', 'resources/list': 'serverResources', 'resources/templates/list': 'serverResources',
    'resources/read': 'serverResources', 'logging/setLevel': 'logging', 'sampling/createMessage': 'sampling',
    'initialize': 0, 'prompts/list': 0, 'resources/subscribe': 0, 'listSessions': 0, 'dispatchAction': 0, 'authenticate': 0, 'constructor': 0, '__proto__': 0, 'ui/unknown': 0 };
  for (const [method, need] of Object.entries(methods)) {
    for (const has of [true, false]) {
      const { calls, ask, last } = bridgeTo(has ? everything : { ...everything, [need]: undefined });
      const done = ask(1, method, { name: 'both', channel: 'mcp://other', a: 1 });
      await new Promise(setImmediate);
      if (!has || !need) {
        await done;
        assert.equal(last().error.code, -32601, method);
        assert.equal(calls.length, 0, method);
        continue;
      }
      assert.deepEqual([calls[0].method, calls[0].params], [method, { name: 'both', a: 1 }]); // no channel of its own
      calls[0].resolve({ ok: method });
      await done;
      assert.deepEqual(last(), { jsonrpc: '2.0', id: 1, result: { ok: method } });
    }
  }
});

test('an app\'s forbidden requests are refused', async () => {
  const { calls, ask, tell, last, bridge, sent } = bridgeTo();
  await ask(1, 'tools/call', { name: 'model' });
  assert.equal(last().error.code, -32602);
  assert.equal(calls.length, 0);
  for (const url of ['javascript:x', 'http://a.b/', 'file:///x', 'https://u:p@a.b/', 'data:,x']) {
    await ask(1, 'ui/open-link', { url });
    assert.deepEqual(last().result, { isError: true }, url);
  }
  await ask(1, 'ui/open-link', { url: 'https://a.b/' });
  assert.deepEqual(last().result, {});
  await ask(1, 'ui/message', { role: 'user', content: [{ type: 'text', text: 'no' }] });
  assert.deepEqual(last().result, { isError: true });
  for (const params of [{ role: 'assistant', content: [{ type: 'text', text: 'x' }] }, { role: 'user', content: [{ type: 'image' }] }, {}]) {
    await ask(1, 'ui/message', params);
    assert.equal(last().error.code, -32602);
  }
  await tell('ui/notifications/size-changed', { height: 1e9 });
  await tell('ui/notifications/size-changed', { height: 'x' });
  await tell('notifications/message', { level: 'info', channel: 'mcp://other' });
  assert.deepEqual(calls, [{ height: 640 }, { method: 'notifications/message', params: { level: 'info' } }]);
  const before = sent.length;
  for (const data of [null, 'x', [], {}, { jsonrpc: '1.0', id: 1, method: 'ping' }, { jsonrpc: '2.0', id: {}, method: 'ping' }, { jsonrpc: '2.0', id: 5, result: {} }]) await bridge.heard(data, 1e6);
  assert.equal(sent.length, before);
  await bridge.heard({ jsonrpc: '2.0', id: 9, method: 'ping', params: { x: 'y'.repeat(300_000) } }, 1e6);
  assert.equal(last().error.code, -32000);
});

test('an app\'s rate and concurrency are limited', async () => {
  const { bridge, ask, sent, calls } = bridgeTo();
  for (let i = 0; i < 20; i++) ask(i, 'resources/list', {});
  await new Promise(setImmediate);
  assert.deepEqual([calls.length, sent.length, sent[0].error.code], [16, 4, -32000]);
  for (let i = 0; i < 1000; i++) bridge.heard({ jsonrpc: '2.0', method: 'notifications/message', params: {} }, 10_000);
  assert.equal(calls.length, 16 + 200);
});

test('progress and cancellation reach only the calling app', async () => {
  const { bridge, calls, ask, tell, sent, last } = bridgeTo();
  await tell('ui/notifications/initialized');
  const done = ask(7, 'tools/call', { name: 'both', _meta: { progressToken: 'mine', x: 1 } });
  await new Promise(setImmediate);
  const { progressToken } = calls[0].params._meta;
  assert.notEqual(progressToken, 'mine');
  bridge.serverSaid('notifications/progress', { progressToken: 'mine', progress: 1 });
  assert.equal(sent.length, 0);
  bridge.serverSaid('notifications/progress', { progressToken, progress: 1 });
  assert.deepEqual(last().params, { progressToken: 'mine', progress: 1 });
  bridge.serverSaid('notifications/tools/list_changed', {});
  bridge.serverSaid('notifications/resources/list_changed', {}); // was not promised
  bridge.serverSaid('notifications/message', {});
  assert.equal(sent.length, 2);
  await tell('notifications/cancelled', { requestId: 8 });
  assert.equal(calls[0].cancelled, undefined);
  await tell('notifications/cancelled', { requestId: 7, reason: 'enough' });
  assert.equal(calls[0].cancelled, 'enough');
  calls[0].reject(Object.assign(new Error('gone'), { code: -32603, data: { a: 1 } }));
  await done;
  assert.deepEqual(last().error, { code: -32603, message: 'gone', data: { a: 1 } });
  const other = ask(8, 'tools/list', {});
  await new Promise(setImmediate);
  bridge.close();
  assert.equal(calls[1].cancelled, 'The app was closed.');
  calls[1].resolve({});
  await other;
  assert.equal(last().error.code, -32603); // nothing more is sent
});

test('mcp:// messages name their channel at the top level', () => {
  const sent = [];
  const told = [];
  const socket = { readyState: 1, send: (m) => sent.push(JSON.parse(m)), close() {} };
  const conn = new Connection({ clientId: 'c', open: () => socket, on: { state() {}, sync() {}, action: () => told.push('action'), notification: (m) => told.push(m), mcp: (...said) => told.push(said) } });
  conn.start();
  const { cancel } = conn.mcp('mcp://h/1', 'tools/list', {});
  assert.deepEqual(sent.at(-1), { jsonrpc: '2.0', id: 1, channel: 'mcp://h/1', method: 'tools/list', params: {} });
  cancel('enough');
  assert.deepEqual(sent.at(-1), { jsonrpc: '2.0', channel: 'mcp://h/1', method: 'notifications/cancelled', params: { requestId: 1, reason: 'enough' } });
  socket.onmessage({ data: '{"jsonrpc":"2.0","channel":"mcp://h/1","id":1,"result":{}}' });
  cancel('too late');
  assert.equal(sent.length, 2);
  for (const message of [
    { channel: 'mcp://h/1', method: 'notifications/tools/list_changed' },
    { method: 'notifications/progress', params: { channel: 'mcp://h/1', progress: 1 } },
    { method: 'action', params: { channel: 'demo:/1' } },
    { method: 'root/sessionAdded', params: { channel: 'ahp-root://' } },
  ]) socket.onmessage({ data: JSON.stringify({ jsonrpc: '2.0', ...message }) });
  assert.deepEqual(told, [['mcp://h/1', 'notifications/tools/list_changed', undefined], ['mcp://h/1', 'notifications/progress', { channel: 'mcp://h/1', progress: 1 }], 'action', 'root/sessionAdded']);
  conn.stop();
});

test('a session that its host did not have yet is asked for again', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  t.after(() => mock.timers.reset());
  const made = [];
  Object.assign(globalThis, { location: { origin: 'http://relay' }, WebSocket: class extends FakeSocket { constructor() { super(); made.push(this); } } });
  const link = new Link('laptop', { token: () => 't', wanted: () => ['s:/1'], state() {}, action() {}, notification() {}, mcp() {}, request() {}, fresh() {}, draw() {} });
  link.connect();
  for (let i = 0; i < 20; i++) await Promise.resolve(); // the host's pin is looked up first
  const [socket] = made;
  socket.open();
  await socket.answer('initialize', { result: { protocolVersion: '1.0.0', serverSeq: 5, snapshots: [] } });
  const refuse = () => socket.answer('subscribe', { error: { code: -32008, message: 'not found' } });
  await refuse();
  assert.equal(link.errors.get('s:/1'), 'not found');
  const sent = socket.sent.length;
  mock.timers.tick(1999);
  assert.equal(socket.sent.length, sent);
  mock.timers.tick(1);
  await refuse(); // the next pause is longer
  mock.timers.tick(3999);
  assert.equal(socket.sent.length, sent + 1);
  mock.timers.tick(1);
  assert.equal(link.errors.get('s:/1'), 'not found'); // until there is something to show
  await socket.answer('subscribe', { result: { snapshot: { resource: 's:/1', state: { title: 'One' }, fromSeq: 5 } } });
  assert.equal(link.errors.size, 0);
  assert.equal(link.store.get('s:/1').title, 'One');
  link.stop();
});

// Sends a prompt and connects again before the host accepts it, as after a renewed token. The prompt must stay
// on the page: as not accepted until the host's state has its turn. An echo of the new connection with the
// same number must not count for it.
test('a prompt that the host has not accepted outlives its connection', async () => {
  const made = [];
  Object.assign(globalThis, { location: { origin: 'http://relay' }, WebSocket: class extends FakeSocket { constructor() { super(); made.push(this); } } });
  const link = new Link('laptop', { token: () => 't', wanted: () => [], state() {}, action() {}, notification() {}, mcp() {}, request() {}, fresh() {}, draw() {} });
  const connects = async () => {
    link.connect();
    for (let i = 0; i < 20; i++) await Promise.resolve(); // the host's pin is looked up first
    made.at(-1).open();
    await made.at(-1).answer('initialize', { result: { protocolVersion: '1.0.0', serverSeq: 5, snapshots: [] } });
  };
  await connects();
  link.store.sent(chat, link.conn.dispatch(chat, started), started);
  link.stop();
  await connects();
  assert.deepEqual(link.store.pending.map((p) => [p.turn.message.text, p.failed !== '']), [['hi', true]]);
  const clientSeq = link.conn.dispatch('s:/1', { type: 'session/isReadChanged', isRead: true });
  link.store.apply({ channel: 's:/1', action: {}, serverSeq: 6, origin: { clientId: link.conn.clientId, clientSeq } });
  assert.equal(link.store.pending.length, 1);
  link.store.snapshot({ resource: chat, state: { turns: [{ id: 't' }] }, fromSeq: 7 });
  assert.equal(link.store.pending.length, 0);
  link.stop();
});

// Sends a message for the end of the running turn. The page must show it, with the choice to send it again, if the
// host refuses it or the connection is lost, and not if the host's state has it: waiting, or as a later turn.
test('a message for the end of the turn is not lost', () => {
  const begun = { turns: [{ id: 's', message: { text: 'and now?' } }], activeTurn: { id: 't', message: { text: 'hi' }, responseParts: [] } };
  const send = (how) => {
    const store = storeWith(begun);
    const sent = [];
    const conn = { dispatch: (_, action) => sent.push(action) };
    const conversation = new Conversation({ link: { live: true, conn, store }, host: 'h', session: 's:/1', chatUri: chat, rights: { readOnly: false }, draw() {} });
    assert.ok(conversation.send('and now?', [], how));
    return { store, conversation, sent, lose: (state = begun) => store.sync({ fresh: false, snapshots: [{ resource: chat, state, fromSeq: 20 }], actions: [], missing: [] }) };
  };
  const left = ({ store }) => store.pending.map((p) => text(p.turn.message.text));
  for (const how of ['queued', 'steering']) {
    const origin = { clientId: 'me', clientSeq: 1 };
    let one = send(how);
    one.store.apply({ channel: chat, action: one.sent[0], serverSeq: 11, origin, rejectionReason: 'no commands' });
    assert.match(one.store.pending[0]?.failed ?? '', /no commands/);
    one = send(how);
    one.store.apply({ channel: chat, action: one.sent[0], serverSeq: 11, origin });
    assert.deepEqual(left(one), []);
    one = send(how);
    one.lose();
    assert.deepEqual(left(one), ['and now?']);
    assert.match(one.store.pending[0].failed, /lost/);
    one.conversation.sendAgain(one.store.pending[0]);
    assert.equal(one.sent[1].kind, how);
    assert.deepEqual([one.store.pending.length, one.store.pending[0].failed], [1, '']);
  }
  let one = send('queued');
  one.lose({ ...begun, queuedMessages: [{ id: one.sent[0].id, message: one.sent[0].message }] });
  assert.deepEqual(left(one), []);
  one = send('steering');
  one.lose({ ...begun, steeringMessage: { id: one.sent[0].id, message: one.sent[0].message } });
  assert.deepEqual(left(one), []);
  one = send('queued');
  one.lose({ turns: [...begun.turns, begun.activeTurn], activeTurn: { id: 'u', message: { text: 'and now?' } } });
  assert.deepEqual(left(one), []);
});

// Deletes a session whose host goes away before the deletion is carried out. The list must say that it was not deleted.
test('a deletion without a connection is reported', async () => {
  const link = new Link('laptop', { draw() {} });
  const sessions = new Sessions({ links: new Map([['laptop', link]]), host: 'laptop', session: '', onlyHost: '', draw() {} });
  sessions.remove(link, 's:/1');
  sessions.flush();
  for (let i = 0; i < 5; i++) await Promise.resolve();
  assert.match(link.note, /not deleted: not connected/);
});

// Hides a page with a prompt that the host has not accepted, and loads it again, as a phone does. The prompt must be
// there, once, until the host's state has its turn. A page that is seen again leaves nothing behind, and neither does
// one that gets a different token.
test('a prompt that the host has not accepted outlives the page', (t) => {
  const kept = new Map();
  Object.assign(globalThis, { sessionStorage: { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => kept.set(k, v), removeItem: (k) => kept.delete(k) } });
  t.after(() => { delete globalThis.sessionStorage; });
  const link = new Link('laptop', {});
  const texts = (of) => of.store.pending.map((p) => text(p.turn.message.text));
  link.store.sent(chat, 1, started);
  link.store.sent(chat, 2, { ...started, turnId: 'u', message: { text: 'x'.repeat(1_000_000) } });
  keepUnsent([link], true);
  assert.deepEqual(texts(new Link('lab', {})), []);
  const later = new Link('laptop', {});
  assert.deepEqual(texts(later), ['hi']);
  assert.deepEqual(texts(new Link('laptop', {})), []);
  later.store.sync({ fresh: true, snapshots: [], actions: [], missing: [] });
  assert.match(later.store.pending[0].failed, /lost/);
  later.store.snapshot({ resource: chat, state: { turns: [{ id: 't' }] }, fromSeq: 7 });
  assert.deepEqual(texts(later), []);
  keepUnsent([link], true);
  keepUnsent([link], false);
  assert.equal(kept.size, 0);
  keepUnsent([link], true);
  forgetUnsent();
  assert.equal(kept.size, 0);
});

/** Returns a link to a host that has answered initialize, and its sockets. The link stops at the test's end. */
async function connected(t, wanted = () => []) {
  const made = [];
  Object.assign(globalThis, { location: { origin: 'http://relay' }, WebSocket: class extends FakeSocket { constructor() { super(); made.push(this); } } });
  const link = new Link('laptop', { token: () => 't', wanted, state() {}, action() {}, notification() {}, mcp() {}, request() {}, fresh() {}, draw() {} });
  t.after(() => link.stop());
  link.connect();
  for (let i = 0; i < 20; i++) await Promise.resolve(); // the host's pin is looked up first
  const [socket] = made;
  socket.open();
  await socket.answer('initialize', { result: { protocolVersion: '1.0.0', serverSeq: 5, snapshots: [] } });
  return { link, socket, made };
}

// Sends the list of sessions in two pages, and changes between them. The changes are newer than the first page, so they
// must count.
test('changes between the pages of the session list are not lost', async (t) => {
  const { link, socket } = await connected(t);
  const page = async (result) => {
    const { id } = socket.sent.findLast((m) => m.method === 'listSessions');
    socket.give({ jsonrpc: '2.0', id, result });
    await new Promise((done) => { setImmediate(done); });
  };
  const says = (method, params) => socket.give({ jsonrpc: '2.0', method, params });
  await page({ items: [{ resource: 's:/1', status: 8 }, { resource: 's:/2', status: 1 }], nextCursor: 'more' });
  says('root/sessionSummaryChanged', { session: 's:/1', changes: { status: 24 } });
  says('root/sessionRemoved', { session: 's:/2' });
  says('root/sessionAdded', { summary: { resource: 's:/3', status: 1 } });
  await page({ items: [{ resource: 's:/4', status: 1 }] });
  assert.deepEqual([...link.store.sessions.values()].map((s) => [s.resource, s.status]), [['s:/1', 24], ['s:/4', 1], ['s:/3', 1]]);
});

// Has a host with an endless list of empty pages of sessions. The page must stop to request further pages, and
// show what it knows.
test('an endless list of empty pages ends', async (t) => {
  const { link, socket } = await connected(t);
  for (let last, pages = 0; ; pages++) {
    const { id } = socket.sent.findLast((m) => m.method === 'listSessions');
    if (id === last) break;
    assert.ok(pages < 10_000, 'the page requests further pages without an end');
    last = id;
    socket.sent.length = 0;
    socket.sent.push({ method: 'listSessions', id });
    socket.give({ jsonrpc: '2.0', id, result: { items: [], nextCursor: 'more' } });
    await new Promise((done) => { setImmediate(done); });
  }
  assert.equal(link.listing, false);
});

// Wakes a page whose sealed connection is silent, so the page opens a second socket, and lets the first one answer. The
// page must keep the first connection's seal: its level is the person's right at the host, and its heartbeats show
// whether the host is there. When the second socket takes over, it counts.
test('a second socket that is given up leaves the seal as it was', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'Date'] });
  t.after(() => mock.timers.reset());
  const made = [];
  Object.assign(globalThis, { location: { origin: 'http://relay' }, WebSocket: class extends FakeSocket { constructor() { super(); made.push(this); } } });
  const link = new Link('laptop', { token: () => 't', wanted: () => [], state() {}, action() {}, notification() {}, mcp() {}, request() {}, fresh() {}, draw() {} });
  const turns = async () => { for (let i = 0; i < 20; i++) await Promise.resolve(); };
  link.connect();
  await turns(); // the host's pin is looked up first
  Object.assign(made[0], { onlife: null, level: 'read' }); // a sealed socket
  made[0].open();
  await made[0].answer('initialize', { result: { protocolVersion: '1.0.0', serverSeq: 5, snapshots: [] } });
  link.seal = made[0];
  const wakes = async () => {
    mock.timers.tick(60_000);
    link.conn.wake(true);
    mock.timers.tick(300);
    await turns();
  };
  await wakes();
  assert.equal(made.length, 2);
  made[0].give({ jsonrpc: '2.0', method: 'root/progress', params: {} });
  made[1].open();
  await turns();
  assert.deepEqual([link.live, made[1].readyState, link.seal === made[0]], [true, 3, true]);
  await wakes();
  Object.assign(made[2], { onlife: null, level: 'write' });
  made[2].open();
  await turns();
  assert.equal(link.seal === made[2], true);
  link.stop();
});

// Breaks the connection during a sign-in by the host-agent, as when a phone shows the service's page. The host-agent
// ends the sign-in with the connection, so the page must report that and not wait.
test('a sign-in by the host-agent ends with its connection', async (t) => {
  const { link, socket } = await connected(t);
  const begun = signInAtHost(link, ROOT, 'https://api.example', new AbortController().signal);
  await socket.answer('relay/signIn', { result: { id: 'i', code: 'AB-CD', where: 'https://login.example/device' } });
  const end = (await begun).finish().catch((err) => err.message);
  socket.lose(1006);
  assert.match(await Promise.race([end, new Promise((done) => { setTimeout(done, 100, 'it waits'); })]), /connection was lost/);
  assert.equal(link.codes.size, 0);
});

// Has an MCP server with an endless list of empty pages of tools. The page must stop to request further
// pages, and show the app.
test('an endless list of empty pages of tools ends', async () => {
  const had = { matchMedia: globalThis.matchMedia, addEventListener: globalThis.addEventListener };
  Object.assign(globalThis, { matchMedia: () => ({ addEventListener() {} }), addEventListener() {} });
  let pages = 0;
  const mcp = () => {
    if (++pages > 10_000) return { result: Promise.reject(new Error('the page requests further pages without an end')) };
    return { result: Promise.resolve({ tools: [], nextCursor: 'more' }) };
  };
  const calls = new McpCalls({ mcp });
  Object.assign(globalThis, had);
  assert.deepEqual(await calls.toolsOf('mcp://h/1'), []);
});

// Leaves a session while the host has not answered reconnect. The answer has the session's state, which must not come
// back: no later reconnect would ask for its changes, and the page would show it as live. The host must stop to send it.
test('a session that is left during a reconnect stays left', async (t) => {
  let open = ['s:/1'];
  const { link, socket, made } = await connected(t, () => open);
  const snapshots = [ROOT, 's:/1'].map((resource) => ({ resource, state: {}, fromSeq: 5 }));
  socket.give({ jsonrpc: '2.0', id: socket.sent.find((m) => m.method === 'subscribe').id, result: { snapshot: snapshots[1] } });
  await new Promise((done) => { setImmediate(done); });
  assert.ok(link.store.get('s:/1'));
  socket.lose(1006);
  link.conn.wake();
  await new Promise((done) => { setImmediate(done); });
  made[1].open();
  open = [];
  link.tidy();
  assert.deepEqual((await made[1].answer('reconnect', { result: { type: 'snapshot', snapshots } })).subscriptions, [ROOT, 's:/1']);
  assert.equal(link.store.get('s:/1'), undefined);
  assert.deepEqual(made[1].sent.filter((m) => m.method === 'unsubscribe').map((m) => m.params.channel), ['s:/1']);
});

// Has a different person answer a tool call while the connection is lost. The page must ask for that person's name after
// the reconnect, in both forms of its answer.
test('the page learns who has answered while it was not connected', async (t) => {
  const answer = { type: 'chat/toolCallConfirmed', turnId: 't', toolCallId: 'c', approved: true };
  const snapshot = { resource: chat, state: { turns: [] }, fromSeq: 5 };
  for (const result of [{ type: 'snapshot', snapshots: [snapshot] }, { type: 'replay', actions: [{ channel: chat, action: answer, serverSeq: 6 }] }]) {
    const { link, socket, made } = await connected(t, () => [chat]);
    socket.give({ jsonrpc: '2.0', id: socket.sent.find((m) => m.method === 'subscribe').id, result: { snapshot } });
    await new Promise((done) => { setImmediate(done); });
    socket.lose(1006);
    link.conn.wake();
    await new Promise((done) => { setImmediate(done); });
    made[1].open();
    await made[1].answer('reconnect', { result });
    const { id } = made[1].sent.find((m) => m.method === 'relay/answers') ?? assert.fail(`after a ${result.type}, nobody is asked`);
    made[1].give({ jsonrpc: '2.0', id, result: { answers: [{ type: 'chat/toolCallConfirmed', id: 'c', subject: 'ada' }] } });
    await new Promise((done) => { setImmediate(done); });
    assert.equal(link.store.giverOf(chat, 'chat/toolCallConfirmed', 'c'), 'ada');
  }
});

// Has a host leave the root's state out of its answer to reconnect. The page must ask for it: without it, there are no
// agents, and no button for a new session.
test('the root is followed after each reconnect', async (t) => {
  for (const result of [{ type: 'snapshot', snapshots: [] }, { type: 'replay', actions: [], missing: [ROOT] }]) {
    const { link, socket, made } = await connected(t);
    link.store.snapshot({ resource: ROOT, state: { agents: [{ provider: 'a' }] }, fromSeq: 5 });
    socket.lose(1006);
    link.conn.wake();
    await new Promise((done) => { setImmediate(done); });
    made[1].open();
    await made[1].answer('reconnect', { result });
    const { id } = made[1].sent.find((m) => m.method === 'subscribe' && m.params.channel === ROOT) ?? assert.fail('the root is not asked for');
    made[1].give({ jsonrpc: '2.0', id, result: { snapshot: { resource: ROOT, state: { agents: [{ provider: 'b' }] }, fromSeq: 6 } } });
    await new Promise((done) => { setImmediate(done); });
    assert.deepEqual([link.store.agents.map((a) => a.provider), link.conn.subscriptions.has(ROOT)], [['b'], true]);
  }
});

// Has a host that is still loading refuse the root after a reconnect. The page must ask again, as it does for a session, also
// if the user opens a session meanwhile, which takes the errors out of view.
test('a root that its host did not have yet is asked for again', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  const { link, socket, made } = await connected(t);
  const turns = () => new Promise((done) => { setImmediate(done); });
  socket.lose(1006);
  link.conn.wake();
  await turns();
  made[1].open();
  await made[1].answer('reconnect', { result: { type: 'snapshot', snapshots: [] } });
  const asks = () => made[1].sent.filter((m) => m.method === 'subscribe' && m.params.channel === ROOT);
  made[1].give({ jsonrpc: '2.0', id: asks()[0].id, error: { code: -32603, message: 'still loading' } });
  await turns();
  link.errors.clear();
  mock.timers.tick(10_000);
  const { id } = asks()[1] ?? assert.fail('the root is not asked for again');
  made[1].give({ jsonrpc: '2.0', id, result: { snapshot: { resource: ROOT, state: { agents: [{ provider: 'a' }] }, fromSeq: 6 } } });
  await turns();
  assert.equal(link.store.agents.length, 1);
});

// Has a host ask twice for a token that it refuses. The page must renew the token once: a server that gets the same
// refresh token twice may end the whole sign-in.
test('a refused token is renewed once', async (t) => {
  const { link, socket } = await connected(t);
  const resource = 'https://api.example';
  const turns = () => new Promise((done) => { setImmediate(done); });
  const answers = async (answer) => {
    for (const { id } of socket.sent.splice(0).filter((m) => m.method === 'authenticate')) socket.give({ jsonrpc: '2.0', id, ...answer });
    await turns();
  };
  const renewals = [];
  link.tokens.set(resource, { token: 'old', renew: () => new Promise((resolve) => { renewals.push(resolve); }) });
  link.again(resource);
  link.again(resource);
  link.again(resource, true);
  await turns();
  await answers({ error: { code: -32007, message: 'expired' } });
  assert.equal(renewals.length, 1);
  renewals[0]({ token: 'new' });
  await turns();
  await answers({ result: {} });
  assert.equal(link.tokens.get(resource).token, 'new');
});
