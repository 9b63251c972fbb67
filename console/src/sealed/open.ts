// Opens and pairs sealed hosts, and admits devices: everything that uses this device's keys. It is loaded
// only for sealed hosts.

import { accountOf, bare, relayOf } from '../accounts';
import { changePin, keepLink, nameIn, pin, pinOf, vault, type Pin } from '../pins';
import { deviceName } from '../words';
import { base64url, fromBase64url, nameOfDevice, nameOfHost, printable, readCode, same, utf8, type Bytes, type Name } from './bytes';
import { mostGrants, readChain, signGrant } from './grant';
import { keySize, newDevice, publicText, readDevice, readPublic, type Device } from './keys';
import { kind } from './noise';
import { covers, type Bye } from './record';
import { closed, SealedSocket, subprotocol, windowSeconds } from './socket';
import { t } from '../language';

/** Returns a new WebSocket to a host, with a subprotocol. */
export type Dial = (host: string, subprotocol: string) => Promise<WebSocket>;

const limit = 128 << 20; // bytes of a message, as at the relay
const longestName = 100; // bytes

/** Returns this device's keys. The first call creates them. */
export async function ownDevice(): Promise<Device> {
  if (!globalThis.crypto?.subtle) throw new Error(t`This browser gives keys to pages over https:// only.`);
  const had = await vault<Device | undefined>('readonly', (s) => s.get('device'));
  if (had) return had;
  let made: Device;
  try {
    made = await newDevice();
  } catch {
    throw new Error(t`This browser cannot keep the keys of a sealed connection. Chrome 133, Firefox 130, Safari 17 and later can.`);
  }
  await vault('readwrite', (s) => s.put(made, 'device'));
  return made;
}

/** This device's fingerprint and words. */
export async function ownName(): Promise<Name> {
  const { secret, verifier } = await ownDevice();
  return nameOfDevice(secret.public, verifier);
}

/** Returns a name of at most 100 bytes without special characters. */
function cleaned(name: string): string {
  let short = [...name].filter(printable).join('').trim();
  while (utf8(short).length > longestName) short = [...short].slice(0, -1).join('');
  return short;
}

/** Opens a connection to a pinned host. */
export async function open(to: Pin, dial: Dial): Promise<SealedSocket> {
  if (to.changed) throw Object.assign(new Error(changedReason), { code: closed.otherKey });
  const device = await ownDevice();
  const { host, key, grants } = to;
  return new SealedSocket(await dial(nameIn(to), subprotocol), { host, hostKey: key, device, limit, greeting: { name: deviceName(), window: windowSeconds, grants: grants.length > 0 ? grants : undefined } }, {
    welcome: async ({ subject, level, end }) => { if (subject !== to.subject || level !== to.level || end !== to.end) await changePin(nameIn(to), () => ({ subject, level, end })); },
    unproved: (bye) => suspect(to, dial, bye),
  });
}

/** Opens a connection with the keys of a link: the host's key, and the keys of the link's device. */
export async function openLink(host: string, keys: string, dial: Dial): Promise<SealedSocket> {
  const [key, link, known] = keys.split(' ');
  const viewer = known ?? newViewer(host, keys);
  const [hostKey, device] = [fromBase64url(key, keySize), await readDevice(link)];
  return new SealedSocket(await dial(host, subprotocol), { host, hostKey, device, limit, greeting: { name: deviceName(), window: windowSeconds, viewer } }, {});
}

/** Creates the secret by which the host recognizes this tab again, and stores it with the link's keys. */
function newViewer(host: string, keys: string): string {
  const viewer = base64url(crypto.getRandomValues(new Uint8Array(16)));
  keepLink(host, `${keys} ${viewer}`);
  return viewer;
}

export const changedReason = 'the host shows a different key';

/**
 * Judges a connection that ended before the host had proved its key. A host with another key cannot read the
 * first message and gives no reason, so this function asks for the key that it claims now.
 */
