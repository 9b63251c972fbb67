// Tests the sealed protocol against the vectors that the Go implementation has written, and
// with bytes of a lying relay. TestConsolesScriptsPass runs this file.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { mock, test } from 'node:test';
import { deflateRawSync } from 'node:zlib';
import { base64url, codeText, concat, exactly, fromBase64url, nameOfDevice, nameOfHost, padded, printable, purpose, readCode, secretOf, textOf, utf8, type Bytes } from '../src/sealed/bytes';
import { isSigned, readChain, readGrant, signGrant } from '../src/sealed/grant';
import { Link } from '../src/link';
import { pin, pinOf, unmark, unpin, type Pin } from '../src/pins';
import { longVerifier, newDevice, publicText, readDevice, readPublic, sign, verify, type Device, type Secret } from '../src/sealed/keys';
import { fromBase64, openLetter } from '../src/sealed/letter';
import { Initiator, OtherKey } from '../src/sealed/noise';
import { isSealed, subscribe } from '../src/sealed/note';
import { forgetGiven, pair } from '../src/sealed/open';
import { SealedSocket } from '../src/sealed/socket';
import { content, Half, heartbeat, readClose, readHeartbeat, readWelcome, Session } from '../src/sealed/record';

const vectors = JSON.parse(readFileSync('../../internal/sealed/testdata/vectors.json', 'utf8'));
const bytes = (hex: string): Bytes => Uint8Array.from(hex.match(/../g) ?? [], (two) => parseInt(two, 16));
const hex = (b: Bytes) => Buffer.from(b).toString('hex');

/** Imports a raw X25519 private key: RFC 8410 around it. */
async function secret(own: string, publicKey: Bytes): Promise<Secret> {
  const key = concat(bytes('302e020100300506032b656e04220420'), bytes(own));
  return { private: await crypto.subtle.importKey('pkcs8', key, { name: 'X25519' }, false, ['deriveBits']), public: publicKey };
}

/** A vector's device, as the keys of a link. */
const device = (v: any): Promise<Device> => readDevice(base64url(concat(bytes(v.key), bytes(v.signer), bytes(v.verifier))));

/** Performs a vector's handshake. change alters the host's messages. */
async function shake(h: any, change = (frame: Bytes) => frame, limit = 1 << 20): Promise<{ sent: Bytes[]; session: Session }> {
  const frames = h.frames.map((f: any) => ({ toHost: f.toHost, bytes: bytes(f.bytes) }));
  const first = frames.find((f: any) => f.bytes[0] === 3).bytes;
  const i = new Initiator({
    host: h.host, hostKey: h.knowsHostKey ? bytes(vectors.host.public) : undefined, code: h.code ? readCode(h.code) : undefined,
    device: await device(vectors.devices[0]), greeting: JSON.parse(h.greeting), limit, ephemeral: await secret(h.clientEphemeral, first.slice(2, 34)),
  });
  const sent = [await i.start()];
  for (const f of frames) {
    if (f.toHost) continue;
    const { answer, session } = await i.read(change(f.bytes));
    sent.push(answer);
    if (session) return { sent, session };
  }
  throw new Error('no session');
}

const records = (h: any, toHost: boolean) => h.records.filter((r: any) => r.toHost === toHost);

test('codes, padding, fingerprints and words are those of the vectors', async () => {
  for (const c of vectors.codes) {
    assert.equal(hex(readCode(c.typed)!), c.bytes);
    assert.equal(codeText(bytes(c.bytes)), c.text);
    assert.equal(hex(await secretOf(bytes(c.bytes))), c.secret);
  }
  for (const bad of vectors.badCodes) assert.equal(readCode(bad), undefined, bad);
  for (const [n, want] of vectors.padding) assert.equal(padded(n), want);
  for (const d of vectors.devices) {
    assert.deepEqual(await nameOfDevice(bytes(d.public), bytes(d.verifier)), { fingerprint: d.fingerprint, words: d.words });
    assert.equal(hex((await device(d)).secret.public), d.public);
  }
  assert.deepEqual(await nameOfHost(bytes(vectors.host.public)), { fingerprint: vectors.host.fingerprint, words: vectors.host.words });
});

test('pushes and their answers are verified and opened as in the vectors', async () => {
  const [own, name] = [vectors.devices[0], vectors.host.fingerprint];
  assert.equal(vectors.pushes.length, 2);
  for (const p of vectors.pushes) {
    const { sealed, body, signature } = JSON.parse(p.plaintext);
    assert.deepEqual([sealed, body], [p.host, p.note]);
    const note = JSON.parse(p.note);
    assert.deepEqual([note.to, note.id], [own.fingerprint, p.event]);
    const signed = (what: string, text: string, by: Bytes) => verify(bytes(p.verifier), concat(purpose(what), utf8(text)), by);
    assert.equal(await signed('push', p.note, fromBase64(signature)), true);
    assert.equal(await signed('push', `${p.note} `, fromBase64(signature)), false);
    assert.equal(await signed('outcome', p.note, fromBase64(signature)), false);
    if (note.withdrawn) continue;
    const { device: by, event, letter } = JSON.parse(p.answer);
    assert.deepEqual([by, event], [own.fingerprint, p.event]);
    const open = (of: string) => secret(vectors.host.key, bytes(vectors.host.public)).then((host) => openLetter(host, name, letter, ['reply', name, by, of].join('\n'), bytes(own.verifier)));
    assert.equal(textOf(await open(event)), p.content);
    assert.equal(JSON.parse(p.content).nonce, note.nonce);
    await assert.rejects(open('x'), /not signed/);
    const sum = hex(new Uint8Array(await crypto.subtle.digest('SHA-256', utf8(p.answer))));
    assert.equal(await signed('outcome', `${sum}\n${p.result}`, fromBase64url(p.proof)), true);
    assert.equal(await signed('outcome', `${sum}\ngone`, fromBase64url(p.proof)), false);
  }
});

test('grants are read and verified as in the vectors', async () => {
  for (const g of vectors.grants) {
    const grant = await readGrant(g.text);
    assert.equal(textOf(grant.body), g.signed);
    assert.equal(await isSigned(bytes(vectors.devices[0].verifier), grant), !g.error);
  }
});

