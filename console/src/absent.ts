// The person's items for absent hosts. left.ts keeps them; it is loaded once this device is
// signed in.

import { accountOf } from './accounts';
import type { Conversation } from './conversation';
import type { Hosts } from './hosts';
import type { LeftPage, Leaving } from './left';
import type { Link } from './link';
import type { Requests } from './requests';
import { randomId, toRelay } from './words';

/** The parts of the page that are used. */
export interface AbsentPage {
  readonly byDevice: boolean;
  readonly host: string;
  readonly session: string;
  readonly chatUri: string | undefined;
  readonly link: Pick<Link, 'live'> | undefined;
  readonly links: Map<string, Link>;
  readonly hosts: Pick<Hosts, 'grant' | 'own' | 'stale'>;
  readonly conversation: Pick<Conversation, 'models'>;
  readonly requests: Pick<Requests, 'ask'>;
  who(): Promise<string>;
  draw(): void;
}

export class Absent {
  left: Leaving | undefined; // the items, once they are known
  #leaving: Promise<void> | undefined;
  #page: AbsentPage;

  constructor(page: AbsentPage) {
    this.#page = page;
  }

  /** Follows the items. The page calls it again and again. */
  follow(): void {
    this.#leaving ??= import('./left').then(async ({ Leaving }) => {
      const left = new Leaving(this.#ownPart());
      await left.start();
      if (this.#page.byDevice) this.left = left;
    }).catch(() => {}); // a browser without X25519: nothing can be left
    this.left?.look();
  }

  forget(): void {
    this.left = this.#leaving = undefined;
  }

  /** The part of the page for the own account: nothing is left for hosts of further accounts. */
  #ownPart(): LeftPage {
    const page = this.#page;
    return {
      get hosts() { return page.hosts.own; },
      get hostsStale() { return page.hosts.stale; },
      get links() { return new Map([...page.links].filter(([host]) => !accountOf(host))); },
      get host() { return page.host; },
      get session() { return page.session; },
      get chatUri() { return page.chatUri; },
      get readOnly() { return page.hosts.grant?.access === 'read'; },
      who: () => page.who(), ask: (method, path, json) => page.requests.ask(method, path, json), draw: () => page.draw(),
    };
  }

  /** Whether the open session's host is away, and takes items. */
  get takes(): boolean {
    return !this.#page.link?.live && Boolean(this.left?.takes(this.#page.host));
  }

  /** Leaves a message for the open session at the relay. Wake is an input's local time, or ''. */
  leaveMessage(words: string, wake: string): Promise<void> {
    const { host, session, chatUri, conversation } = this.#page;
    const model = conversation.models.get(session);
    return this.left!.leave(host, { kind: 'message', session, ...(chatUri ? { chat: chatUri } : {}), turn: randomId(), text: words, ...(model ? { model } : {}) }, toRelay(wake));
  }
}
