// Tests items for absent hosts, with the vector that the Go implementation has written.
// TestConsolesScriptsPass runs this file.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mock, test } from 'node:test';
import { base64url, fromBase64url, nameOfHost, textOf, type Bytes } from '../src/sealed/bytes';
import { newSecret } from '../src/sealed/keys';
import { base64, openLetter } from '../src/sealed/letter';
import { Leaving, type LeftPage } from '../src/left';
import { RpcError } from '../src/rpc';
import { digestOf, headOf, idOf, newId, newOwn, openItem, sealItem, type Content, type WaitingKeys } from '../src/sealed/item';

const vector = JSON.parse(readFileSync('../../broker/waiting/testdata/vector.json', 'utf8'));
const bytesOf = (base64: string): Bytes => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
const who = { tenant: vector.Tenant, subject: vector.Subject };

/** Reads a private X25519 key: its last 32 bytes in PKCS #8. */
async function secretOf(raw: Bytes) {
  const pkcs8 = new Uint8Array([0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 4, 0x22, 4, 0x20, ...raw]);
  const key = await crypto.subtle.importKey('pkcs8', pkcs8, { name: 'X25519' }, true, ['deriveBits']);
  const { x } = await crypto.subtle.exportKey('jwk', key);
  return { private: key, public: fromBase64url(x) };
}

test('the vector opens with the host’s key', async () => {
  const host = await secretOf(bytesOf(vector.Secret));
  const { fingerprint } = await nameOfHost(host.public);
  const open = (item: any, head = headOf(item, vector.Host, who)) => openLetter(host, fingerprint, item.letter, head, bytesOf(vector.Verifier));
  assert.equal(textOf(await open(vector.Item)), vector.Content);
  assert.equal(await digestOf('call-1', 'shell', 'ls', 'Run ls'), vector.Digest);
  assert.equal(await idOf('s:/1'), vector.Item.session);
  for (const change of [{ version: 3 }, { expires: 1 }, { cancelled: true }, { wake: 1 }, { session: await idOf('s:/2') }, { id: newId() }]) await assert.rejects(open({ ...vector.Item, ...change }), /not signed/);
  await assert.rejects(open(vector.Item, headOf(vector.Item, 'desk', who)), /not signed/);
});

test('the person’s devices open an item, others do not', async () => {
  const [own, second, stranger] = [await newOwn(), await newOwn(), await newOwn()];
  const host = await newSecret();
  const keys: WaitingKeys = { ...who, host: base64url(host.public), devices: [{ keys: own.keys, name: 'laptop' }, { keys: second.keys, name: 'phone' }] };
  const content: Content = { kind: 'message', session: 's:/1', turn: 't1', text: 'Grüße' };
  const item = await sealItem(own, 'laptop', keys, { id: newId(), version: 1, expires: 1763848800000 }, content);
  assert.equal(item.letter.boxes.length, 3);
  assert.deepEqual(await openItem(own, 'laptop', keys, item), content);
  assert.deepEqual(await openItem(second, 'laptop', keys, item), content);
  await assert.rejects(openItem(stranger, 'laptop', keys, item), /not for this device/);
  await assert.rejects(openItem(second, 'laptop', { ...keys, devices: keys.devices.slice(1) }, item), /unknown device/);
  await assert.rejects(openItem(second, 'laptop', keys, { ...item, version: 2 }), /not signed/);
  const { fingerprint } = await nameOfHost(host.public);
  assert.deepEqual(JSON.parse(textOf(await openLetter(host, fingerprint, item.letter, headOf(item, 'laptop', keys), own.device.verifier))), content);
});

