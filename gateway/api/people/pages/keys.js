// This device's key. It is generated here, and the browser (IndexedDB) keeps it unreadable,
// so a copy of the browser's data does not contain it. Requests carry a proof of the key
// (RFC 9449).

// The console loads this module once more for each further account: with its name, and
// its relay's address, in the query.
const named = new URL(import.meta.url).searchParams;
export const base = new URL(named.get('relay') ?? '../', import.meta.url); // the relay's base URL
const own = named.has('account') ? `account ${named.get('account')}` : 'self';

/** In the database there are two records: self, or one for each further account, is {keys, device, tenant, subject}, begun is {keys, issuer} while its user signs in elsewhere. */
function database() {
  return new Promise((resolve, reject) => {
    const open = indexedDB.open('ahp-device', 1);
    open.onupgradeneeded = () => open.result.createObjectStore('device');
    open.onsuccess = () => resolve(open.result);
    open.onerror = () => reject(open.error);
  });
}

async function record(mode, act) {
  const db = await database();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = db.transaction('device', mode);
      const request = act(transaction.objectStore('device'));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  } finally {
    db.close();
  }
}

export const stored = () => record('readonly', (s) => s.get(own));
const store = (value) => record('readwrite', (s) => s.put(value, own));
export const begun = () => record('readonly', (s) => s.get('begun'));
export const begin = (value) => record('readwrite', (s) => s.put(value, 'begun'));
export const forget = () => record('readwrite', (s) => s.delete(own));

const bytes = (text) => new TextEncoder().encode(text);
const base64url = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '');
const part = (value) => base64url(bytes(JSON.stringify(value)));

/** Makes a key. */
export async function newKeys() {
  if (!globalThis.crypto?.subtle) throw new Error('This browser gives keys to pages over https:// only. Open the relay by its https:// address.');
  return crypto.subtle.generateKey({ name: 'ECDSA', namedCurve: 'P-256' }, false, ['sign', 'verify']);
}

/** A proof of a key for one request. */
export async function proof(keys, method, url, token, nonce) {
  const { kty, crv, x, y } = await crypto.subtle.exportKey('jwk', keys.publicKey);
  const claims = { jti: base64url(crypto.getRandomValues(new Uint8Array(16))), htm: method, htu: url.origin + url.pathname, iat: Math.floor(Date.now() / 1000), nonce };
  if (token) claims.ath = base64url(await crypto.subtle.digest('SHA-256', bytes(token)));
  const text = part({ typ: 'dpop+jwt', alg: 'ES256', jwk: { kty, crv, x, y } }) + '.' + part(claims);
  return text + '.' + base64url(await crypto.subtle.sign({ name: 'ECDSA', hash: 'SHA-256' }, keys.privateKey, bytes(text)));
}

let nonce = '';

/** An answer that is none: name is the error's, in short. */
export class Refused extends Error {
  constructor(status, name, text) {
    super(text);
    Object.assign(this, { status, name });
  }
}

/** Sends a request with a proof. Once more, with the relay's nonce, if it has another. */
async function request(keys, method, path, { token, json, form, signal } = {}) {
  const url = new URL(path, base);
  for (let again = true; ; again = false) {
    const headers = { DPoP: await proof(keys, method, url, token, nonce) };
    if (token) headers.Authorization = `DPoP ${token}`;
    if (json) headers['Content-Type'] = 'application/json';
    const body = json ? JSON.stringify(json) : form ? new URLSearchParams(form) : undefined;
    const answer = await fetch(url, { method, headers, body, cache: 'no-store', credentials: 'omit', signal });
    const fresh = answer.headers.get('DPoP-Nonce');
    if (fresh) nonce = fresh;
    if (answer.status !== 401 || !fresh || !again) return answer;
  }
}

/** Sends a request with a proof, and reads the answer. */
export async function send(keys, method, path, more) {
  const answer = await request(keys, method, path, more);
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  let said = {};
  try {
    said = JSON.parse(text);
  } catch {
    said.error = text.trim();
  }
  throw new Refused(answer.status, said.error, said.error_description || said.error || answer.statusText);
}

let access; // {token, until}

function took(answer) {
  access = { token: answer.access_token, until: Date.now() + (answer.expires_in - 60) * 1000 };
  return access.token;
}

const patience = 20_000; // ms for a token
const longest = 60_000; // ms for another answer

/** Signs this device in with what an answer of the relay says. */
export async function signIn(keys, answer) {
  await store({ keys, device: answer.device, tenant: answer.tenant, subject: answer.subject });
  await record('readwrite', (s) => s.delete('begun'));
  await navigator.storage?.persist?.();
  took(answer);
}


/** Signs this device in once a person has approved its request. asked is the relay's answer to that. */
export async function whenApproved(keys, asked, gone) {
  for (let pause = Number(asked.interval) || 5; ;) {
    await new Promise((done) => { setTimeout(done, pause * 1000); });
    gone?.throwIfAborted();
    let answer;
    try {
      answer = await send(keys, 'POST', 'auth/token', { form: { grant_type: 'urn:ietf:params:oauth:grant-type:device_code', device_code: asked.device_code }, signal: AbortSignal.timeout(patience) });
    } catch (err) {
      if (err.name === 'slow_down') pause += 5;
      else if (err.status < 500 && err.status !== 429 && err.name !== 'authorization_pending') throw err; // otherwise the relay may return
      continue;
    }
    return signIn(keys, answer);
  }
}

async function newToken() {
  const self = await stored();
  if (!self) throw new Refused(401, 'signed_out', 'This device is not signed in.');
  try {
    return took(await send(self.keys, 'POST', 'auth/token', { form: { grant_type: 'device', device: self.device }, signal: AbortSignal.timeout(patience) }));
  } catch (err) {
    if (['invalid_grant', 'login_required'].includes(err.name)) err.status = 401; // the device is not signed in any more
    throw err;
  }
}

let coming; // the token that is being requested: all callers wait for it

/** A token for this moment. Made for a connection, it wants a proof of its own: see proof. */
export async function accessToken() {
  if (access && Date.now() < access.until) return access.token;
  coming ??= newToken().finally(() => { coming = undefined; });
  return coming;
}

/** A request of the device that is signed in. If the relay refuses a token before its end, the request is repeated with a new token. */
export async function call(method, path, json) {
  const self = await stored();
  for (let again = true; ; again = false) {
    const token = await accessToken();
    try {
      return await send(self?.keys, method, path, { token, json, signal: AbortSignal.timeout(longest) });
    } catch (err) {
      if (err.status !== 401 || !again) throw err;
      if (access?.token === token) access = undefined;
    }
  }
}

/** The answer to a request of the device that is signed in, before its body is read. */
export async function open(path, signal) {
  const self = await stored();
  return request(self?.keys, 'GET', path, { token: await accessToken(), signal });
}

/** Subprotocols for a WebSocket to a host of this relay. */
export async function subprotocols(path) {
  const self = await stored();
  const token = await accessToken();
  return ['ahp', `bearer.${token}`, `dpop.${await proof(self.keys, 'GET', new URL(path, base), token, nonce)}`];
}
