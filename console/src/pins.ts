// The sealed hosts paired with this browser: see docs/sealed.md. A host with a pin is never opened
// unsealed, whatever the relay reports, and never with another key.

import { record } from './kept';
import { isRegistered } from './registered';

/** A device that this device has admitted to a host. */
export interface Given { fingerprint: string; words: string; name: string; subject: string; level: string; end: number }

/** A sealed host at a relay. */
export interface Pin {
  relay: string; // its origin
  host: string; // its name there
  account?: string; // the further account, if any, through which this page reaches it: see accounts.ts
  key: Uint8Array<ArrayBuffer>; // the host's
  grants: string[]; // the chain of grants that admits this device; empty: the host itself has paired it
  subject: string;
  level: string;
  end: number; // Unix time
  since: number; // ms
  given?: Given[]; // devices that this one has admitted
  changed?: string; // words of another key that the host, or the relay, has shown
  push?: { way: string; details: boolean; verifier: string; p256dh?: string }; // notifications: this browser's target at the relay, the key that verifies the host's signatures, and the subscription's key that the host has
}

/** The relay's origin. On a site elsewhere, a meta element names it: see docs/console.md. */
export function relay(): string {
  return globalThis.document?.querySelector?.<HTMLMetaElement>('meta[name=relay]')?.content || location.origin;
}

/** The other relays that the policy of a site elsewhere admits. */
export function further(): string[] {
  return (globalThis.document?.querySelector?.<HTMLMetaElement>('meta[name=relays]')?.content ?? '').split(' ').filter(Boolean);
}

/** Whether this page is served by a site elsewhere and not by the relay. */
export function elsewhere(): boolean {
  return relay() !== location.origin;
}

// Each further account has its own pins, because two tenants of a relay may use the same host name.
const keyOf = (host: string) => (host.includes('@') ? `host ${host}` : `host ${relay()} ${host}`);
const markOf = (host: string) => (host.includes('@') ? `sealed ${host}` : `sealed ${relay()} ${host}`);

/** The name in this page of a pinned host. */
export const nameIn = ({ host, account }: Pick<Pin, 'host' | 'account'>) => (account ? `${host}@${account}` : host);

/** Acts on the records of pins, and of this device's keys. */
export const vault = <T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>, host = '') => record('ahp-sealed', 'kept', mode, act, host);

/** Returns a host's pin. Rejects if the browser's database fails; then no connection may be opened. */
export async function pinOf(host: string): Promise<Pin | undefined> {
  return 'indexedDB' in globalThis ? vault<Pin | undefined>('readonly', (s) => s.get(keyOf(host))) : undefined;
}

/** Returns the pins of an account, '' for the page's own: all of them, or those of hosts with this name. */
export async function pinsOf(account: string, host?: string): Promise<Pin[]> {
  const all = await vault<Pin[]>('readonly', (s) => s.getAll());
  return all.filter((p) => p?.key instanceof Uint8Array && (p.account ?? '') === account && (host === undefined || p.host === host));
}

export async function pin(to: Pin): Promise<void> {
  await vault('readwrite', (s) => s.put(to, keyOf(nameIn(to))), nameIn(to));
  await navigator.storage?.persist?.(); // the browser must not forget it for room
}

/**
 * Changes fields of a host's pin, if there is a pin. Other changes stay, which a copy of the pin that the page
 * has read earlier would undo.
 */
export async function changePin(host: string, changed: (pin: Pin) => Partial<Pin>): Promise<void> {
  await vault('readwrite', (s) => {
    const stored = s.get(keyOf(host));
    stored.onsuccess = () => { if (stored.result) s.put({ ...stored.result, ...changed(stored.result) }, keyOf(host)); };
    return stored;
  }, host);
}

/** Removes a host's pin. The host stays marked as sealed, so it must be paired again. */
export async function unpin(host: string): Promise<void> {
  await vault('readwrite', (s) => s.put(true, markOf(host)));
  await vault('readwrite', (s) => s.delete(keyOf(host)));
}

/** Removes the pins of accounts that the browser does not have any more. */
export async function forgetPins(): Promise<void> {
  for (const p of await vault<Pin[]>('readonly', (s) => s.getAll())) if (p?.account && !isRegistered(`@${p.account}`)) await unpin(nameIn(p));
}

/** Whether this browser has known a host as sealed, and has no key of it any more. */
export async function marked(host: string): Promise<boolean> {
  return 'indexedDB' in globalThis && await vault<true | undefined>('readonly', (s) => s.get(markOf(host))) === true;
}

/** Whether an account's host is marked. A worker cannot use marked: it does not know the account's relay. */
export async function markedAt(account: string, host: string): Promise<boolean> {
  const keys = await vault<IDBValidKey[]>('readonly', (s) => s.getAllKeys());
  return keys.map((k) => String(k).split(' ')).some(([what, ...names]) => what === 'sealed' && names.at(-1) === (account ? `${host}@${account}` : host));
}

/** Whether this page knows a host as sealed. Its relay must not learn its sessions. */
export const isKnownSealed = async (host: string) => linkOf(host) !== null || Boolean(await pinOf(host)) || marked(host);

/** Removes the mark, so the host may be opened unsealed. */
export async function unmark(host: string): Promise<void> {
  await vault('readwrite', (s) => s.delete(markOf(host)));
}

// ---- a link to one session of a sealed host: its keys stay in this tab, and never replace a pin

const linkKey = (host: string) => `sealed link ${relay()} ${host}`;

/** Returns the keys of a link to a host, in the link's form, or null. */
export const linkOf = (host: string): string | null => globalThis.sessionStorage?.getItem(linkKey(host)) ?? null;

export const keepLink = (host: string, keys: string) => { sessionStorage.setItem(linkKey(host), keys); };

/** Forgets the keys of all links: their tokens are over. Their hosts can then be paired with. */
export function forgetLinks(): void {
  for (const key of Object.keys(sessionStorage)) if (key.startsWith(linkKey(''))) sessionStorage.removeItem(key);
}

/** Redeems a link at the relay, and returns its token. */
export async function joined(secret: string): Promise<string> {
  const answer = await fetch(`${relay()}/auth/share`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ link: secret }) });
  const { token, error } = await answer.json();
  if (typeof token !== 'string') throw new Error(String(error));
  return token;
}
