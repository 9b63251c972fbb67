// Lends this device to a session's agent: the device provides two canvases, a browser and the camera
// (canvasProviders of the Canvas proposal). Nothing is lent until the user allows it for a session.
// Afterwards, the page asks the user before it shows anything new or before anything leaves the device. Web
// pages are shown in a sandbox, and only the user sees them. Pictures are sent to the agent as answers to its
// requests.

import { Camera, type Picture } from './camera';
import { RpcError } from './rpc';
import type { Link } from './link';
import { keep } from './storage';
import { array, isObject, text } from './store';
import type { CanvasState, JsonObject, Params } from './ahp';

export type Kind = 'browser' | 'camera';

const lentKey = 'ahp-relay-lent';
const patience = 60_000; // ms the user has to answer
const maxAsks = 4; // open questions at a time
const maxOpen = 8; // canvases at a time
const maxAddress = 8192; // characters
const maxTrail = 50; // entries in the back history
const canvasProviderError = -32012;

const address = { type: 'object', properties: { url: { type: 'string', description: 'An address that begins with https:' } }, required: ['url'] };

/** The canvases that this device declares. */
export const declarations: Record<Kind, JsonObject> = {
  browser: {
    canvasId: 'browser',
    displayName: 'Browser',
    description: 'Shows a web page to the user, on their device, beside the session. The user is asked for each site. You cannot read the page.',
    inputSchema: address,
    actions: [
      { name: 'go', description: 'Shows another page.', inputSchema: address },
      { name: 'back', description: 'Goes back to the page that was shown before.' },
      { name: 'reload', description: 'Loads the page anew.' },
      { name: 'where', description: 'Says which page is shown: {url}.' },
    ],
  },
  camera: {
    canvasId: 'camera',
    displayName: 'Camera',
    description: 'Shows the user their device’s camera picture. The user chooses which pictures to send.',
    actions: [{ name: 'takePicture', description: 'Asks the person for a picture. Answers {mimeType, data, width, height}, the data in base64.' }],
  },
};

/** A canvas that is open here. */
export interface Instance {
  kind: Kind;
  link: Link;
  session: string;
  id: string;
  url: string; // of a browser
  trail: string[]; // back history
  turn: number; // counts loads
}

/** A question to the person. */
export interface Ask {
  key: number;
  link: Link;
  session: string;
  what: 'page' | 'camera' | 'picture';
  site: string; // of a page
  instance: string;
  answer(yes: boolean): void;
}

/** The error that the agent gets for a refusal. */
export function failure(why: string, message: string): RpcError {
  return new RpcError({ code: canvasProviderError, message, data: { code: why, message } });
}

// Name suffixes that mean something different on each network.
const privateZones = ['localhost', 'local', 'internal', 'lan', 'home', 'corp', 'intranet', 'private', 'arpa'];

/**
 * Whether a name is on the public web and not this relay's. IP addresses and names of local machines are not.
 */
export function publicName(name: string, here: string): boolean {
  const within = (n: string, zone: string) => n === zone || n.endsWith(`.${zone}`);
  if (!/^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]([a-z0-9-]*[a-z0-9])?$/.test(name)) return false;
  return !within(name, here) && !within(here, name) && !privateZones.some((zone) => within(name, zone));
}

/** Returns an address that the page may show: on the public web, and not at the relay. Throws otherwise. */
export function pageAddress(given: unknown, here: string): URL {
  const no = (why: string) => failure('canvas_bad_address', why);
  let url;
  try {
    if (typeof given !== 'string' || given.length > maxAddress) throw new Error();
    url = new URL(given);
  } catch {
    throw no('No address is given.');
  }
  if (url.protocol !== 'https:') throw no('Only addresses that begin with https: are shown.');
  if (url.username || url.password) throw no('The address contains a user name or a password.');
  if (!publicName(url.hostname, here)) throw no('The address is not on the public web.');
  return url;
}

