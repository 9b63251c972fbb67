// The sealed stream behind a handshake (docs/sealed.md, Records): parcels, padded, in records.

import { concat, Lie, padded, textOf, utf8, type Bytes } from './bytes';
import { t } from '../language';

/** The meaning of a parcel's body. */
export const content = { message: 0, packed: 1, heartbeat: 2, close: 3, pending: 4, welcome: 5, ask: 6, answer: 7 };
const toClient = [content.message, content.packed, content.heartbeat, content.close, content.pending, content.welcome, content.answer];

export const tagSize = 16;
const headSize = 5;
const pieceSize = 32 << 10;
const longestFrame = 1 + pieceSize + tagSize;
const record = new Uint8Array([6]); // the kind, and the additional data
const mostRecords = 2 ** 32;
const mostBytes = 2 ** 44;

/** A parcel from the host; a compressed message is a message. */
export interface Parcel { content: number; body: Bytes }

/** One direction's key and counters. */
class Half {
  count = 0;
  #bytes = 0;

  constructor(readonly key: CryptoKey) {}

  /** Returns the algorithm for the next record, of n bytes. */
  next(n: number): AesGcmParams {
    if (this.count >= mostRecords || this.#bytes + n > mostBytes) throw new Error(t`This sealed connection has carried as much as its keys allow.`);
    const iv = new Uint8Array(12);
    new DataView(iv.buffer).setBigUint64(4, BigInt(this.count++));
    this.#bytes += n;
    return { name: 'AES-GCM', iv, additionalData: record };
  }
}

/** The client's end of a sealed stream. */
export class Session {
  readonly id: Bytes;
  #in: Half;
  #out: Half;
  #limit: number; // bytes of the longest message
  #turn: Promise<unknown> = Promise.resolve(); // parcels are put together in order
  #broken: Error | undefined;
  #whole = 0; // length of the parcel that is arriving
  #pieces: Bytes[] = [];
  #arrived = 0; // bytes of it
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

  /** Returns the WebSocket messages of the next parcel. Their order is the order of the calls. */
  seal(what: number, body: Bytes): Promise<Bytes[]> {
    const size = padded(headSize + body.length);
    const parcel = new Uint8Array(size);
    parcel[0] = what;
    new DataView(parcel.buffer).setUint32(1, body.length);
    parcel.set(body, headSize);
    const frames: Promise<Bytes>[] = [];
    for (let at = 0; at < size; at += pieceSize) {
      const piece = parcel.subarray(at, Math.min(size, at + pieceSize));
      frames.push(crypto.subtle.encrypt(this.#out.next(piece.length), this.#out.key, piece).then((sealed) => concat(record, new Uint8Array(sealed))));
    }
    return Promise.all(frames);
  }

  /** Reads the next record, and returns the parcel that it completes. After an error, it always throws that error. */
  open(frame: Bytes): Promise<Parcel | undefined> {
    const plain = this.#decrypt(frame);
    plain.catch(() => {}); // reported in its turn
    const mine = this.#turn.then(async () => {
      if (this.#broken) throw this.#broken;
      try {
        const piece = await plain;
        this.opened++;
        return await this.#take(piece);
      } catch (err) {
        this.#broken = err as Error;
        throw err;
      }
    });
    this.#turn = mine.catch(() => {});
    return mine;
  }

  async #decrypt(frame: Bytes): Promise<Bytes> {
    const how = this.#in.next(frame.length);
    if (frame.length <= 1 + tagSize || frame.length > longestFrame || frame[0] !== record[0]) throw new Lie('not a record');
    try {
      return new Uint8Array(await crypto.subtle.decrypt(how, this.#in.key, frame.subarray(1)));
    } catch {
      throw new Lie('a record does not follow the last one');
    }
  }

  async #take(piece: Bytes): Promise<Parcel | undefined> {
    if (this.#whole === 0) this.#begin(piece);
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

  async #unpack(parcel: Bytes): Promise<Parcel> {
    const end = headSize + lengthOf(parcel);
    if (parcel.subarray(end).some((b) => b !== 0)) throw new Error('a sealed record with wrong padding');
    const body = parcel.subarray(headSize, end);
    if (!toClient.includes(parcel[0])) throw new Error('a sealed record of an unknown kind: the host has a newer version');
    return parcel[0] === content.packed ? { content: content.message, body: await inflate(body, this.#limit) } : { content: parcel[0], body };
  }
}

function lengthOf(parcel: Bytes): number {
  return new DataView(parcel.buffer, parcel.byteOffset).getUint32(1);
}

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

/** Reads the body of a heartbeat: the number of records that the host had opened. */
export function readHeartbeat(body: Bytes): number {
  if (body.length !== 8) throw new Error('a heartbeat of a wrong length');
  return Number(new DataView(body.buffer, body.byteOffset).getBigUint64(0));
}

/** A heartbeat's body. */
export function heartbeat(opened: number): Bytes {
  const body = new Uint8Array(8);
  new DataView(body.buffer).setBigUint64(0, BigInt(opened));
  return body;
}

/** The host's last word: an AHP close code and a reason. */
export interface Bye { code: number; reason: string }

/** Reads the body of a Close. */
export function readClose(body: Bytes): Bye {
  if (body.length < 2) throw new Error('a close of a wrong length');
  return { code: body[0] << 8 | body[1], reason: textOf(body.subarray(2)) };
}

export interface Welcome { subject: string; level: string; end: number }

const levels = ['read', 'talk', 'approve', 'write', 'admin'];

/** Reads the body of a Welcome. It may have members that this page does not know. */
export function readWelcome(body: Bytes): Welcome {
  const { subject, level, end } = JSON.parse(textOf(body)) ?? {};
  if (typeof subject !== 'string' || !levels.includes(level) || !Number.isSafeInteger(end)) throw new Error('a welcome that cannot be read');
  return { subject, level, end };
}

/** Whether the second level is at most the first. */
export function covers(level: string, other: string): boolean {
  return levels.indexOf(other) >= 0 && levels.indexOf(other) <= levels.indexOf(level);
}

/** The body of an Ask. */
export const askBody = (ask: object) => utf8(JSON.stringify(ask));
