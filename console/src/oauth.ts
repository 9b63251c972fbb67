// Gets tokens for an agent's resources or an MCP server: by OAuth in a new window, or by a device code of the
// page or of the host-agent. Some servers support none of these. Nothing here uses the page; callers supply
// the network.
// Metadata follows RFC 9728 (the resource), RFC 8414 and OpenID Connect (the server). The page is a public
// client without a secret: PKCE (RFC 7636) binds the code to this page. The page's client id comes from the
// host, from a document on the relay that the server fetches, or from registration (RFC 7591).

import { safeUrl } from './answers';
import { array, isObject, text } from './store';
import type { AuthRequired, JsonObject, Resource, Result } from './ahp';
import { t } from './language';

/**
 * Sends a request to a server on the web: a POST if there is a form or JSON, and otherwise a GET. Rejects if
 * the browser gets no answer.
 */
export type Ask = (url: string, post?: { form?: Record<string, string>; json?: object }) => Promise<{ status: number; body: JsonObject | undefined }>;

/** A token, and how to renew it. */
export interface Granted { token: string; renew?: () => Promise<Granted> }

/** A resource for which a host needs a token. */
export interface Wanted {
  resource: string; servers: string[]; scopes: string[]; clientId: string; clientSecret: string;
  byHost: boolean; // the host-agent has a client id and can sign in
}

/** An authorization server, the flows that it offers to this page, and the site of its sign-in window. */
export interface Server { issuer: string; metadata: JsonObject; window: boolean; code: boolean; site: string }

export const pageOf = (origin: string) => `${origin}/signed-in.html`;
export const documentOf = (origin: string) => `${origin}/oauth-client.json`;

const deviceGrant = 'urn:ietf:params:oauth:grant-type:device_code';
const longestWait = 1800; // seconds; upper bound for a device code's lifetime

/** Reads a needed resource from an agent's protectedResources or an MCP server's state. */
export function wantedOf(resource: Resource | undefined, more: Partial<AuthRequired> = {}): Wanted {
  const texts = (v: unknown) => array(v).map(text).filter(Boolean);
  return {
    resource: text(resource?.resource), servers: texts(resource?.authorization_servers),
    scopes: Array.isArray(more.requiredScopes) ? texts(more.requiredScopes) : texts(resource?.scopes_supported),
    byHost: text(more.oauthClient?.clientId) !== '' || text(resource?.oauthClient?.clientId) !== '',
    clientId: text(more.oauthClient?.clientId), clientSecret: text(more.oauthClient?.clientSecret),
  };
}

/**
 * Returns the address if the page may send requests to it (https, or this machine), and '' otherwise.
 * Metadata from the web cannot lead to this machine.
 */
export function askable(url: string, by = url): string {
  const safe = safeUrl(url);
  if (!safe || (isHere(safe) && !isHere(by))) return '';
  const { protocol, hostname } = new URL(safe);
  return protocol === 'https:' || ['localhost', '127.0.0.1'].includes(hostname) ? safe : '';
}

function isHere(url: string): boolean {
  return /^(127\.|0\.0\.0\.0$|\[::1?\]$|(.*\.)?localhost\.?$)/.test(new URL(url).hostname);
}

export function siteOf(url: string): string {
  try {
    return new URL(url).host;
  } catch {
    return url;
  }
}

/** Returns the possible addresses of an issuer's metadata, by RFC 8414 and OpenID Connect. */
export function metadataPlaces(issuer: string): string[] {
  const { origin, pathname } = new URL(issuer);
  const path = pathname.replace(/\/$/, '');
  const places = [`${origin}/.well-known/oauth-authorization-server${path}`, `${origin}/.well-known/openid-configuration${path}`];
  return path ? [...places, `${origin}${path}/.well-known/openid-configuration`] : places;
}

/**
 * Returns the address of the resource's own metadata (RFC 9728), which names servers if the host names none.
 */
