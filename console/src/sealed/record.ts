// The sealed stream after a handshake (docs/sealed.md, Records). It carries parcels, which are padded and
// split into records.

import { concat, digest, padded, purpose, textOf, utf8, type Bytes } from './bytes';
import { longVerifier, readVerifier, shortVerifierSize, signatureSize, signing } from './keys';
import { Lie } from './lie';
import { t } from '../language';

/** The meaning of a parcel's body. */
export const content = { message: 0, packed: 1, heartbeat: 2, close: 3, pending: 4, welcome: 5, ask: 6, answer: 7, epochKey: 8, part: 9, joined: 10, place: 11, told: 12 };
const toClient = [content.message, content.packed, content.heartbeat, content.close, content.pending, content.welcome, content.answer, content.epochKey, content.part, content.joined, content.place, content.told];

export const tagSize = 16;
const headSize = 5;
const pieceSize = 32 << 10;
const longestFrame = 1 + pieceSize + tagSize;
export const kinds = { record: 6, body: 7, tag: 8, crowd: 9 };
const bodyHead = 9; // of a shared body: kind, epoch, number
const crowdHead = 13; // of a crowd's message: kind, generation, number
const crowdFront = crowdHead + signatureSize;
const leaves = 8; // bytes of a Place that leaves
const enters = 32 + shortVerifierSize; // before the number
const joinedHead = 32 + 4; // of a Joined: the part's key and place
const partEpoch = 0; // in the bodies of parts; no epoch has this number
const mostEpochs = 256;
const mostHeard = 1 << 16; // shared bodies that wait for a tag
const mostRecords = 2 ** 32; // the same bound applies to shared bodies
const mostBytes = 2 ** 44;

/** A parcel from the host. A compressed message appears as a message. */
export interface Parcel { content: number; body: Bytes }

const spent = () => new Error(t`This sealed connection has carried as much as its keys allow.`);

/** The key and counters for one direction. */
export class Half {
  count = 0;
  #bodies = 0; // shared bodies so far
  #bytes = 0;

  constructor(readonly key: CryptoKey) {}

