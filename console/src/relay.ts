// The relay's HTTP interface, and the token for it.

import { accountOf, bare, type Account } from './accounts';
import * as device from './device';
import { relay } from './pins';
import { keep } from './storage';
import { t } from './language';

const tokenKey = 'ahp-relay-token';

// A token travels in the WebSocket subprotocol list, which allows only these
// characters (RFC 9110, section 5.6.2).
export const tokenForm = /^[\w.~-]+$/;

/** Returns the stored token, '' if there is none. */
export function stored(): string {
  return sessionStorage.getItem(tokenKey) ?? localStorage.getItem(tokenKey) ?? '';
}

/** Stores the token in the tab, and on the device if a token is stored there already. */
export function keepToken(token: string): void {
  if (token === device.DEVICE) return; // the browser stores a device's key elsewhere
  if (token) {
    keep(sessionStorage, tokenKey, token);
    if (localStorage.getItem(tokenKey) !== null) keep(localStorage, tokenKey, token);
    return;
  }
  sessionStorage.removeItem(tokenKey);
  localStorage.removeItem(tokenKey);
}

/** Reports whether the device keeps the token beyond the tab. */
export function isKept(): boolean {
  return localStorage.getItem(tokenKey) !== null;
}

/** Returns a name for a token or the device that does not reveal the token; '' for none. */
export async function nameOf(token: string): Promise<string> {
  if (token === device.DEVICE) return device.name();
  if (!token || !globalThis.crypto?.subtle) return '';
  return [...new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(token)))].join();
}

/** Stores the token on the device, or in the tab only. */
export function keepOnDevice(token: string, on: boolean): void {
  if (on) keep(localStorage, tokenKey, token);
  else localStorage.removeItem(tokenKey);
}

/** A token's authority. */
export interface Grant { subject?: string; access?: string; channels?: string[]; expires?: string }

/** A host in the relay's list. */
export interface HostInfo {
  host: string;
  state: 'online' | 'offline' | 'asleep' | 'incompatible';
  since: string;
  reason?: string;
  notAnsweringSince?: string;
  clients: number;
  sealed?: boolean; // false: ahp-connect seals in this page’s place
  hostVersion?: string;
  agentVersion?: string;
  keptAwake?: { sessions: number; people: number };
  wakes?: boolean; // the relay can wake the machine
}

/**
 * An answer of the relay. Status 200 means success. The caller names the type of the body; an error's body
 * lacks its members.
 */
export interface Answer<T = object> { status: number; body: T & { error?: string } }

/** The relay's list of the hosts that a token reaches. */
export interface HostList { hosts?: HostInfo[]; now: string; token?: Grant }

/**
 * Returns the base address of a token's relay, and the token. Without a token, the request uses a key of this
 * browser.
 */
function wayOf(token: string): { base: string; bearer?: string; account?: Account } {
  const account = accountOf(token);
  if (account) return { base: account.relay, bearer: account.token, account };
  return { base: relay(), bearer: token === device.DEVICE ? undefined : token };
}

/** Whether each connection for a token gets a newer token, made with a key of this browser. */
export const renews = (token: string) => wayOf(token).bearer === undefined;

const patience = 60_000; // ms for an answer, as in pages/keys.js: a relay may run a command of 30 s first

/** Sends the relay a request with a token. Rejects if no answer comes. */
export async function ask<T = object>(token: string, method: string, path: string, json?: object): Promise<Answer<T>> {
  try {
    return await send(token, method, path, json);
  } catch (err) {
    throw (err as Error).name === 'TimeoutError' ? new Error(t`no answer for ${patience / 1000} s`) : err;
  }
}

async function send<T>(token: string, method: string, path: string, json?: object): Promise<Answer<T>> {
  const { base, bearer, account } = wayOf(token);
  if (bearer === undefined) return device.call(method, path, json, account);
  const answer = await fetch(`${base}/${path}`, {
    method, cache: 'no-store', signal: AbortSignal.timeout(patience), headers: { Authorization: `Bearer ${bearer}`, ...(json ? { 'Content-Type': 'application/json' } : {}) }, body: json && JSON.stringify(json),
  });
  const said = await answer.text();
  try {
    return { status: answer.ok ? 200 : answer.status, body: said ? JSON.parse(said) : {} };
  } catch {
    return { status: answer.ok ? 200 : answer.status, body: { error: said } as Answer<T>['body'] };
  }
}

/** Opens a WebSocket to a host. */
export async function opens(token: string, host: string, subprotocol = 'ahp'): Promise<WebSocket> {
  const path = `ahp/${encodeURIComponent(bare(host))}`;
  const { base, bearer, account } = wayOf(token);
  const proof = bearer === undefined ? await device.subprotocols(path, account) : [`bearer.${bearer}`];
  return new WebSocket(`${base.replace(/^http/, 'ws')}/${path}`, [subprotocol, ...proof]);
}

/** Opens WebSockets for a token. */
export const dial = (token: string) => (host: string, subprotocol: string) => opens(token, host, subprotocol);

/** Returns the relay's response before its body is read. */
export async function open(token: string, path: string, signal: AbortSignal): Promise<Response> {
  const { base, bearer, account } = wayOf(token);
  if (bearer === undefined) return device.stream(path, signal, account);
  return fetch(`${base}/${path}`, { cache: 'no-store', signal, headers: { Authorization: `Bearer ${bearer}` } });
}

/** Returns a token's hosts. */
export function hostsOf(token: string): Promise<Answer<HostList>> {
  return ask(token, 'GET', 'api/hosts');
}

/** A token's authority, or why the relay refuses the token. */
export interface Look { grant?: Grant; why: string }

/** Asks the relay for a token's authority. */
export async function lookUp(token: string): Promise<Look> {
  try {
    if (!tokenForm.test(token)) throw new Error(t`That does not look like a token.`);
    const { status: said, body } = await hostsOf(token);
    if (said === 401) throw new Error(t`The relay does not accept the token of the link.`);
    if (said !== 200) throw new Error(t`The relay answered ${said}.`);
    return { grant: body.token, why: '' };
  } catch (err) {
    return { why: (err as Error).message };
  }
}