test("grants' bodies are read and refused as in Go", async () => {
  for (const b of JSON.parse(readFileSync('../../internal/sealed/testdata/bodies.json', 'utf8'))) {
    const reads = await readGrant(`${base64url(bytes(b.body))}.${base64url(new Uint8Array(64))}`).then(() => true, () => false);
    assert.equal(reads, b.ok, b.name);
  }
});

test('pairing is offered at a sealed host only to a browser that is known to have no key', () => {
  const link = new Link('laptop', {} as any);
  const listed = { sealed: true } as any;
  const offers = (pinned: boolean | undefined) => { link.pinned = pinned; return link.unpaired(listed); };
  assert.deepEqual([undefined, true, false].map(offers), [false, false, true]);
});

test('a device certifies a device, and that one a third', async () => {
  const [first, second, third] = [await newDevice(), await newDevice(), await newDevice()];
  const key = bytes(vectors.host.public);
  const until = (by: Device, to: Device, more: object) => signGrant(by, key, { key: to.secret.public, verifier: to.verifier, subject: 'owner', level: 'write', from: 100, end: 100 + 86400, ...more });
  const of = (d: Device) => ({ key: d.secret.public, verifier: d.verifier });
  const a = await until(first, second, {});
  const b = await until(second, third, { level: 'read' });
  assert.equal((await readChain([a, b], key, of(third), 200_000)).at(-1)!.level, 'read');
  await assert.rejects(readChain([a], key, of(third), 200_000), /different device/);
  await assert.rejects(readChain([a, b], bytes(vectors.devices[0].public), of(third), 200_000), /different host/);
  await assert.rejects(readChain([a, b], key, of(third), 1e12), /time is over/);
  await assert.rejects(readChain([a, await until(first, third, {})], key, of(third), 200_000), /not signed/);
  await assert.rejects(readChain([a, await until(second, third, { level: 'admin' })], key, of(third), 200_000), /more than its issuer/);
  await assert.rejects(readChain([a, await until(second, third, { subject: 'eve' })], key, of(third), 200_000), /more than its issuer/);
  await assert.rejects(until(first, second, { end: 100 + 31 * 86400 }), /more than 30 days/);
  assert.deepEqual(await readPublic(publicText(second.secret.public, second.verifier)), of(second));
});

for (const h of vectors.handshakes) {
  test(`handshake and records of the vectors: ${h.name}`, async () => {
    const { sent, session } = await shake(h);
    assert.deepEqual(sent.map(hex), h.frames.filter((f: any) => f.toHost).map((f: any) => f.bytes));
    assert.equal(hex(session.id), h.id);
    for (const r of records(h, true)) assert.deepEqual((await session.seal(r.content, bytes(r.body))).map(hex), r.frames);
    for (const r of records(h, false)) {
      const opened = await Promise.all(r.frames.map((f: string) => session.open(bytes(f))));
      const whole = r.content === content.packed || r.content === content.joined;
      const last = whole ? [r.opened] : r.shared ?? [r.body];
      const want = r.content === content.epochKey || r.content === content.part ? [] : last.map((body: string) => [whole ? content.message : r.content, body]);
      assert.deepEqual(opened.map((parcels: any) => parcels.map((p: any) => [p.content, hex(p.body)])), [...r.frames.slice(1).map(() => []), want]);
    }
  });
}

test('each changed bit of the handshake is found', async () => {
  for (const h of vectors.handshakes) {
    const second = h.frames.find((f: any) => f.bytes.startsWith('04')).bytes;
    for (let at = 0; at < second.length / 2; at += 3) {
      await assert.rejects(shake(h, (f) => (f[0] === 4 ? f.map((b, i) => (i === at ? b ^ 1 : b)) : f)), at === 0 ? /turn/ : OtherKey);
    }
  }
  const scanned = new Initiator({ host: 'laptop', expect: vectors.host.fingerprint, code: new Uint8Array(16), device: await newDevice(), greeting: { name: '', window: 30 }, limit: 1 });
  await scanned.start();
  await assert.rejects(scanned.read(concat([2], bytes(vectors.devices[0].public))), OtherKey);
  assert.throws(() => new Initiator({ host: 'laptop', device: {} as any, greeting: { name: '', window: 30 }, limit: 1 }).start(), /pair/);
});

test('lost, repeated, moved and changed records are found, and end the stream', async () => {
  const h = vectors.handshakes[0];
  const honest = records(h, false).flatMap((r: any) => r.frames).map(bytes) as Bytes[];
  const foreign = records(vectors.handshakes[1], false).flatMap((r: any) => r.frames).map(bytes) as Bytes[];
  const outward = records(h, true).flatMap((r: any) => r.frames).map(bytes) as Bytes[];
  const lies: Record<string, (f: Bytes[]) => Bytes[]> = {
    lost: (f) => f.slice(1), repeated: (f) => [f[0], ...f], swapped: ([a, b, ...more]) => [b, a, ...more],
    'of a different connection': (f) => [f[0], foreign[1], ...f.slice(2)], reflected: (f) => [outward[0], ...f],
    cut: (f) => [f[0].slice(0, -1), ...f], longer: (f) => [concat(f[0], [0]), ...f], empty: (f) => [new Uint8Array(0), ...f],
    'of a different kind': (f) => [f[0].map((b, i) => (i === 0 ? 5 : b)), ...f],
  };
  for (const at of [1, 5, 17]) lies[`changed at ${at}`] = (f) => [f[0].map((b, i) => (i === at ? b ^ 128 : b)), ...f];
  for (const [name, lie] of Object.entries(lies)) {
    const { session } = await shake(h);
    const ends = await Promise.allSettled(lie(honest).map((f) => session.open(f)));
    const first = ends.findIndex((e) => e.status === 'rejected');
    assert.ok(first >= 0 && first <= 2, name);
    assert.ok(ends.slice(first).every((e) => e.status === 'rejected'), `${name}: nothing opens behind it`);
    ends.slice(0, first).forEach((e: any, i) => assert.equal(e.value[0].content, records(h, false)[i].content, name));
  }
});

