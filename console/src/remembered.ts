// The last state of absent hosts. The relay stores it sealed; this device opens it with keys that the hosts
// gave it while they were connected. See the Go package broker/remember.

import type { ChatState, Result, Summary } from './ahp';
import type { Kept } from './offline';
import { lastOf } from './offline';
import type { HostInfo } from './relay';
import type { Requests } from './requests';
import { ROOT } from './rpc';
import { accountPart, bare } from './accounts';
import { array, isObject, normal, text } from './store';
import { fromRelay } from './words';
import { hex, hmac, utf8 } from './sealed/bytes';
import { t } from './language';

/** A host's keys: key for all records, or records with keys for some. Bytes are in Base64. */
export interface HostKeys {
  tenant: string;
  keyId: string;
  verifier: string;
  key?: string;
  records?: Record<string, string>; // by ID
  blind?: boolean; // a sealed host, whose IDs are computed from the key
  ids?: Record<string, string>; // session to its ID, for devices without the key
  seen?: Record<string, number>; // ID to the latest version that this device has seen
}

/** A version of a session's record or of the list: see the Go type remember.Record. */
interface Sealed { id: string; key: string; version: number; time: number; data: string; signature: string }

/** A record at the relay, and when it was stored. */
interface Stored { stored: string; record: Sealed }

/** The content of a record: of the list, or of a session. */
interface Content { sessions?: Summary[]; versions?: Record<string, number>; session?: string; chat?: string; state?: Partial<ChatState>; summary?: Summary }

/** The parts of a Link used here. */
interface RememberedLink {
  host: string;
  live: boolean;
  conn: { request<M extends string>(method: M, params: object): Promise<Result<M>> } | null;
  past: Map<string, Kept>;
  listAt: number;
  store: { sessions: Map<string, Summary>; listRevision: number; revision: number };
}

/** The parts of the page used here. */
export interface RememberedPage {
  readonly host: string;
  readonly session: string;
  readonly hosts: { readonly all: HostInfo[] };
  readonly rights: { narrowAt(host: string): boolean };
  linkTo(host: string): RememberedLink;
  readonly requests: Pick<Requests, 'askAt'>;
  saveNow(): void;
  draw(): void;
}

const domain = 'ahp-remember v1\n';
const listId = 'list';
const justNow = 30_000; // ms in which a host that has just become absent may still write
const mostLooks = 3;
const staleClock = 10 * 60_000; // ms of difference between the clocks of host and relay from which a note is shown

export class Remembered {
  keys = new Map<string, HostKeys>(); // by host
  #page: RememberedPage;
  #looks = new Map<string, number>(); // how often a host or session was requested since its host became absent
  #why = new Map<string, string>(); // host and session to the reason why nothing newer can be shown

  constructor(page: RememberedPage) {
    this.#page = page;
  }

