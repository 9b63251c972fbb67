// Tests the reading of remembered sessions, with the vector that the Go implementation has
// written. TestConsolesScriptsPass runs this file.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { openRecord, Remembered, type HostKeys, type RememberedPage } from '../src/remembered';

const vector = JSON.parse(readFileSync('../../broker/remember/testdata/vector.json', 'utf8'));
const whole: HostKeys = { tenant: vector.Tenant, keyId: vector.KeyID, verifier: vector.Verifier, key: vector.Key };
const content = JSON.parse(vector.Content);

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
    host: vector.Host, session: 's:/1', rights: { narrow: true },
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