async function suspect(to: Pin, dial: Dial, bye: Bye): Promise<Bye> {
  if (bye.code !== closed.otherKey && bye.code !== 4500) return bye;
  const key = await claimedKey(await dial(nameIn(to), subprotocol));
  if (!key || same(key, to.key)) return { code: closed.broken, reason: t`The sealed handshake was disturbed on the way.` };
  const { words } = await nameOfHost(key);
  await changePin(nameIn(to), () => ({ changed: words }));
  return { code: closed.otherKey, reason: changedReason };
}

/** Removes a device, which the host has removed, from the list of devices that this one has admitted. */
export async function forgetGiven(host: string, fingerprint: string): Promise<void> {
  await changePin(host, ({ given }) => ({ given: given?.filter((g) => g.fingerprint !== fingerprint) }));
}

/** Asks a host for its key. The answer is not proved. */
function claimedKey(socket: WebSocket): Promise<Bytes | undefined> {
  socket.binaryType = 'arraybuffer';
  return new Promise((resolve) => {
    const end = (key?: Bytes) => {
      clearTimeout(timer);
      socket.onclose = null;
      socket.close();
      resolve(key);
    };
    const timer = setTimeout(end, 10_000);
    socket.onopen = () => socket.send(new Uint8Array([kind.askKey]));
    socket.onmessage = ({ data }) => {
      const frame = typeof data === 'string' ? new Uint8Array(0) : new Uint8Array(data);
      end(frame.length === 1 + keySize && frame[0] === kind.hostKey ? frame.slice(1) : undefined);
    };
    socket.onclose = () => end();
  });
}

/**
 * An invitation to pair, from a QR code, a link or a person. host is its name in this page, or in a link its
 * name at the relay.
 */
export interface Invitation { host: string; code: Bytes; expect?: string; relay?: string; token?: string }

/** Reads a code, or a link that contains one. host is used for a code without a link. */
export function readInvitation(typed: string, host = ''): Invitation | undefined {
  const at = typed.indexOf('#');
  if (at < 0) {
    const code = readCode(typed);
    return code && host ? { host, code } : undefined;
  }
  const values = new URLSearchParams(typed.slice(at + 1));
  for (const name of values.keys()) if (values.getAll(name).length !== 1) return undefined;
  const code = readCode(values.get('code') ?? '');
  const named = values.get('host') ?? '';
  const expect = values.get('key') ?? '';
  try {
    fromBase64url(expect, 16);
  } catch {
    return undefined;
  }
  return code && named ? { host: named, code, expect, relay: values.get('relay') ?? undefined, token: values.get('token') ?? undefined } : undefined;
}

/**
 * Pairs this device with a host. pending receives the host's words while a person at the host compares this
 * device's words.
 */
export async function pair(to: Invitation, name: string, dial: Dial, pending: (host: Name) => void, signal: AbortSignal): Promise<Pin> {
  const [device, had] = [await ownDevice(), await pinOf(to.host)];
  if (had?.changed) throw new Error(changedReason);
  if (had && to.expect && (await nameOfHost(had.key)).fingerprint !== to.expect) throw new Error(t`This code is of a host with a different key than the one that this device knows under that name.`);
  const line = await dial(to.host, subprotocol);
  if (signal.aborted) { // while this device waited for its token
    line.close();
    throw new Error('');
  }
  const socket = new SealedSocket(line, {
    host: bare(to.host), hostKey: had?.key, expect: to.expect, code: to.code, device, limit, greeting: { name: cleaned(name), window: windowSeconds },
  }, { pending: (key) => { nameOfHost(key).then(pending); }, welcome: async ({ subject, level, end }, key) => { made = { ...placeOf(to.host), key, grants: [], subject, level, end, since: Date.now() }; await pin(made); } });
  let made: Pin | undefined;
  return new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => { socket.close(); reject(new Error('')); });
    socket.onopen = () => { socket.close(); resolve(made!); };
    socket.onclose = ({ code, reason }) => reject(new Error(pairingFailed(code, reason)));
  });
}

