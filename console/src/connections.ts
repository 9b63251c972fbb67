// The page's connections to the hosts, and what the page does with their events.

import { accountOf, tokenOf, type Account, type Accounts } from './accounts';
import type { Pane } from './address';
import type { ChatState, Envelope, Params } from './ahp';
import type { Conversation } from './conversation';
import type { Hosts } from './hosts';
import type { Lender } from './lend';
import { Link } from './link';
import type { Offline } from './offline';
import type { Remembered } from './remembered';
import { code, type ConnectionState } from './rpc';
import { runningTerminal, text } from './store';

const linksMax = 16; // hosts connected at the same time

// Actions that only append to an answer. Most actions have these types.
const grows = new Set(['chat/delta', 'chat/reasoning', 'chat/toolCallDelta']);

// Actions that begin or end the output of a running tool.
const follows = new Set(['chat/toolCallContentChanged', 'chat/toolCallComplete', 'chat/turnComplete', 'chat/turnCancelled', 'chat/error']);

/** The parts of the page that its connections use. */
export interface ConnectionsPage {
  readonly token: string;
  readonly host: string;
  readonly session: string;
  readonly chatUri: string | undefined;
  readonly pane: Pane | null;
  readonly hosts: Pick<Hosts, 'all' | 'get' | 'refresh'>;
  readonly accounts: Pick<Accounts, 'ask'>;
  readonly conversation: Pick<Conversation, 'attachments' | 'note'>;
  readonly lender: Pick<Lender, 'asked' | 'forget' | 'fresh' | 'lend' | 'takeBack' | 'tell'>;
  readonly past: Pick<Offline, 'lost'>;
  readonly remembered: Pick<Remembered, 'learn'>;
  synced(link: Link): void;
  expired(reason: string): void; // the relay no longer accepts the token
  showPane(pane: Pane): void;
  closePane(): void;
  leaveHost(): void;
  mcpSaid(channel: string, method: string, params: Params): void;
  deliver(channel: string, payload: unknown): void;
  draw(): void;
  drawGrown(): void;
}

export class Connections {
  all = new Map<string, Link>(); // by host
  #lively = new Set<Link>(); // links that were live at their last change
  #page: ConnectionsPage;

  constructor(page: ConnectionsPage) {
    this.#page = page;
  }

