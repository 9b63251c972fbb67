// Signs in a device with a key kept by the browser. The relay's pages/keys.js makes
// tokens of a few minutes, which are useless without the key.

import type { Json } from './ahp';

/** Stands for the tokens of this device, where a token is named. */
export const DEVICE = 'device';

interface Keys {
  stored(): Promise<Json>;
  call(method: string, path: string, json?: Json): Promise<Json>;
  accessToken(): Promise<string>;
  subprotocols(path: string): Promise<string[]>;
  open(path: string, signal: AbortSignal): Promise<Response>;
}

const address = '/pages/keys.js'; // served by the relay, not part of this bundle
let keys: Promise<Keys> | undefined;

function load(): Promise<Keys> {
  keys ??= import(address).catch((err) => {
    keys = undefined; // allows a retry
    throw err;
  });
  return keys!;
}

/** Whether this device is signed in. */
export async function signedIn(): Promise<boolean> {
  if (!globalThis.crypto?.subtle || !('indexedDB' in globalThis)) return false;
  try {
    return Boolean(await (await load()).stored());
  } catch {
    return false;
  }
}

/** Names the device that is signed in. */
export async function name(): Promise<string> {
  const self = await (await load()).stored();
  return self ? `${self.tenant} ${self.subject} ${self.device}` : '';
}

/** Asks the relay, as with a token: {status, body}. */
export async function call(method: string, path: string, json?: Json): Promise<{ status: number; body: Json }> {
  const k = await load();
  try {
    return { status: 200, body: await k.call(method, path, json) };
  } catch (err) {
    if (err instanceof SyntaxError) return { status: 200, body: {} }; // an answer without a body
    const { status, message } = err as Error & { status?: number };
    if (typeof status !== 'number') throw err;
    return { status, body: { error: message } };
  }
}

/** The relay's answer to a request, before its body is read. */
export async function stream(path: string, signal: AbortSignal): Promise<Response> {
  return (await load()).open(path, signal);
}

/** A token for a connection that there is already. */
export async function token(): Promise<string> {
  return (await load()).accessToken();
}

/** The subprotocols that authenticate a WebSocket, with a proof of its own. */
export async function subprotocols(path: string): Promise<string[]> {
  return (await (await load()).subprotocols(path)).slice(1); // the first is AHP's
}
