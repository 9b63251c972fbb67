// Tests the reading of remembered sessions, with the vector that the Go implementation has
// written. TestConsolesScriptsPass runs this file.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { tookChange } from '../src/accounts';
import { Rights } from '../src/rights';
import { idOf, openRecord, Remembered, type HostKeys, type RememberedPage } from '../src/remembered';

const vector = JSON.parse(readFileSync('../../broker/remember/testdata/vector.json', 'utf8'));
const whole: HostKeys = { tenant: vector.Tenant, keyId: vector.KeyID, verifier: vector.Verifier, key: vector.Key };
const content = JSON.parse(vector.Content);
const blind = JSON.parse(readFileSync('../../broker/remember/testdata/blind.json', 'utf8'));
const sealed: HostKeys = { tenant: blind.Tenant, keyId: blind.KeyID, verifier: blind.Verifier, key: blind.Key, blind: true };

test('a record opens with the host’s key, and with its own', async () => {
  assert.deepEqual(await openRecord(vector.Host, whole, vector.Record), content);
  const own = { ...whole, key: undefined, records: { [vector.Record.id]: vector.RecordKey } };
  assert.deepEqual(await openRecord(vector.Host, own, vector.Record), content);
});

test('a changed record, or one of a different host or key, does not open', async () => {
  const { Record } = vector;
  for (const changed of [{ ...Record, version: Record.version + 1 }, { ...Record, time: 1 }, { ...Record, id: 'list' }, { ...Record, data: Record.data.replace(/^..../, 'AAAA') }]) {
    await assert.rejects(openRecord(vector.Host, whole, changed), /not from this host/);
  }
  await assert.rejects(openRecord('desk', whole, Record), /not from this host/);
  await assert.rejects(openRecord(vector.Host, { ...whole, keyId: '0011223344556677' }, Record), /no key/);
  await assert.rejects(openRecord(vector.Host, { ...whole, key: undefined, records: {} }, Record), /no key/);
});

/** A page with one host that is away. */
function pageOf(answer: () => any) {
  const link = { host: vector.Host, live: false, conn: null, past: new Map(), listAt: 0, store: { sessions: new Map(), listRevision: 0, revision: 0 } };
  const asked: string[] = [];
  const page: RememberedPage = {
    host: vector.Host, session: 's:/1', rights: { narrowAt: () => true },
    hosts: { all: [{ host: vector.Host, state: 'asleep', since: '2020-11-22T14:02:00Z', clients: 0 }] },
    linkTo: () => link, saveNow() {}, draw() {},
    requests: { async askAt(_host: string, _: string, path: string) { asked.push(path); return answer(); } } as RememberedPage['requests'],
  };
  return { link, page, asked };
}

const settled = () => new Promise((r) => { setTimeout(r, 20); });

/** Waits for at most 10 s. */
const until = async (holds: () => boolean) => {
  for (let n = 0; n < 1000 && !holds(); n++) await new Promise((r) => { setTimeout(r, 10); });
};

test('a session of a host that is away is shown once, as of its storage', async () => {
  const { link, page, asked } = pageOf(() => ({ status: 200, body: { stored: '2020-11-22T14:01:59Z', record: vector.Record } }));
  const r = new Remembered(page);
  r.look();
  assert.deepEqual(asked, []); // without keys, there is nothing to read
  r.keys.set(vector.Host, { ...whole });
  r.look();
  r.look();
  await until(() => link.past.has('s:/1'));
  assert.equal(asked.length, 1);
  assert.match(asked[0], /remembered\/session\?uri=s%3A%2F1$/);
  const kept = link.past.get('s:/1');
  assert.equal(kept.at, Date.parse('2020-11-22T14:01:59Z'));
  assert.equal(kept.clock, vector.Record.time); // a clock that is off is shown
});

