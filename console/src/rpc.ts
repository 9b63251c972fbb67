// The client side of the Agent Host Protocol: JSON-RPC 2.0 in WebSocket text frames,
// with reconnects.

export const ROOT = 'ahp-root://';

const versions = ['1.1.0', '1.0.0', '0.10.0', '0.9.0', '0.8.0']; // offered to the host, best first

// Error codes of AHP and, above 0, of the relay.
export const code = { unsupportedVersion: -32005, authRequired: -32007, hostOffline: 4100 };
const methodNotFound = -32601;
const internalError = -32603;

// Times in ms. patience is longer than the relay's search for a host-agent, which is
// no reason to drop the connection.
const idle = 10_000; // without a message, before a ping
const patience = 25_000; // for any message after a ping
const hurried = 300; // for an answer after a wake; then a second socket is tried
const hurriedMost = 1500; // for the first message on either socket
const settled = 10_000; // a connection this old counts as a success
const firstDelay = 500;
const longestDelay = 15_000;

/** An answer with an error. */
export class RpcError extends Error {
  code: number;
  data: any;

  constructor({ code, message, data }: any = {}) {
    super(typeof message === 'string' ? message : 'unknown error');
    this.code = code;
    this.data = data;
  }
}

/**
 * What a close code asks of a client: to come back 'now' or 'later', to get
 * another 'token' first, or to 'stop'. The relay's codes from 4000 to 4499
 * mean "reconnect", and those from 4500 to 4999 "do not".
 */
export function afterClose(closeCode) {
  if (closeCode === 4501) return 'token';
  if (closeCode >= 4500 && closeCode <= 4999) return 'stop';
  return closeCode === 1001 || closeCode === 1012 ? 'now' : 'later';
}

/**
 * How long to wait before an attempt, in ms. Half of it is by chance, lest all
 * clients of a relay that went away come back at the same moment.
 */
export function backoff(attempt, random = Math.random) {
  const most = Math.min(longestDelay, firstDelay * 2 ** attempt);
  return most / 2 + random() * most / 2;
}

/** The versions to offer to a host that understands none of ours: it says "^0.9.0". */
export function offersFor(supported) {
  return Array.isArray(supported) ? supported.map((v) => String(v).replace(/^[^0-9]*/, '')) : [];
}

/**
 * A Connection to one host. It is in one of these states:
 *
 *   connecting  the WebSocket is being opened
 *   greeting    the host has been asked to initialize or, if resuming, to
 *               reconnect; the relay holds a reconnect while the host is away
 *   live
 *   retrying    closed with code and reason; the next attempt is due at `at`
 *   ended       closed with code and reason, for good; action says which
 *
 * `on` has the callbacks state(state), sync(sync), action(envelope),
 * notification(method, params), and mcp(channel, method, params) for what MCP
 * servers tell on mcp:// channels, and request(method, params) for what the host
 * asks: a promise of the answer, or undefined if there is no such method. sync comes each time that the connection
 * becomes live: {fresh, snapshots, actions, missing}. If fresh, the host knows
 * nothing of what was before; else snapshots replace states, or actions follow
 * them, and the channels in missing are no longer there.
 */
export class Connection {
  state: any = { name: 'ended', action: 'stop', code: 0, reason: '' };
  info: any = {}; // the host's result of initialize
  subscriptions = new Set<string>();
  lastSeen: number | null = null; // serverSeq; null before initialize

  #open: () => WebSocket | Promise<WebSocket>;
  #on: any;
  #clientId: string;
  #socket: any = null;
  #calls = new Map<any, any>(); // id to {resolve, reject}
  #ids = 0;
  #clientSeq = 0;
  #attempt = 0;
  #liveSince = 0;
  #heard = 0; // time of the last message
  #asked = 0; // waiting for a message since
  #woken = 0; // time when the user returned to the page
  #retry: any;
  #watch: any;

  /** open returns a new WebSocket to the host, or a promise of one. */
  constructor({ open, clientId, on }) {
    this.#open = open;
    this.#clientId = clientId;
    this.#on = on;
  }

  start() {
    this.#watch = setInterval(() => this.#check(), idle / 2);
    this.#connect();
  }

  /** Ends the connection. No callback is called any more. */
  stop() {
    this.#on = { state() {}, sync() {}, action() {}, notification() {}, mcp() {}, request() {} };
    this.#drop(1000, 'closed by the user');
    this.#end('stop', 1000, '');
  }

