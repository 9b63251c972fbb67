// The sealed hosts that this browser knows: see docs/sealed.md. A host with a pin is never
// opened unsealed, whatever the relay says, and never with a different key.

import { record } from './kept';
import { isRegistered } from './registered';

/** A device that this one has admitted to a host. */
export interface Given { fingerprint: string; words: string; name: string; subject: string; level: string; end: number }

/** A sealed host at a relay. */
export interface Pin {
  relay: string; // its origin
  host: string; // its name there
  account?: string; // the further account through which this page reaches it: see accounts.ts
  key: Uint8Array<ArrayBuffer>; // the host's
  grants: string[]; // the chain that admits this device; empty: the host knows it
  subject: string;
  level: string;
  end: number; // Unix time
  since: number; // ms
  given?: Given[]; // devices that this one has admitted
  changed?: string; // words of a different key that the host, or the relay, has shown
  push?: { way: string; details: boolean; verifier: string }; // notifications: this browser's target at the relay, and the key of the host's signatures
}

/** The relay's origin, unless a site elsewhere names it: see docs/console.md. */
export function relay(): string {
  return globalThis.document?.querySelector?.<HTMLMetaElement>('meta[name=relay]')?.content || location.origin;
}

/** The further relays for which a site elsewhere was made: its policy admits no other. */
export function further(): string[] {
  return (globalThis.document?.querySelector?.<HTMLMetaElement>('meta[name=relays]')?.content ?? '').split(' ').filter(Boolean);
}

/** Whether this page comes from elsewhere than the relay. */
export function elsewhere(): boolean {
  return relay() !== location.origin;
}

// A further account has its own pins: two tenants at a relay may use a name twice.
const keyOf = (host: string) => (host.includes('@') ? `host ${host}` : `host ${relay()} ${host}`);
const markOf = (host: string) => (host.includes('@') ? `sealed ${host}` : `sealed ${relay()} ${host}`);

/** A pinned host's name in this page. */
export const nameIn = ({ host, account }: Pick<Pin, 'host' | 'account'>) => (account ? `${host}@${account}` : host);

/** Acts on the records of pins, and of this device's keys. */
export const vault = <T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>, host = '') => record('ahp-sealed', 'kept', mode, act, host);

/** Returns a host's pin. It rejects if the browser cannot tell: then nothing is opened. */
export async function pinOf(host: string): Promise<Pin | undefined> {
  return 'indexedDB' in globalThis ? vault<Pin | undefined>('readonly', (s) => s.get(keyOf(host))) : undefined;
}

/** Returns an account's pins, '' for the page's own: all, or those for hosts with a name. */
export async function pinsOf(account: string, host?: string): Promise<Pin[]> {
  const all = await vault<Pin[]>('readonly', (s) => s.getAll());
  return all.filter((p) => p?.key instanceof Uint8Array && (p.account ?? '') === account && (host === undefined || p.host === host));
}

export async function pin(to: Pin): Promise<void> {
  await vault('readwrite', (s) => s.put(to, keyOf(nameIn(to))), nameIn(to));
  await navigator.storage?.persist?.(); // the browser must not forget it for room
}

/** Removes a host's key. The host stays marked as sealed, so only a pairing opens it again. */
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

/** Removes the mark: the host may be opened unsealed. */
export async function unmark(host: string): Promise<void> {
  await vault('readwrite', (s) => s.delete(markOf(host)));
}

// ---- a link to one session of a sealed host: its keys stay in this tab, and never replace a pin

const linkKey = (host: string) => `sealed link ${relay()} ${host}`;

/** Returns the keys of a link to a host, as the link has them, or null. */
export const linkOf = (host: string): string | null => globalThis.sessionStorage?.getItem(linkKey(host)) ?? null;

export const keepLink = (host: string, keys: string) => { sessionStorage.setItem(linkKey(host), keys); };

/** Asks the relay of a link for its token. */
export async function joined(secret: string): Promise<string> {
  const answer = await fetch(`${relay()}/auth/share`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ link: secret }) });
  const { token, error } = await answer.json();
  if (typeof token !== 'string') throw new Error(String(error));
  return token;
}
