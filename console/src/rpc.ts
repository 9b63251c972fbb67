// The client side of the Agent Host Protocol: JSON-RPC 2.0 in WebSocket text frames,
// with reconnects.

import type { SealedSocket } from './sealed/socket';
import type { Action, Envelope, ErrorObject, Id, JsonObject, Message, Params, Recovered, Result, Results, Snapshot, Sync } from './ahp';
import { t } from './language';

export const ROOT = 'ahp-root://';

const versions = ['1.1.0', '1.0.0', '0.10.0', '0.9.0', '0.8.0']; // offered to the host, best first

// Error codes of AHP and, above 0, of the relay; 4997 and above are this page's own.
export const code = { unsupportedVersion: -32005, authRequired: -32007, hostOffline: 4100, forbidden: 4503, notPaired: 4997, otherKey: 4998 };
const methodNotFound = -32601;
const internalError = -32603;

// Times in ms. patience is longer than a relay may search for a host-agent, because a connection must not end
// for that reason.
const idle = 10_000; // time without a message before a ping
const patience = 25_000; // wait for any message after a ping
const hurried = 300; // wait for an answer after a wake; then a second socket is tried
const hurriedMost = 1500; // wait for the first message on either socket
const settled = 10_000; // age at which a connection counts as successful
const firstDelay = 500;
const longestDelay = 15_000;

/** An error answer from the host. */
export class RpcError extends Error {
  code: number;
  data: ErrorObject['data'];

  constructor({ code, message, data }: ErrorObject) {
    super(typeof message === 'string' ? message : 'unknown error');
    this.code = code;
    this.data = data;
  }
}

/** The client's reaction to a close code. */
export type AfterClose = 'now' | 'later' | 'token' | 'stop';

/**
 * Returns the reaction to a close code: reconnect now, reconnect later, get a new token first, or stop. Of
 * the relay's codes, 4000 to 4499 permit a reconnect; 4500 to 4999 do not.
 */
export function afterClose(closeCode: number): AfterClose {
  if (closeCode === 4501) return 'token';
  if (closeCode >= 4500 && closeCode <= 4999) return 'stop';
  return closeCode === 1001 || closeCode === 1012 ? 'now' : 'later';
}

/**
 * Returns the wait before an attempt, in ms. Half of it is random, so the clients of a failed relay do
 * not all return at the same time.
 */
export function backoff(attempt: number, random = Math.random, longest = longestDelay): number {
  const most = Math.min(longest, firstDelay * 2 ** attempt);
  return most / 2 + random() * most / 2;
}

/** Returns the versions to offer to a host that has refused ours. Hosts write them as "^0.9.0". */
export function offersFor(supported: unknown): string[] {
  return Array.isArray(supported) ? supported.map((v) => String(v).replace(/^[^0-9]*/, '')) : [];
}

/**
 * The state of a Connection:
 *
 *   connecting  the WebSocket is opening
 *   greeting    initialize is sent or, if resuming, reconnect; the relay holds a
 *               reconnect while the host is away
 *   live
 *   retrying    closed with code and reason; the next attempt is due at `at`
 *   ended       closed with code and reason, for good; action is the next step
 */
export type ConnectionState =
  | { name: 'connecting' }
  | { name: 'greeting'; resuming: boolean }
  | { name: 'live'; since: number }
  | { name: 'retrying'; at: number; code: number; reason: string }
  | { name: 'ended'; action: AfterClose; code: number; reason: string };

/**
 * The callbacks of a Connection. mcp receives notifications on mcp:// channels. request handles requests of
 * the host: it returns a promise of the result, or undefined for an unknown method. sync is called each time
 * the connection becomes live. If fresh is true, the host has lost its earlier state. Otherwise snapshots
 * replace states, or actions follow them; channels in missing no longer exist.
 */
export interface ConnectionEvents {
  state(state: ConnectionState): void;
  sync(sync: Sync): void;
  action(envelope: Envelope): void;
  notification(method: string, params: Params): void;
  mcp(channel: string, method: string, params: Params): void;
  request?(method: string, params: Params): Promise<unknown> | undefined;
}