  /**
   * Something may have changed: look now, not later. In a hurry, as when a phone has been
   * unlocked, a connection that does not answer at once is not waited for: it may be dead,
   * and nobody tells; or slow, and then it is kept.
   */
  wake(hurry = false) {
    if (hurry) this.#woken = Date.now();
    if (this.state.name === 'retrying') this.#connect();
    else if (this.#socket?.readyState === 1) {
      this.#ping();
      if (hurry) setTimeout((old, asked) => this.#beside(old, asked), hurried, this.#socket, this.#asked);
    } else if (hurry && this.state.name === 'connecting' && Date.now() - this.#asked > hurried) { // opened on a network that is gone
      this.#drop(1000, 'no answer');
      this.#connect();
    }
  }

  /** Opens a socket beside one that has not answered since it was asked: whichever has the first word is used. */
  async #beside(old, asked) {
    const silent = () => this.#socket === old && this.#heard < asked;
    if (!silent()) return;
    let fresh;
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
      this.#heard = 0;
      this.#asked = Date.now();
      this.#setState({ name: 'connecting' });
      this.#attach(fresh);
      if (fresh.readyState === 1) this.#greet(fresh);
      else if (fresh.readyState > 1) this.#lost(1006, 'no answer');
    };
    const most = setTimeout(take, hurriedMost - hurried);
    fresh.onopen = fresh.onclose = take;
  }

  get live() {
    return this.state.name === 'live';
  }

  get clientId() {
    return this.#clientId;
  }

  /** Calls a method of the host; rejects with an RpcError, or an Error if the connection ends first. */
  request(method: string, params: any): Promise<any> {
    return new Promise((resolve, reject) => {
      const id = ++this.#ids;
      this.#calls.set(id, { resolve, reject });
      this.#send({ jsonrpc: '2.0', id, method, params });
    });
  }

  /**
   * Sends a request of MCP on an mcp:// channel, which stands beside it.
   * Returns {result, cancel}: a promise, as of request, and a function that
   * tells the server that nobody wants the result any more.
   */
  mcp(channel: string, method: string, params: any) {
    const id = ++this.#ids;
    const result = new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject });
      this.#send({ jsonrpc: '2.0', id, channel, method, params });
    });
    const cancel = (reason) => this.#calls.has(id) && this.mcpNotify(channel, 'notifications/cancelled', { requestId: id, reason });
    return { result, cancel };
  }

  /** Sends a notification of MCP on an mcp:// channel. */
  mcpNotify(channel, method, params) {
    this.#send({ jsonrpc: '2.0', channel, method, params });
  }

  async subscribe(channel: string, options: any = {}) {
    const { snapshot } = await this.request('subscribe', { channel, ...options });
    this.subscriptions.add(channel);
    return snapshot;
  }

  unsubscribe(channel) {
    if (this.subscriptions.delete(channel) && this.live) {
      this.#send({ jsonrpc: '2.0', method: 'unsubscribe', params: { channel } });
    }
  }

  /** Sends an action. It comes back with origin {clientId, clientSeq}; returns clientSeq. */
  dispatch(channel, action) {
    if (!this.live) throw new Error('not connected');
    const clientSeq = ++this.#clientSeq;
    this.#send({ jsonrpc: '2.0', method: 'dispatchAction', params: { channel, clientSeq, action } });
    return clientSeq;
  }

  #send(message) {
    // A closed socket ends with onclose, which rejects the calls.
    if (this.#socket?.readyState === 1) this.#socket.send(JSON.stringify(message));
  }

  #setState(state) {
    this.state = state;
    this.#on.state(state);
  }

  #connect() {
    clearTimeout(this.#retry);
    this.#heard = 0;
    this.#asked = Date.now();
    let opened;
    try {
      opened = this.#open();
    } catch (err) {
      this.#end('stop', 0, err.message); // the URL or the token is invalid
      return;
    }
    this.#setState({ name: 'connecting' });
    if (!(opened instanceof Promise)) {
      this.#attach(opened);
      return;
    }
    const mine = this.state; // a newer attempt may have replaced this state
    opened.then(
      (socket) => (this.state === mine ? this.#attach(socket) : socket.close()),
      (err) => { if (this.state === mine) this.#lost(1006, err.message); });
  }

  #attach(socket: WebSocket) {
    this.#socket = socket;
    socket.onopen = () => this.#greet(socket);
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code, reason }) => this.#lost(code, reason);
  }

  async #greet(socket) {
    const resuming = this.lastSeen !== null;
    this.#setState({ name: 'greeting', resuming });
    try {
      const sync = resuming ? await this.#resume() : await this.#initialize(versions);
      this.#liveSince = Date.now();
      this.#on.sync(sync);
      this.#setState({ name: 'live' });
    } catch (err) {
      if (socket !== this.#socket) return; // #lost has handled it
      if (err.code === code.unsupportedVersion) {
        this.#drop(1000, 'no common version');
        this.#end('stop', err.code, err.message);
      } else if (err.code !== code.hostOffline) { // the relay closes after this and gives the reason
        this.#drop(1000, 'handshake failed');
        this.#lost(1006, err.message);
      }
    }
  }

  async #initialize(offer) {
    let result;
    try {
      result = await this.request('initialize', {
        channel: ROOT,
        protocolVersions: offer,
        clientId: this.#clientId,
        clientInfo: { name: 'ahp-relay-console', version: '2' },
        initialSubscriptions: [ROOT],
        capabilities: { canvas: {}, mcpApps: {} },
      });
    } catch (err) {
      const other = offersFor(err.data?.supportedVersions);
      if (err.code !== code.unsupportedVersion || offer !== versions || other.length === 0) throw err;
      return this.#initialize(other);
    }
    this.info = result;
    this.lastSeen = seq(result.serverSeq);
    this.subscriptions = new Set([ROOT]);
    return { fresh: true, snapshots: list(result.snapshots), actions: [], missing: [] };
  }

  async #resume() {
    let result;
    try {
      result = await this.request('reconnect', {
        channel: ROOT,
        clientId: this.#clientId,
        lastSeenServerSeq: this.lastSeen,
        subscriptions: [...this.subscriptions],
      });
    } catch (err) {
      // A restarted host has lost its clients.
      if (!(err instanceof RpcError) || err.code === code.hostOffline) throw err;
      return this.#initialize(versions);
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

  #saw(envelope) {
    this.lastSeen = Math.max(this.lastSeen, seq(envelope?.serverSeq));
  }

  #receive(data) {
    this.#heard = Date.now();
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      return;
    }
    if (message === null || typeof message !== 'object') return;
    const { id, method, params } = message;
    if (typeof method !== 'string') this.#answered(message);
    else if (id !== undefined) this.#serve(id, method, isMcp(message.channel ?? params?.channel) ? undefined : this.#on.request?.(method, params));
    else if (isMcp(message.channel ?? params?.channel)) this.#on.mcp(message.channel ?? params.channel, method, params);
    else if (method === 'action') {
      this.#saw(params);
      this.#on.action(params);
    } else this.#on.notification(method, params);
  }

  /** Answers what the host asks. Hosts ask clients for files and the like, which a web page has not. */
  async #serve(id: any, method: string, answer: Promise<any> | undefined) {
    const socket = this.#socket;
    let said: any;
    if (!answer) said = { error: { code: methodNotFound, message: `Method not found: ${method}` } };
    else {
      try {
        said = { result: await answer };
      } catch (err) {
        said = { error: { code: err.code ?? internalError, message: err.message, data: err.data } };
      }
    }
    if (socket === this.#socket) this.#send({ jsonrpc: '2.0', id, ...said });
  }

  #answered({ id, result, error }) {
    const call = this.#calls.get(id);
    if (!call) return;
    this.#calls.delete(id);
    if (error) call.reject(new RpcError(error));
    else call.resolve(result ?? {});
  }

  #ping() {
    this.#asked = Date.now();
    this.request('ping', { channel: ROOT }).catch(() => {}); // any message counts as an answer
  }

  // #check detects dead connections, because browsers do not report them.
  #check() {
    if (!this.#socket) return;
    const now = Date.now();
    if (this.#heard < this.#asked) {
      if (now - this.#asked < patience) return;
      this.#drop(1000, 'no answer');
      this.#lost(1006, `no answer for ${Math.round(patience / 1000)} s`);
    } else if (now - this.#heard > idle) this.#ping();
  }

  /** Leaves the socket without waiting for its end, which may take minutes. */
  #drop(closeCode, reason) {
    const socket = this.#socket;
    this.#socket = null;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close(closeCode, reason);
  }

  #lost(closeCode, reason) {
    this.#socket = null;
    this.#failCalls();
    const action = afterClose(closeCode);
    if (action === 'stop' || action === 'token') {
      this.#end(action, closeCode, reason);
      return;
    }
    if (this.#liveSince && Date.now() - this.#liveSince > settled) this.#attempt = 0;
    this.#liveSince = 0;
    // A connection that died while the page slept is reported when it wakes, or just
    // after.
    const slept = closeCode === 1006 && Date.now() - this.#woken < hurriedMost;
    this.#woken = 0;
    const wait = slept ? 0 : action === 'now' && this.#attempt === 0 ? Math.random() * firstDelay : backoff(this.#attempt);
    this.#attempt++;
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.#connect(), wait);
    this.#setState({ name: 'retrying', at: Date.now() + wait, code: closeCode, reason });
  }

  #failCalls() {
    for (const { reject } of this.#calls.values()) reject(new Error('The connection was lost.'));
    this.#calls.clear();
  }

  #end(action, closeCode, reason) {
    this.#failCalls();
    clearTimeout(this.#retry);
    clearInterval(this.#watch);
    this.#setState({ name: 'ended', action, code: closeCode, reason });
  }
}

/** What a host of any version says to reconnect: for all channels together, or for each. */
function recovered(result) {
  if (!Array.isArray(result.channels)) return { snapshots: list(result.snapshots), actions: list(result.actions), missing: list(result.missing) };
  const of = (kind) => list(result.channels).filter((c) => c.kind === kind);
  const actions = of('replay').flatMap((c) => list(c.actions)).sort((a, b) => seq(a.serverSeq) - seq(b.serverSeq));
  return { snapshots: of('snapshot').map((c) => c.snapshot).filter(Boolean), actions, missing: of('missing').map((c) => c.channel) };
}

function isMcp(channel) {
  return typeof channel === 'string' && channel.startsWith('mcp://');
}

function seq(n) {
  return Number.isSafeInteger(n) ? n : 0;
}

function list(value) {
  return Array.isArray(value) ? value.filter((v) => v != null) : [];
}