function pairingFailed(code: number, reason: string): string {
  if (code === closed.otherKey) return t`The host that answers is not the one of this code. Something stands between it and this device.`;
  if (code === 4503) return t`The host does not take this code: it is wrong, was used, or is older than 10 minutes.`;
  if (code === 4100) return t`The host is away.`;
  return reason || t`The connection ended (${code}).`;
}

// ---- one device certifies another

const prefix = () => location.origin + location.pathname;

/** Returns a host's relay, its name there, and its account. */
const placeOf = (host: string): Pick<Pin, 'relay' | 'host' | 'account'> => ({ relay: relayOf(host), host: bare(host), account: accountOf(host)?.name });

/** Returns the link that a new device shows to a device which is already paired. */
export async function requestLink(host: string, name: string): Promise<string> {
  const { secret, verifier } = await ownDevice();
  return `${prefix()}#${new URLSearchParams({ admit: bare(host), relay: relayOf(host), keys: publicText(secret.public, verifier), name: cleaned(name) })}`;
}

/** The request of a new device. */
export interface Request { host: string; key: Bytes; verifier: Bytes; device: string; is: Name }

/** Reads a request. Rejects if it is invalid. */
export async function readRequest(link: string): Promise<Request> {
  const values = new URLSearchParams(link.slice(link.indexOf('#') + 1));
  const [host, device] = [values.get('admit') ?? '', values.get('name') ?? ''];
  const { key, verifier } = await readPublic(values.get('keys'));
  if (!host || !printable(device)) throw new Error('not a request');
  return { host, key, verifier, device: cleaned(device), is: await nameOfDevice(key, verifier) };
}

/** Signs a grant for a new device, and returns the link with the grant. */
export async function admit(request: Request, by: Pin, level: string, days: number, subject: string): Promise<string> {
  if (by.host !== request.host) throw new Error(t`The other device asks for ${request.host}.`);
  if (!covers(by.level, level)) throw new Error(t`This device may not give more than it has.`);
  if (by.grants.length >= mostGrants) throw new Error(t`The chain of devices is too long: admit the new device with an older one.`);
  const now = Math.floor(Date.now() / 1000);
  const grant = await signGrant(await ownDevice(), by.key, { key: request.key, verifier: request.verifier, subject, level, from: now, end: now + days * 86400 });
  const made = { ...request.is, name: request.device, subject, level, end: now + days * 86400 };
  await changePin(nameIn(by), ({ given }) => ({ given: [...given ?? [], made].filter((g) => g.end > now) }));
  return `${prefix()}#${new URLSearchParams({ relay: by.relay, host: by.host, hostkey: base64url(by.key), grants: [...by.grants, grant].join('~') })}`;
}

/**
 * Reads the link that admits this device, without storing anything. named returns a host's name in this page,
 * or '' for an unknown relay.
 */
export async function readAdmission(link: string, named: (host: string, relay: string) => string): Promise<{ made: Pin; is: Name }> {
  const values = new URLSearchParams(link.slice(link.indexOf('#') + 1));
  const [host, key, grants] = [values.get('host') ?? '', fromBase64url(values.get('hostkey'), keySize), (values.get('grants') ?? '').split('~')];
  const { secret, verifier } = await ownDevice();
  const chain = await readChain(grants, key, { key: secret.public, verifier });
  const name = host && named(host, values.get('relay') ?? '');
  if (host && !name) throw new Error(t`This link is for a different relay.`);
  const had = await pinOf(name);
  if (had && had.grants.length === 0 && had.end * 1000 > Date.now()) throw new Error(t`The host knows this device itself.`);
  if (!host || (had && !same(had.key, key))) throw new Error(t`This device knows a different key of that host.`);
  const { subject, level } = chain.at(-1)!;
  return { made: { ...placeOf(name), key, grants, subject, level, end: Math.min(...chain.map((g) => g.end)), since: Date.now() }, is: await nameOfHost(key) };
}

/** The identity of a pin's host. */
export const hostName = (of: Pin) => nameOfHost(of.key);

export { changePin, marked, nameIn, pin, unmark, unpin } from '../pins';