  /** Returns the algorithm parameters for the next record, of n bytes. */
  next(n: number): AesGcmParams {
    if (this.count >= mostRecords || this.#bytes + n > mostBytes) throw spent();
    this.#bytes += n;
    return { name: 'AES-GCM', iv: nonce(0, this.count++), additionalData: concat([kinds.record], this.#bodies ? u64(this.#bodies) : []) };
  }

  /** Counts n shared bodies. */
  hear(n: number): void {
    if ((this.#bodies += n) > mostRecords) throw spent();
  }
}

function u64(n: number): Bytes {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(n));
  return bytes;
}

const nonce = (use: number, n: number) => concat([0, 0, 0, use], u64(n));

const sha256 = async (bytes: Bytes): Promise<Bytes> => new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));

/** A piece of a parcel. A body of a part is still sealed. */
interface Piece { bytes: Bytes; part?: boolean }

/** A shared body that waits for its tag. */
interface Heard { sum: Promise<Bytes>; piece: Promise<Piece> }

/** The client's place in a crowd. */
interface Seat { generation?: number; number: bigint; secret: Bytes; key: CryptoKey; verifier: CryptoKey }

/** The client's end of a sealed stream. */
export class Session {
  readonly id: Bytes;
  #in: Half;
  #out: Half;
  #limit: number; // bytes of the longest message
  #turn: Promise<unknown> = Promise.resolve(); // parcels are assembled in order
  #broken: Error | undefined;
  #whole = 0; // length of the incomplete parcel
  #pieces: Bytes[] = [];
  #arrived = 0; // bytes of it that have arrived
  #way = 0; // kind of the messages that bring the pieces
  #part: Bytes[] = []; // bodies of the part that waits for its message
  #partBytes = 0;
  #epochs = new Map<number, CryptoKey>(); // keys of shared bodies, oldest first
  #heard: Heard[] = [];
  #heardBytes = 0;
  #tags = 0;
  #seat: Seat | undefined;
  opened = 0; // records

  private constructor(id: Bytes, inward: CryptoKey, outward: CryptoKey, limit: number) {
    this.id = id;
    this.#in = new Half(inward);
    this.#out = new Half(outward);
    this.#limit = limit;
  }

  static async from(id: Bytes, inward: Bytes, outward: Bytes, limit: number): Promise<Session> {
    const use = (key: Bytes, how: KeyUsage) => crypto.subtle.importKey('raw', key, 'AES-GCM', false, [how]);
    return new Session(id, await use(inward, 'decrypt'), await use(outward, 'encrypt'), limit);
  }

  /** Returns the WebSocket messages of the next parcel, in the order of the calls. */
  seal(what: number, body: Bytes): Promise<Bytes[]> {
    const size = padded(headSize + body.length);
    const parcel = new Uint8Array(size);
    parcel[0] = what;
    new DataView(parcel.buffer).setUint32(1, body.length);
    parcel.set(body, headSize);
    const frames: Promise<Bytes>[] = [];
    for (let at = 0; at < size; at += pieceSize) {
      const piece = parcel.subarray(at, Math.min(size, at + pieceSize));
      frames.push(crypto.subtle.encrypt(this.#out.next(piece.length), this.#out.key, piece).then((sealed) => concat([kinds.record], new Uint8Array(sealed))));
    }
    return Promise.all(frames);
  }

  /**
   * Reads the next message, and returns the parcels that it completes: from a record at most one, from a tag
   * all in the shared bodies before it. After an error, every call throws that error.
   */
  open(frame: Bytes): Promise<Parcel[]> {
    const pieces = this.#read(frame);
    pieces.catch(() => {}); // reported by the chain
    const mine = this.#turn.then(async () => {
      if (this.#broken) throw this.#broken;
      try {
        const parcels: Parcel[] = [];
        const seated = this.#seat;
        if (seated && frame[0] !== kinds.record && frame[0] !== kinds.crowd) throw new Lie('shared bodies inside of a crowd');
        for (const { bytes, part } of frame[0] === kinds.crowd ? await pieces.then(() => this.#told(frame)) : await pieces) {
          const parcel = part ? this.#keepPart(bytes) : await this.#take(bytes, frame[0]);
          if (parcel) parcels.push(parcel);
        }
        if (frame[0] === kinds.record) this.opened++;
        if (frame[0] === kinds.crowd) return parcels.flatMap(split);
        if (seated && parcels[0]?.content !== content.place) throw new Error('a sealed record inside of a crowd');
        return await this.#keepKeys(parcels);
      } catch (err) {
        this.#broken = err as Error;
        throw err;
      }
    });
    this.#turn = mine.catch(() => {});
    return mine;
  }

  /** Returns the pieces of parcels that a message proves to be genuine. */
  async #read(frame: Bytes): Promise<Piece[]> {
    if (frame[0] === kinds.body) {
      await this.#hear(frame);
      return [];
    }
    if (frame[0] === kinds.crowd && this.#heard.length === 0) return []; // see told
    return frame[0] === kinds.tag ? this.#verify(frame) : [{ bytes: await this.#decrypt(frame) }];
  }

  async #decrypt(frame: Bytes): Promise<Bytes> {
    if (this.#heard.length > 0) throw new Lie('shared bodies without a tag');
    const how = this.#in.next(frame.length);
    if (frame.length <= 1 + tagSize || frame.length > longestFrame || frame[0] !== kinds.record) throw new Lie('not a record');
    try {
      return new Uint8Array(await crypto.subtle.decrypt(how, this.#in.key, frame.subarray(1)));
    } catch {
      throw new Lie('a record does not follow the last one');
    }
  }

  /** Stores a shared body. Until its tag arrives, any reader in its set could have forged it. */
  #hear(frame: Bytes): Promise<Piece> {
    if (frame.length <= bodyHead + tagSize || frame.length > bodyHead + pieceSize + tagSize) throw new Lie('not a shared body');
    this.#heardBytes += frame.length;
    if (this.#heardBytes > this.#limit + 2 * pieceSize || this.#heard.length >= mostHeard) throw new Lie('too many shared bodies without a tag');
    const piece = this.#openBody(frame, this.#turn);
    piece.catch(() => {}); // reported in its turn
    this.#heard.push({ sum: sha256(frame), piece });
    return piece;
  }

  async #openBody(frame: Bytes, before: Promise<unknown>): Promise<Piece> {
    const epoch = u32(frame, 1);
    if (epoch === partEpoch) return { bytes: frame, part: true };
    const key = this.#epochs.get(epoch) ?? await before.then(() => this.#epochs.get(epoch)); // the key may be in the record before
    if (!key) throw new Lie('a shared body of an unknown epoch');
    try {
      return { bytes: await decryptBody(key, frame) };
    } catch {
      throw new Lie('a shared body that was changed');
    }
  }

  /** Verifies the tag of all shared bodies that wait for one. */
  async #verify(frame: Bytes): Promise<Piece[]> {
    const heard = this.#heard;
    if (frame.length !== 1 + tagSize || heard.length === 0) throw new Lie('not the tag of shared bodies');
    const [iv, records] = [nonce(1, this.#tags++), u64(this.#in.count)];
    this.#in.hear(heard.length);
    this.#heard = [];
    this.#heardBytes = 0;
    const sum = await sha256(concat(...await Promise.all(heard.map((h) => h.sum))));
    try {
      await crypto.subtle.decrypt({ name: 'AES-GCM', iv, additionalData: concat([kinds.tag], records, sum) }, this.#in.key, frame.subarray(1));
    } catch {
      throw new Lie('these shared bodies do not follow');
    }
    return Promise.all(heard.map((h) => h.piece));
  }

  /** Opens a message of the client's crowd, which the host has signed: all members know the key. */
  async #told(frame: Bytes): Promise<Piece[]> {
    const seat = this.#seat;
    if (!seat || frame.length <= crowdFront + tagSize || frame.length > crowdFront + pieceSize + tagSize) throw new Lie('a message of no crowd');
    const [head, signature, sealed] = [frame.subarray(0, crowdHead), frame.subarray(crowdHead, crowdFront), frame.subarray(crowdFront)];
    const follows = new DataView(head.buffer, head.byteOffset).getBigUint64(5) === seat.number;
    if (!follows || !await crypto.subtle.verify(signing, seat.verifier, signature, concat(purpose('crowd'), head, sealed))) throw new Lie('a message of a crowd that does not follow, or that the host has not signed');
    const generation = u32(head, 1);
    seat.generation ??= generation; // the first message has that of the key
    if (generation === seat.generation + 1) {
      seat.generation = generation;
      seat.secret = await digest('crowd key', seat.secret);
      seat.key = await opener(seat.secret);
    } else if (generation !== seat.generation) throw new Error('a message of a crowd with a key that is not next');
    try {
      const piece = new Uint8Array(await crypto.subtle.decrypt({ name: 'AES-GCM', iv: concat([0, 0, 0, 0], head.subarray(5)), additionalData: head }, seat.key, sealed));
      seat.number++;
      return [{ bytes: piece }];
    } catch {
      throw new Lie('a message of a crowd that was changed');
    }
  }

  /** Enters a crowd, or leaves it. */
  async #sit(body: Bytes): Promise<void> {
    const from = new DataView(body.buffer, body.byteOffset, body.length);
    if (body.length === leaves && this.#seat) {
      if (from.getBigUint64(0) !== this.#seat.number) throw new Lie('messages of a crowd are missing');
      this.#seat = undefined;
      return;
    }
    if (body.length < enters || body.length > enters + 8 || body[enters] === 0 || this.#seat) throw new Error('a place in a crowd out of turn');
    const secret = body.slice(0, 32);
    const number = body.subarray(enters).reduce((n, byte) => n << 8n | BigInt(byte), 0n);
    this.#seat = { number, secret, key: await opener(secret), verifier: await readVerifier(longVerifier(body.slice(32, enters))) };
  }

  /** Keeps the keys of epochs and the place in a crowd, and returns the other parcels. */
  async #keepKeys(parcels: Parcel[]): Promise<Parcel[]> {
    for (const { content: what, body } of parcels) {
      if (what === content.place) await this.#sit(body);
      if (what !== content.epochKey) continue;
      const epoch = u32(body, 0);
      if (body.length !== 36 || epoch === partEpoch || this.#epochs.has(epoch)) throw new Error('a wrong key of an epoch');
      for (const oldest of this.#epochs.keys()) if (this.#epochs.size >= mostEpochs) this.#epochs.delete(oldest);
      this.#epochs.set(epoch, await opener(body.slice(4)));
    }
    return parcels.filter((p) => p.content !== content.epochKey && p.content !== content.place);
  }

  async #take(piece: Bytes, way: number): Promise<Parcel | undefined> {
    if (this.#whole === 0) {
      this.#begin(piece);
      if (!mayBring(way, piece[0])) throw new Error('a sealed message of a kind that does not come so');
      this.#way = way;
    } else if (this.#way !== way) throw new Error('a sealed message in two parts of different kinds');
    if (piece.length !== Math.min(pieceSize, this.#whole - this.#arrived)) throw new Error('a sealed record of a wrong length');
    this.#pieces.push(piece);
    this.#arrived += piece.length;
    if (this.#arrived < this.#whole) return undefined;
    const parcel = this.#pieces.length === 1 ? piece : concat(...this.#pieces);
    this.#pieces = [];
    this.#whole = this.#arrived = 0;
    return this.#unpack(parcel);
  }

  #begin(piece: Bytes): void {
    if (piece.length < headSize) throw new Error('a sealed record without a head');
    const n = lengthOf(piece);
    if (n > this.#limit) throw new Error(`a message of ${n} bytes, more than this page takes`);
    this.#whole = padded(headSize + n);
  }

  async #unpack(parcel: Bytes): Promise<Parcel | undefined> {
    const end = headSize + lengthOf(parcel);
    if (parcel.subarray(end).some((b) => b !== 0)) throw new Error('a sealed record with wrong padding');
    const body = parcel.subarray(headSize, end);
    if (!toClient.includes(parcel[0])) throw new Error('a sealed record of an unknown kind: the host has a newer version');
    if (parcel[0] === content.packed) return { content: content.message, body: await inflate(body, this.#limit) };
    if (parcel[0] === content.joined) return { content: content.message, body: await this.#join(body) };
    return { content: parcel[0], body };
  }

  /** Keeps a body of a part for the next Joined, which has the key. */
  #keepPart(frame: Bytes): undefined {
    this.#partBytes += frame.length;
    if (this.#whole > 0) throw new Error('a sealed message in two parts of different kinds');
    if (u32(frame, 5) !== this.#part.length || this.#partBytes > this.#limit + 2 * pieceSize) throw new Error('a part of no message, or one that is too long');
    this.#part.push(frame);
  }

  /** Inserts the part that waits into its message. */
  async #join(body: Bytes): Promise<Bytes> {
    const part = await this.#openPart(body);
    if (body.length + part.length > this.#limit) throw new Error('a message with a part that is too long');
    const [at, rest] = [u32(body, 32), body.subarray(joinedHead)];
    if (at === 0) return concat(utf8('{"jsonrpc":"2.0","id":'), rest, utf8(',"result":'), part, utf8('}'));
    if (at > rest.length) throw new Error('a message without the place of its part');
    return concat(rest.subarray(0, at), part, rest.subarray(at));
  }

  /** Decrypts the part that waits with the key in its Joined. */
  async #openPart(joined: Bytes): Promise<Bytes> {
    const frames = this.#part;
    this.#part = [];
    this.#partBytes = 0;
    if (joined.length < joinedHead || frames.length === 0) throw new Error('a message without its part');
    const key = await opener(joined.slice(0, 32));
    const parcels = [];
    for (const frame of frames) parcels.push(await this.#take(await decryptBody(key, frame), kinds.body));
    const small = parcels.pop();
    if (!small || parcels.some((p) => p)) throw new Error('a part that is none');
    const part = await inflate(small.body, this.#limit);
    if (part.length === 0) throw new Error('an empty part');
    return part;
  }
}

/** Whether a parcel may come in messages of a kind. */
function mayBring(way: number, what: number): boolean {
  if (way === kinds.crowd) return what === content.told || what === content.heartbeat;
  if (way === kinds.tag) return what === content.message;
  if (way === kinds.body) return what === content.part; // in bodies whose key came in a Joined
  return what !== content.told && what !== content.part;
}

/** Returns the messages that a crowd is told. */
function split(parcel: Parcel): Parcel[] {
  if (parcel.content !== content.told) return [parcel];
  const parcels: Parcel[] = [];
  for (let rest = parcel.body; rest.length > 0;) {
    if (rest.length < 4 || u32(rest, 0) > rest.length - 4) throw new Error('a message of a crowd that is cut short');
    const end = 4 + u32(rest, 0);
    parcels.push({ content: content.message, body: rest.subarray(4, end) });
    rest = rest.subarray(end);
  }
  return parcels;
}

/** Decrypts a shared body. */
async function decryptBody(key: CryptoKey, frame: Bytes): Promise<Bytes> {
  const how = { name: 'AES-GCM', iv: nonce(0, u32(frame, 5)), additionalData: frame.subarray(0, bodyHead) };
  return new Uint8Array(await crypto.subtle.decrypt(how, key, frame.subarray(bodyHead)));
}

const opener = (key: Bytes) => crypto.subtle.importKey('raw', key, 'AES-GCM', false, ['decrypt']);

function u32(bytes: Bytes, at: number): number {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.length).getUint32(at);
}

const lengthOf = (parcel: Bytes) => u32(parcel, 1);

/** Decompresses a message of at most limit bytes (RFC 1951). */
async function inflate(small: Bytes, limit: number): Promise<Bytes> {
  const parts: Bytes[] = [];
  let size = 0;
  for (const from = new Blob([small]).stream().pipeThrough(new DecompressionStream('deflate-raw')).getReader(); ;) {
    const { done, value } = await from.read();
    if (done) return concat(...parts);
    parts.push(value as Bytes);
    size += value.length;
    if (size > limit) {
      from.cancel().catch(() => {});
      throw new Error(`a message of more than ${limit} bytes`);
    }
  }
}

/** Reads a heartbeat: the number of records that the host has opened. */
export function readHeartbeat(body: Bytes): number {
  if (body.length !== 8) throw new Error('a heartbeat of a wrong length');
  return Number(new DataView(body.buffer, body.byteOffset).getBigUint64(0));
}

/** A heartbeat's body. */
export function heartbeat(opened: number): Bytes {
  return u64(opened);
}

/** The host's reason for its close: an AHP close code and a text. */
export interface Bye { code: number; reason: string }

/** Reads the body of a Close. */
export function readClose(body: Bytes): Bye {
  if (body.length < 2) throw new Error('a close of a wrong length');
  return { code: body[0] << 8 | body[1], reason: textOf(body.subarray(2)) };
}

export interface Welcome { subject: string; level: string; end: number }

const shortWelcome = 1 + 8; // level, end
const levels = ['read', 'talk', 'approve', 'write', 'admin'];

/** Reads a Welcome. Unknown members are ignored. That for a link's viewer is short, and has no subject. */
export function readWelcome(body: Bytes): Welcome {
  if (body.length === shortWelcome) {
    const end = Number(new DataView(body.buffer, body.byteOffset).getBigUint64(1));
    if (!levels[body[0]] || !Number.isSafeInteger(end)) throw new Error('a welcome that cannot be read');
    return { subject: '', level: levels[body[0]], end };
  }
  const { subject, level, end } = JSON.parse(textOf(body)) ?? {};
  if (typeof subject !== 'string' || !levels.includes(level) || !Number.isSafeInteger(end)) throw new Error('a welcome that cannot be read');
  return { subject, level, end };
}

/** Whether level includes other. */
export function covers(level: string, other: string): boolean {
  return levels.indexOf(other) >= 0 && levels.indexOf(other) <= levels.indexOf(level);
}

/** The body of an Ask. */
export const askBody = (ask: object) => utf8(JSON.stringify(ask));