function resourcePlace(resource: string): string {
  const { origin, pathname } = new URL(resource);
  return `${origin}/.well-known/oauth-protected-resource${pathname.replace(/\/$/, '')}`;
}

/** Finds a server at which this page can sign in, or returns why there is none. */
export async function discover(ask: Ask, wanted: Wanted, origin: string): Promise<{ server?: Server; why: string }> {
  let { servers } = wanted;
  if (servers.length === 0 && askable(wanted.resource)) {
    try {
      const { status, body } = await ask(resourcePlace(wanted.resource));
      if (status === 200 && body?.resource === wanted.resource) servers = array(body.authorization_servers).map(text);
    } catch {
      return { why: t`The host names no authorization server, and ${unread(wanted.resource)}` };
    }
  }
  if (servers.length === 0) return { why: t`The host names no authorization server.` };
  const whys = [];
  for (const issuer of servers) {
    const found = await look(ask, issuer, wanted, origin);
    if (found.server) return found;
    whys.push(found.why);
  }
  return { why: whys.join(' ') };
}

/** Browsers do not distinguish the two causes. */
function unread(url: string): string {
  return t`${siteOf(url)} does not let this page read what it says (CORS), or cannot be reached.`;
}

async function look(ask: Ask, issuer: string, wanted: Wanted, origin: string): Promise<{ server?: Server; why: string }> {
  if (!askable(issuer)) return { why: t`${siteOf(issuer)} is asked by https only.` };
  let answered = false;
  for (const place of metadataPlaces(issuer)) {
    let said;
    try {
      said = await ask(place);
      answered = true;
    } catch {
      continue;
    }
    if (said.status !== 200 || !isObject(said.body)) continue;
    // A different issuer may be an attacker in the middle (RFC 8414, section 3.3).
    if (text(said.body.issuer).replace(/\/$/, '') !== issuer.replace(/\/$/, '')) return { why: t`${siteOf(issuer)} says that it is ${text(said.body.issuer) || t`nobody`}.` };
    return judge(issuer, said.body, wanted, origin);
  }
  return { why: answered ? t`${siteOf(issuer)} does not say how one signs in there.` : unread(issuer) };
}

/** Returns the flows that a server's metadata offers to a public client. */
function judge(issuer: string, metadata: JsonObject, wanted: Wanted, origin: string): { server?: Server; why: string } {
  const has = (name: string) => askable(text(metadata[name]), issuer) !== '';
  const known = wanted.clientId !== '' || (metadata.client_id_metadata_document_supported === true && origin.startsWith('https:')) || has('registration_endpoint');
  const publicOnes = array(metadata.token_endpoint_auth_methods_supported).includes('none') || (wanted.clientId !== '' && wanted.clientSecret !== '');
  const usable = known && has('token_endpoint');
  const server = {
    issuer, metadata,
    window: usable && publicOnes && has('authorization_endpoint') && array(metadata.code_challenge_methods_supported).includes('S256'),
    code: usable && has('device_authorization_endpoint'),
    site: siteOf(text(metadata.authorization_endpoint)),
  };
  if (server.window || server.code) return { server, why: '' };
  const site = siteOf(issuer);
  if (!known) return { why: t`${site} knows only clients that were registered with it, which this page is not.` };
  return { why: t`${site} lets no page sign in that can keep no secret.` };
}

// ---- client registration

const registered = new Map<string, Promise<JsonObject>>(); // by issuer, until the page closes

/** Returns the page's client id at a server: {client_id, client_secret}. */
export function clientAt(ask: Ask, { issuer, metadata }: Server, wanted: Wanted, origin: string): Promise<JsonObject> {
  if (wanted.clientId) return Promise.resolve({ client_id: wanted.clientId, client_secret: wanted.clientSecret });
  if (metadata.client_id_metadata_document_supported === true && origin.startsWith('https:')) return Promise.resolve({ client_id: documentOf(origin) });
  let made = registered.get(issuer);
  if (!made) {
    made = register(ask, metadata, origin);
    registered.set(issuer, made);
    made.catch(() => registered.delete(issuer));
  }
  return made;
}