export class Lender {
  asks: Ask[] = [];
  camera = new Camera(() => this.#draw());

  #draw: () => void;
  #here: () => string; // name of this relay
  #lent = new Map<string, Kind[]>(); // by host and session
  #told = new WeakMap<object, Map<string, string>>(); // declarations made on each connection, by session
  #open = new Map<string, Instance>();
  #sites = new Set<string>(); // sites that the user has approved, by host and session
  #shown = new WeakSet<Instance>(); // instances that the user has seen
  #keys = 0;

  constructor(draw: () => void, here: () => string) {
    this.#draw = draw;
    this.#here = here;
    this.#lent = stored();
  }

  /** Returns the kinds lent to a session. */
  lent(link: Link, session: string): Kind[] {
    return this.#lent.get(nameOf(link, session)) ?? [];
  }

  /** Whether a session accepts canvases of clients: its state then lists canvases. */
  takes(link: Link | undefined, session: string): boolean {
    return Boolean(link?.live) && Array.isArray(link!.store.get(session)?.canvases);
  }

  lend(link: Link, session: string, kinds: Kind[]): void {
    const name = nameOf(link, session);
    if (kinds.length > 0) this.#lent.set(name, kinds);
    else this.#lent.delete(name);
    for (const i of [...this.#open.values()]) if (i.link === link && i.session === session && !kinds.includes(i.kind)) this.#close(i);
    for (const a of this.asks.filter((o) => o.link === link && o.session === session)) a.answer(false);
    if (!kinds.includes('browser')) this.#forgetSites(`${name} `);
    store(this.#lent);
    this.tell(link, session);
    this.#draw();
  }

  /** Declares the canvases that are lent to a session, if the declaration has changed. */
  tell(link: Link, session: string): void {
    const { conn } = link;
    if (!conn || !this.takes(link, session)) return;
    let told = this.#told.get(conn);
    if (!told) this.#told.set(conn, told = new Map());
    const kinds = this.lent(link, session);
    const now = kinds.join();
    if ((told.get(session) ?? '') === now) return;
    told.set(session, now);
    const canvasProviders = kinds.map((kind) => declarations[kind]);
    const activeClient = kinds.length > 0 ? { clientId: conn.clientId, displayName: 'AHP relay console', tools: [], canvasProviders } : null;
    // Before 0.9 a session had a single active client.
    const action = /^0\.[0-8]\./.test(text(conn.info.protocolVersion)) ? { type: 'session/activeClientChanged', activeClient }
      : activeClient ? { type: 'session/activeClientSet', activeClient } : { type: 'session/activeClientRemoved', clientId: conn.clientId };
    link.store.quiet.add(conn.dispatch(session, action));
  }

  /** Forgets the declarations to a host that has restarted or is absent: the host has lost them. */
  forget(link: Link): void {
    if (link.conn) this.#told.delete(link.conn);
    for (const i of [...this.#open.values()]) if (i.link === link) this.#close(i);
    for (const a of this.asks.filter((o) => o.link === link)) a.answer(false);
  }

  /** Stops lending to a host, or to all hosts: the host that has the name now may be a different one. */
  takeBack(host = ''): void {
    const all = host === '' ? '' : `${host} `;
    for (const i of [...this.#open.values()]) if (nameOf(i.link, '').startsWith(all)) this.#close(i);
    for (const a of [...this.asks]) if (nameOf(a.link, '').startsWith(all)) a.answer(false);
    for (const name of [...this.#lent.keys()]) if (name.startsWith(all)) this.#lent.delete(name);
    this.#forgetSites(all);
    store(this.#lent);
  }

  #forgetSites(start: string): void {
    for (const name of [...this.#sites]) if (name.startsWith(start)) this.#sites.delete(name);
  }

  /** Returns the instance of this device that a canvas state belongs to, or undefined. */
  instanceOf(link: Link | undefined, session: string, state: CanvasState | undefined): Instance | undefined {
    if (!link?.conn || state?.provider?.kind !== 'client' || state.provider.clientId !== link.conn.clientId) return undefined;
    return this.#open.get(`${nameOf(link, session)} ${text(state.instanceId)}`);
  }

  /** Returns the channel of a canvas of this device that a session has begun to list, or undefined. */
  fresh(link: Link, session: string): string | undefined {
    for (const ref of array(link.store.get(session)?.openCanvases)) {
      const instance = this.#open.get(`${nameOf(link, session)} ${text(ref?.instanceId)}`);
      if (!instance || this.#shown.has(instance)) continue;
      this.#shown.add(instance);
      return text(ref.channel);
    }
    return undefined;
  }

  /** Answers a host's request to a canvas provider; undefined for other requests. */
  asked(link: Link, method: string, params: Params): Promise<unknown> | undefined {
    switch (method) {
      case 'canvasOpen': return this.#opened(link, params);
      case 'canvasInvokeAction': return this.#invoked(link, params);
      case 'canvasClose': return this.#closed(link, params);
    }
    return undefined;
  }

  async #opened(link: Link, params: Params): Promise<unknown> {
    const session = text(params?.channel);
    const kind = this.#kindOf(link, session, params);
    const id = text(params.instanceId);
    const key = `${nameOf(link, session)} ${id}`;
    const had = this.#open.get(key);
    if (!had && this.#open.size >= maxOpen) throw failure('canvas_too_many', 'Too many canvases are open on this device.');
    let url = had?.url ?? '';
    if (!had && kind === 'browser') url = (await this.#agreed(link, session, (params.input as { url?: unknown } | undefined)?.url, id)).href;
    else if (!had && !(await this.#ask(link, session, 'camera', '', id))) throw refused();
    const instance = this.#open.get(key) ?? { kind, link, session, id, url, trail: [], turn: 0 };
    this.#open.set(key, instance);
    this.#draw();
    if (kind === 'camera') return { title: 'Camera', status: 'On the lender’s device' };
    return { url: instance.url, title: new URL(instance.url).hostname };
  }

  async #invoked(link: Link, params: Params): Promise<unknown> {
    const instance = this.#instance(link, params);
    switch (`${instance.kind} ${text(params.actionName)}`) {
      case 'camera takePicture':
        if (!(await this.#ask(link, instance.session, 'picture', '', instance.id))) throw refused();
        return { value: await this.#picture() };
      case 'browser go': {
        const url = await this.#agreed(link, instance.session, (params.input as { url?: unknown } | undefined)?.url, instance.id);
        instance.trail = [...instance.trail, instance.url].slice(-maxTrail);
        return this.#load(instance, url.href);
      }
      case 'browser back':
        return this.#load(instance, instance.trail.pop() ?? instance.url);
      case 'browser reload':
        return this.#load(instance, instance.url);
      case 'browser where':
        return { value: { url: instance.url } };
    }
    throw failure('canvas_action_no_handler', `There is no such action: ${text(params.actionName)}`);
  }

  async #picture(): Promise<Picture> {
    try {
      return await this.camera.picture();
    } catch (err) {
      throw failure('canvas_camera_off', (err as Error).message);
    }
  }

  #load(instance: Instance, url: string): { value: { url: string } } {
    instance.url = url;
    instance.turn++;
    this.#draw();
    return { value: { url } };
  }

  async #closed(link: Link, params: Params): Promise<unknown> {
    const instance = this.#open.get(`${nameOf(link, text(params?.channel))} ${text(params?.instanceId)}`);
    if (instance) this.#close(instance);
    return null;
  }

  #close(instance: Instance): void {
    this.#open.delete(`${nameOf(instance.link, instance.session)} ${instance.id}`);
    for (const a of this.asks.filter((o) => o.link === instance.link && o.instance === instance.id)) a.answer(false);
    if (instance.kind === 'camera' && ![...this.#open.values()].some((i) => i.kind === 'camera')) this.camera.stop();
    this.#draw();
  }

  #instance(link: Link, params: Params): Instance {
    const instance = this.#open.get(`${nameOf(link, text(params?.channel))} ${text(params?.instanceId)}`);
    if (!instance) throw failure('canvas_provider_unavailable', 'That canvas is not open here.');
    return instance;
  }

  /** Returns the lent kind with the id in the params. Throws if it is not lent. */
  #kindOf(link: Link, session: string, params: Params): Kind {
    const kind = this.lent(link, session).find((k) => k === params?.canvasId);
    if (!kind || !text(params.instanceId)) throw failure('canvas_provider_unavailable', 'This device does not lend that to the session.');
    return kind;
  }

  /** Returns the address of a page that the user has agreed to see. The user is asked once for each site. */
  async #agreed(link: Link, session: string, given: unknown, instance: string): Promise<URL> {
    const url = pageAddress(given, this.#here());
    const name = `${nameOf(link, session)} ${url.origin}`;
    if (!this.#sites.has(name) && !(await this.#ask(link, session, 'page', url.host, instance))) throw refused();
    this.#sites.add(name);
    return url;
  }

  #ask(link: Link, session: string, what: Ask['what'], site: string, instance: string): Promise<boolean> {
    if (this.asks.length >= maxAsks) throw failure('canvas_too_many', 'The user has too many open questions.');
    return new Promise((resolve) => {
      const key = ++this.#keys;
      const answer = (yes: boolean) => {
        clearTimeout(timer);
        this.asks = this.asks.filter((a) => a.key !== key);
        resolve(yes);
        this.#draw();
      };
      const timer = setTimeout(answer, patience, false);
      this.asks = [...this.asks, { key, link, session, what, site, instance, answer }];
      this.#draw();
    });
  }
}

function refused(): RpcError {
  return failure('canvas_refused', 'The user has not agreed to this.');
}

function nameOf(link: Link, session: string): string {
  return `${link.host} ${session}`;
}

function stored(): Map<string, Kind[]> {
  try {
    const all = JSON.parse(sessionStorage.getItem(lentKey) ?? '{}');
    return new Map(Object.entries(isObject(all) ? all : {}).map(([name, kinds]) => [name, array(kinds as Kind[]).filter((k) => Object.hasOwn(declarations, k))]));
  } catch {
    return new Map();
  }
}

function store(lent: Map<string, Kind[]>): void {
  keep(sessionStorage, lentKey, JSON.stringify(Object.fromEntries(lent)));
}
