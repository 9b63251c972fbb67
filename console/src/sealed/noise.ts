// The client's side of the handshake: Noise_XKpsk3_25519_AESGCM_SHA256 (docs/sealed.md, Handshake).

import { concat, hmac, nameOfHost, purpose, secretOf, utf8, base64url, type Bytes } from './bytes';
import { agree, keySize, newSecret, type Device, type Secret } from './keys';
import { Lie } from './lie';
import { Session, tagSize } from './record';
import { t } from '../language';

/** The first byte of each WebSocket message. */
export const kind = { askKey: 1, hostKey: 2, first: 3, second: 4, third: 5, record: 6 };

const protocol = utf8('Noise_XKpsk3_25519_AESGCM_SHA256'); // its 32 bytes are the first hash
const longestGreeting = 16 << 10;
const none = new Uint8Array(0);

/** The payload of the last message. */
export interface Greeting { name: string; window: number; grants?: string[]; viewer?: string }

/**
 * The inputs of a handshake. hostKey is known unless a typed code proves it; expect is the fingerprint in a
 * QR code.
 */
export interface Handshake { host: string; hostKey?: Bytes; expect?: string; code?: Bytes; device: Device; greeting: Greeting; limit: number; ephemeral?: Secret }

/**
 * The host has another key than the one stored by this device, or the handshake was changed on its way.
 */
export class OtherKey extends Error {
  constructor() {
    super(t`The host does not prove the key that this device knows.`);
  }
}

/** Derives n keys of 32 bytes (Noise's HKDF). */
async function derive(chain: Bytes, input: Bytes, n: number): Promise<Bytes[]> {
  const key = await hmac(chain, input);
  const all: Bytes[] = [];
  for (let i = 1; i <= n; i++) all.push(await hmac(key, concat(all.at(-1) ?? none, [i])));
  return all;
}

function nonce(n: number): Bytes {
  const bytes = new Uint8Array(12);
  new DataView(bytes.buffer).setBigUint64(4, BigInt(n));
  return bytes;
}

/** Noise's SymmetricState. */
class Symmetric {
  hash: Bytes = protocol;
  #chain: Bytes = protocol;
  #key: CryptoKey | undefined;
  #n = 0;

  async mixHash(data: Bytes): Promise<void> {
    this.hash = new Uint8Array(await crypto.subtle.digest('SHA-256', concat(this.hash, data)));
  }

  async #use(key: Bytes): Promise<void> {
    this.#key = await crypto.subtle.importKey('raw', key, 'AES-GCM', false, ['encrypt', 'decrypt']);
    this.#n = 0;
  }

  async mixKey(input: Bytes): Promise<void> {
    const [chain, key] = await derive(this.#chain, input, 2);
    this.#chain = chain;
    await this.#use(key);
  }

  async mixKeyAndHash(input: Bytes): Promise<void> {
    const [chain, hash, key] = await derive(this.#chain, input, 3);
    this.#chain = chain;
    await this.mixHash(hash);
    await this.#use(key);
  }

  async encrypt(plain: Bytes): Promise<Bytes> {
    const sealed = new Uint8Array(await crypto.subtle.encrypt({ name: 'AES-GCM', iv: nonce(this.#n++), additionalData: this.hash }, this.#key!, plain));
    await this.mixHash(sealed);
    return sealed;
  }

  async decrypt(sealed: Bytes): Promise<Bytes> {
    const plain = new Uint8Array(await crypto.subtle.decrypt({ name: 'AES-GCM', iv: nonce(this.#n++), additionalData: this.hash }, this.#key!, sealed));
    await this.mixHash(sealed);
    return plain;
  }

  split(): Promise<Bytes[]> {
    return derive(this.#chain, none, 2);
  }
}

/** Performs the client's side of a handshake. Messages must be read one after the other. */
export class Initiator {
  hostKey: Bytes | undefined; // proved once the session has opened a record
  #cfg: Handshake;
  #state: Symmetric | undefined;
  #ephemeral: Secret | undefined;
  #done = false;

  constructor(cfg: Handshake) {
    this.#cfg = cfg;
    this.hostKey = cfg.hostKey;
  }

  /** The first WebSocket message. */
  start(): Promise<Bytes> {
    if (this.hostKey) return this.#first();
    if (!this.#cfg.code) throw new Error(t`The key of this host is not known: pair this device.`);
    return Promise.resolve(new Uint8Array([kind.askKey]));
  }

  async #first(): Promise<Bytes> {
    const { host, code, ephemeral } = this.#cfg;
    const why = code ? 2 : 1;
    const name = utf8(host);
    const state = this.#state = new Symmetric();
    await state.mixHash(concat(purpose('prologue'), [why, name.length], name));
    await state.mixHash(this.hostKey!);
    const e = this.#ephemeral = ephemeral ?? await newSecret();
    await state.mixHash(e.public);
    await state.mixKey(e.public);
    await state.mixKey(await agree(e, this.hostKey!));
    return concat([kind.first, why], e.public, await state.encrypt(none));
  }

  /** Reads a message of the host. Returns the answer and, for the last message, the session. */
  async read(frame: Bytes): Promise<{ answer: Bytes; session?: Session }> {
    if (this.#done) throw new Lie('a handshake message out of turn');
    if (frame[0] === kind.hostKey && !this.#state && !this.hostKey && frame.length === 1 + keySize) {
      this.hostKey = frame.slice(1);
      const { expect } = this.#cfg;
      if (expect !== undefined && (await nameOfHost(this.hostKey)).fingerprint !== expect) throw new OtherKey();
      return { answer: await this.#first() };
    }
    this.#done = true;
    if (frame[0] !== kind.second || !this.#state || frame.length !== 1 + keySize + tagSize) throw new Lie('a handshake message out of turn');
    return this.#last(frame.slice(1, 1 + keySize), frame.slice(1 + keySize));
  }

  async #last(theirs: Bytes, sealed: Bytes): Promise<{ answer: Bytes; session: Session }> {
    const { device, code, greeting, limit } = this.#cfg;
    const state = this.#state!;
    try {
      await state.mixHash(theirs);
      await state.mixKey(theirs);
      await state.mixKey(await agree(this.#ephemeral!, theirs));
      await state.decrypt(sealed);
    } catch {
      throw new OtherKey();
    }
    const { name, window, grants, viewer } = greeting;
    const payload = utf8(JSON.stringify({ name, verifier: base64url(device.verifier), window, grants, viewer }));
    if (payload.length > longestGreeting) throw new Error(`a greeting of ${payload.length} bytes`);
    const own = await state.encrypt(device.secret.public);
    await state.mixKey(await agree(device.secret, theirs));
    await state.mixKeyAndHash(code ? await secretOf(code) : new Uint8Array(32));
    const answer = concat([kind.third], own, await state.encrypt(payload));
    const [toHost, toClient] = await state.split();
    return { answer, session: await Session.from(state.hash, toClient, toHost, limit) };
  }
}