interface Call { resolve(result: unknown): void; reject(err: Error): void }

type Timer = ReturnType<typeof setTimeout>;

/** A WebSocket, or a sealed connection with the same interface. */
type Socket = WebSocket | SealedSocket;


/** An open MCP request. */
export interface McpRequest<R = JsonObject> { result: Promise<R>; cancel(reason: string): void }

/** A Connection to one host. */
export class Connection {
  state: ConnectionState = { name: 'ended', action: 'stop', code: 0, reason: '' };
  info: Results['initialize'] = {}; // the host's result of initialize
  subscriptions = new Set<string>();
  lastSeen: number | null = null; // serverSeq; null before initialize

  #open: () => Socket | Promise<Socket>;
  #renews: () => boolean;
  #on: ConnectionEvents;
  #clientId: string;
  #socket: Socket | null = null;
  #calls = new Map<Id | undefined, Call>(); // by request id
  #ids = 0;
  #clientSeq = 0;
  #attempt = 0;
  #liveSince = 0;
  #heard = 0; // time of the last message
  #asked = 0; // time at which the wait for a message began
  #unsent = 0; // bytes that the socket had to send at the last check
  #woken = 0; // time when the user returned to the page
  #retry: Timer | undefined;
  #watch: Timer | undefined;

  /** open returns a new WebSocket to the host, or a promise of one. renews reports whether each has a newer token. */
  constructor({ open, renews = () => false, clientId, on }: { open: () => Socket | Promise<Socket>; renews?: () => boolean; clientId: string; on: ConnectionEvents }) {
    this.#open = open;
    this.#renews = renews;
    this.#clientId = clientId;
    this.#on = on;
  }

  start(): void {
    this.#watch = setInterval(() => this.#check(), idle / 2);
    this.#connect();
  }

  /** Ends the connection. No callback runs after this. */
  stop(): void {
    this.#on = { state() {}, sync() {}, action() {}, notification() {}, mcp() {} };
    this.#drop(1000, 'closed by the user');
    this.#end('stop', 1000, '');
  }

  /**
   * Checks the connection now, after an event such as a network change. With hurry, as after a phone's
   * unlock, it opens a second socket if the connection does not answer at once, because the connection may be
   * dead. A connection that is only slow is kept.
   */
  wake(hurry = false): void {
    if (hurry) this.#woken = Date.now();
    if (this.state.name === 'retrying') this.#connect();
    else if (this.#socket?.readyState === 1) {
      const unsent = this.#socket.bufferedAmount; // without the ping, which leaves on a dead connection too
      this.#ping();
      if (hurry) setTimeout((...now: [Socket, number, number]) => this.#beside(...now), hurried, this.#socket, this.#asked, unsent);
    } else if (hurry && this.state.name === 'connecting' && Date.now() - this.#asked > hurried) { // opened on a network that no longer exists
      this.#drop(1000, 'no answer');
      this.#connect();
    }
  }

  /** Opens a second socket beside a silent connection, and keeps whichever answers first. */
  async #beside(old: Socket, asked: number, unsent: number): Promise<void> {
    const silent = () => this.#socket === old && this.#heard < asked && !(old.bufferedAmount < unsent);
    if (!silent()) return;
    let fresh: Socket;
    try {
      fresh = await this.#open();
    } catch {
      return; // still no network
    }
    const take = () => {
      clearTimeout(most);
      fresh.onopen = fresh.onclose = null;
      if (!silent()) {
        fresh.close();
        return;
      }
      this.#drop(1000, 'no answer');
      this.#failCalls();
      this.#heard = this.#unsent = 0;
      this.#asked = Date.now();
      this.#setState({ name: 'connecting' });
      this.#attach(fresh);
      if (fresh.readyState === 1) this.#greet(fresh);
      else if (fresh.readyState > 1) this.#lost(1006, t`no answer`);
    };
    const most = setTimeout(take, hurriedMost - hurried);
    fresh.onopen = fresh.onclose = take;
  }