test('lies about shared bodies are found before a message of them is given', async () => {
  const h = vectors.handshakes[0];
  const frames = (all: any[]) => all.flatMap((r: any) => r.frames).map(bytes) as Bytes[];
  const host = records(h, false);
  const at = host.findIndex((r: any) => r.epoch && r.shared.length > 1);
  const [before, f, after] = [frames(host.slice(0, at)), frames([host[at]]), frames(host.slice(at + 1))];
  const [one] = [frames(host.filter((r: any) => r.shared?.length === 1))];
  const foreign = frames(records(vectors.handshakes[1], false).filter((r: any) => r.shared));
  const told = host.slice(0, at).filter((r: any) => r.content !== content.epochKey).length;
  const tag = f.at(-1)!;
  const flip = (frame: Bytes, i: number) => frame.map((b, j) => (i === j ? b ^ 1 : b));
  const lies: Record<string, Bytes[]> = {
    'everything is left out': after, 'a body is left out': [...f.slice(1), ...after], 'the last body is left out': [...f.slice(0, -2), tag, ...after],
    'the tag is left out': [...f.slice(0, -1), ...after], 'the tag comes first': [tag, ...f.slice(0, -1), ...after], 'two bodies are swapped': [f[1], f[0], ...f.slice(2), ...after],
    'a body is repeated': [f[0], ...f, ...after], 'all bodies are repeated': [...f, ...f, ...after], 'an older body is put in': [one[0], ...f, ...after],
    'older bodies come again': [...one, ...f, ...after], 'they come behind the next record': [after[0], ...f, ...after.slice(1)],
    'the tag of an older body': [...f.slice(0, -1), one.at(-1)!, ...after], 'the tag of a different connection': [...f.slice(0, -1), foreign.at(-1)!, ...after],
    'a changed tag': [...f.slice(0, -1), flip(tag, 5), ...after], 'a longer tag': [...f.slice(0, -1), concat(tag, [0]), ...after], 'a tag for nothing': [...f, tag, ...after],
    'a short body': [f[0].slice(0, 20), ...f.slice(1), ...after], 'a record between bodies and tag': [...f.slice(0, -1), after[0], tag, ...after.slice(1)],
  };
  for (const i of [1, 4, 8, 9, 40]) lies[`a changed body at ${i}`] = [flip(f[0], i), ...f.slice(1), ...after];
  for (const [name, sent] of Object.entries(lies)) {
    const { session } = await shake(h);
    const ends = await Promise.allSettled([...before, ...sent].map((frame) => session.open(frame)));
    assert.ok(ends.some((e) => e.status === 'rejected'), name);
    const got = ends.flatMap((e) => (e.status === 'fulfilled' ? e.value : []));
    const most = told + (['all bodies are repeated', 'a tag for nothing'].includes(name) ? 3 : 0);
    assert.equal(got.length, most, `${name}: nothing wrong is given`);
  }
});

test('a reader who sides with the relay forges nothing for a different reader', async () => {
  const h = vectors.handshakes[0];
  const r = records(h, false).find((r: any) => r.epoch);
  const [epoch, body, tag] = [bytes(r.epoch), bytes(r.frames[0]), bytes(r.frames[1])];
  const key = await crypto.subtle.importKey('raw', epoch.slice(4), 'AES-GCM', false, ['decrypt', 'encrypt']);
  const how = { name: 'AES-GCM', iv: concat(new Uint8Array(8), body.slice(5, 9)), additionalData: body.slice(0, 9) };
  const plain = new Uint8Array(await crypto.subtle.decrypt(how, key, body.slice(9)));
  const forged = concat(body.slice(0, 9), new Uint8Array(await crypto.subtle.encrypt(how, key, plain.map((b, i) => (i === 70 ? b ^ 1 : b)))));
  const { session } = await shake(h);
  for (const frame of records(h, false).slice(0, records(h, false).indexOf(r)).flatMap((r: any) => r.frames)) await session.open(bytes(frame));
  assert.deepEqual(await session.open(forged), []);
  await assert.rejects(session.open(tag), /do not follow/);
});

/** The compressed form of a verifier. */
const shortOf = (verifier: Bytes): Bytes => concat([2 | verifier[64] & 1], verifier.slice(1, 33));

test('a verifier is the same in its short form, and an x without a point is refused', async () => {
  const signs = new Set();
  for (let i = 0; i < 20; i++) {
    const { verifier } = await newDevice();
    assert.deepEqual(longVerifier(shortOf(verifier)), verifier);
    signs.add(shortOf(verifier)[0]);
  }
  assert.deepEqual([...signs].sort(), [2, 3]);
  const [good] = [shortOf(bytes(vectors.devices[0].verifier))];
  for (const bad of [new Uint8Array(0), good.slice(1), concat(good, [0]), concat([4], good.slice(1)), concat([2], new Uint8Array(32).fill(255)), concat([2], new Uint8Array(31), [1])]) assert.throws(() => longVerifier(bad), hex(bad));
});

const crowd = JSON.parse(readFileSync('../../internal/sealed/testdata/crowd.json', 'utf8'));

/** Opens frames as the client of crowd.json, up to the first that it refuses. */
async function hear(frames: Bytes[]): Promise<{ got: string[]; found: boolean }> {
  const key = bytes(crowd.key);
  const client = await Session.from(key, key, key, 1 << 20);
  const ends = await Promise.allSettled(frames.map((f) => client.open(f)));
  const first = ends.findIndex((e) => e.status === 'rejected');
  const opened = ends.slice(0, first < 0 ? undefined : first) as PromiseFulfilledResult<any[]>[];
  assert.ok(first < 0 || ends.slice(first).every((e) => e.status === 'rejected'), 'nothing opens behind a lie');
  return { got: opened.flatMap((e) => e.value).filter((p) => p.content !== content.close).map((p) => hex(p.body)), found: first >= 0 || opened.at(-1)?.value[0]?.content !== content.close };
}

test('the vectors of crowds open', async () => {
  assert.deepEqual(await hear(crowd.frames.map(bytes)), { got: crowd.opened, found: false });
});

