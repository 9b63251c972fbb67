// The page: its token, the place in view, and its parts. A token in the address is removed at once. Each part
// declares which members of the page it uses: rights.ts, hosts.ts, connections.ts, events.ts, requests.ts,
// conversation.ts, sessions.ts, asked.ts, offline.ts, remembered.ts, absent.ts, accounts.ts, lend.ts.

import { Absent } from './absent';
import { Accounts, accountOf, accounts, bare, type Account } from './accounts';
import { fragment, isOurs, itsQuestion, params, place, setAddress, wentBack, type Pane, type Place } from './address';
import type { AuthRequired, Params } from './ahp';
import { Questions } from './asked';
import { Connections } from './connections';
import { Conversation } from './conversation';
import * as device from './device';
import type { Dialog } from './dialog';
import { follow } from './events';
import { Hosts } from './hosts';
import { Lender } from './lend';
import type { Link } from './link';
import { Offline } from './offline';
import { forgetLinks, joined, keepLink, relay } from './pins';
import { ask, isKept, keepOnDevice, keepToken, nameOf, stored, tokenForm } from './relay';
import { Remembered } from './remembered';
import { Requests } from './requests';
import { Rights } from './rights';
import { ROOT, RpcError } from './rpc';
import { Sessions } from './sessions';
import { array, isObject } from './store';
import { Swaps } from './swap';
import { forgetUnsent } from './unsent';
import { sentence } from './words';
import { t } from './language';

export class App {
  token = stored();
  tokenWhy = '';
  synced: (link: Link) => void = () => {}; // called first on each connection

  host = '';
  session = ''; // URI of the open session
  chat = ''; // URI of the chat in view, '' for the session's first
  pane: Pane | null = null;
  sought = ''; // id of a linked turn until it is shown
  dialog: Dialog | null = null;
  readonly swaps: Swaps = new Swaps(this); // changes that links propose
  #asked: (() => void) | undefined; // opens the dialog of a link that came before a token
  #shared: { host: string; keys: string } | undefined; // of a link that the page has not followed yet
  search = '';
  onlyHost = ''; // list only this host's sessions, '' for all
  readonly conversation: Conversation = new Conversation(this);
  readonly sessions: Sessions = new Sessions(this);
  readonly questions: Questions = new Questions(this);
  readonly past: Offline = new Offline(this);
  readonly remembered: Remembered = new Remembered(this);
  readonly accounts: Accounts = new Accounts({
    askAs: (token, method, path) => ask(token, method, path),
    listed: () => this.hosts.take(),
    signedOut: (account) => this.#connections.dropOf(account),
  });
  readonly hosts: Hosts = new Hosts(this);
  readonly rights: Rights = new Rights(this);
  readonly #connections: Connections = new Connections(this);
  readonly links: Map<string, Link> = this.#connections.all; // by host
  readonly requests: Requests = new Requests(this);
  readonly absent: Absent = new Absent(this);
  lender = new Lender(() => this.draw(), () => location.hostname);

  draw: () => void = () => {};
  drawGrown: () => void = () => {}; // draws only answers that have grown
  drawLog: (() => void) | null = null; // draws the conversation, if one is in view
  mcpSaid: (channel: string, method: string, params: Params) => void = () => {};
  deliver: (channel: string, payload: unknown) => void = () => {};

  get link(): Link | undefined {
    return this.links.get(this.host);
  }

  /** Whether the page authenticates at a host's relay with a key of this browser. */
  byDeviceAt(host: string): boolean {
    const account = accountOf(host);
    return account ? account.token === undefined : this.byDevice;
  }

  /** Whether the relay makes links to a host's sessions. A sealed host shares its sessions itself. */
  sharesAt(host: string): boolean {
    return this.byDeviceAt(host) && !this.links.get(host)?.pinned && this.hosts.get(host)?.sealed !== true;
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
    // The full address that the relay prints is accepted, too.
    const params = new URLSearchParams(given.slice(given.indexOf('#') + 1));
    const token = (params.get('token') ?? given).trim();
    if (!tokenForm.test(token)) {
      this.tokenWhy = t`That does not look like a token.`;
      this.draw();
      return;
    }
    this.adopt(token, params.get('host') ?? '');
  }

