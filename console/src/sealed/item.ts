// A person's items for absent hosts: see the Go package broker/waiting.

import type { QuestionAnswer } from '../ahp';
import { concat, fromBase64url, hex, hmac, nameOfDevice, nameOfHost, padded, textOf, utf8, type Bytes } from './bytes';
import { keySize, newDevice, publicText, readPublic, type Device } from './keys';
import { fromBase64, openLetter, sealLetter, type Letter } from './letter';

/** A version of an item. Times are in ms by the relay's clock. */
export interface Item { id: string; session: string; version: number; expires: number; wake?: number; cancelled?: boolean; device: string; letter: Letter }

/** The sealed part of an item. */
export interface Content {
  kind: 'message' | 'session' | 'approve' | 'answer' | 'stop';
  session: string; chat?: string; turn?: string; text?: string; model?: { id: string };
  provider?: string; directory?: string;
  request?: string; input?: string; approved?: boolean; option?: string; response?: 'accept' | 'decline'; answers?: Record<string, QuestionAnswer | undefined>;
  title?: string; // shown on the person's devices
}

/**
 * A host's answer to relay/waitingKeys: the host's key, and the keys of the person's devices. At a sealed
 * host, blind (Base64) is the key for the IDs of sessions.
 */
export interface WaitingKeys { tenant: string; subject: string; host: string; devices: { keys: string; name: string }[]; blind?: string }

/** This device's keys for items. */
export interface Own { device: Device; keys: string; fingerprint: string }

export const mostText = 16 << 10; // bytes of a message
export const mostLife = 7 * 24 * 3_600_000; // ms

const sha256 = async (bytes: Bytes) => hex(new Uint8Array(await crypto.subtle.digest('SHA-256', bytes)));

export async function ownOf(device: Device): Promise<Own> {
  return { device, keys: publicText(device.secret.public, device.verifier), fingerprint: (await nameOfDevice(device.secret.public, device.verifier)).fingerprint };
}

export const newOwn = async () => ownOf(await newDevice());

export const newId = () => hex(crypto.getRandomValues(new Uint8Array(16)));

/** The ID of a session. */
export async function idOf(session: string, blind?: string): Promise<string> {
  return blind ? hex(await hmac(fromBase64(blind), utf8(session))) : sha256(utf8(session));
}

/** The bytes of an item's content. At a sealed host, spaces behind it hide the length. */
function bytesOf(content: Content, blind?: string): Bytes {
  const bytes = utf8(JSON.stringify(content));
  return blind ? concat(bytes, new Uint8Array(padded(bytes.length) - bytes.length).fill(32)) : bytes;
}

/** The digest of the question that an answer is for. */
export function digestOf(...texts: string[]): Promise<string> {
  return sha256(utf8(texts.map((text) => `${utf8(text).length}:${text}\n`).join('')));
}

export function headOf(i: Omit<Item, 'letter'>, host: string, { tenant, subject }: { tenant: string; subject: string }): string {
  return [tenant, host, subject, i.session, i.id, i.version, i.expires, i.wake ?? 0, i.cancelled ? 1 : 0, i.device].join('\n');
}

/** Seals an item to a host and the person's devices. */
export async function sealItem(own: Own, host: string, keys: WaitingKeys, i: Omit<Item, 'letter' | 'device' | 'session'>, content: Content): Promise<Item> {
  const hostKey = fromBase64url(keys.host, keySize);
  const to = new Map<string, Bytes>([[(await nameOfHost(hostKey)).fingerprint, hostKey], [own.fingerprint, own.device.secret.public]]);
  for (const d of keys.devices) {
    const { key, verifier } = await readPublic(d.keys);
    to.set((await nameOfDevice(key, verifier)).fingerprint, key);
  }
  const item = { ...i, session: await idOf(content.session, keys.blind), device: own.fingerprint };
  return { ...item, letter: await sealLetter(own.device, headOf(item, host, keys), bytesOf(content, keys.blind), to) };
}

/** Opens an item. Throws unless one of the person's devices has signed it. */
export async function openItem(own: Own, host: string, keys: WaitingKeys, item: Item): Promise<Content> {
  for (const d of keys.devices) {
    const { key, verifier } = await readPublic(d.keys);
    if ((await nameOfDevice(key, verifier)).fingerprint !== item.device) continue;
    const content: Content = JSON.parse(textOf(await openLetter(own.device.secret, own.fingerprint, item.letter, headOf(item, host, keys), verifier)));
    if (await idOf(content.session, keys.blind) !== item.session) throw new Error('an item of a different session');
    return content;
  }
  throw new Error('from an unknown device');
}
