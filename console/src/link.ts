// The connection to one host, and the host's state.

import { code, Connection, ROOT, RpcError, type ConnectionState } from './rpc';
import { elsewhere, linkOf, marked, pinOf } from './pins';
import { dial, opens, renews, type HostInfo } from './relay';
import type { SealedSocket } from './sealed/socket';
import { array, Store } from './store';
import type { Granted } from './oauth';
import type { Kept } from './offline';
import type { Agent, ChatState, Envelope, JsonObject, Params, Resource, Result, Summary, Sync } from './ahp';
import { takeUnsent } from './unsent';
import { randomId } from './words';
import { t } from './language';

const sessionsMax = 2000; // most sessions to request
const giversSoon = 500; // ms after an answer; the connection of the person who gave it may be slower than this one
const gives = new Set(['chat/toolCallConfirmed', 'chat/toolCallResultConfirmed', 'chat/inputCompleted']);
const againFirst = 2_000; // ms before a failed subscribe is repeated
const againMost = 60_000;
const turnsShown = 50; // turns requested at first; a host may send more

/** A Link's callbacks: see App. */
export interface LinkEvents {
  token(): string;
  wanted(link: Link): string[]; // channels to follow besides the root
  state(link: Link, state: ConnectionState): void;
  action(link: Link, envelope?: Envelope): void; // undefined: all states may have changed
  notification(link: Link, method: string, params: Params): void;
  mcp(link: Link, channel: string, method: string, params: Params): void;
  request(link: Link, method: string, params: Params): Promise<unknown> | undefined; // a request from the host
  fresh(link: Link): void; // the host has lost its earlier state
  synced?(link: Link): void; // called first on each connection
  draw(): void;
  listed?(): HostInfo | undefined; // the host in the relay's list
}

export class Link {
  readonly host: string;
  conn: Connection | null = null;
  store = new Store('');
  away = false; // the host is not online
  listedAway = false; // the host list also reports it as absent
  listing = false;
  past = new Map<string, Kept>(); // session to its conversation as last seen: see offline.ts and remembered.ts
  listAt = 0; // when the session list was current
  note = ''; // note about the session list
  opening = new Set<string>(); // channels with a pending subscribe
  errors = new Map<string, string>(); // channel to its subscribe error
  privates: Set<string> | null = null; // the user's private sessions; null: the user cannot have any
  tokens = new Map<string, Granted>(); // resource to its token; in memory only
  codes = new Map<string, (error: string) => void>(); // sign-ins by the host-agent: id to the function called at the end
  seal: SealedSocket | undefined; // the sealed connection that is in use, or was last
  pinned: boolean | undefined; // this browser has the host's key; undefined: not looked up yet
  #on: LinkEvents;
  #since: [method: string, params: Params][] | undefined; // notifications since the session list was requested, which may come in pages

  constructor(host: string, on: LinkEvents) {
    this.host = host;
    this.#on = on;
    this.store.pending = takeUnsent(host);
  }

  /** Whether the host shows another key than the one stored by this browser. */
  get keyChanged(): boolean {
    return this.conn?.state.name === 'ended' && this.conn.state.code === code.otherKey;
  }

  /** Whether the host accepts only sealed connections, and this browser has no pairing with it. */
  unpaired(info?: HostInfo): boolean {
    if (this.seal || this.pinned) return false; // also while it connects
    const state = this.conn?.state;
    const ended = state?.name === 'ended' ? state : undefined;
    return (info?.sealed === true && this.pinned === false) || ended?.code === code.notPaired
      || (info?.sealed !== false && ended?.code === code.forbidden && ended.reason.includes('is sealed')); // ahp-connect says false: this page cannot pair it
  }

  get live(): boolean {
    return Boolean(this.conn?.live);
  }

  /** Returns a session's conversation as last seen, until the host has sent it. */
  seen(session: string): Kept | undefined {
    const kept = this.past.get(session);
    return this.live && (!kept || this.store.get(kept.chat) || this.errors.has(session) || this.errors.has(kept.chat)) ? undefined : kept;
  }

  /** Returns the resources that an agent requires and for which there is no token yet. */
  unsigned(agent: Agent | undefined): Resource[] {
    return array(agent?.protectedResources).filter((r) => r?.required !== false && !this.tokens.has(r?.resource!));
  }

  /**
   * Reports whether the host accepts tokens for a use ('auth-token' or 'mcp-auth-token') only if they are
   * sealed with the host's key or answer its challenge, like GitHub Copilot. This page supports neither.
   */
  sealed(use: string): boolean {
    const meta = this.conn?.info?._meta;
    return array(meta?.['copilot.encryptionRequired']).includes(use) || (meta?.['copilot.authChallenge'] as JsonObject | undefined)?.required === true;
  }

