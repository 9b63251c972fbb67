// This device's keys. Scripts cannot read their private parts.

import { base64url, concat, fromBase64url, hex, type Bytes } from './bytes';

/** An X25519 key pair. */
export interface Secret { private: CryptoKey; public: Bytes }

/** A device's keys: for handshakes, and for its signatures. */
export interface Device { secret: Secret; signer: CryptoKey; verifier: Bytes }

export const keySize = 32;
export const verifierSize = 65;
export const shortVerifierSize = 33;
export const signatureSize = 64;

const x25519 = { name: 'X25519' };
const ecdsa = { name: 'ECDSA', namedCurve: 'P-256' };
export const signing = { name: 'ECDSA', hash: 'SHA-256' };

/** Makes an X25519 key. */
export async function newSecret(): Promise<Secret> {
  const pair = await crypto.subtle.generateKey(x25519, false, ['deriveBits']) as CryptoKeyPair;
  return { private: pair.privateKey, public: new Uint8Array(await crypto.subtle.exportKey('raw', pair.publicKey)) };
}

/** Creates a device's keys. Throws if the browser lacks X25519. */
export async function newDevice(): Promise<Device> {
  const secret = await newSecret();
  const pair = await crypto.subtle.generateKey(ecdsa, false, ['sign', 'verify']);
  return { secret, signer: pair.privateKey, verifier: new Uint8Array(await crypto.subtle.exportKey('raw', pair.publicKey)) };
}

/** Reads the keys of a link's device: two private keys, and the verifier. */
export async function readDevice(text: unknown): Promise<Device> {
  const all = fromBase64url(text, 2 * keySize + verifierSize);
  const [own, d, verifier] = [all.slice(0, keySize), all.slice(keySize, 2 * keySize), all.slice(2 * keySize)];
  const jwk = { kty: 'EC', crv: 'P-256', d: base64url(d), x: base64url(verifier.slice(1, 1 + keySize)), y: base64url(verifier.slice(1 + keySize)) };
  const signer = await crypto.subtle.importKey('jwk', jwk, ecdsa, false, ['sign']);
  const pkcs8 = concat([0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x6e, 0x04, 0x22, 0x04, 0x20], own);
  const { x } = await crypto.subtle.exportKey('jwk', await crypto.subtle.importKey('pkcs8', pkcs8, x25519, true, ['deriveBits']));
  return { secret: { private: await crypto.subtle.importKey('pkcs8', pkcs8, x25519, false, ['deriveBits']), public: fromBase64url(x, keySize) }, signer, verifier };
}

/** Returns the shared secret of two X25519 keys. Throws if the secret is zero. */
export async function agree(own: Secret, other: Bytes): Promise<Bytes> {
  const key = await crypto.subtle.importKey('raw', other, x25519, false, []);
  const shared = new Uint8Array(await crypto.subtle.deriveBits({ name: 'X25519', public: key }, own.private, 8 * keySize));
  if (shared.every((b) => b === 0)) throw new Error('a key that gives no secret');
  return shared;
}

export async function sign(device: Device, text: Bytes): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.sign(signing, device.signer, text));
}

/** Reads a verifier: a point on P-256. */
export function readVerifier(point: Bytes): Promise<CryptoKey> {
  if (point.length !== verifierSize || point[0] !== 4) throw new Error('a signing key of a wrong form');
  return crypto.subtle.importKey('raw', point, ecdsa, true, ['verify']);
}

const prime = 2n ** 256n - 2n ** 224n + 2n ** 192n + 2n ** 96n - 1n; // of P-256: y² = x³ - 3x + curveB
const curveB = 0x5ac635d8_aa3a93e7_b3ebbd55_769886bc_651d06b0_cc53b0f6_3bce3c3e_27d2604bn;

/** Returns a verifier in its long form. Not every browser imports the compressed form. */
export function longVerifier(short: Bytes): Bytes {
  const x = BigInt(`0x${hex(short.subarray(1))}`);
  const square = (x ** 3n + (prime - 3n) * x + curveB) % prime;
  let y = 1n;
  for (let bits = (prime + 1n) / 4n, power = square; bits > 0n; bits >>= 1n, power = power * power % prime) if (bits & 1n) y = y * power % prime;
  if (short.length !== shortVerifierSize || (short[0] & 254) !== 2 || x >= prime || y * y % prime !== square) throw new Error('a signing key of a wrong form');
  if (y % 2n !== BigInt(short[0] & 1)) y = prime - y;
  return concat([4], short.subarray(1), y.toString(16).padStart(64, '0').match(/../g)!.map((two) => parseInt(two, 16)));
}

export async function verify(verifier: Bytes, text: Bytes, signature: Bytes): Promise<boolean> {
  return signature.length === signatureSize && crypto.subtle.verify(signing, await readVerifier(verifier), signature, text);
}

/** A device's public keys as text, from which another device can admit it. */
export const publicText = (key: Bytes, verifier: Bytes) => base64url(concat(key, verifier));

/** Reads public keys. */
export async function readPublic(text: unknown): Promise<{ key: Bytes; verifier: Bytes }> {
  const both = fromBase64url(text, keySize + verifierSize);
  const [key, verifier] = [both.slice(0, keySize), both.slice(keySize)];
  await readVerifier(verifier);
  return { key, verifier };
}