test('lies to a viewer in a crowd are found before a message of them is given', async () => {
  const f: Bytes[] = crowd.frames.map(bytes);
  const flip = (frame: Bytes, i: number) => frame.map((b, j) => (i === j ? b ^ 1 : b));
  const put = (i: number, ...by: Bytes[]) => [...f.slice(0, i), ...by, ...f.slice(i + 1)];
  const told = f.flatMap((frame, i) => (frame[0] === 9 ? [i] : []));
  const [a, b] = told;
  const [leave, later] = [f.findIndex((frame, i) => i > a && frame[0] === 6), told.find((i) => i > told[0] && f[i - 2][0] === 6 && f[i - 1][0] === 6)!];
  const lies: Record<string, Bytes[]> = {
    'a message is left out': put(b), 'the first is left out': put(a), 'the last before the leave is left out': put(leave - 1), 'all are left out': f.filter((frame) => frame[0] !== 9),
    'the entrance is left out': put(1), 'the leave is left out': put(leave), 'a message is repeated': put(a, f[a], f[a]), 'two are swapped': put(a, f[b], f[a], ...f.slice(b + 1)),
    'one comes before the entrance': put(1, f[a], f[1]), 'one comes behind the leave': put(leave, f[leave], f[leave - 1]), 'a record comes inside': put(b, f[leave + 1], f[b]),
    'one of a later crowd': put(a, f[later]), 'one of an earlier crowd': put(later, f[a]), 'one that is cut short': put(a, f[a].slice(0, 93)), 'a tag inside': put(b, concat([8], new Uint8Array(16)), f[b]),
    'a shared body inside': put(b, concat([7], f[a].slice(1)), f[b]), 'a record in its form': put(a, concat(f[a].slice(0, 77), f[0])), 'the tail is withheld': f.slice(0, -2),
  };
  for (const at of [1, 4, 5, 12, 13, 76, 77, f[a].length - 1]) lies[`a changed message at ${at}`] = put(a, flip(f[a], at));
  for (const [name, sent] of Object.entries(lies)) {
    const { got, found } = await hear(sent);
    assert.ok(found, name);
    assert.deepEqual(got, crowd.opened.slice(0, got.length), `${name}: nothing wrong is given`);
  }
});

test('a member of a crowd who sides with the relay forges nothing', async () => {
  const number = (n: number, size: number): Bytes => new Uint8Array(size).map((_, i) => n / 256 ** (size - 1 - i));
  const [connection, key] = [new Uint8Array(32), new Uint8Array(32).fill(2)];
  const [host, member] = [await newDevice(), await newDevice()];
  const encrypt = async (raw: Bytes, iv: Bytes, additionalData: Bytes, data: Bytes): Promise<Bytes> =>
    new Uint8Array(await crypto.subtle.encrypt({ name: 'AES-GCM', iv, additionalData }, await crypto.subtle.importKey('raw', raw, 'AES-GCM', false, ['encrypt']), data));
  const parcel = (what: number, body: Bytes): Bytes => {
    const made = new Uint8Array(padded(5 + body.length));
    made.set(concat([what], number(body.length, 4), body));
    return made;
  };
  const place = concat([6], await encrypt(connection, new Uint8Array(12), new Uint8Array([6]), parcel(content.place, concat(key, shortOf(host.verifier), [7]))));
  const tell = async (by: Device, what: number, body: Bytes, generation = 3, at = 7): Promise<Bytes> => {
    const head = concat([9], number(generation, 4), number(at, 8));
    const sealed = await encrypt(key, concat(new Uint8Array(4), number(at, 8)), head, parcel(what, body));
    return concat(head, await sign(by, concat(utf8('ahp-sealed/1 crowd\0'), head, sealed)), sealed);
  };
  const open = async (frame: Bytes, ...more: Bytes[]) => {
    const client = await Session.from(connection, connection, connection, 1 << 20);
    assert.deepEqual(await client.open(place), []);
    const opened = await client.open(frame);
    for (const next of more) await client.open(next);
    return opened;
  };
  assert.deepEqual((await open(await tell(host, content.told, concat(number(2, 4), utf8('{}'), number(1, 4), utf8('1'))))).map((p) => textOf(p.body)), ['{}', '1']);
  await assert.rejects(open(await tell(member, content.told, concat(number(2, 4), utf8('{}')))), /not signed/);
  for (const what of [content.message, content.close, content.welcome, content.place, content.part, content.epochKey]) await assert.rejects(open(await tell(host, what, utf8('12345678'))), `content ${what}`);
  await assert.rejects(open(await tell(host, content.told, concat(number(9, 4), utf8('short')))), /cut short/);
  const first = await tell(host, content.told, new Uint8Array(4), 3);
  await open(first, await tell(host, content.told, new Uint8Array(4), 3, 8));
  for (const generation of [2, 5]) await assert.rejects(open(first, await tell(host, content.told, new Uint8Array(4), generation, 8)), /not next/);
  const leadingZero = concat([6], await encrypt(connection, new Uint8Array(12), new Uint8Array([6]), parcel(content.place, concat(key, shortOf(host.verifier), [0, 7]))));
  await assert.rejects((await Session.from(connection, connection, connection, 1 << 20)).open(leadingZero), /out of turn/);
});

/** The host's end of a stream with keys of our own. */
async function ends(limit = 1 << 20) {
  const key = new Uint8Array(32);
  return { host: await Session.from(key, key, key, limit), client: await Session.from(key, key, key, limit) };
}

/** Seals a plaintext as the first record. */
async function sealRaw(plain: Bytes): Promise<Bytes> {
  const key = await crypto.subtle.importKey('raw', new Uint8Array(32), 'AES-GCM', false, ['encrypt']);
  const sealed = await crypto.subtle.encrypt({ name: 'AES-GCM', iv: new Uint8Array(12), additionalData: new Uint8Array([6]) }, key, plain);
  return concat([6], new Uint8Array(sealed));
}

