// Grants: signed statements of a device that a host may admit another device (docs/sealed.md).

import { base64url, concat, exactly, fromBase64url, nameOfDevice, nameOfHost, printable, purpose, utf8, type Bytes } from './bytes';
import { keySize, readVerifier, sign, signatureSize, verifierSize, verify, type Device } from './keys';
import { covers } from './record';

const longest = 4 << 10; // characters of a grant
export const mostGrants = 4; // of a chain
const mostDays = 30;
const mostChannels = 32;
const longestSubject = 256; // bytes

export interface Grant {
  host: string; by: string; key: Bytes; verifier: Bytes; subject: string; level: string; channels?: string[]; from: number; end: number; serial: string;
}

/** A grant with its text and its signature, which is not verified yet. */
export interface Claimed extends Grant { body: Bytes; signature: Bytes }

/** Signs a grant for a device's public keys. */
export async function signGrant(by: Device, hostKey: Bytes, to: { key: Bytes; verifier: Bytes; subject: string; level: string; from: number; end: number }): Promise<string> {
  const body = utf8(JSON.stringify({
    host: (await nameOfHost(hostKey)).fingerprint, by: (await nameOfDevice(by.secret.public, by.verifier)).fingerprint,
    key: base64url(to.key), verifier: base64url(to.verifier), subject: to.subject, level: to.level, from: to.from, end: to.end,
    serial: base64url(crypto.getRandomValues(new Uint8Array(16))),
  }));
  const text = `${base64url(body)}.${base64url(await sign(by, signed(body)))}`;
  await readGrant(text);
  return text;
}

function signed(body: Bytes): Bytes {
  return concat(purpose('grant'), body);
}

/** Reads a grant. Throws if it is invalid. */
export async function readGrant(text: unknown): Promise<Claimed> {
  if (typeof text !== 'string' || text.length > longest) throw new Error('no grant');
  const [first, second, ...more] = text.split('.');
  if (more.length > 0) throw new Error('no grant');
  const body = fromBase64url(first);
  const signature = fromBase64url(second, signatureSize);
  const b = exactly<Omit<Claimed, 'key' | 'verifier' | 'body' | 'signature'> & { key: string; verifier: string }>(body, {
    host: 'string', by: 'string', key: 'string', verifier: 'string', subject: 'string', level: 'string', channels: '?strings', from: 'number', end: 'number', serial: 'string',
  });
  for (const name of [b.host, b.by, b.serial]) fromBase64url(name, 16);
  const verifier = fromBase64url(b.verifier, verifierSize);
  await readVerifier(verifier);
  const size = utf8(b.subject).length;
  if (!covers('admin', b.level) || size === 0 || size > longestSubject || !printable(b.subject)) throw new Error('a grant for nobody, or of an unknown level');
  if (b.end <= b.from || b.end - b.from > mostDays * 86400) throw new Error(`a grant for more than ${mostDays} days, or for no time`);
  const channels: string[] | undefined = b.channels;
  if (channels && (channels.length > mostChannels || channels.some((c, i) => i > 0 && before(c, channels[i - 1])))) throw new Error('a grant with channels out of order');
  return { ...b, key: fromBase64url(b.key, keySize), verifier, body, signature };
}

/** Compares texts by their UTF-8 bytes. Grants list channels in this order. */
function before(a: string, b: string): boolean {
  const [x, y] = [utf8(a), utf8(b)];
  const at = x.findIndex((byte, i) => byte !== y[i]);
  return at < 0 ? x.length < y.length : at >= y.length ? false : x[at] < y[at];
}

/**
 * Reads a chain of grants that admits a device to a host. The last grant names the device, and each later
 * grant is signed by the device that the previous grant names. The signer of the first grant must be known to
 * the host, which checks that itself.
 */
export async function readChain(texts: string[], hostKey: Bytes, device: { key: Bytes; verifier: Bytes }, now = Date.now()): Promise<Claimed[]> {
  if (texts.length === 0 || texts.length > mostGrants) throw new Error('no chain of grants');
  const host = (await nameOfHost(hostKey)).fingerprint;
  const chain: Claimed[] = [];
  for (const text of texts) {
    const grant = await readGrant(text);
    const issuer = chain.at(-1);
    if (grant.host !== host) throw new Error('a grant for a different host');
    if (grant.end * 1000 <= now) throw new Error('a grant whose time is over');
    if (issuer) {
      const by = (await nameOfDevice(issuer.key, issuer.verifier)).fingerprint;
      if (grant.by !== by || !(await verify(issuer.verifier, signed(grant.body), grant.signature))) throw new Error('a grant that its issuer has not signed');
      if (!covers(issuer.level, grant.level) || (issuer.level !== 'admin' && issuer.subject !== grant.subject)) throw new Error('a grant for more than its issuer has');
    }
    chain.push(grant);
  }
  const last = chain.at(-1)!;
  const [is, wants] = [await nameOfDevice(last.key, last.verifier), await nameOfDevice(device.key, device.verifier)];
  if (is.fingerprint !== wants.fingerprint) throw new Error('a grant for a different device');
  return chain;
}

export const isSigned = (verifier: Bytes, grant: Claimed) => verify(verifier, signed(grant.body), grant.signature);
