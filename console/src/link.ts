// One host: the connection to it, and what it has said.

import * as device from './device';
import { code, Connection, ROOT, RpcError } from './rpc';
import { array, Store } from './store';
import type { Granted } from './oauth';
import type { Json } from './reduce';
import { randomId } from './words';

const sessionsMax = 2000; // to ask for
const turnsShown = 50; // of a chat at first; hosts may send more

/** What a link tells of: see App. */
export interface LinkEvents {
  token(): string;
  wanted(link: Link): string[]; // channels that are to be followed, beside the root
  state(link: Link, state: Json): void;
  action(link: Link, envelope: Json): void;
  notification(link: Link, method: string, params: Json): void;
  mcp(link: Link, channel: string, method: string, params: Json): void;
  request(link: Link, method: string, params: Json): Promise<Json> | undefined; // what the host asks
  fresh(link: Link): void; // the host knows nothing of what was before
  draw(): void;
}

export class Link {
  readonly host: string;
  conn: Connection | null = null;
  store = new Store('');
  away = false; // the host is not online
  listedAway = false; // the list of hosts says so too
  listing = false;
  note = ''; // what there is to say of its list of sessions
  opening = new Set<string>(); // channels that are being subscribed to
  errors = new Map<string, string>(); // of channels that could not be
  tokens = new Map<string, Granted>(); // resource to what the user has signed in for it with; kept nowhere else
  #on: LinkEvents;

  constructor(host: string, on: LinkEvents) {
    this.host = host;
    this.#on = on;
  }

  get live(): boolean {
    return Boolean(this.conn?.live);
  }

  /** What an agent wants to be signed in to, and is not by this page. */
  unsigned(agent: Json): Json[] {
    return array(agent?.protectedResources).filter((r) => r?.required !== false && !this.tokens.has(r?.resource));
  }

  /**
   * Whether the host takes tokens for a use, 'auth-token' or 'mcp-auth-token', only sealed with its own key, or with
   * an answer to its challenge: GitHub Copilot's does. This page can do neither.
   */
  sealed(use: string): boolean {
    const meta = this.conn?.info?._meta;
    return array(meta?.['copilot.encryptionRequired']).includes(use) || meta?.['copilot.authChallenge']?.required === true;
  }

  connect(): void {
    // One id for each time the page is loaded, not for the tab: browsers copy
    // what a tab has stored when it is duplicated, and a host sends what
    // happens to the newest connection of a clientId only.
    const clientId = `console-${randomId()}`;
    const had = this.store.sessions;
    this.store = new Store(clientId);
    this.store.sessions = had;
    this.opening.clear();
    this.errors.clear();
    const conn: Connection = new Connection({
      clientId,
      open: () => {
        const base = location.origin.replace(/^http/, 'ws');
        if (this.#on.token() === device.DEVICE) return device.open(this.host, base);
        return new WebSocket(`${base}/ahp/${encodeURIComponent(this.host)}`, ['ahp', `bearer.${this.#on.token()}`]);
      },
      on: {
        state: (state: Json) => {
          if (state.name === 'live') this.away = false;
          else if (state.code === code.hostOffline) this.away = true;
          this.#on.state(this, state);
        },
        sync: (sync: Json) => this.#synced(sync),
        action: (envelope: Json) => {
          this.store.apply(envelope);
          this.#on.action(this, envelope);
        },
        notification: (method: string, params: Json) => {
          this.store.notification(method, params);
          if (method === 'root/sessionRemoved') this.#removed(params?.session);
          this.#on.notification(this, method, params);
        },
        mcp: (channel: string, method: string, params: Json) => this.#on.mcp(this, channel, method, params),
        request: (method: string, params: Json) => this.#on.request(this, method, params),
      },
    });
    this.conn = conn;
    conn.start();
  }

  stop(): void {
    this.conn?.stop();
    this.conn = null;
    this.opening.clear();
    this.listing = false;
  }

  #synced(sync: Json): void {
    this.store.sync(sync);
    if (sync.fresh) this.#on.fresh(this);
    this.opening.clear();
    this.errors.clear();
    // A host that was started anew has forgotten them.
    if (sync.fresh) for (const resource of this.tokens.keys()) this.again(resource);
    this.tidy();
    // What tells of sessions is not numbered, and so not replayed.
    this.list();
    this.enter();
    this.#on.action(this, {});
  }

