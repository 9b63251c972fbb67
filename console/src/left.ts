// Items for absent hosts. The relay stores each item, sealed for the host and the person's devices, and the
// host-agent delivers it: see the Go package broker/waiting. This file is loaded on signed-in devices.

import type { Agent, Choice, QuestionAnswer, Request, Result, ToolCall, Turn } from './ahp';
import { record } from './kept';
import type { Answer, HostInfo } from './relay';
import { ROOT, RpcError } from './rpc';
import { digestOf, mostLife, mostText, newId, newOwn, openItem, ownOf, sealItem, type Content, type Item, type Own, type WaitingKeys } from './sealed/item';
import type { Device } from './sealed/keys';
import { array, text } from './store';
import { bare } from './accounts';
import { marked, pinOf } from './pins';
import { isRegistered } from './registered';
import { randomId, relayNow } from './words';
import { t } from './language';

export type { Content };

/** An item as the page shows it. If content is missing, this device cannot decrypt it. */
export interface Left {
  host: string;
  item: Item;
  by: string; // device that wrote the latest version
  at: string;
  woken: boolean; // its wake time has come
  expired: boolean;
  result?: { state: string; version: number; why?: string };
  content?: Content;
}

/** The parts of a Link used here. */
interface LeftLink { host: string; live: boolean; seal?: unknown; store: { agents: Agent[] }; conn: { request<M extends string>(method: M, params: object): Promise<Result<M>> } | null }

/** The parts of the page used here. */
export interface LeftPage {
  readonly at: string; // suffix of the account's host names, '' for the page's own account
  readonly hosts: HostInfo[];
  readonly hostsStale: boolean;
  readonly links: Map<string, LeftLink>;
  readonly host: string;
  readonly session: string;
  readonly chatUri: string | undefined;
  readonly readOnly: boolean;
  who(): Promise<string>;
  ask<T>(method: string, path: string, json?: object): Promise<Answer<T>>;
  draw(): void;
}

/**
 * The item was changed on another device, or the host has taken it. The list then shows the present version.
 */
export class Conflict extends Error {}

/** An item whose success is not known. */
interface Tried { id: string; content: Content; arrived?: () => void }

/** Data about a host that this device stores: the keys, and the agents for new sessions. */
interface KeptHost extends WaitingKeys { agents?: Agent[] }

/** An item in the relay's list. */
interface Shown extends Pick<Left, 'host' | 'item' | 'result'> { by?: string; at?: string; woken?: boolean; expired?: boolean }

interface KeptKeys { who: string; device: Device; hosts: [string, KeptHost][] }

const learnEvery = 5 * 60_000; // ms between requests for the keys of the person's new devices
const refusals = new Set([-32601, -32602, -32009]); // unknown method, invalid params, permission denied
const lookEvery = 15_000; // ms
const lookSoon = 2_000; // ms, while a host that is online has not confirmed an item
const shownFor = 24 * 3_600_000; // ms in which a finished item is shown
const slack = 60_000; // ms below the relay's longest life
const afterWake = 3_600_000; // ms that an item waits at least after its wake time
const longestTitle = 200; // characters
const mostAgents = 16;
const mostModels = 50; // of an agent

/** How long an item may wait, in hours. */
export const lives = [1, 24, 168];
const usualLife = 24;

/** Shortens a text to an item's title. */
const shortened = (words: string) => { const line = words.trim().replace(/\s+/g, ' '); return line.length > longestTitle ? `${line.slice(0, longestTitle)}…` : line; };

const pathOf = (host: string, id: string) => `api/hosts/${encodeURIComponent(bare(host))}/waiting/${id}`;

/** The name of the record with an account's keys. */
const recordOf = (at: string) => (at ? `keys ${at}` : 'keys');

/** Forgets the keys of accounts that the browser does not have any more: items for their hosts cannot be read here any more. */
export async function forgetKeys(): Promise<void> {
  const gone = (await record<IDBValidKey[]>('ahp-waiting', 'kept', 'readonly', (s) => s.getAllKeys())).filter((id) => !isRegistered(String(id)));
  for (const id of gone) await record('ahp-waiting', 'kept', 'readwrite', (s) => s.delete(id));
}