test('a host with a fault, whose tags are true, is held to the forms of shared bodies', async () => {
  const sha256 = async (b: Bytes) => new Uint8Array(await crypto.subtle.digest('SHA-256', b));
  const number = (n: number, size: number): Bytes => new Uint8Array(size).map((_, i) => n / 256 ** (size - 1 - i));
  const encrypt = async (raw: Bytes, iv: Bytes, additionalData: Bytes, data: Bytes): Promise<Bytes> =>
    new Uint8Array(await crypto.subtle.encrypt({ name: 'AES-GCM', iv, additionalData }, await crypto.subtle.importKey('raw', raw, 'AES-GCM', false, ['encrypt']), data));
  const [connection, epoch] = [new Uint8Array(32), new Uint8Array(32).fill(2)];
  const pieces = (what: number, body: Bytes): Bytes[] => {
    const parcel = new Uint8Array(padded(5 + body.length));
    parcel.set(concat([what], number(body.length, 4), body));
    return [parcel.slice(0, 32768), parcel.slice(32768)].filter((piece) => piece.length > 0);
  };
  let bodies = 0;
  const bodyOf = async (piece: Bytes): Promise<Bytes> => {
    const head = concat([7], number(9, 4), number(bodies++, 4));
    return concat(head, await encrypt(epoch, concat(new Uint8Array(8), head.slice(5)), head, piece));
  };
  const tagOf = async (tags: number, recordsBefore: number, ...all: Bytes[]): Promise<Bytes> =>
    concat([8], await encrypt(connection, concat([0, 0, 0, 1], number(tags, 8)), concat([8], number(recordsBefore, 8), await sha256(concat(...await Promise.all(all.map(sha256))))), new Uint8Array(0)));
  const recordOf = async (count: number, bodiesBefore: number, piece: Bytes): Promise<Bytes> =>
    concat([6], await encrypt(connection, concat(new Uint8Array(4), number(count, 8)), concat([6], bodiesBefore ? number(bodiesBefore, 8) : []), piece));
  const long = new Uint8Array(32768 + 100).fill(120);
  const one = async (what: number, body: Bytes) => {
    const b = await bodyOf(pieces(what, body)[0]);
    return [b, await tagOf(0, 1, b)];
  };
  const partKey = new Uint8Array(32).fill(3);
  const packed = (text: string): Bytes => new Uint8Array(deflateRawSync(text));
  const partOf = (what: number, body: Bytes): Promise<Bytes[]> => Promise.all(pieces(what, body).map(async (piece, i) => {
    const head = concat([7], number(0, 4), number(i, 4));
    return concat(head, await encrypt(partKey, concat(new Uint8Array(8), head.slice(5)), head, piece));
  }));
  const joined = (before: number, key = partKey, at = 1): Promise<Bytes> => recordOf(1, before, pieces(content.joined, concat(key, number(at, 4), utf8('own')))[0]);
  const withPart = async (what: number, body: Bytes, key = partKey, at = 1) => {
    const [b] = await partOf(what, body);
    return [b, await tagOf(0, 1, b), await joined(1, key, at)];
  };
  const random = crypto.getRandomValues(new Uint8Array(50_000));
  const noisy = await partOf(content.part, new Uint8Array(deflateRawSync(random)));
  assert.equal(noisy.length, 2);
  const [front, back] = pieces(content.message, long);
  const [first, rest] = [await bodyOf(front), await bodyOf(back)];
  const forms: Record<string, Bytes[]> = {
    'a tag for no body': [await tagOf(0, 1)], 'a compressed body': await one(content.packed, new Uint8Array(deflateRawSync('message'))), 'a heartbeat': await one(content.heartbeat, new Uint8Array(8)),
    'a close': await one(content.close, new Uint8Array([0x11, 0x95])), 'a key of an epoch': await one(content.epochKey, concat(number(10, 4), epoch)),
    'the epoch of parts': [await recordOf(1, 0, pieces(content.epochKey, concat(number(0, 4), epoch))[0])], 'a joined message in a body': await one(content.joined, concat(partKey, number(0, 4), [120])),
    'a part in an epoch': await one(content.part, packed('x')), 'a part in a record': [await recordOf(1, 0, pieces(content.part, packed('x'))[0])],
    'a damaged part': await withPart(content.part, utf8('message')), 'an empty part': await withPart(content.part, packed('')), 'a message in place of a part': await withPart(content.message, utf8('message')),
    'a part with a different key': await withPart(content.part, packed('x'), epoch), 'a part outside of its message': await withPart(content.part, packed('x'), partKey, 9),
    'a part without its end': [noisy[0], await tagOf(0, 1, noisy[0]), await joined(1)], 'a part without its beginning': [noisy[1], await tagOf(0, 1, noisy[1]), await joined(1)],
    'two parts': [...noisy, noisy[0], await tagOf(0, 1, ...noisy, noisy[0]), await joined(3)], 'a joined message without a part': [await joined(0)],
    'a part inside of a message': [first, noisy[0], await tagOf(0, 1, first, noisy[0])],
    'a message that ends in a record': [first, await tagOf(0, 1, first), await recordOf(1, 1, back)],
    'a message that ends in a body': [await recordOf(1, 0, front), rest, await tagOf(0, 2, rest)],
  };
  const open = async (frames: Bytes[]) => {
    const client = await Session.from(connection, connection, connection, 1 << 20);
    const [key] = pieces(content.epochKey, concat(number(9, 4), epoch));
    return (await Promise.allSettled([await recordOf(0, 0, key), ...frames].map((f) => client.open(f))));
  };
  for (const [name, frames] of Object.entries(forms)) {
    const got = await open(frames);
    assert.equal(got[0].status, 'fulfilled', name);
    assert.equal(got.at(-1)!.status, 'rejected', name);
    assert.ok(got.every((e) => e.status === 'rejected' || e.value.length === 0), `${name}: nothing is given`);
  }
  const good = await open([first, await tagOf(0, 1, first), rest, await tagOf(1, 1, rest), await recordOf(1, 2, pieces(content.message, utf8('own'))[0])]);
  assert.deepEqual(good.flatMap((e: any) => e.value).map((p) => p.body.length), [long.length, 3], 'a message under two tags passes');
  const whole = await open([noisy[0], await tagOf(0, 1, noisy[0]), noisy[1], await tagOf(1, 1, noisy[1]), await joined(2)]);
  assert.deepEqual(whole.flatMap((e: any) => e.value).map((p) => p.body.length), [3 + random.length], 'a part under two tags passes');
  const half = new Half({} as CryptoKey);
  half.hear(2 ** 32);
  half.next(1);
  assert.throws(() => half.hear(1), /as much as its keys allow/);
});