  connect(): void {
    // Each page load has a new clientId. One stored for the tab would be copied when the tab is duplicated,
    // and a host sends events only to the newest connection of a clientId.
    const clientId = `console-${randomId()}`;
    const { sessions, pending } = this.store;
    this.store = new Store(clientId);
    this.store.sessions = sessions;
    this.store.pending = pending.map((p) => ({ ...p, clientSeq: 0 })); // the new connection counts from 1
    this.opening.clear();
    this.errors.clear();
    const conn: Connection = new Connection({
      clientId,
      open: () => this.#open(),
      renews: () => renews(this.#on.token()),
      on: {
        state: (state) => {
          const { socket } = conn;
          if (state.name === 'greeting') this.seal = socket && 'onlife' in socket ? socket : undefined;
          if (state.name !== 'live') for (const end of this.codes.values()) end(t`The connection was lost.`); // the host-agent has ended these sign-ins
          if (state.name === 'live') this.away = false;
          else if ('code' in state && state.code === code.hostOffline) this.away = true;
          this.#on.state(this, state);
        },
        sync: (sync) => this.#synced(sync),
        action: (envelope) => {
          this.store.apply(envelope);
          if (gives.has(envelope.action?.type) && envelope.rejectionReason === undefined) this.#givers(envelope.channel, giversSoon);
          this.#on.action(this, envelope);
        },
        notification: (method, params) => {
          this.store.notification(method, params);
          this.#since?.push([method, params]);
          if (method === 'root/sessionRemoved') this.#removed(params?.session!);
          this.#on.notification(this, method, params);
        },
        mcp: (channel, method, params) => this.#on.mcp(this, channel, method, params),
        request: (method, params) => this.#on.request(this, method, params),
      },
    });
    this.conn = conn;
    conn.start();
  }

  /** Opens a connection to the host. It is sealed if this browser has ever known the host as sealed. */
  async #open(): Promise<WebSocket | SealedSocket> {
    const token = this.#on.token();
    const pin = await pinOf(this.host);
    const link = pin ? null : linkOf(this.host);
    this.pinned = Boolean(pin ?? link);
    if (link) return (await import('./sealed/open')).openLink(this.host, link, dial(token));
    if (!pin && (elsewhere() || this.#on.listed?.()?.sealed || await marked(this.host))) throw Object.assign(new Error(t`this device is not paired with the host`), { code: code.notPaired });
    if (!pin) return opens(token, this.host);
    return (await import('./sealed/open')).open(pin, dial(token));
  }

  stop(): void {
    this.conn?.stop();
    this.conn = null;
    this.opening.clear();
    this.listing = false;
  }

  #synced(sync: Sync): void {
    this.store.sync(sync);
    if (sync.fresh) this.#on.fresh(this);
    this.#on.synced?.(this);
    this.opening.clear();
    this.errors.clear();
    // A restarted host has lost the tokens.
    if (sync.fresh) for (const resource of this.tokens.keys()) this.again(resource);
    this.#tidy();
    if (!this.conn!.subscriptions.has(ROOT)) this.#subscribe(ROOT); // the answer to reconnect has left it out
    for (const channel of this.conn!.subscriptions) if (this.store.get<ChatState>(channel)?.turns) this.#givers(channel);
    // Events about the session list are not numbered, so they are not replayed.
    this.list();
    this.keepPrivate().catch(() => { this.privates = null; });
    this.enter();
    this.#on.action(this);
  }

  #removed(session: string): void {
    if (!session || !this.store.get(session)) return;
    for (const channel of [this.store.chatOf(session), session]) if (channel) this.store.drop(channel);
    this.errors.set(session, t`it was deleted.`);
  }