  /** Uses a token, and opens a host if one is named. */
  adopt(token: string, named: string): void {
    if (this.token) forgetUnsent();
    this.token = token;
    this.hosts.grant = null;
    this.tokenWhy = '';
    keepToken(token);
    this.past.load();
    const host = named || this.host;
    if (this.link?.live && host === this.host) {
      for (const link of this.links.values()) if (!accountOf(link.host)) this.#refresh(link, token);
      this.follow();
      this.#answer();
      return;
    }
    this.disconnect();
    if (named) setAddress({ host: named });
    this.follow();
    this.#answer();
  }

  /**
   * Gives a connection a new token. If the relay does not confirm the same person and rights, the new token
   * may lead to another host with this name, so the page then drops the connection and all state of this
   * host.
   */
  async #refresh(link: Link, token: string): Promise<void> {
    const { conn } = link;
    try {
      if (!conn) throw new Error(t`not connected`);
      await conn.request('relay/refreshToken', { channel: ROOT, token });
    } catch (err) {
      if (link.conn !== conn || this.byDeviceAt(link.host) && !(err instanceof RpcError)) return; // a lost connection with a key resumes with a newer token
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
    return array(this.hosts.grant?.channels).length > 0 ? t`This session is no longer shared with you: its link has expired or was revoked. Ask its owner for a new link.` : '';
  }

  /**
   * Forgets the token. Without a reason, the person has asked for it, and the further accounts are removed
   * too.
   */
  forget(why = ''): void {
    this.hosts.forget();
    if (!why) this.#leaveAll();
    keepToken('');
    forgetLinks();
    this.past.erase();
    forgetUnsent();
    this.remembered.forget();
    this.absent.forget();
    this.token = '';
    this.tokenWhy = why;
    this.dialog = null;
    this.disconnect();
    this.draw();
  }