test('parcels of all sizes pass, and bounds are kept', async () => {
  const { host, client } = await ends(200_000);
  for (const n of [0, 1, 2, 3, 100, 32762, 32763, 32764, 65531, 65532, 100_000, 200_000]) {
    const body = new Uint8Array(n).map((_, i) => i * 7);
    const got = [];
    for (const f of await host.seal(content.message, body)) {
      assert.ok(f.length <= 32785);
      got.push(await client.open(f));
    }
    assert.deepEqual([...got.pop()![0].body], [...body]);
    assert.ok(got.every((g) => g.length === 0));
  }
  const frames = await host.seal(content.message, new Uint8Array(200_001));
  await assert.rejects(client.open(frames[0]), /more than this page takes/);
  const bomb = deflateRawSync(Buffer.alloc(300_000));
  const two = await ends(200_000);
  const [f] = await two.host.seal(content.packed, new Uint8Array(bomb));
  await assert.rejects(two.client.open(f), /more than 200000 bytes/);
  const refused: Record<string, Bytes> = {
    padding: concat([0, 0, 0, 0, 4], [65, 65, 65, 65], [1]), 'too long': new Uint8Array(12), 'too short': new Uint8Array([0, 0, 0, 1]), head: new Uint8Array([0, 0, 0]), kind: new Uint8Array([9, 0, 0, 0, 0]), 'a short key': new Uint8Array([8, 0, 0, 0, 0]),
    'an ask': new Uint8Array([content.ask, 0, 0, 0, 0]), 'not packed': concat([1, 0, 0, 0, 4], utf8('abcd'), [0]),
  };
  for (const [name, plain] of Object.entries(refused)) await assert.rejects((await ends()).client.open(await sealRaw(plain)), undefined, name);
  assert.equal(textOf((await (await ends()).client.open(await sealRaw(concat([0, 0, 0, 0, 4], utf8('abcd'), [0]))))[0].body), 'abcd');
});

test('closes, heartbeats and welcomes are read, and nothing else', () => {
  assert.deepEqual(readClose(concat([0x11, 0x95], utf8('removed'))), { code: 4501, reason: 'removed' });
  assert.throws(() => readClose(new Uint8Array([1])));
  assert.throws(() => readClose(new Uint8Array([1, 2, 255])));
  assert.equal(readHeartbeat(heartbeat(77)), 77);
  assert.throws(() => readHeartbeat(new Uint8Array(7)));
  const welcome = { subject: 'ada', level: 'admin', end: 1800000000 };
  assert.deepEqual(readWelcome(utf8(JSON.stringify({ ...welcome, more: 1 }))), welcome);
  assert.deepEqual(readWelcome(new Uint8Array([3, 0, 0, 0, 0, 0x6b, 0x49, 0xd2, 0])), { subject: '', level: 'write', end: 1800000000 });
  for (const bad of [[5, 0, 0, 0, 0, 0, 0, 0, 0], [0, 255, 0, 0, 0, 0, 0, 0, 0]]) assert.throws(() => readWelcome(new Uint8Array(bad)));
  for (const bad of ['null', '[]', '{}', '{"subject":"ada","level":"root","end":1}', '{"subject":"ada","level":"admin","end":"1"}', 'x']) assert.throws(() => readWelcome(utf8(bad)), undefined, bad);
});

test('objects with unknown or equal members, and spellings of base64url, are refused', () => {
  const shape = { a: 'string', b: 'number', c: '?strings' } as const;
  assert.deepEqual(exactly(utf8('{"a":"\\"b\\":","b":1,"c":["x","\\"a\\":"]}'), shape), { a: '"b":', b: 1, c: ['x', '"a":'] });
  for (const bad of ['{"a":"x","b":1,"b":2}', '{"a":"x","b":1,"\\u0062":2}', '{"a":"x","b":1,"d":2}', '{"a":"x"}', '{"a":1,"b":1}', '{"a":"x","b":1.5}', '{"a":"x","b":1} x', '[]', 'null', '{"a":"x","b":1,"c":[1]}', '{"a":"x","b":{"a":1}}']) {
    assert.throws(() => exactly(utf8(bad), shape), undefined, bad);
  }
  for (const bad of ['AB', 'A', 'AA==', 'AA A', 'A+', 'AAB']) assert.throws(() => fromBase64url(bad), undefined, bad);
  assert.ok(printable('Ada’s phone') && !printable('a\nb') && !printable('a\u00a0b') && !printable('a\u202eb') && !printable('\ud800'));
});

test('no parser takes random bytes', async () => {
  let seed = 7;
  const random = (n: number) => Math.floor((seed = (seed * 48271) % 2147483647) / 2147483647 * n);
  const noise = (n: number) => new Uint8Array(n).map(() => random(256));
  const grant = vectors.grants[0].text as string;
  const session = async () => (await ends(5000)).client;
  for (let i = 0; i < 1500; i++) {
    const junk = noise(random(80));
    await assert.rejects((await session()).open(junk));
    // A parcel with a right seal and random content opens with at most the limit, or not at all.
    const parcel = concat([random(14)], [0, 0, random(24), random(256)], noise(random(3000)));
    const got = await (await session()).open(await sealRaw(parcel)).catch(() => undefined);
    if (got?.length) assert.ok(got[0].body.length <= 5000 && got[0].content !== content.packed);
    const at = random(grant.length);
    const changed = grant.slice(0, at) + String.fromCharCode(33 + random(90)) + grant.slice(at + 1);
    const read = await readGrant(changed).catch(() => undefined);
    if (read && changed !== grant) assert.equal(await isSigned(bytes(vectors.devices[0].verifier), read), false, changed);
    for (const read of [readClose, readHeartbeat, readWelcome]) {
      try {
        read(junk);
      } catch (err) {
        assert.ok(err instanceof Error);
      }
    }
    const code = String.fromCharCode(...noise(26).map((b) => 48 + b % 75));
    const had = readCode(code);
    if (had) assert.deepEqual(readCode(codeText(had)), had);
  }
});

/** The relay's end of a WebSocket, in the hands of the test. */
class Wire {
  static OPEN = 1;
  readyState = 1;
  protocol = 'ahp.sealed.1';
  binaryType = '';
  bufferedAmount = 0;
  onopen: any;
  onmessage: any;
  onclose: any;
  sent: any[] = [];
  closes = 0;

  send(data: any) { this.sent.push(typeof data === 'string' ? data : new Uint8Array(data)); }
  close() { this.readyState = 3; this.closes++; }
  give(frame: Bytes) { this.onmessage?.({ data: frame.buffer.slice(frame.byteOffset, frame.byteOffset + frame.byteLength) }); }
}