  async list(): Promise<void> {
    const from = this.conn!;
    const since: [string, Params][] = this.#since = [];
    this.listing = this.store.sessions.size === 0;
    this.#on.draw();
    try {
      const sessions: Summary[] = [];
      let cursor: string | undefined;
      let pages = 0; // an empty page counts, too
      do {
        const { items, nextCursor }: Result<'listSessions'> = await from.request('listSessions', { channel: ROOT, cursor });
        if (from !== this.conn) return;
        sessions.push(...array(items));
        cursor = nextCursor;
      } while (cursor && sessions.length + ++pages < sessionsMax);
      this.store.listed(sessions);
      for (const [method, params] of since) this.store.notification(method, params);
      this.note = '';
    } catch (err) {
      if (from !== this.conn) return;
      this.note = (err as Error).message;
    }
    if (this.#since === since) this.#since = undefined;
    this.listing = false;
    this.#on.draw();
  }

  /** Unsubscribes from channels that are not needed any more. The answer to reconnect may have their states, so it comes first. */
  tidy(): void {
    if (this.live) this.#tidy();
  }

  #tidy(): void {
    const keep = new Set([ROOT, ...this.#on.wanted(this)]);
    for (const channel of [...this.conn!.subscriptions]) {
      if (keep.has(channel)) continue;
      this.conn!.unsubscribe(channel);
      this.store.drop(channel);
    }
  }

  /** Subscribes to needed channels. */
  enter(): void {
    if (!this.conn || !['live', 'greeting'].includes(this.conn.state.name)) return;
    for (const channel of this.#on.wanted(this)) {
      if (!this.store.get(channel) && !this.opening.has(channel) && !this.errors.has(channel)) this.#subscribe(channel);
    }
  }

  /**
   * Makes a session private or visible to others again. Without a session, it only requests the list of
   * private sessions.
   */
  async keepPrivate(session: string = ROOT, on?: boolean): Promise<void> {
    const from = this.conn!;
    const said = await from.request('relay/private', { channel: session, ...(on === undefined ? {} : { private: on }) });
    if (from !== this.conn) return;
    this.privates = new Set(array(said?.sessions));
    this.#on.draw();
  }

  /** Asks the host-agent who has given the answers in a chat. Older host-agents do not answer. */
  async #givers(channel: string, pause = 0): Promise<void> {
    const from = this.conn;
    if (pause) await new Promise((resolve) => { setTimeout(resolve, pause); });
    if (from !== this.conn) return;
    const said = await from!.request('relay/answers', { channel }).catch(() => undefined);
    if (!said || from !== this.conn) return;
    this.store.given(channel, said.answers);
    this.#on.draw();
  }

  #wants(channel: string): boolean {
    return channel === ROOT || this.#on.wanted(this).includes(channel);
  }

  /** Subscribes again later: a host that has just returned may still be loading its sessions. */
  #later(channel: string, pause: number): void {
    const from = this.conn;
    setTimeout(() => {
      if (from === this.conn && this.live && !this.store.get(channel) && this.#wants(channel) && !this.opening.has(channel)) this.#subscribe(channel, Math.min(2 * pause, againMost));
    }, pause);
  }

  async #subscribe(channel: string, pause = againFirst): Promise<void> {
    const from = this.conn!;
    const isChat = this.#on.wanted(this).indexOf(channel) > 0;
    this.opening.add(channel);
    this.#on.draw();
    try {
      const snapshot = await from.subscribe(channel, isChat ? { view: { turns: turnsShown } } : {});
      if (from !== this.conn) return;
      this.opening.delete(channel);
      if (!this.#wants(channel)) {
        from.unsubscribe(channel); // the user has left the session
        return;
      }
      this.errors.delete(channel);
      if (snapshot) this.store.snapshot(snapshot);
      if ((snapshot?.state as ChatState | undefined)?.turns) this.#givers(channel);
      if (this.store.get(channel)) this.enter();
      else this.errors.set(channel, t`The host has sent no state for this channel.`);
    } catch (err) {
      if (from !== this.conn) return;
      this.opening.delete(channel);
      if (from.live) { // otherwise, the next connection retries
        this.errors.set(channel, (err as Error).message);
        this.#later(channel, pause);
      }
    }
    this.#on.action(this);
  }

  /**
   * Gives the host a token for a resource. The page stores the token and how to renew it, in case the host
   * requests it again.
   */
  async authenticate(resource: string, token: string, renew?: Granted['renew']): Promise<void> {
    if (!this.live && this.conn?.state.name !== 'greeting') throw new Error(t`not connected`);
    await this.conn!.request('authenticate', { channel: ROOT, resource, token });
    this.tokens.set(resource, { token, renew });
  }

  request<M extends string>(method: M, params: object): Promise<Result<M>> {
    return this.conn && this.live ? this.conn.request(method, params) : Promise.reject(new Error(t`not connected`));
  }

  /**
   * Gives the host a resource's token again, or a renewed one if it has expired or was refused. If no token
   * works, the page forgets it and asks the user.
   */
  async again(resource: string, expired = false): Promise<void> {
    const had = this.tokens.get(resource);
    if (!had) return;
    try {
      if (expired) throw new Error('expired');
      await this.authenticate(resource, had.token, had.renew);
    } catch (err) {
      if (!expired && !(err instanceof RpcError)) return; // the connection was lost
      if (this.tokens.get(resource) !== had) return; // a different call renews it, or the user has signed in again
      this.tokens.delete(resource);
      const next = await had.renew?.().catch(() => undefined);
      if (next) await this.authenticate(resource, next.token, next.renew).catch(() => {});
      this.#on.draw();
    }
  }
}