  /** Returns the link to a host, and makes it if there is none. */
  to(host: string): Link {
    let link = this.all.get(host);
    if (!link) {
      const page = this.#page;
      link = new Link(host, {
        token: () => tokenOf(host, page.token),
        wanted: (l) => this.#wanted(l),
        state: (l, state) => this.#changed(l, state),
        action: (l, envelope) => this.#action(l, envelope),
        notification: (l, method, params) => this.#notified(l, method, params),
        mcp: (l, channel, method, params) => { if (this.#isOpen(l)) page.mcpSaid(channel, method, params); },
        request: (l, method, params) => page.lender.asked(l, method, params),
        fresh: (l) => page.lender.forget(l),
        synced: (l) => page.synced(l),
        draw: () => page.draw(),
        listed: () => page.hosts.get(host),
      });
      this.all.set(host, link);
    }
    return link;
  }

  /** Whether a link is to the host in view. */
  #isOpen(link: Link): boolean {
    return link === this.all.get(this.#page.host);
  }

  #wanted(link: Link): string[] {
    const { session, chatUri, pane } = this.#page;
    if (!this.#isOpen(link) || !session) return [];
    return [session, chatUri, ['file', 'files', 'servers'].includes(pane?.kind ?? '') ? '' : pane?.channel, runningTerminal(link.store.get<ChatState>(chatUri))].filter(Boolean) as string[];
  }

  /** Ends the connections for which the page has no authority any more, and removes their state. */
  drop(which: (link: Link) => boolean): void {
    for (const link of [...this.all.values()].filter(which)) {
      link.stop();
      this.#page.lender.takeBack(link.host);
      this.all.delete(link.host);
      if (link.host === this.#page.host) this.#page.leaveHost();
    }
  }

  /** Ends the connections of an account. */
  dropOf(account: Account): void {
    this.drop((l) => accountOf(l.host)?.name === account.name);
  }

  /** Ends all connections. */
  end(): void {
    for (const link of this.all.values()) link.stop();
    this.all.clear();
    this.#page.lender.takeBack();
    this.#page.conversation.attachments.clear();
    this.#page.conversation.note = '';
  }

  /** Connects to the hosts that are online, and records which hosts are absent. */
  hostsKnown(): void {
    let room = linksMax - [...this.all.values()].filter(({ conn }) => conn && conn.state.name !== 'ended').length;
    for (const info of this.#page.hosts.all) {
      const link = this.all.get(info.host);
      const state = link?.conn?.state;
      const closed = state && 'code' in state ? state.code : undefined;
      if (info.state !== 'online') {
        // The relay may close a connection just before its host list shows why.
        if (link) link.away = link.listedAway = true;
        if (link?.conn && info.host !== this.#page.host && !link.live) link.stop();
      } else if (!link || !link.conn) {
        if (room-- > 0 || info.host === this.#page.host) this.to(info.host).connect();
      } else if (link.listedAway || closed !== code.hostOffline) {
        if (link.away && state?.name === 'retrying') link.conn.wake();
        link.away = link.listedAway = false;
      }
    }
  }

  #changed(link: Link, state: ConnectionState): void {
    const page = this.#page;
    if (state.name === 'ended' && state.action === 'token') {
      this.#expired(link, state.reason);
      return;
    }
    if (state.name === 'live') {
      this.#lively.add(link);
      page.remembered.learn(link);
    } else if (this.#lively.delete(link)) page.past.lost(link);
    // Browsers hide why a WebSocket was refused. The host list gives the reason.
    if (state.name !== 'connecting' && (link.host === page.host || state.name !== 'greeting')) page.hosts.refresh();
    page.draw();
  }

  /** The relay no longer accepts a connection's token. */
  #expired(link: Link, reason: string): void {
    const page = this.#page;
    const account = accountOf(link.host);
    if (!account) {
      page.expired(reason);
      return;
    }
    link.stop();
    page.accounts.ask(account); // the answer gives the reason
  }

  #action(link: Link, envelope?: Envelope): void {
    const page = this.#page;
    const open = this.#isOpen(link);
    if (open && page.session) {
      const what = envelope?.action?.type;
      // The session may have a new default chat, or new canvases.
      if (what === undefined || envelope?.channel === page.session || what === 'chat/canvasesChanged') {
        this.#closedCanvas(link);
        link.enter();
        this.#lent(link);
      } else if (follows.has(what)) {
        link.tidy();
        link.enter();
      }
      for (const { channel, payload } of link.store.takeMessages()) page.deliver(channel, payload);
    } else link.store.takeMessages();
    if (envelope && open && envelope.channel === page.chatUri && grows.has(envelope.action?.type) && envelope.rejectionReason === undefined) page.drawGrown();
    else page.draw();
  }

  /** Declares to the open session which canvases this device provides, and shows a newly opened one. */
  #lent(link: Link): void {
    const page = this.#page;
    page.lender.tell(link, page.session);
    const channel = page.lender.fresh(link, page.session);
    if (channel && page.pane?.channel !== channel) page.showPane({ kind: 'canvas', channel });
  }

  #closedCanvas(link: Link): void {
    const { pane, session, chatUri } = this.#page;
    if (pane?.kind !== 'canvas' || !link.store.get(session) || !link.store.get<ChatState>(chatUri)) return;
    if (link.store.canvasesOf(session).some((c) => c.channel === pane.channel)) return;
    this.#page.closePane();
    link.tidy();
  }

  #notified(link: Link, method: string, params: Params): void {
    if (method === 'auth/required') {
      const resource = text(params?.resource) || text((params?.resource as { resource?: unknown } | undefined)?.resource);
      link.again(resource, params?.reason === 'expired');
    }
    if (method === 'relay/signedIn') link.codes.get(text(params?.id))?.(text(params?.error));
    if (method === 'relay/rememberKeysChanged') this.#page.remembered.learn(link);
    if (method === 'root/sessionRemoved') this.#page.lender.lend(link, text(params?.session), []);
    this.#page.draw();
  }
}