/** Lets promises and cryptography finish: the operations that run, and what follows from their results. */
async function settle() {
  for (let i = 0; i < 300 || running > 0; i++) await digest('SHA-256', new Uint8Array(1));
}
const digest = crypto.subtle.digest.bind(crypto.subtle);
let running = 0;
for (const name of ['decrypt', 'deriveBits', 'deriveKey', 'digest', 'encrypt', 'exportKey', 'generateKey', 'importKey', 'sign', 'verify']) {
  const subtle = crypto.subtle as any;
  const real = subtle[name].bind(subtle);
  subtle[name] = async (...args: unknown[]) => {
    running++;
    try {
      return await real(...args);
    } finally {
      running--;
    }
  };
}

/** A SealedSocket behind a vector's handshake, before the host's first record. */
async function opened(h: any = vectors.handshakes[0], protocol = 'ahp.sealed.1') {
  const wire = new Wire();
  wire.protocol = protocol;
  const first = h.frames.map((f: any) => bytes(f.bytes)).find((f: Bytes) => f[0] === 3);
  const heard: any[] = [];
  const socket = new SealedSocket(wire as any, {
    host: h.host, hostKey: h.knowsHostKey ? bytes(vectors.host.public) : undefined, code: h.code ? readCode(h.code) : undefined,
    device: await device(vectors.devices[0]), greeting: JSON.parse(h.greeting), limit: 1 << 20, ephemeral: await secret(h.clientEphemeral, first.slice(2, 34)),
  }, { pending: (key) => heard.push(['pending', hex(key)]), welcome: async (w, key) => { heard.push(['welcome', w.level, hex(key)]); } });
  socket.onopen = () => heard.push(['open']);
  socket.onmessage = ({ data }) => heard.push(['message', data]);
  socket.onclose = ({ code, reason }) => heard.push(['close', code, reason]);
  wire.onopen({});
  await settle();
  for (const f of h.frames) {
    if (f.toHost) continue;
    wire.give(bytes(f.bytes));
    await settle();
  }
  return { wire, socket, heard, records: records(h, false).flatMap((r: any) => r.frames).map(bytes) as Bytes[] };
}

