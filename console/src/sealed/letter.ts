// Letters from a device to a host, stored at a relay: see the Go file internal/sealed/letter.go. A letter's
// key is sealed with HPKE (RFC 9180): DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM, base mode.

import { concat, hmac, purpose, same, utf8, type Bytes } from './bytes';
import { agree, keySize, newSecret, sign, verify, type Device, type Secret } from './keys';

/** A letter. Bytes are in Base64. */
export interface Letter { boxes: { to: string; key: string }[]; data: string; signature: string }

const nonceSize = 12;
const none = new Uint8Array(0);
const zeros = new Uint8Array(keySize); // HMAC pads an empty key with zeros
const kem = concat(utf8('KEM'), [0, 0x20]);
const suite = concat(utf8('HPKE'), [0, 0x20, 0, 1, 0, 2]);

export const base64 = (bytes: Bytes) => btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(''));
export const fromBase64 = (text: string): Bytes => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const random = (n: number) => crypto.getRandomValues(new Uint8Array(n));
const sha256 = async (bytes: Bytes): Promise<Bytes> => new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));

/** HPKE's LabeledExtract. */
function extract(of: Bytes, salt: Bytes, label: string, input: Bytes): Promise<Bytes> {
  return hmac(salt, concat(utf8('HPKE-v1'), of, utf8(label), input));
}

/** HPKE's LabeledExpand, of at most 32 bytes. */
async function expand(of: Bytes, key: Bytes, label: string, info: Bytes, n: number): Promise<Bytes> {
  return (await hmac(key, concat([0, n], utf8('HPKE-v1'), of, utf8(label), info, [1]))).slice(0, n);
}

/** Returns the key and nonce for the only message of an HPKE context between two keys. */
async function agreed(shared: Bytes, encapsulated: Bytes, recipient: Bytes, info: Bytes): Promise<{ key: Bytes; nonce: Bytes }> {
  const secret = await expand(kem, await extract(kem, zeros, 'eae_prk', shared), 'shared_secret', concat(encapsulated, recipient), keySize);
  const context = concat([0], await extract(suite, zeros, 'psk_id_hash', none), await extract(suite, zeros, 'info_hash', info));
  const key = await extract(suite, secret, 'secret', none);
  return { key: await expand(suite, key, 'key', context, keySize), nonce: await expand(suite, key, 'base_nonce', context, nonceSize) };
}

async function gcm(mode: 'encrypt' | 'decrypt', raw: Bytes, iv: Bytes, data: Bytes, additionalData: Bytes): Promise<Bytes> {
  const key = await crypto.subtle.importKey('raw', raw, 'AES-GCM', false, [mode]);
  return new Uint8Array(await crypto.subtle[mode]({ name: 'AES-GCM', iv, additionalData }, key, data));
}

async function box(recipient: Bytes, info: Bytes, key: Bytes): Promise<Bytes> {
  const own = await newSecret();
  const with_ = await agreed(await agree(own, recipient), own.public, recipient, info);
  return concat(own.public, await gcm('encrypt', with_.key, with_.nonce, key, none));
}

async function unbox(own: Secret, info: Bytes, sealed: Bytes): Promise<Bytes> {
  const theirs = sealed.slice(0, keySize);
  const with_ = await agreed(await agree(own, theirs), theirs, own.public, info);
  return gcm('decrypt', with_.key, with_.nonce, sealed.slice(keySize), none);
}

const infoOf = (head: string) => concat(purpose('letter'), utf8(head));

async function signed(head: string, data: Bytes, boxes: { to: string; key: Bytes }[]): Promise<Bytes> {
  return concat(infoOf(head), utf8('\n'), await sha256(data), await sha256(concat(...boxes.flatMap((b) => [utf8(`${b.to}\n`), b.key]))));
}

/** Seals and signs content for recipients. to maps fingerprints to public keys. */
export async function sealLetter(device: Device, head: string, content: Bytes, to: Map<string, Bytes>): Promise<Letter> {
  const [key, nonce] = [random(keySize), random(nonceSize)];
  const data = concat(nonce, await gcm('encrypt', key, nonce, content, utf8(head)));
  const boxes: { to: string; key: Bytes }[] = [];
  for (const [name, recipient] of to) boxes.push({ to: name, key: await box(recipient, infoOf(head), key) });
  const signature = await sign(device, await signed(head, data, boxes));
  return { boxes: boxes.map((b) => ({ to: b.to, key: base64(b.key) })), data: base64(data), signature: base64(signature) };
}

/** Verifies a letter's signature, and returns its content. as is the fingerprint of the recipient. */
export async function openLetter(own: Secret, as: string, l: Letter, head: string, verifier: Bytes): Promise<Bytes> {
  const boxes = l.boxes.map((b) => ({ to: b.to, key: fromBase64(b.key) }));
  const data = fromBase64(l.data);
  if (!(await verify(verifier, await signed(head, data, boxes), fromBase64(l.signature)))) throw new Error('not signed by this device');
  const mine = boxes.find((b) => same(utf8(b.to), utf8(as)));
  if (!mine) throw new Error('not for this device');
  const key = await unbox(own, infoOf(head), mine.key);
  return gcm('decrypt', key, data.slice(0, nonceSize), data.slice(nonceSize), utf8(head));
}