  /** Asks a host for the keys. Hosts that do not remember sessions refuse. */
  async learn(link: RememberedLink): Promise<void> {
    if (!globalThis.crypto?.subtle) return;
    for (const key of this.#looks.keys()) if (key.startsWith(`${link.host} `)) this.#looks.delete(key);
    try {
      const given = await link.conn!.request('relay/rememberKeys', { channel: ROOT });
      if (typeof given?.verifier !== 'string') return;
      const had = this.keys.get(link.host);
      this.keys.set(link.host, { ...given, seen: had?.verifier === given.verifier ? had!.seen : {} });
      this.#page.saveNow();
    } catch {
      // Without keys, nothing can be read while the host is absent.
    }
  }

  /** Removes all keys and states, or those for the hosts of one account. */
  forget(at = ''): void {
    for (const kept of [this.keys, this.#looks, this.#why]) for (const key of [...kept.keys()]) if (!at || accountPart(key.split(' ')[0]) === at) kept.delete(key);
  }

  /** Returns why a session's last state cannot be shown, or ''. */
  why(host: string, session: string): string {
    return this.#why.get(`${host} ${session}`) ?? '';
  }

  /** Requests the last state of absent hosts from the relay. The page calls it repeatedly. */
  look(): void {
    for (const info of this.#page.hosts.all) {
      const link = this.#page.linkTo(info.host);
      if (info.state === 'online' || link.live) continue;
      const inView = info.host === this.#page.host && this.#page.session;
      if (!this.#page.rights.narrowAt(info.host) && this.#due(info, '')) this.#list(link);
      if (inView && this.#due(info, inView)) this.#session(link, inView);
    }
  }

  /** Reports whether a request is due, and counts it. */
  #due(info: HostInfo, session: string): boolean {
    const key = `${info.host} ${info.since} ${session}`;
    const looks = this.#looks.get(key) ?? 0;
    if (!this.keys.has(info.host) || looks >= mostLooks || (looks > 0 && Date.now() - fromRelay(info.since) > justNow)) return false;
    this.#looks.set(key, looks + 1);
    return true;
  }

  async #list(link: RememberedLink): Promise<void> {
    const { status, body } = await this.#page.requests.askAt<{ list?: Stored }>(link.host, 'GET', `api/hosts/${encodeURIComponent(bare(link.host))}/remembered`).catch(() => ({ status: 0, body: undefined }));
    if (status !== 200 || !body?.list) return;
    const keys = this.keys.get(link.host);
    if (!keys) return; // the account was removed in the meantime
    const at = storedAt(keys, body.list);
    const content = at > link.listAt ? await this.#open(link.host, keys, body.list.record, listId) : undefined;
    if (!isObject(content) || link.live) return;
    const seen = keys.seen!;
    for (const [id, version] of Object.entries(content.versions ?? {})) seen[id] = Math.max(seen[id] ?? 0, version);
    link.store.sessions = new Map(array(content.sessions).filter((s) => typeof s?.resource === 'string').map((s) => [s.resource, s]));
    link.store.listRevision++;
    link.store.revision++;
    link.listAt = at;
    this.#page.saveNow();
    this.#page.draw();
  }

  async #session(link: RememberedLink, session: string): Promise<void> {
    const key = `${link.host} ${session}`;
    const keys = this.keys.get(link.host)!;
    const id = await idOf(bare(link.host), keys, session);
    if (!id) {
      this.#why.set(key, t`This device has no key for its last state.`);
      this.#page.draw();
      return;
    }
    const which = keys.blind ? `id=${id}` : `uri=${encodeURIComponent(session)}`;
    const { status, body } = await this.#page.requests.askAt<Partial<Stored>>(link.host, 'GET', `api/hosts/${encodeURIComponent(bare(link.host))}/remembered/session?${which}`).catch(() => ({ status: 0, body: undefined }));
    if (status !== 200 || !body?.record) {
      if (status === 404) this.#why.set(key, t`The relay has no copy of its last state.`);
      this.#page.draw();
      return;
    }
    const at = storedAt(keys, body as Stored);
    if (this.keys.get(link.host) !== keys || at <= (link.past.get(session)?.at ?? 0)) return;
    const content = await this.#open(link.host, keys, body.record, id, key);
    if (isObject(content) && content.session === session && !link.live) {
      const drift = keys.blind ? 0 : body.record.time - Date.parse(body.stored!);
      link.past.set(session, { chat: text(content.chat), state: lastOf(normal(content.state ?? {}) as ChatState), at, ...(Math.abs(drift) > staleClock ? { clock: body.record.time } : {}) });
      if (!link.store.sessions.has(session) && isObject(content.summary)) {
        link.store.sessions.set(session, content.summary);
        link.store.listRevision++;
      }
      link.store.revision++;
      this.#page.saveNow();
    }
    this.#page.draw();
  }

  /** Returns the content of a record, or undefined if it is not the host's latest record with this ID. */
  async #open(host: string, keys: HostKeys, record: Sealed, id: string, key = ''): Promise<Content | undefined> {
    try {
      if (record.id !== id) throw new Error(t`The relay’s copy of its last state is not from this host.`);
      if (record.version < (keys.seen?.[record.id] ?? 0)) throw new Error(t`The relay’s copy of its last state is older than the one that this device has seen.`);
      const content = await openRecord(bare(host), keys, record);
      keys.seen = { ...keys.seen, [record.id]: record.version };
      this.#why.delete(key);
      return content;
    } catch (err) {
      if (key) this.#why.set(key, (err as Error).message || t`The relay’s copy of its last state is damaged.`);
      return undefined;
    }
  }
}

/** When a record was stored, by the relay's clock; for a sealed host, when the host has signed it. */
const storedAt = ({ blind }: HostKeys, { stored, record }: Stored) => (blind ? record.time : fromRelay(stored));

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

/** The ID of a session's record, or undefined if this device has no key for it. */
export async function idOf(host: string, keys: HostKeys, session: string): Promise<string | undefined> {
  if (keys.blind && !keys.key) return keys.ids?.[session];
  const named = keys.blind
    ? await hmac(new Uint8Array(await derived(bytesOf(keys.key!), `${domain}${keys.tenant}\n${host}\nids`)), utf8(session))
    : new Uint8Array(await crypto.subtle.digest('SHA-256', utf8(session)));
  return hex(named);
}

/** Verifies and opens a record. */
export async function openRecord(host: string, keys: HostKeys, r: Sealed): Promise<Content> {
  const name = `${domain}${keys.tenant}\n${host}\n${r.id}`;
  const head = `${name}\n${r.key}\n${r.version}\n${r.time}`;
  const data = bytesOf(r.data);
  const signed = new Uint8Array([...utf8(`${head}\n`), ...new Uint8Array(await crypto.subtle.digest('SHA-256', data))]);
  const verifier = await crypto.subtle.importKey('raw', bytesOf(keys.verifier), { name: 'ECDSA', namedCurve: 'P-256' }, false, ['verify']);
  if (!(await crypto.subtle.verify({ name: 'ECDSA', hash: 'SHA-256' }, verifier, bytesOf(r.signature), signed))) throw new Error(t`The relay’s copy of its last state is not from this host.`);
  if (r.key !== keys.keyId) throw new Error(t`This device has no key for its last state, because it was not connected to the host since the key changed.`);
  const own = keys.records?.[r.id];
  if (!keys.key && !own) throw new Error(t`This device has no key for its last state.`);
  const raw = own ? bytesOf(own) : await derived(bytesOf(keys.key!), name);
  const key = await crypto.subtle.importKey('raw', raw, 'AES-GCM', false, ['decrypt']);
  const content = await crypto.subtle.decrypt({ name: 'AES-GCM', iv: data.subarray(0, 12), additionalData: utf8(head) }, key, data.subarray(12));
  return JSON.parse(new TextDecoder().decode(content));
}

async function derived(key: Uint8Array<ArrayBuffer>, name: string): Promise<ArrayBuffer> {
  const from = await crypto.subtle.importKey('raw', key, 'HKDF', false, ['deriveBits']);
  return crypto.subtle.deriveBits({ name: 'HKDF', hash: 'SHA-256', salt: new Uint8Array(0), info: utf8(name) }, from, 256);
}