test('an item for a sealed host hides its session and its length', async () => {
  const own = await newOwn();
  const host = await newSecret();
  const keys: WaitingKeys = { ...who, host: base64url(host.public), devices: [{ keys: own.keys, name: 'laptop' }], blind: base64(crypto.getRandomValues(new Uint8Array(32))) };
  const seal = (text: string) => sealItem(own, 'laptop', keys, { id: newId(), version: 1, expires: 1763848800000 }, { kind: 'message', session: 's:/1', turn: 't1', text });
  const [short, long] = [await seal('x'.repeat(900)), await seal('x'.repeat(903))];
  assert.equal(short.letter.data.length, long.letter.data.length);
  assert.notEqual(short.session, await idOf('s:/1'));
  assert.equal(short.session, long.session);
  assert.equal((await openItem(own, 'laptop', keys, long)).text!.length, 903);
  await assert.rejects(openItem(own, 'laptop', { ...keys, blind: undefined }, long), /different session/);
});

/** A database in memory, as far as one record needs it. */
function database() {
  const kept = new Map<string, unknown>();
  const later = (act: () => void) => { setTimeout(act, 0); };
  const store = {
    get: (key: string) => ({ result: kept.get(key) }),
    put: (value: unknown, key: string) => { kept.set(key, value); return {}; },
  };
  const db = {
    close() {},
    transaction: () => { const t: any = { objectStore: () => store }; later(() => t.oncomplete()); return t; },
  };
  return { open: () => { const open: any = { result: db }; later(() => open.onsuccess()); return open; } };
}

test('only a refusal makes the page forget that a host takes items', async () => {
  (globalThis as any).indexedDB = database();
  const host = await newSecret();
  const info = { host: 'laptop', state: 'online', since: '', clients: 0 };
  const link = { host: 'laptop', live: true, store: { agents: [] }, conn: null as any };
  const page: LeftPage = {
    at: '', hosts: [info as any], hostsStale: false, links: new Map([['laptop', link]]), host: 'laptop', session: '', chatUri: undefined, readOnly: false,
    who: async () => 'who', ask: async () => ({ status: 200, body: { items: [] } } as any), draw() {},
  };
  const left = new Leaving(page);
  const connects = async (answer: () => unknown) => { // with a new connection, the page asks again
    let asked = false;
    info.state = 'online';
    link.conn = { request: async () => { asked = true; return answer(); } };
    left.look();
    for (let n = 0; n < 1000 && !asked; n++) await new Promise((r) => { setTimeout(r, 10); });
    assert.ok(asked);
    await new Promise((r) => { setTimeout(r, 20); }); // the answer is handled in the same task
    info.state = 'offline';
  };
  const refuses = (code: number) => () => { throw new RpcError({ code, message: 'no' } as any); };
  const gives = () => ({ ...who, host: base64url(host.public), devices: [] });
  await left.start();
  await connects(gives);
  assert.ok(left.takes('laptop'));
  for (const code of [4100, 4290, -32603, -32007, -32000]) {
    await connects(refuses(code));
    assert.ok(left.takes('laptop'), `after the error ${code}`);
  }
  for (const code of [-32601, -32602, -32009]) {
    await connects(gives);
    await connects(refuses(code));
    assert.ok(!left.takes('laptop'), `after the refusal ${code}`);
  }
});

