// Items for hosts in their absence. The relay keeps them sealed to the host and to the person's
// devices, and the host-agent delivers them: see the Go package broker/waiting. A page on a
// signed-in device loads this part.

import type { Json } from './ahp';
import { record } from './kept';
import type { Answer, HostInfo } from './relay';
import { ROOT, RpcError } from './rpc';
import { mostLife, mostText, newId, newOwn, openItem, ownOf, sealItem, type Content, type Item, type Own, type WaitingKeys } from './sealed/item';
import type { Device } from './sealed/keys';
import { array, text } from './store';
import { relayNow } from './words';
import { t } from './language';

export type { Content };

/** An item as the page shows it. Without content, this device cannot read it. */
export interface Left {
  host: string;
  item: Item;
  by: string; // the device with the latest version
  at: string;
  expired: boolean;
  result?: { state: string; version: number; why?: string };
  content?: Content;
}

/** The parts of a Link that are used. */
interface LeftLink { host: string; live: boolean; seal?: unknown; conn: { request(method: string, params: Json): Promise<Json> } | null }

/** The parts of the page that are used. */
export interface LeftPage {
  readonly hosts: HostInfo[];
  readonly hostsStale: boolean;
  readonly links: Map<string, LeftLink>;
  readonly readOnly: boolean;
  who(): Promise<string>;
  ask(method: string, path: string, json?: Json): Promise<Answer>;
  draw(): void;
}

/** The item was changed on a different device, or the host has it. The list has its present version. */
export class Conflict extends Error {}

interface KeptKeys { who: string; device: Device; hosts: [string, WaitingKeys][] }

const learnEvery = 5 * 60_000; // ms; then this device learns of the person's new devices
const lookEvery = 15_000; // ms
const lookSoon = 2_000; // ms, while a host that is online has not confirmed an item
const shownFor = 24 * 3_600_000; // ms in which a finished item is shown
const slack = 60_000; // ms below the relay's longest life

/** How long an item may wait, in hours. */
export const lives = [1, 24, 168];
const usualLife = 24;

const pathOf = (host: string, id: string) => `api/hosts/${encodeURIComponent(host)}/waiting/${id}`;

export class Leaving {
  all: Left[] = []; // in the order of delivery
  #page: LeftPage;
  #hosts = new Map<string, WaitingKeys>();
  #own: Own | undefined;
  #who = '';
  #learned = new WeakMap<object, number>(); // connection to the time of its last question
  #looked = 0; // time of the last look at the relay's list
  #round = 0; // only answers to the latest look count
  #opened = new Map<string, Content>(); // by host, item and version

  constructor(page: LeftPage) {
    this.#page = page;
  }

  /** Reads or makes this device's keys. It rejects where the browser has no X25519. */
  async start(): Promise<void> {
    const who = await this.#page.who();
    const kept = await record<KeptKeys | undefined>('ahp-waiting', 'kept', 'readonly', (s) => s.get('keys'));
    if (kept?.who === who) this.#hosts = new Map(kept.hosts);
    this.#own = kept?.who === who ? await ownOf(kept.device) : await newOwn();
    this.#who = who;
    await this.#save();
    this.look(true);
  }

  #save(): Promise<unknown> {
    const kept: KeptKeys = { who: this.#who, device: this.#own!.device, hosts: [...this.#hosts] };
    return record('ahp-waiting', 'kept', 'readwrite', (s) => s.put(kept, 'keys'));
  }

  /** Whether something can be left for a host now: it is away, and has given its key before. */
  takes(host: string): boolean {
    const { hosts, hostsStale, readOnly } = this.#page;
    const state = hosts.find((h) => h.host === host)?.state;
    return !readOnly && !hostsStale && (state === 'offline' || state === 'asleep') && this.#hosts.has(host) && this.#own !== undefined;
  }

  /** The items for a session; '' for those at all sessions. */
  of(host = '', session = ''): Left[] {
    return this.all.filter((l) => (session === '' || (l.host === host && l.content?.session === session)) && !this.#past(l));
  }

  #past(l: Left): boolean {
    return ['done', 'cancelled'].includes(l.result?.state ?? '') && relayNow() - Date.parse(l.at) > shownFor;
  }

