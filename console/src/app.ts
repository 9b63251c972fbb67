// The page's state: token, hosts, open session and permissions. A token in the address
// is removed at once.

import { Accounts, accountOf, accounts, bare, begun, begunKey, removeAll, tokenOf, tookChange, type Account } from './accounts';
import { fragment, isOurs, itsQuestion, params, place, setAddress, wentBack, type Pane, type Place } from './address';
import { Questions } from './asked';
import { Conversation } from './conversation';
import * as device from './device';
import { Lender } from './lend';
import { code, ROOT, type ConnectionState, type McpRequest } from './rpc';
import type { LeftPage, Leaving } from './left';
import { Link } from './link';
import { Offline } from './offline';
import { Remembered } from './remembered';
import { ask, hostsOf, isKept, keepOnDevice, keepToken, nameOf, stored, tokenForm, type Answer, type Grant, type HostInfo } from './relay';
import { Sessions } from './sessions';
import type { Dialog } from './dialog';
import { array, isObject, text } from './store';
import { Swaps } from './swap';
import type { AuthRequired, ChatState, Envelope, Params, Read, Result } from './ahp';
import { randomId, sentence, setClock, toRelay } from './words';
import { t } from './language';

const untaken = 20_000; // ms; after that the host has not accepted a prompt
const hostsEvery = 15_000; // ms between queries for the hosts
const hostsSoon = 2_000; // ms; while the host in view is unreachable
const wokenFor = 20_000; // ms in which the result of a wake is shown
const linksMax = 16; // hosts followed at a time

// Actions that append to an answer and change nothing else. Most actions are of these
// types.
const grows = new Set(['chat/delta', 'chat/reasoning', 'chat/toolCallDelta']);

export class App {
  token = stored();
  tokenWhy = '';
  hosts: HostInfo[] = [];
  hostsNote = '';
  hostsStale = false; // the last query for the hosts failed
  grant: Grant | null = null; // the token's authority, from the relay
  offline = false; // the browser reports no network
  links = new Map<string, Link>();
  synced: (link: Link) => void = () => {}; // each connection begins so

  host = '';
  session = ''; // URI of the open session
  chat = ''; // URI of the chat in view, '' for the session's first
  pane: Pane | null = null;
  sought = ''; // id of a linked turn until it is in view
  dialog: Dialog | null = null;
  readonly swaps = new Swaps(this); // changes that links propose
  search = '';
  onlyHost = ''; // list only this host's sessions, '' for all
  readonly conversation = new Conversation(this);
  readonly sessions = new Sessions(this);
  readonly questions = new Questions(this);
  readonly past = new Offline(this);
  readonly remembered = new Remembered(this);
  readonly accounts = new Accounts({
    askAs: (token, method, path) => ask(token, method, path),
    listed: () => this.#list(),
    signedOut: (account) => this.#dropLinks((l) => accountOf(l.host)?.name === account.name),
  });
  left: Leaving | undefined; // items for absent hosts; once this device is signed in
  lender = new Lender(() => this.draw(), () => location.hostname);

  draw: () => void = () => {};
  drawGrown: () => void = () => {}; // draws only an answer that has grown
  drawLog: (() => void) | null = null; // draws the conversation, if one is in view
  mcpSaid: (channel: string, method: string, params: Params) => void = () => {};
  deliver: (channel: string, payload: unknown) => void = () => {};

  get link(): Link | undefined {
    return this.links.get(this.host);
  }

  get hostInfo(): HostInfo | undefined {
    return this.hosts.find((h) => h.host === this.host);
  }

  /** The authority at a host: by its account. */
  grantAt(host: string): Grant | null {
    return accountOf(host) ? this.accounts.of(accountOf(host))?.grant ?? null : this.grant;
  }

