// Encodings in docs/sealed.md: bytes, base64url, digests, fingerprints, codes and padding.

export type Bytes = Uint8Array<ArrayBuffer>;

const label = 'ahp-sealed/1 '; // prefix of each text that is hashed or signed, and of the prologue

export function utf8(text: string): Bytes {
  return new TextEncoder().encode(text);
}

/** Decodes UTF-8. Throws if it is invalid. */
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

/** A text followed by a zero byte, which separates hashes and signatures with different purposes. */
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

export function hex(bytes: Bytes): string {
  return [...bytes].map((b) => b.toString(16).padStart(2, '0')).join('');
}

export function base64url(bytes: Bytes): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '');
}

/**
 * Decodes base64url of the given length in bytes, or any length. Throws unless it is the canonical encoding.
 */
export function fromBase64url(text: unknown, length?: number): Bytes {
  if (typeof text !== 'string' || !/^[\w-]*$/.test(text) || text.length % 4 === 1) throw new Error('not base64url');
  const bytes = Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), (c) => c.charCodeAt(0));
  if (base64url(bytes) !== text || (length !== undefined && bytes.length !== length)) throw new Error('not base64url of the right length');
  return bytes;
}

/** A public identity: its fingerprint as text, and words that people can compare. */
export interface Name { fingerprint: string; words: string }

const consonants = 'bdfghjklmnprstvz';
const vowels = 'aiou';

/** Returns the words for the first 64 bits of a fingerprint. */
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

/** Returns the identity of a host with this key. */
export const nameOfHost = (key: Bytes) => nameFrom('host', key);

/** Returns the identity of a device with these keys. */
export const nameOfDevice = (key: Bytes, verifier: Bytes) => nameFrom('device', key, verifier);

const digits = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
const codeBytes = 16;
export const codeLength = 26;

/** Reads a pairing code that a person has typed. Returns undefined if it is invalid. */
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

/** Derives the pre-shared key of a pairing from its code. */
export const secretOf = (code: Bytes) => digest('pair', code);

/** Returns the padded length of n bytes (Padmé). */
export function padded(n: number): number {
  if (n < 2) return n;
  const exponent = 31 - Math.clz32(n);
  const last = exponent - (32 - Math.clz32(exponent));
  if (last <= 0) return n;
  const step = 2 ** last;
  return Math.ceil(n / step) * step;
}

/** The members of an object with their types; '?' marks an optional member. */
type Shape = Record<string, 'string' | 'number' | '?strings' | '?string'>;

/**
 * Parses a JSON object that has only the given members, each at most once, and nothing after it. Values are
 * texts, whole numbers or lists of texts.
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
