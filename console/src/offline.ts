// Stores the session list, the last conversations and hosts' keys on this device, for reading without a
// network. They are encrypted with a key that scripts cannot read, and erased when the device signs out or is
// removed. With a token that only the tab has, nothing is stored.

import type { Accounts } from './accounts';
import type { ChatState, State, Summary, Turn } from './ahp';
import { record as keep } from './kept';
import { isRegistered } from './registered';
import type { HostInfo } from './relay';
import type { HostKeys } from './remembered';

/** A conversation as last seen. clock is the host's time, if it differs much from the relay's. */
export interface Kept { chat: string; state: ChatState; at: number; clock?: number }

interface Content { who: string; hosts: HostInfo[]; keys?: [host: string, keys: HostKeys][]; sessions: [host: string, all: Summary[], at?: number][]; conversations: [host: string, session: string, kept: Kept][] }

/** The parts of a Link that are stored. */
interface KeptLink { host: string; live: boolean; past: Map<string, Kept>; listAt: number; store: { sessions: Map<string, Summary>; listRevision: number; revision: number; get<S extends State>(channel: string | undefined): S | undefined } }

/** The parts of the page used here. */
export interface OfflinePage {
  readonly keeps: boolean; // the sign-in outlives the tab
  readonly host: string;
  readonly session: string;
  readonly chatUri: string | undefined;
  readonly links: Map<string, KeptLink>;
  readonly remembered: { keys: Map<string, HostKeys> };
  readonly hosts: { all: HostInfo[]; own: HostInfo[]; stale: boolean };
  readonly accounts: Pick<Accounts, 'hosts' | 'keep'>;
  who(): Promise<string>; // names the device or token; '' if there is none
  linkTo(host: string): KeptLink;
  draw(): void;
}

const mostSessions = 300; // of a host
const mostConversations = 12;
const mostSeen = 50; // conversations of a host that an open page keeps
const mostTurns = 20; // of a conversation
const mostBytes = 1 << 20; // of a conversation
const saveEvery = 15_000; // ms

export class Offline {
  #page: OfflinePage;
  #saved = 0; // time of the last save
  #revision = -1; // revision that was saved last
  #who = '';
  #saving: Promise<void> = Promise.resolve();

  constructor(page: OfflinePage) {
    this.#page = page;
  }

  /** Shows the stored data until the relay and the hosts answer. */
  async load(): Promise<void> {
    const page = this.#page;
    const who = page.keeps ? await page.who() : '';
    this.#who = who;
    const content = who ? await read().catch(() => undefined) : undefined;
    if (!content) return;
    if (content.who !== who) return this.erase();
    const hosts = content.hosts.filter((h) => isRegistered(h.host));
    page.accounts.keep(hosts);
    if (page.hosts.own.length === 0) {
      page.hosts.own = hosts.filter((h) => !h.host.includes('@'));
      page.hosts.stale = true;
    }
    page.hosts.all = [...page.hosts.own, ...page.accounts.hosts()];
    for (const [host, keys] of content.keys ?? []) if (isRegistered(host) && !page.remembered.keys.has(host)) page.remembered.keys.set(host, keys);
    for (const [host, all, at] of content.sessions) {
      if (!isRegistered(host)) continue;
      const link = page.linkTo(host);
      const { store } = link;
      if (store.sessions.size > 0) continue;
      link.listAt = at ?? 0;
      store.sessions = new Map(all.map((s) => [s.resource, s]));
      store.listRevision++;
    }
    for (const [host, session, kept] of content.conversations) {
      if (!isRegistered(host)) continue;
      const { past } = page.linkTo(host);
      if (!past.has(session)) past.set(session, kept);
    }
    page.draw();
  }