  /** A sealed host's own word about this device; else the relay's about the token. */
  #access(host = this.host): string {
    const seal = this.links.get(host)?.seal;
    return seal ? seal.level : this.grantAt(host)?.access ?? '';
  }

  /** Whether the token permits only looking. The host-agent refuses the rest, so the page does not offer it. */
  get readOnly(): boolean {
    return this.#access() === 'read';
  }

  /** Whether the token permits operating the host, beyond talking and approving. */
  get mayOperate(): boolean {
    return !['read', 'talk', 'approve'].includes(this.#access());
  }

  /** Whether the token permits approving. */
  get mayApprove(): boolean {
    return this.mayAnswer(this.host, true);
  }

  /** Whether the token for a host permits answers to questions, or also to approvals. */
  mayAnswer(host: string, approval: boolean): boolean {
    return !(approval ? ['read', 'talk'] : ['read']).includes(this.#access(host));
  }

  /** Whether the token is for certain sessions only, so it cannot create sessions. */
  get narrow(): boolean {
    return array(this.grantAt(this.host)?.channels).length > 0;
  }

  /** Whether sessions can be created somewhere. */
  get mayCreate(): boolean {
    return [this.host, ...this.links.keys()].some((h) => !['read', 'talk', 'approve'].includes(this.#access(h)) && array(this.grantAt(h)?.channels).length === 0);
  }

  /** Whether the last query for a host's list failed. */
  staleAt(host: string): boolean {
    return accountOf(host) ? Boolean(this.accounts.of(accountOf(host))?.why) : this.hostsStale;
  }

  /** Whether requests to a host's relay are made with a key of this browser. */
  byDeviceAt(host: string): boolean {
    const account = accountOf(host);
    return account ? account.token === undefined : this.byDevice;
  }

  /** URIs of the open session's folders. */
  get folders(): string[] {
    const said = this.link?.store.get(this.session) ?? this.link?.store.sessions.get(this.session);
    return [...new Set([...array(said?.workingDirectories), said?.workingDirectory])].filter((d) => typeof d === 'string');
  }

  get chatUri(): string | undefined {
    if (!this.session) return undefined;
    return this.chat || this.link?.store.chatOf(this.session) || this.link?.seen(this.session)?.chat;
  }

  // ---- token and address

  useToken(given: string): void {
    // Accept the full address that the relay prints, too.
    const params = new URLSearchParams(given.slice(given.indexOf('#') + 1));
    const token = (params.get('token') ?? given).trim();
    if (!tokenForm.test(token)) {
      this.tokenWhy = t`That does not look like a token.`;
      this.draw();
      return;
    }
    this.adopt(token, params.get('host') ?? '');
  }

  /** Adopts a token, and opens a host if named. */
  adopt(token: string, named: string): void {
    this.token = token;
    this.grant = null;
    this.tokenWhy = '';
    keepToken(token);
    this.past.load();
    const host = named || this.host;
    if (this.link?.live && host === this.host) {
      for (const link of this.links.values()) if (!accountOf(link.host)) this.#refresh(link, token);
      this.follow();
      return;
    }
    this.disconnect();
    if (named) setAddress({ host: named });
    this.follow();
  }

  /**
   * Gives a link a new token. Unless the relay confirms the same person and rights, the new
   * token may lead to a different host of that name, which gets nothing from this host.
   */
  async #refresh(link: Link, token: string): Promise<void> {
    const { conn } = link;
    try {
      if (!conn) throw new Error(t`not connected`);
      await conn.request('relay/refreshToken', { channel: ROOT, token });
    } catch {
      if (link.conn !== conn) return;
      link.stop();
      if (!this.byDeviceAt(link.host)) { // a device's next token belongs to the same person
        this.lender.takeBack(link.host);
        if ((this.dialog as { link?: unknown } | null)?.link === link) this.dialog = null;
        this.links.delete(link.host);
        this.conversation.attachments.clear();
        link = this.linkTo(link.host);
      }
      if (conn) link.connect();
    }
  }

  /** The message for a guest whose link has ended; '' for other users. */
  get #linkEnded(): string {
    return array(this.grant?.channels).length > 0 ? t`This session is no longer shared with you: its link has expired or was revoked. Ask its owner for a new link.` : '';
  }

  /** Forgets the token. Without a reason the person wants it, and the further accounts end too. */
  forget(why = ''): void {
    this.#round++;
    if (!why) removeAll();
    keepToken('');
    this.past.erase();
    this.remembered.forget();
    this.left = this.#leaving = undefined;
    this.token = '';
    this.tokenWhy = why;
    this.hosts = [];
    this.grant = null;
    this.dialog = null;
    this.disconnect();
    this.draw();
  }

  /** Whether the device is signed in, instead of a token. */
  get byDevice(): boolean {
    return this.token === device.DEVICE;
  }

  /** Whether this device keeps conversations for reading without a network. */
  get keeps(): boolean {
    return this.byDevice || (this.token !== '' && this.kept);
  }

  who(): Promise<string> {
    return nameOf(this.token);
  }

  saveNow(): void {
    this.past.now();
  }

  /** Whether the token outlives the tab. */
  get kept(): boolean {
    return isKept();
  }

  keep(on: boolean): void {
    keepOnDevice(this.token, on);
    if (!on) this.past.erase();
    this.draw();
  }

  /**
   * Follows the address. A link may come from an attacker, so it changes an existing token or
   * host only with the user's consent.
   */
  route(): void {
    const to = place();
    const token = (params().get('token') ?? '').trim();
    if (this.#sealedLink(token)) return;
    const isLink = !isOurs();
    const otherToken = token !== '' && token !== this.token;
    const otherHost = to.host !== '' && to.host !== this.host && this.host !== '';
    if (this.token !== '' && (otherToken || (isLink && otherHost))) {
      setAddress(this.here); // a token must not stay in the address
      this.swaps.propose(token, to);
    } else if (params().has('token')) {
      setAddress(to);
      this.useToken(token);
      return;
    } else if (isLink) setAddress(to);
    this.follow();
  }

  /** Opens a link for a sealed host, which only shows a dialog. A token in it helps a page without one. */
  #sealedLink(token: string): boolean {
    const link = location.hash;
    const has = (name: string) => params().has(name);
    if (!has('code') && !has('admit') && !has('grants')) return false;
    const host = params().get('admit') ?? '';
    setAddress(this.here); // a code must not stay in the address
    if (token && !this.token) this.useToken(token);
    else this.follow();
    if (host && this.token) this.open({ kind: 'sealed', link: this.linkTo(host), request: link });
    else this.open({ kind: 'pair', link });
    return true;
  }

  /** Follows back and forward, and skips entries for closed panes. */
  #wander(): void {
    if (isOurs() && wentBack() && fragment(this.here) === fragment(place())) history.back();
    else this.route();
  }

  /** The place in view. */
  get here(): Partial<Place> {
    const { host, session, chat, pane } = this;
    return { host, session, chat, pane };
  }

  /** Follows the address after it has been checked. */
  follow(): void {
    const to = place();
    const moved = to.host !== this.host || to.session !== this.session;
    const before = this.link;
    if (moved) this.past.tick(); // keeps the conversation that leaves the view
    this.host = to.host;
    this.session = to.session;
    this.chat = to.chat;
    if (this.pane?.channel !== to.pane?.channel || this.pane?.kind !== to.pane?.kind) this.pane = to.pane; // a pane already in view keeps its title
    if (to.turn || moved) this.sought = to.turn;
    if (moved) {
      this.conversation.note = '';
      before?.errors.clear();
      before?.tidy();
    }
    if (this.token && to.host) {
      const link = this.linkTo(to.host);
      if (!link.conn) link.connect();
      this.#enter(link);
    }
    if (this.token) {
      this.refreshHosts();
      this.remembered.look();
    }
    this.draw();
  }

  /** Clears a link's turn, once shown or known to be missing. */
  arrived(): void {
    this.sought = '';
    setAddress(this.here);
  }

  linkTo(host: string): Link {
    let link = this.links.get(host);
    if (!link) {
      link = new Link(host, {
        token: () => tokenOf(host, this.token),
        wanted: (l) => this.#wanted(l),
        state: (l, state) => this.#changed(l, state),
        action: (l, envelope) => this.#action(l, envelope),
        notification: (l, method, params) => this.#notified(l, method, params),
        mcp: (l, channel, method, params) => { if (l === this.link) this.mcpSaid(channel, method, params); },
        request: (l, method, params) => this.lender.asked(l, method, params),
        fresh: (l) => this.lender.forget(l),
        synced: (l) => this.synced(l),
        draw: () => this.draw(),
        listed: () => this.hosts.find((h) => h.host === host),
      });
      this.links.set(host, link);
    }
    return link;
  }

  #wanted(link: Link): string[] {
    if (link !== this.link || !this.session) return [];
    return [this.session, this.chatUri, ['file', 'files', 'servers'].includes(this.pane?.kind ?? '') ? '' : this.pane?.channel].filter(Boolean) as string[];
  }

  #enter(link = this.link): void {
    if (!link) return;
    link.tidy();
    link.enter();
  }

  disconnect(): void {
    for (const link of this.links.values()) link.stop();
    this.links.clear();
    this.lender.takeBack();
    this.pane = null;
    this.conversation.attachments.clear();
    this.conversation.note = '';
  }

  /** Changes to the token and place that the user has accepted. */
  take(token: string, to: Place): void {
    if (token) this.adopt(token, to.host);
    if (!token || to.session) this.#go({ ...to, host: token ? to.host || this.host : to.host });
  }

  #go(to: Partial<Place>): void {
    setAddress(to, 'pushState');
    this.follow();
  }

  chooseHost(host: string): void {
    this.onlyHost = this.onlyHost === host && this.host === host ? '' : host;
    this.#go({ host });
  }

  openSession(host: string, session: string): void {
    if (session === this.session && host === this.host) return;
    this.#go({ host, session });
    if (session) this.sessions.opened(host, session);
  }

  /** Opens a session's chat at its question. */
  openQuestion(host: string, session: string, chat = ''): void {
    this.openSession(host, session);
    if (chat && chat !== this.chatUri) this.chooseChat(chat);
    this.sought = itsQuestion;
    this.draw();
  }

  /** Scrolls to a turn of the chat in view. */
  seek(turn: string): void {
    this.sought = turn;
    this.draw();
  }

  /** Back to the list. */
  leave(): void {
    if (this.pane) this.showPane(null);
    else this.openSession(this.host, '');
  }

  chooseChat(chat: string): void {
    const { host, session } = this;
    this.conversation.note = '';
    this.#go({ host, session, chat: chat === this.link?.store.chatOf(session) ? '' : chat });
  }

  /** Shows a pane beside the chat, or hides it if it is open. */
  showPane(pane: Pane | null): void {
    const had = this.pane;
    this.pane = pane && had?.channel === pane.channel && had.kind === pane.kind ? null : pane;
    if (this.pane) this.link?.errors.delete(this.pane.channel);
    setAddress(this.here, this.pane && !had ? 'pushState' : 'replaceState');
    this.#enter();
    this.draw();
  }

  open(dialog: Dialog | null): void {
    this.dialog = dialog;
    this.draw();
  }

  // ---- hosts

  #asked = 0; // time of the last query
  #round = 0; // only answers to the latest query count

  #own: HostInfo[] = []; // the hosts of the page's own account

  async refreshHosts(): Promise<void> {
    this.#asked = Date.now();
    this.accounts.look();
    const round = ++this.#round;
    let answer;
    try {
      answer = await hostsOf(this.token);
      const { status: said, body } = answer;
      if (round !== this.#round) return;
      if (said === 401) {
        this.forget(this.byDevice ? t`This device is not signed in.` : this.#linkEnded || t`The relay no longer accepts this token.`);
        return;
      }
      if (said !== 200) throw new Error(t`The relay answered ${said}.`);
      this.#own = array(body.hosts);
      setClock(body.now);
      this.grant = body.token ?? null;
      this.hostsNote = this.#own.length || accounts().length ? '' : t`This token opens no host on this relay.`;
      this.hostsStale = false;
      this.#list();
    } catch (err) {
      if (round !== this.#round) return;
      this.hostsStale = true;
      this.hostsNote = answer ? (err as Error).message : t`The relay is unreachable.`;
    }
    this.draw();
  }

  /** Takes the hosts of all accounts. */
  #list(): void {
    if (this.token === '') return;
    this.hosts = [...this.#own, ...this.accounts.hosts()];
    this.#hostsKnown();
    this.draw();
  }

  /** Ends connections for which there is no authority any more, and forgets what they have shown. */
  #dropLinks(which: (link: Link) => boolean): void {
    for (const link of [...this.links.values()].filter(which)) {
      link.stop();
      this.lender.takeBack(link.host);
      this.links.delete(link.host);
      if (link.host === this.host) this.#go({});
    }
  }

  /** Follows the accounts after one was added or removed. */
  accountsChanged(): void {
    this.#dropLinks((l) => l.host.includes('@') && !accountOf(l.host));
    if (this.onlyHost.includes('@') && !accountOf(this.onlyHost)) this.onlyHost = '';
    this.#list();
    this.saveNow();
    this.refreshHosts();
  }

  /** Applies the relays' host lists. */
  #hostsKnown(): void {
    if (!this.host && this.hosts.length === 1 && accounts().length === 0) {
      setAddress({ host: this.hosts[0].host });
      this.follow();
    }
    for (const info of this.hosts) {
      const link = this.links.get(info.host);
      const state = link?.conn?.state;
      const closed = state && 'code' in state ? state.code : undefined;
      if (info.state !== 'online') {
        // The relay may close a connection just before its host list shows the reason.
        if (link) link.away = link.listedAway = true;
        if (link?.conn && info.host !== this.host && !link.live) link.stop();
      } else if (!link || !link.conn) {
        if (this.links.size < linksMax || link) this.linkTo(info.host).connect();
      } else if (link.listedAway || closed !== code.hostOffline) {
        if (link.away && state?.name === 'retrying') link.conn.wake();
        link.away = link.listedAway = false;
      }
    }
    this.remembered.look();
  }

  #lively = new Set<Link>(); // links that were live when they last changed

  #changed(link: Link, state: ConnectionState): void {
    const account = accountOf(link.host);
    if (account && state.name === 'ended' && state.action === 'token') {
      link.stop(); // a key has a newer token; otherwise the answer says why
      this.accounts.ask(account).then((why) => { if (!why && !account.token && !link.conn && this.links.get(link.host) === link) link.connect(); });
      return;
    }
    if (state.name === 'ended' && state.action === 'token' && this.token === device.DEVICE) {
      link.stop(); // a device has a newer token, unless it was removed; then the host list reports it
      this.refreshHosts().then(() => { if (this.token === device.DEVICE && !link.conn) link.connect(); });
      return;
    }
    if (state.name === 'ended' && state.action === 'token') {
      this.forget(this.#linkEnded || `${sentence(state.reason || t`token expired`)} ${t`Please paste a new one.`}`);
      return;
    }
    if (state.name === 'live') {
      this.#lively.add(link);
      this.remembered.learn(link);
    } else if (this.#lively.delete(link)) this.past.lost(link);
    // Browsers hide the reason for a refused WebSocket. The host list gives it.
    if (state.name !== 'connecting' && (link.host === this.host || state.name !== 'greeting')) this.refreshHosts();
    this.draw();
  }

  #action(link: Link, envelope?: Envelope): void {
    if (link === this.link && this.session) {
      const what = envelope?.action?.type;
      // The session's default chat or its canvases may be new.
      if (what === undefined || envelope?.channel === this.session || what === 'chat/canvasesChanged') {
        this.#closedCanvas(link);
        link.enter();
        this.#lent(link);
      }
      for (const { channel, payload } of link.store.takeMessages()) this.deliver(channel, payload);
    } else link.store.takeMessages();
    if (envelope && link === this.link && envelope.channel === this.chatUri && grows.has(envelope.action?.type) && envelope.rejectionReason === undefined) this.drawGrown();
    else this.draw();
  }

  /** Declares this device's canvases to the open session and shows a new one. */
  #lent(link: Link): void {
    this.lender.tell(link, this.session);
    const channel = this.lender.fresh(link, this.session);
    if (channel && this.pane?.channel !== channel) this.showPane({ kind: 'canvas', channel });
  }

  #closedCanvas(link: Link): void {
    if (this.pane?.kind !== 'canvas' || !link.store.get(this.session) || !link.store.get<ChatState>(this.chatUri)) return;
    if (link.store.canvasesOf(this.session).some((c) => c.channel === this.pane!.channel)) return;
    this.pane = null; // the canvas was closed
    setAddress(this.here);
    link.tidy();
  }

  #notified(link: Link, method: string, params: Params): void {
    if (method === 'auth/required') {
      const resource = text(params?.resource) || text((params?.resource as { resource?: unknown } | undefined)?.resource);
      link.again(resource, params?.reason === 'expired');
    }
    if (method === 'relay/signedIn') link.codes.get(text(params?.id))?.(text(params?.error));
    if (method === 'relay/rememberKeysChanged') this.remembered.learn(link);
    if (method === 'root/sessionRemoved') this.lender.lend(link, text(params?.session), []);
    this.draw();
  }

  retry(): void {
    const { link } = this;
    if (link?.conn?.state.name === 'ended') {
      link.stop();
      link.connect();
    } else link?.conn?.wake(true);
    this.refreshHosts();
  }

  /** Returns a place's address, to share: at the page of its account's relay. */
  addressOf(to: Partial<Place>): string {
    const account = accountOf(to.host ?? '');
    return account ? `${account.relay}/${fragment({ ...to, host: bare(to.host!) })}` : location.origin + location.pathname + fragment(to);
  }

  // ---- other requests to the host

  /** Sends the open session's host a request; rejects without a connection. */
  request<M extends string>(method: M, params: object): Promise<Result<M>> {
    if (!this.link?.live) return Promise.reject(new Error(t`not connected`));
    return this.link.conn!.request(method, params);
  }

  /** Reads a resource from the host. */
  async read(uri: string): Promise<Read> {
    return this.request('resourceRead', { channel: ROOT, uri });
  }

  /** Sends an MCP server a request. */
  mcp<M extends string>(channel: string, method: M, params: object): McpRequest<Result<M>> {
    if (!this.link?.live) return { result: Promise.reject(new Error(t`not connected`)), cancel() {} };
    return this.link.conn!.mcp(channel, method, params);
  }

  mcpNotify(channel: string, method: string, params: object): void {
    if (this.link?.live) this.link.conn!.mcpNotify(channel, method, params);
  }

  /** Opens the sign-in dialog for an MCP server. */
  signIn(who: string, wants: AuthRequired | undefined): void {
    if (this.link && isObject(wants?.resource)) this.open({ kind: 'sign-in', link: this.link, who, resources: [wants.resource], more: wants });
  }

  /** Sends the relay a request. */
  ask<T = object>(method: string, path: string, json?: object): Promise<Answer<T>> {
    return ask(this.token, method, path, json);
  }

  /** Sends a host's relay a request: as the host's account. */
  askAt<T = object>(host: string, method: string, path: string, json?: object): Promise<Answer<T>> {
    return ask(tokenOf(host, this.token), method, path, json);
  }

  waking = new Map<string, string>(); // host to the state or result of a request to wake it

  /** Whether this person may wake a host, and the relay can. */
  mayWake(host: string): boolean {
    const info = this.hosts.find((h) => h.host === host);
    return Boolean(info?.wakes && info.state !== 'online' && this.byDeviceAt(host) && this.mayOperate && !this.narrow && !this.staleAt(host));
  }

  /** Has the relay wake a host. */
  async wake(host: string): Promise<void> {
    this.waking.set(host, t`Waking…`);
    this.draw();
    const said = await this.askAt<{ by?: string; after?: number }>(host, 'POST', `api/hosts/${encodeURIComponent(bare(host))}/wake`)
      .then(({ status, body }) => (status === 200 ? t`Woken by ${body?.by === 'relay' ? t`the relay` : `“${text(body?.by)}”`}, back after ${Math.round(body?.after ?? 0)} s.` : t`Not woken: ${text(body?.error) || t`the relay answered ${status}`}.`), (err: Error) => t`Not woken: ${err.message}.`);
    this.waking.set(host, said);
    setTimeout(() => { if (this.waking.get(host) === said) this.waking.delete(host); this.draw(); }, wokenFor);
    this.refreshHosts();
    this.draw();
  }

  #leaving: Promise<void> | undefined;

  /** Follows the person's items for absent hosts. */
  #followLeft(): void {
    this.#leaving ??= import('./left').then(async ({ Leaving }) => {
      const left = new Leaving(this.#ownPart());
      await left.start();
      if (this.byDevice) this.left = left;
    }).catch(() => {}); // a browser without X25519: nothing can be left
    this.left?.look();
  }

  /** The part of the page for the own account: nothing is left for hosts of further accounts. */
  #ownPart(): LeftPage {
    const page = this;
    return {
      get hosts() { return page.#own; },
      get hostsStale() { return page.hostsStale; },
      get links() { return new Map([...page.links].filter(([host]) => !accountOf(host))); },
      get host() { return page.host; },
      get session() { return page.session; },
      get chatUri() { return page.chatUri; },
      get readOnly() { return page.grant?.access === 'read'; },
      who: () => page.who(), ask: (method, path, json) => page.ask(method, path, json), draw: () => page.draw(),
    };
  }

  /** Whether the open session's host is away, and takes items. */
  get leaves(): boolean {
    return !this.link?.live && Boolean(this.left?.takes(this.host));
  }

  /** Leaves a message for the open session at the relay. Wake is an input's local time, or ''. */
  leaveMessage(words: string, wake: string): Promise<void> {
    const { host, session, chatUri } = this;
    const model = this.conversation.models.get(session);
    return this.left!.leave(host, { kind: 'message', session, ...(chatUri ? { chat: chatUri } : {}), turn: randomId(), text: words, ...(model ? { model } : {}) }, toRelay(wake));
  }

  /** Sends the relay a request; rejects unless it succeeds. */
  async relay<T = object>(method: string, path: string, json?: object): Promise<T> {
    const { status: said, body } = await this.ask<T>(method, path, json);
    if (said !== 200) throw new Error(text(body?.error) || t`The relay answered ${said}.`);
    return body;
  }

  // ---- events

  start(): void {
    addEventListener('hashchange', () => this.route());
    addEventListener('popstate', () => this.#wander());
    addEventListener('online', () => this.#network(true));
    addEventListener('offline', () => this.#network(false));
    addEventListener('storage', (e: StorageEvent) => { if (tookChange(e.key)) this.accountsChanged(); });
    document.addEventListener('visibilitychange', () => {
      if (!document.hidden) {
        for (const link of this.links.values()) link.conn?.wake(true);
        if (this.token) this.refreshHosts();
      }
      this.draw();
    });
    addEventListener('pagehide', () => this.sessions.flush());
    document.addEventListener('visibilitychange', () => { if (document.hidden) this.past.tick(Date.now(), true); });
    navigator.serviceWorker?.addEventListener('message', ({ data }) => { // the user clicked a notification
      const { host, session, asks } = data?.open ?? {};
      if (!this.token || !host) return;
      if (asks === true) this.openQuestion(text(host), text(session));
      else this.openSession(text(host), text(session));
    });
    if (sessionStorage.getItem(begunKey)) this.open({ kind: 'account', first: begun() }); // the page was loaded for it
    setInterval(() => this.#tick(), 1000);
    if (this.token) this.past.load();
    this.route();
    if (this.token === '') this.#byDevice();
  }

  /** Uses this device's key if the device is signed in. */
  async #byDevice(): Promise<void> {
    if (this.token !== '') return;
    if (!(await device.signedIn())) {
      if (await device.name().catch(() => '?') === '') { // signed out, on its page
        this.past.erase();
        removeAll();
      }
      return;
    }
    if (this.token !== '') return;
    this.adopt(device.DEVICE, '');
  }

  #deviceTokens = new Map<string, string>(); // account to the token that its connections use now

  /** Renews the tokens of an account's connections before they expire. */
  async #renew(account?: Account): Promise<void> {
    try {
      const next = await device.token(account);
      const had = this.#deviceTokens.get(account?.name ?? '') ?? '';
      this.#deviceTokens.set(account?.name ?? '', next);
      if (had === '' || had === next) return;
      for (const link of this.links.values()) if (link.live && accountOf(link.host)?.name === account?.name) this.#refresh(link, next);
    } catch {
      // The next query for hosts tries again.
    }
  }

  /** Applies the browser's network state, unless the relay is on this machine. */
  #network(there: boolean): void {
    this.offline = !there && !/^(localhost|127\.0\.0\.1|\[::1\])$/.test(location.hostname);
    for (const link of this.links.values()) link.conn?.wake(true);
    if (there && this.token) this.refreshHosts();
    this.draw();
  }

  #tick(): void {
    for (const link of this.links.values()) link.store.expire(untaken);
    const pause = this.link?.conn && !this.link.live ? hostsSoon : hostsEvery;
    if (this.token && !document.hidden && Date.now() - this.#asked > pause) this.refreshHosts();
    if (this.token === device.DEVICE) this.#renew();
    if (this.token) for (const a of accounts()) if (a.token === undefined) this.#renew(a);
    if (this.byDevice && !this.narrow && !document.hidden) this.#followLeft();
    this.questions.follow();
    this.past.tick();
    this.draw(); // updates times and countdowns
  }
}

export const app = new App();