  #removed(session: string): void {
    if (!session || !this.store.get(session)) return;
    for (const channel of [this.store.chatOf(session), session]) if (channel) this.store.drop(channel);
    this.errors.set(session, 'it was deleted.');
  }

  async list(): Promise<void> {
    const from = this.conn!;
    this.listing = this.store.sessions.size === 0;
    this.#on.draw();
    try {
      const sessions: Json[] = [];
      let cursor;
      do {
        const { items, nextCursor } = await from.request('listSessions', { channel: ROOT, cursor });
        if (from !== this.conn) return;
        sessions.push(...array(items));
        cursor = nextCursor;
      } while (cursor && sessions.length < sessionsMax);
      this.store.listed(sessions);
      this.note = '';
    } catch (err) {
      if (from !== this.conn) return;
      this.note = (err as Error).message;
    }
    this.listing = false;
    this.#on.draw();
  }

  /** Ends the subscriptions that nobody needs. */
  tidy(): void {
    if (!this.live && this.conn?.state.name !== 'greeting') return;
    const keep = new Set([ROOT, ...this.#on.wanted(this)]);
    for (const channel of [...this.conn!.subscriptions]) {
      if (keep.has(channel)) continue;
      this.conn!.unsubscribe(channel);
      this.store.drop(channel);
    }
  }

  /** Subscribes to what is needed, and is not there yet. */
  enter(): void {
    if (!this.conn || !['live', 'greeting'].includes(this.conn.state.name)) return;
    for (const channel of this.#on.wanted(this)) {
      if (!this.store.get(channel) && !this.opening.has(channel) && !this.errors.has(channel)) this.#subscribe(channel);
    }
  }

  async #subscribe(channel: string): Promise<void> {
    const from = this.conn!;
    const isChat = this.#on.wanted(this).indexOf(channel) > 0;
    this.opening.add(channel);
    this.#on.draw();
    try {
      const snapshot = await from.subscribe(channel, isChat ? { view: { turns: turnsShown } } : {});
      if (from !== this.conn) return;
      this.opening.delete(channel);
      if (!this.#on.wanted(this).includes(channel)) {
        from.unsubscribe(channel); // the user has gone elsewhere
        return;
      }
      this.store.snapshot(snapshot ?? {});
      if (this.store.get(channel)) this.enter();
      else this.errors.set(channel, 'The host has sent no state for this.');
    } catch (err) {
      if (from !== this.conn) return;
      this.opening.delete(channel);
      if (from.live) this.errors.set(channel, (err as Error).message); // else it is tried again
    }
    this.#on.action(this, {});
  }

  /**
   * Gives the host a token for a resource. It is kept for as long as the page is
   * there, for when the host asks again, and so is how to get the next one.
   */
  async authenticate(resource: string, token: string, renew?: Granted['renew']): Promise<void> {
    if (!this.live && this.conn?.state.name !== 'greeting') throw new Error('not connected');
    await this.conn!.request('authenticate', { channel: ROOT, resource, token });
    this.tokens.set(resource, { token, renew });
  }

  /**
   * Gives the host the token of a resource once more, or the next one, if the host says that
   * this one has expired, or refuses it. One that is no good is forgotten: the user is asked.
   */
  async again(resource: string, expired = false): Promise<void> {
    const had = this.tokens.get(resource);
    if (!had) return;
    try {
      if (expired) throw new Error('expired');
      await this.authenticate(resource, had.token, had.renew);
    } catch (err) {
      if (!expired && !(err instanceof RpcError)) return; // the connection was lost
      if (this.tokens.get(resource) === had) this.tokens.delete(resource);
      const next = await had.renew?.().catch(() => undefined);
      if (next) await this.authenticate(resource, next.token, next.renew).catch(() => {});
      this.#on.draw();
    }
  }
}