/** A page with an absent host, at a relay that can lose its answers to changes. */
async function absentHost() {
  Object.assign(globalThis, { indexedDB: database(), location: { origin: 'https://relay.example' } });
  const host = await newSecret();
  const info = { host: 'laptop', state: 'online', since: '', clients: 0 };
  const relay = { stored: new Map<string, any>(), loses: '' };
  const page: LeftPage = {
    at: '', hosts: [info as any], hostsStale: false, host: 'laptop', session: 's:/1', chatUri: 'c:/1', readOnly: false,
    links: new Map([['laptop', { host: 'laptop', live: true, store: { agents: [] }, conn: { request: async (_: string, { keys }: any) => ({ ...who, host: base64url(host.public), devices: [{ keys, name: 'phone' }] }) as any } }]]),
    who: async () => 'who', draw() {},
    ask: async (method, path, item: any) => {
      if (method === 'GET' && relay.loses === 'network') throw new TypeError('Failed to fetch');
      if (method === 'GET') return { status: 200, body: { items: [...relay.stored.values()] } } as any;
      const id = path.split('/').at(-1)!;
      if (item.version !== (relay.stored.get(id)?.item.version ?? 0) + 1) return { status: 409, body: { error: 'the item was changed on a different device meanwhile' } } as any;
      relay.stored.set(id, { host: 'laptop', item, at: '' });
      if (relay.loses) throw new TypeError('Failed to fetch');
      return { status: 200, body: {} } as any;
    },
  };
  const left = new Leaving(page);
  await left.start();
  info.state = 'offline';
  for (let n = 0; n < 1000 && !left.takes('laptop'); n++) await new Promise((r) => { setTimeout(r, 10); });
  const lost = async (leave: () => Promise<unknown>) => {
    relay.loses = 'network';
    await assert.rejects(leave(), /Failed to fetch/);
    relay.loses = '';
  };
  return { page, left, relay, stored: relay.stored, lost, message: (turn: string) => left.leave('laptop', { kind: 'message', session: 's:/1', chat: 'c:/1', turn, text: 'go on' }) };
}

// Leaves a message and a session at a relay whose answer is lost, and leaves them again. The relay must get the same
// item again and not a second one, because the host would deliver both. Once the host has the first, equal words are
// a new item.
test('an item whose answer was lost is left once', async () => {
  const { left, stored, lost, message } = await absentHost();
  const session = () => left.leaveSession('laptop', { provider: 'demo', directory: '', text: 'begin', title: 'begin' }, 0);
  let want = 0;
  for (const leave of [() => message('t1'), session]) {
    await lost(leave);
    const made = await leave();
    assert.equal(stored.size, ++want, 'the relay has the item twice');
    if (leave === session) assert.equal(await idOf(String(made)), [...stored.values()].at(-1).item.session);
  }
  await message('t2'); // the person writes the same words later
  assert.equal(stored.size, ++want);
  await lost(() => message('t3'));
  [...stored.values()].at(-1).result = { state: 'done', version: 1 };
  await left.read();
  await message('t4');
  assert.equal(stored.size, want += 2);
  const messages = ['s:/1', 's:/2'].map((session) => () => left.leave('laptop', { kind: 'message', session, chat: 'c:/1', turn: randomUUID(), text: 'both' }));
  for (const leave of messages) await lost(leave);
  for (const leave of messages) await leave();
  assert.equal(stored.size, want + 2, 'the relay has one of two items twice');
});

// Leaves a message at a relay whose answer is lost while its list cannot be read either, and the host takes the message. When the
// page can read the list, it must learn that the message was left: the editor still has it, and a person would send it again.
// A session is left again only by a press in its dialog, which must not make a second one.
test('an item that the host has taken unseen was left', async () => {
  const { left, relay, stored } = await absentHost();
  const leaves = [() => left.leave('laptop', { kind: 'message', session: 's:/1', chat: 'c:/1', turn: 't1', text: 'go on' }), () => left.leaveSession('laptop', { provider: 'demo', directory: '', text: 'begin', title: 'begin' }, 0)];
  for (const leave of leaves) {
    relay.loses = 'network';
    const failed: any = await leave().then(() => undefined, (err) => err);
    relay.loses = '';
    [...stored.values()].at(-1).result = { state: 'done', version: 1 };
    await left.read();
    if (leave === leaves[0]) assert.equal(await Promise.race([failed.arrived, new Promise((r) => { setTimeout(r, 100); })]), true);
    else await leave();
  }
  assert.equal(stored.size, 2);
});

// Leaves a message at a relay that has it, while only its answer is lost, as when a phone changes its network. The page must learn
// that the message was left.
test('an item that has arrived without an answer was left', async () => {
  const { left, relay, stored, message } = await absentHost();
  relay.loses = 'answer';
  await message('t1');
  relay.loses = '';
  await message('t2'); // the same words again are a new message
  assert.deepEqual([stored.size, left.all.length], [2, 2]);
});