  get live(): boolean {
    return this.state.name === 'live';
  }

  /** The socket in use. */
  get socket(): Socket | null {
    return this.#socket;
  }

  get clientId(): string {
    return this.#clientId;
  }

  /** Calls a method of the host. Rejects with an RpcError, or with an Error if the connection ends first. */
  request<M extends string>(method: M, params: object): Promise<Result<M>> {
    return new Promise((resolve, reject) => { this.#ask(++this.#ids, { method, params }, { resolve: resolve as Call['resolve'], reject }); });
  }

  /**
   * Sends an MCP request on an mcp:// channel. result is a promise as from request; cancel
   * asks the server to drop the request.
   */
  mcp<M extends string>(channel: string, method: M, params: object): McpRequest<Result<M>> {
    const id = ++this.#ids;
    const result = new Promise<Result<M>>((resolve, reject) => { this.#ask(id, { channel, method, params }, { resolve: resolve as Call['resolve'], reject }); });
    const cancel = (reason: string) => { if (this.#calls.has(id)) this.mcpNotify(channel, 'notifications/cancelled', { requestId: id, reason }); };
    return { result, cancel };
  }

  /** Sends an MCP notification on an mcp:// channel. */
  mcpNotify(channel: string, method: string, params: object): void {
    this.#send({ jsonrpc: '2.0', channel, method, params });
  }

  async subscribe(channel: string, options: JsonObject = {}): Promise<Snapshot | undefined> {
    const { snapshot } = await this.request('subscribe', { channel, ...options });
    this.subscriptions.add(channel);
    return snapshot;
  }

  unsubscribe(channel: string): void {
    if (this.subscriptions.delete(channel)) this.#send({ jsonrpc: '2.0', method: 'unsubscribe', params: { channel } });
  }

  /** Sends an action and returns its clientSeq. The host echoes it with origin {clientId, clientSeq}. */
  dispatch(channel: string, action: Action): number {
    if (!this.live) throw new Error(t`not connected`);
    const clientSeq = ++this.#clientSeq;
    this.#send({ jsonrpc: '2.0', method: 'dispatchAction', params: { channel, clientSeq, action } });
    return clientSeq;
  }

  #ask(id: Id, message: JsonObject, call: Call): void {
    if (this.#socket?.readyState !== 1) {
      call.reject(new Error(t`not connected`));
      return;
    }
    this.#calls.set(id, call);
    this.#send({ jsonrpc: '2.0', id, ...message });
  }

  #send(message: JsonObject): void {
    if (this.#socket?.readyState === 1) this.#socket.send(JSON.stringify(message));
  }

  #setState(state: ConnectionState): void {
    this.state = state;
    this.#on.state(state);
  }

  #connect(): void {
    clearTimeout(this.#retry);
    this.#heard = this.#unsent = 0;
    this.#asked = Date.now();
    let opened: Socket | Promise<Socket>;
    try {
      opened = this.#open();
    } catch (err) {
      this.#end('stop', 0, (err as Error).message); // the URL or the token is invalid
      return;
    }
    this.#setState({ name: 'connecting' });
    if (!(opened instanceof Promise)) {
      this.#attach(opened);
      return;
    }
    const mine = this.state; // a newer attempt may have changed the state
    opened.then(
      (socket) => (this.state === mine ? this.#attach(socket) : socket.close()),
      (err) => { if (this.state === mine) this.#lost(err.code ?? 1006, err.message); });
  }

  #attach(socket: Socket): void {
    this.#socket = socket;
    if ('onlife' in socket) socket.onlife = () => { this.#heard = Date.now(); };
    socket.onopen = () => this.#greet(socket);
    socket.onmessage = ({ data }: MessageEvent) => this.#receive(data);
    socket.onclose = ({ code, reason }: CloseEvent) => this.#lost(code, reason);
  }

  async #greet(socket: Socket): Promise<void> {
    const resuming = this.lastSeen !== null;
    this.#setState({ name: 'greeting', resuming });
    try {
      const sync = resuming ? await this.#resume() : await this.#initialize(versions);
      this.#liveSince = Date.now();
      this.#on.sync(sync);
      this.#setState({ name: 'live', since: this.#liveSince });
    } catch (error) {
      if (socket !== this.#socket) return; // #lost has already handled the end
      const err = error as RpcError;
      if (err.code === code.unsupportedVersion) {
        this.#drop(1000, 'no common version');
        this.#end('stop', err.code, err.message);
      } else if (err.code !== code.hostOffline) { // the relay then closes the connection with the reason
        this.#drop(1000, 'handshake failed');
        this.#lost(1006, err.message);
      }
    }
  }

  async #initialize(offer: string[]): Promise<Sync> {
    let result: Results['initialize'];
    try {
      result = await this.request('initialize', {
        channel: ROOT,
        protocolVersions: offer,
        clientId: this.#clientId,
        clientInfo: { name: 'ahp-relay-console', version: '2' },
        initialSubscriptions: [ROOT],
        capabilities: { canvas: {}, mcpApps: {} },
      });
    } catch (error) {
      const err = error as RpcError;
      const other = offersFor(err.data?.supportedVersions);
      if (err.code !== code.unsupportedVersion || offer !== versions || other.length === 0) throw error;
      return this.#initialize(other);
    }
    this.info = result;
    this.lastSeen = seq(result.serverSeq);
    this.subscriptions = new Set([ROOT]);
    return { fresh: true, snapshots: list(result.snapshots as Snapshot[]), actions: [], missing: [] };
  }

  async #resume(): Promise<Sync> {
    let result: Recovered;
    try {
      result = await this.request('reconnect', {
        channel: ROOT,
        clientId: this.#clientId,
        lastSeenServerSeq: this.lastSeen,
        subscriptions: [...this.subscriptions],
      });
    } catch (err) {
      // A host that has restarted does not know its clients.
      if (!(err instanceof RpcError) || err.code === code.hostOffline) throw err;
      return this.#initialize(versions).catch((why) => {
        if (why instanceof RpcError) this.lastSeen = null; // the host may have resumed this connection: then it takes initialize on the next one only
        throw why;
      });
    }
    const { snapshots, actions, missing: gone } = recovered(result);
    let missing = gone;
    if (result.type === 'snapshot') {
      const here = new Set(snapshots.map((s) => s.resource));
      missing = [...this.subscriptions].filter((channel) => !here.has(channel));
      this.lastSeen = Math.max(0, ...snapshots.map((s) => seq(s.fromSeq)));
    }
    for (const envelope of actions) this.#saw(envelope);
    for (const channel of missing) this.subscriptions.delete(channel);
    return { fresh: false, snapshots, actions, missing };
  }

  #saw(envelope: Envelope): void {
    this.lastSeen = Math.max(this.lastSeen ?? 0, seq(envelope?.serverSeq));
  }

  #receive(data: string): void {
    this.#heard = Date.now();
    let message: Message | null;
    try {
      message = JSON.parse(data);
    } catch {
      return;
    }
    if (message === null || typeof message !== 'object') return;
    const { id, method, params } = message;
    if (typeof method !== 'string') this.#answered(message);
    else if (id !== undefined) this.#serve(id, method, isMcp(message.channel ?? params?.channel) ? undefined : this.#on.request?.(method, params!));
    else if (isMcp(message.channel ?? params?.channel)) this.#on.mcp(message.channel ?? params!.channel!, method, params!);
    else if (method === 'action') {
      this.#saw(params as unknown as Envelope);
      this.#on.action(params as unknown as Envelope);
    } else this.#on.notification(method, params!);
  }

  /**
   * Answers a host's request. Hosts ask clients for their files, for example, which a web page does not have.
   */
  async #serve(id: Id, method: string, answer: Promise<unknown> | undefined): Promise<void> {
    const socket = this.#socket;
    let said: JsonObject;
    if (!answer) said = { error: { code: methodNotFound, message: `Method not found: ${method}` } };
    else {
      try {
        said = { result: await answer };
      } catch (error) {
        const err = error as RpcError;
        said = { error: { code: err.code ?? internalError, message: err.message, data: err.data } };
      }
    }
    if (socket === this.#socket) this.#send({ jsonrpc: '2.0', id, ...said });
  }

  #answered({ id, result, error }: Message): void {
    const call = this.#calls.get(id);
    if (!call) return;
    this.#calls.delete(id);
    if (error) call.reject(new RpcError(error));
    else call.resolve(result ?? {});
  }