export class Leaving {
  all: Left[] = []; // in the order of delivery
  revision = 0; // counts changes to all
  #page: LeftPage;
  #hosts = new Map<string, KeptHost>();
  #own: Own | undefined;
  #who = '';
  #learned = new WeakMap<object, number>(); // connection to the time of its last request for keys
  #noted = new Map<string, Agent[]>(); // host to the agents that were stored last
  #looked = 0; // time of the last request for the relay's list
  #round = 0; // number of the last request
  #answered = 0; // the request of the newest answer; answers to earlier requests are ignored
  #opened = new Map<string, Content>(); // by host, item and version
  #tried = new Map<string, Tried>(); // by the user's choices

  constructor(page: LeftPage) {
    this.#page = page;
  }

  /** Loads or creates this device's keys. Rejects if the browser lacks X25519. */
  async start(): Promise<void> {
    const who = await this.#page.who();
    const kept = await record<KeptKeys | undefined>('ahp-waiting', 'kept', 'readonly', (s) => s.get(recordOf(this.#page.at)));
    if (kept?.who === who) this.#hosts = new Map(kept.hosts);
    this.#own = kept?.who === who ? await ownOf(kept.device) : await newOwn();
    this.#who = who;
    await this.#save();
    this.look(true);
  }

  #save(): Promise<unknown> {
    const kept: KeptKeys = { who: this.#who, device: this.#own!.device, hosts: [...this.#hosts] };
    return record('ahp-waiting', 'kept', 'readwrite', (s) => s.put(kept, recordOf(this.#page.at)), this.#page.at);
  }

  /** Whether the user can leave items for a host now: it is absent, and has given its key before. */
  takes(host: string): boolean {
    const { hosts, hostsStale, readOnly } = this.#page;
    const state = hosts.find((h) => h.host === host)?.state;
    return !readOnly && !hostsStale && (state === 'offline' || state === 'asleep') && this.#hosts.has(host) && this.#own !== undefined;
  }

  /** The agents that a host had when this device was last connected to it. */
  agentsOf(host: string): Agent[] {
    return this.#hosts.get(host)?.agents ?? [];
  }

  /** Whether the user can leave a new session for a host now. */
  takesSession(host: string): boolean {
    return this.takes(host) && this.agentsOf(host).length > 0;
  }

  /**
   * The pending item that answers a question of the open chat or stops its turn. An id is unique only within
   * a chat.
   */
  waitsFor(id: string, { host, session, chatUri }: Pick<LeftPage, 'host' | 'session' | 'chatUri'> = this.#page): Left | undefined {
    return this.all.find((l) => l.host === host && l.content?.session === session && l.content.chat === chatUri && !l.result && !l.expired && !l.item.cancelled && id !== '' &&
      (l.content.request === id || (l.content.kind === 'stop' && l.content.turn === id)));
  }

  /** The items for a session; with '', those for all sessions. */
  of(host = '', session = ''): Left[] {
    return this.all.filter((l) => (session === '' || (l.host === host && l.content?.session === session)) && !this.#past(l));
  }

  #past(l: Left): boolean {
    return ['done', 'cancelled'].includes(l.result?.state ?? '') && relayNow() - Date.parse(l.at) > shownFor;
  }

  /** Requests the hosts' keys, and the relay's list. The page calls it repeatedly. */
  look(now = false): void {
    if (!this.#own) return;
    for (const link of this.#page.links.values()) {
      if (!link.live || !link.conn) continue;
      this.#noteAgents(link);
      if (Date.now() - (this.#learned.get(link.conn) ?? 0) < learnEvery) continue;
      this.#learned.set(link.conn, Date.now());
      this.#learn(link);
    }
    const soon = this.all.some((l) => !l.result && !l.expired && this.#page.hosts.find((h) => h.host === l.host)?.state === 'online');
    if (now || Date.now() - this.#looked >= (soon ? lookSoon : lookEvery)) this.read().catch(() => {}); // the next call tries again
  }

  /** Stores a host's agents, for new sessions in its absence. */
  #noteAgents({ host, store }: LeftLink): void {
    const kept = this.#hosts.get(host);
    if (!kept || store.agents.length === 0 || this.#noted.get(host) === store.agents) return;
    this.#noted.set(host, store.agents);
    kept.agents = store.agents.slice(0, mostAgents).map((a) => ({
      provider: text(a?.provider), displayName: text(a?.displayName), description: text(a?.description),
      models: array(a?.models).filter((m) => m?.policyState !== 'disabled').slice(0, mostModels).map((m) => ({ id: text(m?.id), name: text(m?.name) })),
    }));
    this.#save().catch(() => {}); // without room in the browser, no new session can be left
  }

  async #learn({ host, conn, seal }: LeftLink): Promise<void> {
    try {
      const keys = await conn!.request('relay/waitingKeys', { channel: ROOT, keys: this.#own!.keys, name: '' });
      if (typeof keys?.host !== 'string') return;
      this.#hosts.set(host, { tenant: text(keys.tenant), subject: text(keys.subject), host: keys.host, devices: array(keys.devices) as WaitingKeys['devices'], ...(seal ? { blind: text(keys.blind) } : {}), agents: this.agentsOf(host) });
    } catch (err) {
      if (!(err instanceof RpcError) || !refusals.has(err.code)) return; // the next connection tries again
      this.#hosts.delete(host); // this host accepts no items
    }
    await this.#save().catch(() => {}); // as above, or the account was removed
    this.look(true);
  }

  /** Requests the relay's list. */
  async read(): Promise<void> {
    this.#looked = Date.now();
    const round = ++this.#round;
    const { status, body } = await this.#page.ask<{ items?: Shown[] }>('GET', 'api/waiting');
    if (status !== 200) throw new Error(text(body?.error) || t`the relay answered ${status}`);
    const all = await Promise.all(array(body.items).map((shown) => this.#opens(shown)));
    if (round < this.#answered) return; // on a slow network, the next request may always be under way
    this.#answered = round;
    this.all = all;
    for (const [what, { id, content, arrived }] of this.#tried) {
      const l = all.find((one) => one.item.id === id);
      if (!l) continue;
      arrived?.();
      if (content.kind !== 'session' && (l.result || l.expired || l.item.version > 1)) this.#tried.delete(what); // the dialog for a session does not hear of its arrival
    }
    this.revision++;
    this.#page.draw();
  }

  async #opens(shown: Shown): Promise<Left> {
    const { item, by, at, woken, expired, result } = shown;
    const host = shown.host + this.#page.at;
    const key = `${host} ${item.id} ${item.version}`;
    const keys = this.#hosts.get(host);
    const content = this.#opened.get(key) ?? (keys && await openItem(this.#own!, bare(host), keys, item).catch(() => undefined));
    if (content) this.#opened.set(key, content);
    return { host, item, by: text(by), at: text(at), woken: woken === true, expired: expired === true, result, content };
  }

  /**
   * Leaves an item for a host, and returns its content. wake is the time at which the relay wakes the host; 0
   * means never. If an attempt to leave the same failed, the relay may have that item: it gets it again. An error has
   * arrived, which resolves to true if the relay's list shows later that it has the item.
   */
  async leave(host: string, content: Content, wake = 0): Promise<Content> {
    const { turn, session, ...rest } = content;
    const what = JSON.stringify([host, wake, rest, content.kind === 'session' ? '' : session]);
    const had = this.#tried.get(what);
    const now: Tried = had ?? { id: newId(), content };
    this.#tried.set(what, now);
    try {
      await this.#put(host, { id: now.id, version: 1, expires: relayNow() + usualLife * 3_600_000, wake }, now.content);
    } catch (err) {
      if (!(had && err instanceof Conflict) && !this.all.some((l) => l.item.id === now.id)) throw Object.assign(err as Error, { arrived: new Promise<boolean>((resolve) => { now.arrived = () => resolve(true); }) }); // a conflict with itself, or only the answer was lost
    }
    this.#tried.delete(what);
    return now.content;
  }

  /**
   * Leaves the next version of an item. seen is the version that the user has edited; a newer one is a
   * Conflict.
   */
  async change(l: Left, seen: number, content: Content, hours?: number, wake = l.item.wake): Promise<void> {
    const expires = hours ? relayNow() + Math.min(hours * 3_600_000, mostLife - slack) : l.item.expires;
    await this.#put(l.host, { id: l.item.id, version: seen + 1, expires, wake }, content);
  }

  /** Leaves a new session, with a first message if there is a text. Returns the session's URI. */
  async leaveSession(host: string, what: { provider: string; directory: string; model?: { id: string }; text: string; title: string }, wake: number): Promise<string> {
    const { provider, directory, model, text: words, title } = what;
    const { session } = await this.leave(host, {
      kind: 'session', session: `${provider}:/${randomId()}`, provider, title: shortened(title), ...(directory ? { directory } : {}), ...(model ? { model } : {}),
      ...(words.trim() ? { turn: randomId(), text: words } : {}),
    }, wake);
    return session;
  }

  /** Leaves an answer to a tool call in the open session, in place of an earlier answer. */
  async leaveApproval(turn: string, call: ToolCall, approved: boolean, option?: Choice): Promise<void> {
    const { toolCallId, toolName, toolInput, invocationMessage } = call;
    const input = await digestOf(text(toolCallId), text(toolName), text(toolInput), text(invocationMessage));
    const title = `${text(option?.label) || (approved ? t`Allow` : t`Deny`)}: ${text(call.displayName) || text(toolName)} ${text(toolInput)}`;
    await this.#answer({ kind: 'approve', turn, request: text(toolCallId), input, approved, title, ...(option ? { option: text(option.id) } : {}) });
  }

  /** Leaves an answer to a question in the open session, in place of an earlier answer. */
  async leaveReply(request: Request, response: 'accept' | 'decline', answers: Record<string, QuestionAnswer | undefined> | undefined, words: string): Promise<void> {
    const parts = array(request.questions).flatMap((q) => [text(q?.id), text(q?.kind), text(q?.message)]);
    const input = await digestOf(text(request.id), text(request.message), ...parts);
    const title = [text(request.message) || text(array(request.questions)[0]?.message), response === 'accept' ? words : t`Skip`].filter(Boolean).join(' → ');
    await this.#answer({ kind: 'answer', request: text(request.id), input, response, title, ...(answers ? { answers } : {}) });
  }

  async #answer(what: Omit<Content, 'session'>): Promise<void> {
    const { host, session, chatUri } = this.#page; // the user may go elsewhere meanwhile
    const content: Content = { ...what, session, chat: chatUri, title: shortened(what.title ?? '') };
    if (this.#tried.size > 0) await this.read(); // the relay may have an answer whose success is not known here
    const had = this.waitsFor(what.request!, { host, session, chatUri });
    await (had ? this.change(had, had.item.version, content) : this.leave(host, content));
  }

  /** Leaves an order to stop a turn of the open session. */
  async leaveStop(turn: Turn): Promise<void> {
    const { host, session, chatUri } = this.#page;
    await this.leave(host, { kind: 'stop', session, chat: chatUri, turn: text(turn.id), title: shortened(text(turn.message?.text)) });
  }

  /** Cancels an item. The host must confirm that. */
  async cancel(l: Left): Promise<void> {
    await this.#put(l.host, { id: l.item.id, version: l.item.version + 1, expires: l.item.expires, wake: l.item.wake, cancelled: true }, l.content!);
  }

  async #put(host: string, i: { id: string; version: number; expires: number; wake?: number; cancelled?: boolean }, content: Content): Promise<void> {
    const wake = Math.floor(i.wake ?? 0);
    if (wake > relayNow() + mostLife - afterWake - slack) throw new Error(t`The time to wake the host is too far away: at most 7 days.`);
    const expires = Math.floor(wake ? Math.max(i.expires, wake + afterWake) : i.expires);
    const length = new TextEncoder().encode(content.text ?? '').length;
    if (length > mostText) throw new Error(t`This is too long to wait at the relay: at most 16 KiB.`);
    const keys = this.#hosts.get(host)!;
    if (!keys.blind && (await pinOf(host) || await marked(host))) throw new Error(t`${host} is sealed now: open it once, so that it gives its key to this device.`);
    const item = await sealItem(this.#own!, bare(host), keys, { id: i.id, version: i.version, expires, ...(wake ? { wake } : {}), ...(i.cancelled ? { cancelled: true } : {}) }, content);
    await this.#change('PUT', host, i.id, { ...item });
  }

  /** Removes a finished item. */
  async remove(l: Left): Promise<void> {
    await this.#change('DELETE', l.host, l.item.id);
  }

  async #change(method: string, host: string, id: string, json?: object): Promise<void> {
    const { status, body } = await this.#page.ask(method, pathOf(host, id), json).catch(async (err) => {
      await this.read().catch(() => {}); // the relay may have the change, although its answer was lost
      throw err;
    });
    const why = status === 200 ? '' : text(body?.error) || t`the relay answered ${status}`;
    await this.read().catch(() => {});
    if (status === 409) throw new Conflict(why);
    if (why) throw new Error(why);
  }
}