// Opens a session of a further account that is limited to this session. The lists of the page's own hosts that are away must
// be read nevertheless.
test('the list of a host that is away is read while a different account is in view', async (t) => {
  Object.assign(globalThis, { localStorage: { getItem: () => JSON.stringify([{ name: 'work', relay: 'https://b.example', token: 't' }]) } });
  tookChange(null);
  t.after(() => { delete (globalThis as any).localStorage; tookChange(null); });
  const { page, asked } = pageOf(() => ({ status: 404, body: {} }));
  const rights = new Rights({ host: 'lab@work', hosts: { grant: null }, accounts: { of: () => ({ grant: { channels: ['s:/1'] } }) as any }, links: new Map() });
  const r = new Remembered({ ...page, host: 'lab@work', rights });
  r.keys.set(vector.Host, { ...whole });
  r.look();
  await settled();
  assert.deepEqual(asked, [`api/hosts/${vector.Host}/remembered`]);
});

test('a version older than one that was seen is refused, and what is newer here stays', async () => {
  const { link, page } = pageOf(() => ({ status: 200, body: { stored: '2020-11-22T14:01:59Z', record: vector.Record } }));
  const r = new Remembered(page);
  r.keys.set(vector.Host, { ...whole, seen: { [vector.Record.id]: vector.Record.version + 1 } });
  r.look();
  await until(() => Boolean(r.why(vector.Host, 's:/1')));
  assert.equal(link.past.size, 0);
  assert.match(r.why(vector.Host, 's:/1'), /older/);
  const own = { chat: 'c', state: {}, at: Date.parse('2020-11-22T14:02:30Z') };
  link.past.set('s:/1', own);
  const again = new Remembered(page);
  again.keys.set(vector.Host, { ...whole });
  again.look();
  await settled();
  assert.equal(link.past.get('s:/1'), own);
});

test('a sealed host’s record opens, and its ID follows from the key or comes with it', async () => {
  assert.equal(await idOf(blind.Host, sealed, blind.Session), blind.Record.id);
  assert.equal(await idOf(vector.Host, whole, vector.Session), vector.Record.id);
  const own: HostKeys = { ...sealed, key: undefined, ids: { [blind.Session]: blind.Record.id }, records: { [blind.Record.id]: blind.RecordKey } };
  assert.equal(await idOf(blind.Host, own, blind.Session), blind.Record.id);
  assert.equal(await idOf(blind.Host, own, 's:/2'), undefined);
  for (const keys of [sealed, own]) assert.deepEqual(await openRecord(blind.Host, keys, blind.Record), JSON.parse(blind.Content));
});

/** What a relay can make of records, each for a sealed host that is away. */
const { subtle } = crypto;
const signer = await subtle.generateKey({ name: 'ECDSA', namedCurve: 'P-256' }, false, ['sign', 'verify']) as CryptoKeyPair;
const own: HostKeys = { ...sealed, verifier: Buffer.from(await subtle.exportKey('raw', signer.publicKey)).toString('base64') };

/** Seals a record as the host does. */
async function sealedAt(id: string, version: number, words: object, time = 1763848800000) {
  const head = ['ahp-remember v1', own.tenant, blind.Host, id].join('\n');
  const from = await subtle.importKey('raw', Buffer.from(own.key!, 'base64'), 'HKDF', false, ['deriveBits']);
  const bits = await subtle.deriveBits({ name: 'HKDF', hash: 'SHA-256', salt: new Uint8Array(0), info: Buffer.from(head) }, from, 256);
  const key = await subtle.importKey('raw', bits, 'AES-GCM', false, ['encrypt']);
  const iv = crypto.getRandomValues(new Uint8Array(12));
  const all = Buffer.from([head, own.keyId, version, time].join('\n'));
  const data = Buffer.concat([iv, new Uint8Array(await subtle.encrypt({ name: 'AES-GCM', iv, additionalData: all }, key, Buffer.from(JSON.stringify(words))))]);
  const signed = Buffer.concat([all, Buffer.from('\n'), new Uint8Array(await subtle.digest('SHA-256', data))]);
  const signature = Buffer.from(await subtle.sign({ name: 'ECDSA', hash: 'SHA-256' }, signer.privateKey, signed)).toString('base64');
  return { id, key: own.keyId, version, time, data: data.toString('base64'), signature, blind: true };
}