  /** Removes the further accounts. */
  #leaveAll(): void {
    if (accounts().length > 0) import('./leave').then((m) => m.leaveAll()).catch(() => {});
  }

  /** Whether the page uses a signed-in device's key instead of a token. */
  get byDevice(): boolean {
    return this.token === device.DEVICE;
  }

  /** Whether this device stores conversations for reading without a network. */
  get keeps(): boolean {
    return this.byDevice || (this.token !== '' && this.kept);
  }

  who(): Promise<string> {
    return nameOf(this.token);
  }

  saveNow(): void {
    this.past.now();
  }

  /** Whether the token is stored beyond this tab. */
  get kept(): boolean {
    return isKept();
  }

  keep(on: boolean): void {
    keepOnDevice(this.token, on);
    if (!on) this.past.erase();
    this.draw();
  }

  /**
   * Follows the address. A link may come from an attacker, so it replaces a token or host only with the
   * user's consent.
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

  /**
   * Opens a link for a sealed host, which only shows a dialog. A page without a token uses the token in the
   * link.
   */
  #sealedLink(token: string): boolean {
    const link = location.hash;
    const has = (name: string) => params().has(name);
    if (has('link')) {
      this.#sharedLink(params(), place()).catch((err) => { this.tokenWhy = err.message; this.draw(); });
      return true;
    }
    if (!has('code') && !has('admit') && !has('grants')) return false;
    const asked = params().get('admit') ?? '';
    const host = asked && this.named(asked, params().get('relay') ?? relay());
    setAddress(this.here); // a code must not stay in the address
    if (!token && !this.token) this.tokenWhy = t`Sign in first. Then this page continues with the link.`;
    if (token && !this.token) this.useToken(token);
    else this.follow();
    this.#asked = () => {
      if (host && this.token) this.open({ kind: 'sealed', link: this.linkTo(host), request: link });
      else this.open({ kind: 'pair', link });
    };
    if (this.token) this.#answer(); // else the dialog would hide the form
    return true;
  }

  #answer(): void {
    this.#asked?.();
    this.#asked = undefined;
  }

  /** A host's name in this page: see Accounts. */
  named(host: string, at: string): string {
    return this.accounts.named(host, at, this.hosts.own);
  }

  /**
   * Opens a link to a session of a sealed host. If the page has a token, it asks first and keeps that token.
   */
  async #sharedLink(link: URLSearchParams, to: Place): Promise<void> {
    setAddress(this.here); // keys must not stay in the address
    this.follow();
    if (link.get('relay')?.replace(/\/$/, '') !== relay()) throw new Error(t`This link is for a different relay.`);
    this.#shared = { host: to.host, keys: `${link.get('hostkey')} ${link.get('link')}` };
    if (this.token) {
      this.swaps.propose('', to);
      return;
    }
    this.take(await joined(link.get('join') ?? ''), to);
  }

  #keepShared(host: string): void {
    if (this.#shared?.host === host) keepLink(host, this.#shared.keys);
    this.#shared = undefined;
  }

  /** Follows back and forward. Entries for closed panes are skipped. */
  wander(): void {
    if (isOurs() && wentBack() && fragment(this.here) === fragment(place())) history.back();
    else this.route();
  }

  /** The place in view. */
  get here(): Partial<Place> {
    const { host, session, chat, pane } = this;
    return { host, session, chat, pane };
  }

  /** Follows an address that has been checked. */
  follow(): void {
    const to = place();
    const moved = to.host !== this.host || to.session !== this.session;
    const before = this.link;
    if (moved) this.past.tick(); // stores the conversation that leaves the view
    this.host = to.host;
    this.session = to.session;
    this.chat = to.chat;
    if (this.pane?.channel !== to.pane?.channel || this.pane?.kind !== to.pane?.kind) this.pane = to.pane; // a pane that is already in view keeps its title
    if (to.turn || moved) this.sought = to.turn;
    if (moved) {
      this.conversation.note = '';
      before?.errors.clear();
      before?.tidy();
      this.sessions.opened();
    }
    if (this.token && to.host) {
      const link = this.linkTo(to.host);
      if (!link.conn) link.connect();
      this.#enter(link);
    }
    if (this.token) {
      this.hosts.refresh();
      this.remembered.look();
    }
    this.draw();
  }

  /** Clears the linked turn, once it is shown or known to be missing. */
  arrived(): void {
    this.sought = '';
    setAddress(this.here);
  }

  linkTo(host: string): Link {
    return this.#connections.to(host);
  }

  #enter(link = this.link): void {
    if (!link) return;
    link.tidy();
    link.enter();
  }

  disconnect(): void {
    this.#connections.end();
    this.pane = null;
  }

  /** Changes token and place as the user has accepted. */
  take(token: string, to: Place): void {
    this.#keepShared(to.host);
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
  }

  /** Opens a session's chat at its question. */
  openQuestion(host: string, session: string, chat = ''): void {
    const first = this.links.get(host)?.store.chatOf(session); // chatUri may be that of the last visit
    if (session !== this.session || host !== this.host || (chat && chat !== (this.chat || first))) this.#go({ host, session, chat: chat === first ? '' : chat });
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

  /** Closes the pane of a canvas that has ended. */
  closePane(): void {
    this.pane = null;
    setAddress(this.here);
  }

  /** Leaves a host for which the page has no authority any more. */
  leaveHost(): void {
    this.#go({});
  }

  // ---- hosts

  /** The relay refuses the token for the list of hosts. */
  refused(): void {
    this.forget(this.byDevice ? t`This device is not signed in.` : this.#linkEnded || t`The relay no longer accepts this token.`);
  }

  /** The relay no longer accepts a connection's token. */
  expired(reason: string): void {
    this.forget(this.#linkEnded || `${sentence(reason || t`token expired`)} ${t`Please paste a new one.`}`);
  }

  /** Follows a different tab's change of the accounts. This tab may have written for a removed one meanwhile. */
  accountsChangedElsewhere(): void {
    this.accountsChanged();
    import('./leave').then((m) => m.sweep()).catch(() => {});
  }

  /** Follows the accounts after one was added or removed. */
  accountsChanged(): void {
    this.#connections.drop((l) => l.host.includes('@') && !accountOf(l.host));
    if (this.onlyHost.includes('@') && !accountOf(this.onlyHost)) this.onlyHost = '';
    this.hosts.take();
    if (!this.token) return;
    this.saveNow();
    this.hosts.refresh();
  }

  /** Applies the relays' host lists. */
  hostsKnown(): void {
    const [first, ...more] = this.hosts.all;
    if (!this.host && first && more.length === 0 && accounts().length === 0) {
      setAddress({ host: first.host });
      this.follow();
    }
    this.#connections.hostsKnown();
    this.remembered.look();
  }

  retry(): void {
    const { link } = this;
    if (link?.conn?.state.name === 'ended') {
      link.stop();
      link.connect();
    } else link?.conn?.wake(true);
    this.hosts.refresh();
  }

  /** Returns the address of a place for sharing: on the page of the account's own relay. */
  addressOf(to: Partial<Place>): string {
    const account = accountOf(to.host ?? '');
    return account ? `${account.relay}/${fragment({ ...to, host: bare(to.host!) })}` : location.origin + location.pathname + fragment(to);
  }

  /** Opens the sign-in dialog for an MCP server. */
  signIn(who: string, wants: AuthRequired | undefined): void {
    if (this.link && isObject(wants?.resource)) this.open({ kind: 'sign-in', link: this.link, who, resources: [wants.resource], more: wants });
  }

  // ---- events

  start(): void {
    follow(this);
    this.route();
    if (this.token === '') this.#byDevice();
  }

  /** Uses this device's key if the device is signed in. It tries again if the module for the key cannot be loaded. */
  async #byDevice(pause = 2_000): Promise<void> {
    if (this.token !== '' || !globalThis.crypto?.subtle) return;
    const name = await device.name().catch(() => undefined);
    if (this.token !== '') return;
    if (name) this.adopt(device.DEVICE, '');
    else if (name === undefined) setTimeout(() => this.#byDevice(Math.min(2 * pause, 60_000)), pause);
    else { // the device was signed out on its page
      this.past.erase();
      this.#leaveAll();
    }
  }

  #deviceTokens = new Map<string, string>(); // account to the token that its connections use now

  /** Renews the tokens of an account's connections before they expire. */
  async renew(account?: Account): Promise<void> {
    try {
      const next = await device.token(account);
      const had = this.#deviceTokens.get(account?.name ?? '') ?? '';
      this.#deviceTokens.set(account?.name ?? '', next);
      if (had === '' || had === next) return;
      for (const link of this.links.values()) if (link.live && accountOf(link.host)?.name === account?.name) this.#refresh(link, next);
    } catch {
      // The next request for hosts tries again.
    }
  }
}

export const app = new App();

/** The parts of the page, for components that need nothing else of it. */
export const { absent, conversation, hosts, lender, links, questions, remembered, requests, rights, sessions } = app;

/** The place in view, read-only. */
export const view: Readonly<Pick<App, 'here' | 'host' | 'session' | 'chat' | 'chatUri' | 'folders' | 'link' | 'onlyHost' | 'pane' | 'dialog' | 'search'>> = app;

/** Functions that go to other places, or look again. */
export const nav: Pick<App, 'open' | 'openSession' | 'openQuestion' | 'seek' | 'showPane' | 'chooseChat' | 'signIn' | 'addressOf' | 'retry'> = app;

/** The person's token or device, and further accounts. */
export const person: Readonly<Pick<App, 'token' | 'byDevice' | 'sharesAt' | 'accounts' | 'accountsChanged'>> = app;

/** Receivers of a host's messages. Modules that are loaded later set them. */
export const receivers: Pick<App, 'mcpSaid' | 'deliver'> = app;

export function draw(): void {
  app.draw();
}