async function register(ask: Ask, metadata: JsonObject, origin: string): Promise<JsonObject> {
  const grants = ['authorization_code', 'refresh_token', ...(text(metadata.device_authorization_endpoint) ? [deviceGrant] : [])];
  const said = await post(ask, text(metadata.registration_endpoint), {
    json: { client_name: 'AHP relay', client_uri: origin, redirect_uris: [pageOf(origin)], grant_types: grants, response_types: ['code'], token_endpoint_auth_method: 'none' },
  });
  if (!text(said.client_id)) throw new Error(t`The server refused the registration.`);
  return said;
}

/** Posts a request. Returns the body of a successful answer, and throws otherwise. */
async function post(ask: Ask, url: string, what: { form?: Record<string, string>; json?: object }): Promise<JsonObject> {
  let said;
  try {
    said = await ask(url, what);
  } catch {
    throw new Error(unread(url));
  }
  const { status, body } = said;
  if (status >= 200 && status < 300 && isObject(body)) return body;
  throw Object.assign(new Error(text(body?.error_description) || text(body?.error) || t`${siteOf(url)} answered ${status}.`), { oauth: text(body?.error) });
}

function withSecret(client: JsonObject): Record<string, string> {
  return { client_id: text(client.client_id), ...(text(client.client_secret) ? { client_secret: text(client.client_secret) } : {}) };
}

function asked(wanted: Wanted): Record<string, string> {
  return { ...(wanted.scopes.length ? { scope: wanted.scopes.join(' ') } : {}), ...(askable(wanted.resource) ? { resource: wanted.resource } : {}) };
}

/** Reads the token in a server's answer. */
function granted(ask: Ask, server: Server, client: JsonObject, wanted: Wanted, said: JsonObject, had = ''): Granted {
  const token = text(said.access_token);
  if (!token) throw new Error(t`${siteOf(server.issuer)} has given no token.`);
  const refresh = text(said.refresh_token) || had;
  if (!refresh) return { token };
  const renew = async () => granted(ask, server, client, wanted, await post(ask, text(server.metadata.token_endpoint), {
    form: { grant_type: 'refresh_token', refresh_token: refresh, ...withSecret(client), ...(askable(wanted.resource) ? { resource: wanted.resource } : {}) },
  }), refresh);
  return { token, renew };
}

// ---- in a new window

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
}

export function secret(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

/** A sign-in in a new window: its address, and the handler for its answer. */
export interface Visit { url: string; state: string; finish: (back: JsonObject) => Promise<Granted> }

export async function visit(ask: Ask, server: Server, wanted: Wanted, origin: string): Promise<Visit> {
  const client = await clientAt(ask, server, wanted, origin);
  const verifier = secret();
  const state = secret();
  const challenge = base64url(new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier))));
  const url = new URL(text(server.metadata.authorization_endpoint));
  const params = {
    response_type: 'code', client_id: text(client.client_id), redirect_uri: pageOf(origin), state, code_challenge: challenge, code_challenge_method: 'S256', ...asked(wanted),
  };
  for (const [name, value] of Object.entries(params)) url.searchParams.set(name, value);
  const finish = async (back: JsonObject) => {
    const issuer = text(back.iss);
    // Reject an answer from a different server (RFC 9207).
    if ((issuer || server.metadata.authorization_response_iss_parameter_supported === true) && issuer !== text(server.metadata.issuer)) throw new Error(t`The answer is not from ${siteOf(server.issuer)}.`);
    if (!text(back.code)) throw new Error(text(back.error_description) || text(back.error) || t`It was not granted.`);
    const said = await post(ask, text(server.metadata.token_endpoint), {
      form: { grant_type: 'authorization_code', code: text(back.code), redirect_uri: pageOf(origin), code_verifier: verifier, ...withSecret(client), ...(askable(wanted.resource) ? { resource: wanted.resource } : {}) },
    });
    return granted(ask, server, client, wanted, said);
  };
  return { url: url.href, state, finish };
}