  #ping(): void {
    this.#asked = Date.now();
    this.request('ping', { channel: ROOT }).catch(() => {}); // any message counts as an answer
  }

  // #check detects dead connections, which browsers do not report.
  #check(): void {
    if (this.#socket ? 'onlife' in this.#socket : this.state.name !== 'connecting') return; // a sealed connection watches itself
    const now = Date.now();
    const unsent = this.#socket?.bufferedAmount ?? 0;
    if (unsent < this.#unsent) this.#heard = now; // a long message is on its way, before the ping
    this.#unsent = unsent;
    if (this.#heard < this.#asked) {
      if (now - this.#asked < patience) return;
      this.#drop(1000, 'no answer');
      this.#lost(1006, t`no answer for ${Math.round(patience / 1000)} s`);
    } else if (now - this.#heard > idle) this.#ping();
  }

  /** Drops the socket without waiting for its close, which may take minutes. */
  #drop(closeCode: number, reason: string): void {
    const socket = this.#socket;
    this.#socket = null;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close(closeCode, reason);
  }

  #lost(closeCode: number, reason: string): void {
    this.#socket = null;
    this.#failCalls();
    const said = afterClose(closeCode);
    const action = said === 'token' && this.#renews() ? 'now' : said;
    if (action === 'stop' || action === 'token') {
      this.#end(action, closeCode, reason);
      return;
    }
    if (this.#liveSince && Date.now() - this.#liveSince > settled) this.#attempt = 0;
    this.#liveSince = 0;
    // If a connection or its token died while the page slept, the page learns that when it wakes, or shortly
    // afterwards.
    const slept = closeCode === 1006 && Date.now() - this.#woken < hurriedMost;
    this.#woken = 0;
    const wait = slept || said === 'token' && this.#attempt === 0 ? 0 : action === 'now' && this.#attempt === 0 ? Math.random() * firstDelay : backoff(this.#attempt);
    this.#attempt++;
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.#connect(), wait);
    this.#setState({ name: 'retrying', at: Date.now() + wait, code: closeCode, reason });
  }

  #failCalls(): void {
    for (const { reject } of this.#calls.values()) reject(new Error(t`The connection was lost.`));
    this.#calls.clear();
  }

  #end(action: AfterClose, closeCode: number, reason: string): void {
    this.#failCalls();
    clearTimeout(this.#retry);
    clearInterval(this.#watch);
    this.#setState({ name: 'ended', action, code: closeCode, reason });
  }
}

/** Reads the result of reconnect in both forms: one for all channels, or one for each channel. */
function recovered(result: Recovered): Omit<Sync, 'fresh'> {
  if (!Array.isArray(result.channels)) return { snapshots: list(result.snapshots), actions: list(result.actions), missing: list(result.missing) };
  const of = (kind: string) => list(result.channels).filter((c) => c.kind === kind);
  const actions = of('replay').flatMap((c) => list(c.actions)).sort((a, b) => seq(a.serverSeq) - seq(b.serverSeq));
  return { snapshots: of('snapshot').map((c) => c.snapshot).filter(Boolean), actions, missing: of('missing').map((c) => c.channel) };
}

function isMcp(channel: unknown): channel is string {
  return typeof channel === 'string' && channel.startsWith('mcp://');
}

function seq(n: unknown): number {
  return Number.isSafeInteger(n) ? n as number : 0;
}

function list<T>(value: T[] | undefined): T[] {
  return Array.isArray(value) ? value.filter((v) => v != null) : [];
}