// Cancels a message whose answer was lost, and leaves the same words again. They must be a new item: the first is not
// delivered any more.
test('a message is left again after its first item was cancelled', async () => {
  const { left, stored, lost, message } = await absentHost();
  await lost(() => message('t1'));
  await left.read();
  await left.cancel(left.all[0]);
  await message('t2');
  assert.deepEqual([...stored.values()].map(({ item }) => Boolean(item.cancelled)), [true, false]);
});

// Allows a tool call at a relay whose answer is lost, and denies it then. The relay must have one item, with the later answer:
// the host would take the first of two. That is so also if the user opens a different session while the page asks the relay.
test('a second answer replaces one whose success is not known', async () => {
  for (const session of ['s:/1', 's:/2']) {
    const { page, left, stored, lost } = await absentHost();
    const call: any = { toolCallId: 'c', toolName: 'shell', toolInput: 'rm -r build', invocationMessage: 'run' };
    await lost(() => left.leaveApproval('t', call, true));
    const { ask } = page;
    page.ask = (...asked) => {
      Object.assign(page, { session });
      return ask(...asked);
    };
    await left.leaveApproval('t', call, false);
    await left.read();
    assert.deepEqual([stored.size, left.all[0].content!.approved, left.all[0].content!.session], [1, false, 's:/1']);
  }
});

// Requests the list of items again before each answer, as on a network that is slower than the pause between the
// requests. Each answer must count, unless a later one has come.
test('a slow network delays the list of items, and does not prevent it', async () => {
  (globalThis as any).indexedDB = database();
  const answers: ((id: string) => void)[] = [];
  const page: LeftPage = {
    at: '', hosts: [], hostsStale: false, links: new Map(), host: '', session: '', chatUri: undefined, readOnly: false,
    who: async () => 'who', draw() {}, ask: () => new Promise((resolve) => { answers.push((id) => resolve({ status: 200, body: { items: [{ host: 'laptop', item: { id, version: 1 } }] } } as any)); }),
  };
  const left = new Leaving(page);
  const reads = [left.read(), left.read(), left.read()];
  const answer = async (n: number, id: string) => {
    answers[n](id);
    await reads[n];
    return left.all.map((l) => l.item.id);
  };
  assert.deepEqual(await answer(0, 'first'), ['first']);
  assert.deepEqual(await answer(2, 'third'), ['third']);
  assert.deepEqual(await answer(1, 'second'), ['third']);
});

// Opens a page on a bad network, which loses the first request for the person's name. The page must repeat the request, and
// offer to leave items without a reload.
test('items are loaded again after a failure', async (t) => {
  Object.assign(globalThis, { indexedDB: database(), localStorage: { getItem: () => null } });
  t.after(() => { delete (globalThis as any).localStorage; });
  const { Absent } = await import('../src/absent');
  let tries = 0;
  const absent = new Absent({
    byDevice: true, token: 'device', links: new Map(), hosts: { all: [], own: [], staleAt: () => false }, accounts: {}, rights: { narrowAt: () => false, grantAt: () => null },
    requests: { askAt: async () => ({ status: 200, body: { items: [] } }) }, draw() {},
    who: async () => { if (++tries === 1) throw new TypeError('Failed to fetch'); return 'who'; },
  } as any);
  mock.timers.enable({ apis: ['setTimeout'] });
  for (let second = 0; second < 60 && tries < 2; second++) {
    absent.follow();
    for (let n = 0; n < 20; n++) await new Promise((done) => { setImmediate(done); });
    mock.timers.tick(1000);
  }
  mock.timers.reset();
  assert.equal(tries, 2);
  for (let n = 0; n < 1000 && !absent.at('laptop'); n++) await new Promise((done) => { setTimeout(done, 10); });
  assert.ok(absent.at('laptop'));
});