test('a sealed socket gives whole messages, and only the last word of the host', async () => {
  for (const h of vectors.handshakes) {
    const { wire, socket, heard, records: all } = await opened(h);
    assert.deepEqual(wire.sent.slice(0, 3).map(hex), h.frames.filter((f: any) => f.toHost).map((f: any) => f.bytes));
    for (const frame of all) wire.give(frame);
    wire.onclose({ code: 4501, reason: 'a word of the relay' });
    await settle();
    assert.deepEqual(heard.map((e) => e[0]), ['pending', 'welcome', 'open', ...Array(8).fill('message'), 'close'], h.name);
    assert.equal(heard[1][2], vectors.host.public);
    assert.match(heard[3][1], /^{"jsonrpc":"2.0","id":7,"result"/);
    assert.deepEqual(heard[11], ['close', 4999, 'removed'], 'a host that removes the device says nothing about the token of the relay');
    assert.equal(socket.level, h.greeting.includes('"viewer"') ? 'read' : 'admin');
  }
});

test('before the welcome a sealed socket gives nothing, and sends nothing', async () => {
  const { wire, socket, heard, records: all } = await opened();
  socket.send('{"jsonrpc":"2.0","id":1,"method":"initialize"}');
  wire.give(all[0]);
  await settle();
  assert.deepEqual(heard.map((e) => e[0]), ['pending']);
  assert.equal(wire.sent.length, 2);
  wire.onclose({ code: 4503, reason: 'no' });
  await settle();
  assert.deepEqual(heard.at(-1), ['close', 4503, 'the relay says: no']);
});

test('a relay that speaks in the place of the host is not heard', async () => {
  const message = '{"jsonrpc":"2.0","id":1,"result":{}}';
  for (const [name, lie] of Object.entries({
    'a text': (w: Wire) => w.onmessage({ data: message }),
    'a notification': (w: Wire) => w.onmessage({ data: '{"jsonrpc":"2.0","method":"action","params":{}}' }),
    'a record of zeros': (w: Wire) => w.give(concat([6], new Uint8Array(60))),
    'another handshake': (w: Wire) => w.give(bytes(vectors.handshakes[0].frames[1].bytes)),
  })) {
    const { wire, heard, records: all } = await opened();
    for (const frame of all.slice(0, 2)) wire.give(frame);
    await settle();
    lie(wire);
    wire.give(all[2]);
    await settle();
    assert.deepEqual(heard.slice(3).map((e) => e.slice(0, 2)), [['close', 4400]], name);
    assert.ok(wire.closes > 0);
  }
  const unsealed = await opened(vectors.handshakes[0], 'ahp').catch(() => undefined);
  assert.deepEqual(unsealed?.heard.map((e) => e.slice(0, 2)), [['close', 4400]], 'a relay that selects another subprotocol');
  assert.equal(unsealed?.wire.sent.length, 0);
});

test('close frames of a relay only delay or deny, and are shown as its words', async () => {
  const own = [1001, 1006, 1009, 1012, 1013, 4100, 4500, 4501, 4503, 4504];
  for (const welcomed of [true, false]) {
    for (const code of [...own, 1000, 1005, 3000, 4000, 4400, 4996, 4997, 4998, 4999]) {
      for (const reason of ['the host shows a different key', 'removed', '']) {
        const { wire, heard, records: all } = await opened();
        for (const frame of all.slice(0, welcomed ? 2 : 0)) wire.give(frame);
        await settle();
        const before = heard.length;
        wire.onclose({ code, reason });
        for (const frame of all.slice(2)) wire.onmessage?.({ data: frame.buffer }); // nothing of it counts any more
        await settle();
        const [[what, as, said], ...more] = heard.slice(before);
        assert.deepEqual([what, as, more], ['close', own.includes(code) ? code : 1012, []], `${code}, welcomed: ${welcomed}`);
        assert.ok(reason ? said === `the relay says: ${reason}` : !/host shows|removed/.test(said), said);
        assert.ok(as < 4996, 'the codes of this page about pairings are not the relay’s');
      }
    }
  }
});

test('only a renewed token leaves a sealed socket in the clear, and only its answer comes back', async () => {
  const { wire, socket, heard, records: all } = await opened();
  for (const frame of all.slice(0, 2)) wire.give(frame);
  await settle();
  const refresh = '{"jsonrpc":"2.0","id":9,"method":"relay/refreshToken","params":{"token":"t"}}';
  socket.send(refresh);
  socket.send('{"jsonrpc":"2.0","id":10,"method":"x","params":{"text":"\\"relay/refreshToken\\""}}');
  await settle();
  assert.deepEqual(wire.sent.filter((s) => typeof s === 'string'), [refresh]);
  assert.equal(wire.sent.length, 5, 'two messages of the handshake, the wish for shared messages, and two requests');
  wire.onmessage({ data: '{"jsonrpc":"2.0","id":9,"result":{"expires":"2030"}}' });
  assert.deepEqual(heard.at(-1), ['message', '{"jsonrpc":"2.0","id":9,"result":{"expires":"2030"}}']);
  wire.onmessage({ data: '{"jsonrpc":"2.0","id":9,"result":{}}' }); // once
  assert.deepEqual(heard.at(-1)!.slice(0, 2), ['close', 4400]);
});

test('without records, a sealed socket shows the time of the last one, and then ends', async (t) => {
  const { wire, socket, heard, records: all } = await (async () => {
    mock.timers.enable({ apis: ['setInterval', 'setTimeout', 'Date'], now: 1_800_000_000_000 });
    t.after(() => mock.timers.reset());
    return opened();
  })();
  for (const frame of all.slice(0, 2)) wire.give(frame);
  await settle();
  const pass = async (seconds: number) => {
    for (let i = 0; i < seconds; i += 2.5) mock.timers.tick(2500);
    await settle();
  };
  const before = wire.sent.length;
  await pass(15);
  assert.equal(wire.sent.length, before + 1, 'a heartbeat');
  assert.equal(socket.asOf, 0);
  await pass(10);
  assert.equal(socket.asOf, 1_800_000_000_000);
  wire.give(all[2]);
  await settle();
  assert.equal(socket.asOf, 0);
  mock.timers.setTime(Date.now() + 3600_000); // the machine slept
  await pass(2.5);
  assert.equal(socket.asOf, 0);
  await pass(50);
  assert.deepEqual(heard.at(-1)!.slice(0, 2), ['close', 4400]);
});

/** A database with one store, as far as the pins need it. */
function database() {
  const kept = new Map<string, unknown>();
  const later = (act: () => void) => { setTimeout(act, 0); };
  const store = {
    get: (key: string) => { const request: any = {}; later(() => { request.result = structuredClone(kept.get(key)); request.onsuccess?.(); }); return request; },
    put: (value: unknown, key: string) => { kept.set(key, structuredClone(value)); return {}; },
    delete: (key: string) => { kept.delete(key); return {}; },
    getAll: () => ({ result: [...kept.values()] }),
    getAllKeys: () => ({ result: [...kept.keys()] }),
  };
  const db = { close() {}, transaction: () => { const t: any = { objectStore: () => store }; later(() => later(() => t.oncomplete())); return t; } };
  return { open: () => { const open: any = { result: db }; later(() => open.onsuccess()); return open; } };
}

test('changes of a pin at the same time are all kept', async () => {
  Object.assign(globalThis, { navigator: {}, indexedDB: database(), location: { origin: 'https://relay.example' } });
  const given = ['old', 'new'].map((fingerprint) => ({ fingerprint, words: '', name: '', subject: 'ada', level: 'look', end: 1 }));
  await pin({ relay: 'https://relay.example', host: 'laptop', key: bytes(vectors.host.public), grants: [], subject: 'ada', level: 'admin', end: 1, since: 1, given } as Pin);
  const { verifier } = vectors.pushes[0];
  const keys = async () => ({ verifier: base64url(bytes(verifier)) });
  await Promise.all([subscribe('laptop', keys, 'target', true, { p256dh: 'key', auth: 'secret' }), forgetGiven('laptop', 'old'), forgetGiven('laptop', 'new')]);
  const is = await pinOf('laptop');
  assert.deepEqual([is?.push?.way, is?.given, is?.level], ['target', [], 'admin']);
});

// Cancels a pairing while the device waits for its WebSocket, as on a bad network. The pairing must end, and the host must
// not be asked.
test('a pairing that is cancelled before its connection ends', async () => {
  Object.assign(globalThis, { navigator: {}, indexedDB: database(), location: { origin: 'https://relay.example' } });
  const cancel = new AbortController();
  const line: any = { readyState: 0, close() { line.readyState = 3; } };
  let dialled = false;
  const dial = async () => {
    dialled = true;
    cancel.abort();
    return line;
  };
  const paired = pair({ host: 'laptop', code: new Uint8Array(10) }, 'phone', dial, () => {}, cancel.signal).then(() => 'paired', () => 'cancelled');
  assert.equal(await Promise.race([paired, new Promise((done) => { setTimeout(done, 1000, 'it goes on'); })]), 'cancelled');
  assert.deepEqual([dialled, line.readyState, line.onopen], [true, 3, undefined]);
});

// Removes a sealed host's key, as a person does when the host shows another key. The browser still knows the host as
// sealed, so notifications about it must still show nothing that only the relay says, until the person opens the host
// unsealed. Another host, and an account's host with the same name, are not concerned.
test('a host without a key stays sealed for notifications', async () => {
  Object.assign(globalThis, { navigator: {}, indexedDB: database(), location: { origin: 'https://relay.example' } });
  const known = () => Promise.all([isSealed('', 'laptop'), isSealed('', 'desk'), isSealed('work', 'laptop')]);
  assert.deepEqual(await known(), [false, false, false]);
  await pin({ relay: 'https://relay.example', host: 'laptop', key: bytes(vectors.host.public), grants: [], subject: 'ada', level: 'admin', end: 1, since: 1 } as Pin);
  assert.deepEqual(await known(), [true, false, false]);
  await unpin('laptop');
  assert.deepEqual(await known(), [true, false, false]);
  await unmark('laptop');
  assert.deepEqual(await known(), [false, false, false]);
  await unpin('laptop@work');
  assert.deepEqual(await known(), [false, false, true]);
});
