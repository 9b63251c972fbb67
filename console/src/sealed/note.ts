// Notifications of sealed hosts: see docs/sealed.md. The service worker opens them and seals the answers. The
// page gives each host the keys of this browser's subscription.

import { changePin, markedAt, pinOf, pinsOf, vault, type Pin } from '../pins';
import type { JsonObject } from '../ahp';
import { base64url, concat, fromBase64url, hex, nameOfDevice, nameOfHost, purpose, utf8, type Bytes } from './bytes';
import { base64, fromBase64, sealLetter } from './letter';
import { verify, verifierSize, signatureSize, type Device } from './keys';

const ownDevice = () => vault<Device | undefined>('readonly', (s) => s.get('device'));

async function fingerprintOf({ secret, verifier }: Device): Promise<string> {
  return (await nameOfDevice(secret.public, verifier)).fingerprint;
}

/** Whether the host with this pin has signed the text for this purpose. */
function signed({ push }: Pin, what: string, text: string, signature: Bytes): Promise<boolean> {
  return verify(fromBase64url(push!.verifier, verifierSize), concat(purpose(what), utf8(text)), signature);
}

/** A push message from the relay: sealed by a host, or plain. */
export interface Pushed { sealed?: string; body?: unknown; signature?: unknown }

/** An event that a notification shows. Its members have not been checked. */
export interface Note { host: string; id: string; nonce: string; to?: string; answers?: unknown; [name: string]: unknown }

/**
 * Returns the message in a push to an account, and the pin of its host. Returns undefined if it is not from a
 * host of that account, or not for this device.
 */
export async function openNote(told: Pushed, account: string): Promise<{ note: Note; from: Pin } | undefined> {
  const device = await ownDevice();
  if (!device || typeof told.body !== 'string' || typeof told.signature !== 'string') return undefined;
  const own = await fingerprintOf(device);
  for (const of of await pinsOf(account, told.sealed!)) {
    if (!of.push || of.changed || !(await signed(of, 'push', told.body, fromBase64(told.signature)))) continue;
    const note: Note = JSON.parse(told.body);
    if (note.to === own && note.host === of.host) return { note, from: of };
  }
  return undefined;
}

/**
 * Whether this browser knows a host as sealed. If so, it shows nothing that only the relay reports about the
 * host's sessions.
 */
export const isSealed = async (account: string, host: string) => 'indexedDB' in globalThis && ((await pinsOf(account, host)).length > 0 || markedAt(account, host));

/** An answer that a sealed notification offers. */
export interface SealedOffer { label: string; text: boolean; option: string; host: string; relay: string; account: string; event: string; nonce: string }

/** Reads the answers that a sealed notification offers. */
export function offersOf(note: Note, { relay, account = '' }: Pin): SealedOffer[] {
  if (!Array.isArray(note.answers)) return [];
  return note.answers.map((a: { label?: unknown; option?: unknown }) => ({ label: String(a.label), text: a.option === '', option: String(a.option), host: note.host, relay, account, event: note.id, nonce: note.nonce }));
}

/** A sealed answer, and the request that sends it. */
export interface SealedAnswer { url: string; body: string; proves(result: string, proof: unknown): Promise<boolean> }

/**
 * Seals an answer for its host, signed by this device. Returns undefined if this device no longer has the
 * host's pin.
 */
export async function sealAnswer(o: SealedOffer, typed: string): Promise<SealedAnswer | undefined> {
  const [device, to] = [await ownDevice(), (await pinsOf(o.account, o.host)).find((p) => p.relay === o.relay)];
  if (!device || !to?.push) return undefined;
  const [own, host] = [await fingerprintOf(device), (await nameOfHost(to.key)).fingerprint];
  const content = { nonce: o.nonce, ...(o.text ? { text: typed } : { option: o.option }) };
  const letter = await sealLetter(device, ['reply', host, own, o.event].join('\n'), utf8(JSON.stringify(content)), new Map([[host, to.key]]));
  const bytes = utf8(JSON.stringify({ device: own, event: o.event, letter }));
  const sum = hex(new Uint8Array(await crypto.subtle.digest('SHA-256', bytes)));
  return {
    url: `${to.relay}/api/letters/${encodeURIComponent(to.push.way)}`, body: JSON.stringify({ host: o.host, letter: base64(bytes) }),
    proves: async (result, proof) => typeof proof === 'string' && signed(to, 'outcome', `${sum}\n${result}`, fromBase64url(proof, signatureSize)).catch(() => false),
  };
}

/**
 * Gives a host the keys of this browser's subscription, or withdraws them. ask sends a request on the
 * connection to the host.
 */
export async function subscribe(host: string, ask: (what: object) => Promise<JsonObject>, way: string, details: boolean, keys?: { p256dh?: string; auth?: string }): Promise<void> {
  const had = await pinOf(host);
  const p256dh = keys?.p256dh;
  if (!had || (had.push?.way ?? '') === way && (!way || had.push?.details === details && had.push.p256dh === p256dh)) return;
  const { verifier } = await ask(way ? { do: 'push', way, details, p256dh, auth: keys?.auth } : { do: 'push' });
  const push = way ? { way, details, p256dh, verifier: base64url(fromBase64url(verifier as string, verifierSize)) } : undefined;
  await changePin(host, () => ({ push }));
}
