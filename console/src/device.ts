// Signs in a device with a key kept by the browser. The relay's pages/keys.js makes tokens that last a few
// minutes and are useless without the key. Each further account has its own key, in its own instance of that
// module.

import type { Account } from './accounts';
import { elsewhere } from './pins';
import { record } from './kept';
import type { Answer } from './relay';

/** Stands for this device's key in place of a token. */
export const DEVICE = 'device';

/** A device's record in this browser. */
interface Self { keys: object; tenant: string; subject: string; device: string }

interface Keys {
  newKeys(): Promise<object>;
  send<T>(keys: object, method: string, path: string, more: object): Promise<T>;
  whenApproved(keys: object, asked: object, gone: AbortSignal): Promise<void>;
  stored(): Promise<Self | undefined>;
  call<T>(method: string, path: string, json?: object): Promise<T & { error?: string }>;
  accessToken(): Promise<string>;
  subprotocols(path: string): Promise<string[]>;
  open(path: string, signal: AbortSignal): Promise<Response>;
}

// The relay serves this module; it is not part of the bundle. A site elsewhere has a copy, which only further
// accounts use.
const address = () => (elsewhere() ? '/keys.js' : '/pages/keys.js');
const loaded = new Map<string, Promise<Keys>>();

function load(account?: Account): Promise<Keys> {
  if (!account && elsewhere()) return Promise.reject(new Error('none'));
  const from = account ? `${address()}?${new URLSearchParams({ account: account.name, relay: `${account.relay}/` })}` : address();
  const keys = loaded.get(from) ?? import(from).catch((err) => {
    loaded.delete(from); // allows a retry
    throw err;
  });
  loaded.set(from, keys);
  return keys;
}

/** The name of the signed-in device, or ''. */
export async function name(account?: Account): Promise<string> {
  const self = await (await load(account)).stored();
  return self ? `${self.tenant} ${self.subject} ${self.device}` : '';
}

/** Sends the relay a request that the device's key authenticates. Returns {status, body}. */
export async function call<T>(method: string, path: string, json?: object, account?: Account): Promise<Answer<T>> {
  const k = await load(account);
  try {
    return { status: 200, body: await k.call(method, path, json) };
  } catch (err) {
    if (err instanceof SyntaxError) return { status: 200, body: {} as Answer<T>['body'] }; // an answer without a body
    const { status, message } = err as Error & { status?: number };
    if (typeof status !== 'number') throw err;
    return { status, body: { error: message } as Answer<T>['body'] };
  }
}

/** Returns the relay's response before its body is read. */
export async function stream(path: string, signal: AbortSignal, account?: Account): Promise<Response> {
  return (await load(account)).open(path, signal);
}

/** A new token for a connection that is already open. */
export async function token(account?: Account): Promise<string> {
  return (await load(account)).accessToken();
}

/** The subprotocols that authenticate a WebSocket with a proof by the key. */
export async function subprotocols(path: string, account?: Account): Promise<string[]> {
  return (await (await load(account)).subprotocols(path)).slice(1); // the first is AHP's
}

/** A request for admission and the relay's answer, for a person to approve on another device. */
export interface Asked { device_code: string; interval?: number; user_code: string; verification_uri: string; fingerprint: string; qr?: string[] }

/** Asks an account's relay to admit this browser, and waits until a person approves on a signed-in device. */
export async function signIn(account: Account, name: string, shows: (asked: Asked) => void, signal: AbortSignal): Promise<void> {
  const k = await load(account);
  const made = await k.newKeys();
  const asked = await k.send<Asked>(made, 'POST', 'auth/device', { form: { kind: 'device', name, tenant: '' } });
  shows(asked);
  await k.whenApproved(made, asked, signal);
}

/** Takes an account's key out of this browser, for a last use. */
export function takeOut({ name }: Account): Promise<Self | undefined> {
  const id = `account ${name}`; // as in pages/keys.js
  return record<Self | undefined>('ahp-device', 'device', 'readwrite', (s) => {
    const had = s.get(id);
    s.delete(id);
    return had;
  });
}

/** Ends a key that was taken out at its relay, after what paths name. A relay that does not answer keeps the device in its list. */
export async function signOut(account: Account, { keys, device }: Self, paths: string[]): Promise<void> {
  const { send } = await load(account);
  const { access_token: token } = await send<{ access_token: string }>(keys, 'POST', 'auth/token', { form: { grant_type: 'device', device } });
  for (const path of [...paths, `api/devices/${encodeURIComponent(device)}`]) await send(keys, 'DELETE', path, { token }).catch(() => {}); // the next one may succeed
}
