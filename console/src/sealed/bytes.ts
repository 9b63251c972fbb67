// The notation of docs/sealed.md: bytes, base64url, digests, fingerprints, codes and padding.

export type Bytes = Uint8Array<ArrayBuffer>;

const label = 'ahp-sealed/1 '; // begins each text that is hashed or signed, and the prologue

export function utf8(text: string): Bytes {
  return new TextEncoder().encode(text);
}

/** Decodes UTF-8; throws if it is none. */
export function textOf(bytes: Bytes): string {
  return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
}

export function concat(...parts: ArrayLike<number>[]): Bytes {
  const all = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export function same(a: ArrayLike<number>, b: ArrayLike<number>): boolean {
  let differs = a.length ^ b.length;
  for (let i = 0; i < a.length; i++) differs |= a[i] ^ (b[i] ?? -1);
  return differs === 0;
}

/** A text, with a zero byte behind it, that separates the purposes of hashes and signatures. */
export function purpose(name: string): Bytes {
  return utf8(`${label}${name}\0`);
}

export async function digest(name: string, ...parts: Bytes[]): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.digest('SHA-256', concat(purpose(name), ...parts)));
}

export async function hmac(key: Bytes, data: Bytes): Promise<Bytes> {
  const k = await crypto.subtle.importKey('raw', key, { name: 'HMAC', hash: 'SHA-256' }, false, ['sign']);
  return new Uint8Array(await crypto.subtle.sign('HMAC', k, data));
}

export function base64url(bytes: Bytes): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '');
}

/** Decodes base64url of length bytes (any, by default), in its only spelling. */
export function fromBase64url(text: unknown, length?: number): Bytes {
  if (typeof text !== 'string' || !/^[\w-]*$/.test(text) || text.length % 4 === 1) throw new Error('not base64url');
  const bytes = Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), (c) => c.charCodeAt(0));
  if (base64url(bytes) !== text || (length !== undefined && bytes.length !== length)) throw new Error('not base64url of the right length');
  return bytes;
}

/** A public identity: its fingerprint's text, and its words for people. */
export interface Name { fingerprint: string; words: string }

const consonants = 'bdfghjklmnprstvz';
const vowels = 'aiou';

/** The words of a fingerprint's first 64 bits. */
export function wordsOf(fingerprint: Bytes): string {
  const words = [];
  for (let i = 0; i < 8; i += 2) {
    const n = fingerprint[i] << 8 | fingerprint[i + 1];
    words.push(consonants[n >> 12] + vowels[n >> 10 & 3] + consonants[n >> 6 & 15] + vowels[n >> 4 & 3] + consonants[n & 15]);
  }
  return words.join(' ');
}

async function nameFrom(kind: string, ...keys: Bytes[]): Promise<Name> {
  const fingerprint = (await digest(kind, ...keys)).subarray(0, 16);
  return { fingerprint: base64url(fingerprint), words: wordsOf(fingerprint) };
}

/** Names a host by its key. */
export const nameOfHost = (key: Bytes) => nameFrom('host', key);

/** Names a device by its keys. */
export const nameOfDevice = (key: Bytes, verifier: Bytes) => nameFrom('device', key, verifier);

const digits = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
const codeBytes = 16;
export const codeLength = 26;

/** Reads a pairing code as a person types it; undefined if it is none. */
export function readCode(typed: string): Bytes | undefined {
  const text = typed.replace(/[- ]/g, '').replace(/o/gi, '0').replace(/[il]/gi, '1');
  if (text.length !== codeLength || !/^[0-9A-Za-z]*$/.test(text)) return undefined;
  const code = new Uint8Array(codeBytes);
  let [bits, held, at] = [0, 0, 0];
  for (const c of text.toUpperCase()) {
    const digit = digits.indexOf(c);
    if (digit < 0) return undefined;
    bits = bits << 5 | digit;
    held += 5;
    if (held >= 8 && at < codeBytes) {
      held -= 8;
      code[at++] = bits >> held;
      bits &= (1 << held) - 1;
    }
  }
  return bits === 0 ? code : undefined;
}

/** The text of a code, in groups of four. */
export function codeText(code: Bytes): string {
  let all = '';
  for (const byte of code) all += byte.toString(2).padStart(8, '0');
  return all.padEnd(codeLength * 5, '0').match(/.{5}/g)!.map((five) => digits[parseInt(five, 2)]).join('').match(/.{1,4}/g)!.join('-');
}

/** A code as the pre-shared key of a pairing. */
export const secretOf = (code: Bytes) => digest('pair', code);

/** The length to which n bytes are padded: Padmé. */
export function padded(n: number): number {
  if (n < 2) return n;
  const exponent = 31 - Math.clz32(n);
  const last = exponent - (32 - Math.clz32(exponent));
  if (last <= 0) return n;
  const step = 2 ** last;
  return Math.ceil(n / step) * step;
}

/** An object with the given members only: the value's type, or absent where it begins with '?'. */
type Shape = Record<string, 'string' | 'number' | '?strings' | '?string'>;

/**
 * Reads a JSON object with known members only, each at most once, and nothing behind it. Its
 * values are texts, whole numbers and lists of texts.
 */
export function exactly<T>(bytes: Bytes, shape: Shape): T {
  const text = textOf(bytes);
  const value = JSON.parse(text);
  if (/(?:^|[^\\])(?:\\\\)*\\u[dD][89a-fA-F]/.test(text)) throw new Error('an escaped surrogate');
  if (/[.eE]/.test(text.replace(/"(?:[^"\\]|\\.)*"/g, ''))) throw new Error('not a whole number');
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Error('not an object');
  const names = [...text.matchAll(/"(?:[^"\\]|\\.)*"(\s*:)?/g)].filter(([, colon]) => colon);
  if (names.length !== Object.keys(value).length) throw new Error('two equal members');
  for (const name of Object.keys(value)) if (!Object.hasOwn(shape, name)) throw new Error(`unknown member ${name}`);
  for (const [name, kind] of Object.entries(shape)) {
    const is = value[name];
    if (kind.startsWith('?') && !Object.hasOwn(value, name)) continue;
    const fits = kind === '?strings' ? Array.isArray(is) && is.every((v) => typeof v === 'string') : typeof is === kind.replace('?', '');
    if (!fits || (kind === 'number' && !Number.isSafeInteger(is))) throw new Error(`member ${name}`);
  }
  return value;
}

/** Whether a text has only visible characters and spaces. */
export function printable(text: string): boolean {
  return !/\p{C}|(?! )\p{Z}/u.test(text);
}