  /** Learns the hosts' keys, and reads the relay's list. The page calls it again and again. */
  look(now = false): void {
    if (!this.#own) return;
    for (const link of this.#page.links.values()) {
      if (!link.live || !link.conn || link.seal || Date.now() - (this.#learned.get(link.conn) ?? 0) < learnEvery) continue;
      this.#learned.set(link.conn, Date.now());
      this.#learn(link);
    }
    const soon = this.all.some((l) => !l.result && !l.expired && this.#page.hosts.find((h) => h.host === l.host)?.state === 'online');
    if (now || Date.now() - this.#looked >= (soon ? lookSoon : lookEvery)) this.read().catch(() => {}); // the next look tries again
  }

  async #learn({ host, conn }: LeftLink): Promise<void> {
    try {
      const keys = await conn!.request('relay/waitingKeys', { channel: ROOT, keys: this.#own!.keys, name: '' });
      if (typeof keys?.host !== 'string') return;
      this.#hosts.set(host, { tenant: text(keys.tenant), subject: text(keys.subject), host: keys.host, devices: array(keys.devices) });
    } catch (err) {
      if (!(err instanceof RpcError)) return;
      this.#hosts.delete(host); // this host takes nothing
    }
    await this.#save();
    this.look(true);
  }

  /** Reads the relay's list. */
  async read(): Promise<void> {
    this.#looked = Date.now();
    const round = ++this.#round;
    const { status, body } = await this.#page.ask('GET', 'api/waiting');
    if (status !== 200) throw new Error(text(body?.error) || t`the relay answered ${status}`);
    const all = await Promise.all(array(body.items).map((shown) => this.#opens(shown)));
    if (round !== this.#round) return;
    this.all = all;
    this.#page.draw();
  }

  async #opens(shown: Json): Promise<Left> {
    const { host, item, by, at, expired, result } = shown;
    const key = `${host} ${item.id} ${item.version}`;
    const keys = this.#hosts.get(host);
    const content = this.#opened.get(key) ?? (keys && await openItem(this.#own!, host, keys, item).catch(() => undefined));
    if (content) this.#opened.set(key, content);
    return { host, item, by: text(by), at: text(at), expired: expired === true, result, content };
  }

  /** Leaves something for a host. */
  async leave(host: string, content: Content): Promise<void> {
    await this.#put(host, { id: newId(), version: 1, expires: relayNow() + usualLife * 3_600_000 }, content);
  }

  /** Leaves the next version of an item. It has to follow the version on the screen. */
  async change(l: Left, seen: number, content: Content, hours?: number): Promise<void> {
    const expires = hours ? relayNow() + Math.min(hours * 3_600_000, mostLife - slack) : l.item.expires;
    await this.#put(l.host, { id: l.item.id, version: seen + 1, expires }, content);
  }

  /** Cancels an item. The host has to confirm it. */
  async cancel(l: Left): Promise<void> {
    await this.#put(l.host, { id: l.item.id, version: l.item.version + 1, expires: l.item.expires, cancelled: true }, l.content!);
  }

  async #put(host: string, i: { id: string; version: number; expires: number; cancelled?: boolean }, content: Content): Promise<void> {
    const length = new TextEncoder().encode(content.text ?? '').length;
    if (length > mostText) throw new Error(t`This is too long to wait at the relay: at most 16 KiB.`);
    const item = await sealItem(this.#own!, host, this.#hosts.get(host)!, { ...i, expires: Math.floor(i.expires) }, content);
    await this.#change('PUT', host, i.id, { ...item });
  }

  /** Removes a finished item. */
  async remove(l: Left): Promise<void> {
    await this.#change('DELETE', l.host, l.item.id);
  }

  async #change(method: string, host: string, id: string, json?: Json): Promise<void> {
    const { status, body } = await this.#page.ask(method, pathOf(host, id), json);
    const why = status === 200 ? '' : text(body?.error) || t`the relay answered ${status}`;
    await this.read().catch(() => {});
    if (status === 409) throw new Conflict(why);
    if (why) throw new Error(why);
  }
}