// ---- by device code

/** A device code: its page, the code, and the outcome. */
export interface Typed { where: string; whole: string; code: string; finish: (gone: AbortSignal) => Promise<Granted> }

/** pause waits for a number of ms. */
export async function typed(ask: Ask, server: Server, wanted: Wanted, origin: string, pause: (ms: number) => Promise<void>): Promise<Typed> {
  const client = await clientAt(ask, server, wanted, origin);
  const { scope, resource } = asked(wanted);
  const said = await post(ask, text(server.metadata.device_authorization_endpoint), { form: { ...withSecret(client), ...(scope ? { scope } : {}), ...(resource ? { resource } : {}) } });
  const where = safeUrl(said.verification_uri ?? said.verification_url);
  if (!text(said.device_code) || !text(said.user_code) || !where) throw new Error(t`${siteOf(server.issuer)} has given no code.`);
  const finish = async (gone: AbortSignal) => {
    let interval = Math.max(1, Number(said.interval) || 5);
    for (let left = Math.min(longestWait, Number(said.expires_in) || longestWait); left > 0; left -= interval) {
      await pause(interval * 1000);
      if (gone.aborted) throw new Error(t`This sign-in is over.`);
      try {
        const answer = await post(ask, text(server.metadata.token_endpoint), { form: { grant_type: deviceGrant, device_code: text(said.device_code), ...withSecret(client) } });
        return granted(ask, server, client, wanted, answer);
      } catch (err) {
        const { oauth } = err as { oauth?: string };
        if (oauth === 'slow_down') interval += 5;
        else if (oauth === 'expired_token') break;
        else if (oauth !== undefined && oauth !== 'authorization_pending') throw err;
        else if (oauth === undefined) interval = Math.min(60, interval * 2); // unreachable: RFC 8628, section 3.5
      }
    }
    throw new Error(t`The code has expired. Begin again.`);
  };
  return { where, whole: safeUrl(said.verification_uri_complete), code: text(said.user_code), finish };
}

// ---- by the host-agent: the server need not answer web pages

/** The parts of a connection that this function uses. */
export interface ByHost {
  request<M extends string>(method: M, params: object): Promise<Result<M>>;
  codes: Map<string, (error: string) => void>; // sign-in id to the function called at its end
}

/**
 * A sign-in by the host-agent: with a device code, or on the server's page, which redirects the browser to an
 * address on the host's machine. A browser elsewhere cannot open that address, so the person copies it into
 * the page: see back. finish resolves when the host has the token, which the page never gets.
 */
export type HostSignIn = ({ where: string; whole: string; code: string } | { url: string; redirect: string; back: (address: string) => Promise<void> }) & { finish: () => Promise<void> };

export async function signInAtHost(host: ByHost, channel: string, resource: string, gone: AbortSignal): Promise<HostSignIn> {
  const said = await host.request('relay/signIn', { channel, resource });
  const [id, code, where, url] = [text(said?.id), text(said?.code), safeUrl(said?.where), safeUrl(said?.url)];
  if (!id || !(url || (code && where))) throw new Error(t`${siteOf(resource)} has given no code.`);
  const end = new Promise<void>((resolve, reject) => {
    host.codes.set(id, (error) => (error ? reject(new Error(error)) : resolve()));
    gone.addEventListener('abort', () => {
      host.request('relay/signInCancel', { channel }).catch(() => {}); // the end of the connection also cancels it
      reject(new Error(t`This sign-in is over.`));
    });
  });
  end.catch(() => {}).then(() => host.codes.delete(id));
  const finish = () => end;
  if (!url) return { where, whole: safeUrl(said.whole), code, finish };
  return { url, redirect: text(said.redirect), finish, back: async (address) => { await host.request('relay/signInBack', { channel, address }); } };
}