test('lies about a sealed host’s last state are found', async () => {
  const one = blind.Session;
  const [idOne, idTwo] = [await idOf(blind.Host, own, one), await idOf(blind.Host, own, 's:/2')] as string[];
  const state = (session: string, title: string) => ({ session, chat: 'c:/1', state: { title, turns: [] } });
  const older = await sealedAt(idOne, 4, state(one, 'older'));
  const right = await sealedAt(idOne, 5, state(one, 'right'));
  const two = await sealedAt(idTwo, 9, state('s:/2', 'two'));
  const list = await sealedAt('list', 7, { sessions: [{ resource: one }, { resource: 's:/2' }], kept: {}, versions: { [idOne]: 5, [idTwo]: 9 } });
  const olderList = await sealedAt('list', 6, { sessions: [], kept: {}, versions: {} });
  const cut = Buffer.from(right.data, 'base64').subarray(0, -1).toString('base64');
  for (const [lie, { first = list, record, listed }] of Object.entries<{ first?: object; record?: object; listed?: object }>({
    'older than the list states': { record: older },
    'of a different session': { record: two },
    'the list in place of a session': { record: list },
    'a different session under this name': { record: { ...two, id: idOne } },
    'an older state with the number of the latest': { record: { ...older, version: 5 } },
    'with a later time': { record: { ...right, time: right.time + 1 } },
    'cut': { record: { ...right, data: cut } },
    'with the signature of another': { record: { ...right, signature: two.signature } },
    'of a former key': { record: { ...right, key: '0011223344556677' } },
    'an older list': { listed: olderList },
    'a session in place of the list': { listed: { ...two } },
    'a session under the name of the list': { listed: { ...two, id: 'list' } },
  })) {
    let [answer, say]: [object | undefined, object] = [undefined, first];
    const { link, page, asked } = pageOf(() => ({ status: 200, body: asked.at(-1)!.endsWith('remembered') ? { list: { stored: '2020-11-22T14:01:59Z', record: say } } : { stored: '2020-11-22T14:01:59Z', record: answer ?? right } }));
    const lied = { ...page, session: '', rights: { narrowAt: () => false } };
    const r = new Remembered(lied);
    r.keys.set(blind.Host, { ...own });
    r.look();
    await until(() => link.store.sessions.size > 0);
    assert.equal(link.store.sessions.size, 2, lie);
    Object.assign(lied, { session: one, rights: { narrowAt: () => true } });
    answer = record;
    if (listed) {
      say = listed;
      Object.assign(lied, { session: '', rights: { narrowAt: () => false } });
      link.listAt = 0;
      link.store.listRevision = 0;
    }
    lied.hosts.all[0]!.since = '2020-11-22T14:03:00Z'; // it was back, so this page looks again
    r.look();
    if (record) {
      await until(() => Boolean(r.why(blind.Host, one)));
      assert.notEqual(r.why(blind.Host, one), '', lie);
    } else await settled();
    assert.equal(link.past.size, 0, `${lie}: it is shown`);
    assert.equal(link.store.sessions.size, 2, `${lie}: the list is lost`);
    assert.equal(asked.length, 2, lie);
    assert.ok(asked.every((path) => !path.includes('s%3A')), `${lie}: the relay hears the name of a session`);
  }
  const { link, page } = pageOf(() => ({ status: 200, body: { stored: '2031-11-22T14:01:59Z', record: right } }));
  const r = new Remembered(page);
  r.keys.set(blind.Host, { ...own });
  r.look();
  await until(() => link.past.has(one));
  assert.equal(link.past.get(one)?.at, right.time); // in the host's words, not in the relay's
});