  /** Stores the conversation in view, and saves at intervals. The page calls it repeatedly. */
  tick(now = Date.now(), soon = false): void {
    const page = this.#page;
    const link = page.links.get(page.host);
    for (const l of page.links.values()) if (l.live) l.listAt = now;
    const state = link?.live && page.session ? link.store.get<ChatState>(page.chatUri) : undefined;
    if (state) keepSeen(link!.past, page.session, { chat: page.chatUri!, state, at: now });
    if (!page.keeps) return;
    const revision = [...page.links.values()].reduce((n, l) => n + l.store.revision + l.store.listRevision, 0);
    if (revision === this.#revision || (!soon && now - this.#saved < saveEvery) || ![...page.links.values()].some((l) => l.live)) return;
    this.#revision = revision;
    this.#saved = now;
    this.#save().catch(() => {}); // without room in the browser, less can be read offline
  }

  /** Stores the conversation in view as it was when its connection was lost. */
  lost(link: KeptLink): void {
    const page = this.#page;
    const state = link.host === page.host && page.session ? link.store.get<ChatState>(page.chatUri) : undefined;
    if (state) keepSeen(link.past, page.session, { chat: page.chatUri!, state, at: Date.now() });
  }

  /** Saves at once. */
  now(): void {
    if (this.#page.keeps) this.#save().catch(() => {});
  }

  /** Saves after any running save, which could otherwise restore data that was removed in the meantime. */
  #save(): Promise<void> {
    this.#saving = this.#saving.catch(() => {}).then(() => this.#write());
    return this.#saving;
  }

  async #write(): Promise<void> {
    const page = this.#page;
    const who = this.#who ||= await page.who();
    const all = [...page.links.values()].filter((l) => isRegistered(l.host)); // a different tab may have removed an account
    const conversations = all.flatMap((l) => [...l.past].map(([session, kept]): [string, string, Kept] => [l.host, session, kept]))
      .sort((a, b) => b[2].at - a[2].at).slice(0, mostConversations).map(([host, session, kept]): [string, string, Kept] => [host, session, { ...kept, state: lastOf(kept.state) }]);
    const content: Content = {
      who, hosts: page.hosts.all.filter((h) => isRegistered(h.host)), keys: [...page.remembered.keys].filter(([host]) => isRegistered(host)), conversations,
      sessions: all.map((l) => [l.host, [...l.store.sessions.values()].slice(0, mostSessions), l.listAt]),
    };
    if (who && page.keeps) await write(content);
  }

  /** Erases everything, also behind a save under way. */
  async erase(): Promise<void> {
    this.#who = '';
    this.#revision = -1;
    await record('readwrite', (s) => s.clear()).catch(() => {});
    this.#saving = this.#saving.catch(() => {}).then(() => record('readwrite', (s) => s.clear())).catch(() => {});
    await this.#saving;
  }
}

/** Keeps a conversation as the latest, in place of the one seen least recently. */
function keepSeen(past: Map<string, Kept>, session: string, kept: Kept): void {
  past.delete(session);
  past.set(session, kept);
  if (past.size > mostSeen) past.delete(past.keys().next().value!);
}

/** Returns the last turns of a chat, as many as fit. */
export function lastOf(state: Partial<ChatState> | undefined): ChatState {
  let turns: Turn[] = Array.isArray(state?.turns) ? state.turns.slice(-mostTurns) : [];
  while (turns.length > 1 && JSON.stringify(turns).length > mostBytes) turns = turns.slice(Math.ceil(turns.length / 2));
  if (JSON.stringify(turns).length > mostBytes) turns = [];
  const { title, activeTurn }: Partial<ChatState> = state ?? {};
  return { title, turns: activeTurn && JSON.stringify(activeTurn).length < mostBytes ? [...turns, activeTurn] : turns } as ChatState;
}

// ---- the browser's store

const record = <T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>) => keep('ahp-offline', 'kept', mode, act);

async function key(): Promise<CryptoKey> {
  const had = await record<CryptoKey | undefined>('readonly', (s) => s.get('key'));
  if (had) return had;
  const made = await crypto.subtle.generateKey({ name: 'AES-GCM', length: 256 }, false, ['encrypt', 'decrypt']);
  await record('readwrite', (s) => s.put(made, 'key'));
  return made;
}

async function write(content: Content): Promise<void> {
  const iv = crypto.getRandomValues(new Uint8Array(12));
  const data = await crypto.subtle.encrypt({ name: 'AES-GCM', iv }, await key(), new TextEncoder().encode(JSON.stringify(content)));
  await record('readwrite', (s) => s.put({ iv, data }, 'page'));
}

async function read(): Promise<Content | undefined> {
  const sealed = await record<{ iv: Uint8Array<ArrayBuffer>; data: ArrayBuffer } | undefined>('readonly', (s) => s.get('page'));
  if (!sealed) return undefined;
  return JSON.parse(new TextDecoder().decode(await crypto.subtle.decrypt({ name: 'AES-GCM', iv: sealed.iv }, await key(), sealed.data)));
}
