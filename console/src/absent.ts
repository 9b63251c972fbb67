// Items left by the person for absent hosts, for the page's own account and for further accounts with a
// key in this browser. left.ts keeps the items; it is loaded once there is a key.

import { type Account, accountOf, accountPart, accounts, type Accounts } from './accounts';
import type { Conversation } from './conversation';
import { name } from './device';
import type { Hosts } from './hosts';
import type { Left, LeftPage, Leaving } from './left';
import type { Link } from './link';
import type { Requests } from './requests';
import type { Rights } from './rights';
import { placeOf, randomId, toRelay } from './words';

/** The parts of the page used here. */
export interface AbsentPage {
  readonly byDevice: boolean;
  readonly token: string;
  readonly host: string;
  readonly session: string;
  readonly chatUri: string | undefined;
  readonly link: Pick<Link, 'live'> | undefined;
  readonly links: Map<string, Link>;
  readonly hosts: Pick<Hosts, 'all' | 'own' | 'staleAt'>;
  readonly accounts: Pick<Accounts, 'of'>;
  readonly rights: Pick<Rights, 'grantAt' | 'narrowAt'>;
  readonly conversation: Pick<Conversation, 'models'>;
  readonly requests: Pick<Requests, 'askAt'>;
  who(): Promise<string>;
  draw(): void;
}

const again = 15_000; // ms before an account's items are loaded again after a failure

/** An account's part: its items, once they are known. */
interface Part { left?: Leaving }

export class Absent {
  #parts = new Map<string, Part>(); // by an account's suffix in host names, such as "@work"
  #page: AbsentPage;

  constructor(page: AbsentPage) {
    this.#page = page;
  }

  /** Loads the items of new accounts and refreshes all. The page calls it repeatedly. */
  follow(): void {
    const { byDevice, token, rights } = this.#page;
    const wanted = token ? [...(byDevice ? [''] : []), ...accounts().filter((a) => a.token === undefined).map((a) => `@${a.name}`)] : [];
    for (const at of this.#parts.keys()) if (!wanted.includes(at)) this.#parts.delete(at);
    for (const at of wanted) if (!rights.narrowAt(at)) this.#follow(at);
  }

  #follow(at: string): void {
    let part = this.#parts.get(at);
    if (!part) {
      const made: Part = part = {};
      this.#parts.set(at, made);
      import('./left').then(async ({ Leaving }) => {
        const left = new Leaving(this.#pageOf(at, accountOf(at)));
        await left.start();
        made.left = left;
      }).catch(() => { // a bad network; or a browser without X25519, which cannot leave items
        setTimeout(() => { if (this.#parts.get(at) === made) this.#parts.delete(at); }, again);
      });
    }
    part.left?.look();
  }

  forget(): void {
    this.#parts.clear();
  }

  /** The page as seen by the items of an account. */
  #pageOf(at: string, account: Account | undefined): LeftPage {
    const page = this.#page;
    return {
      at,
      get hosts() { return account ? page.accounts.of(account)?.hosts ?? [] : page.hosts.own; },
      get hostsStale() { return page.hosts.staleAt(at); },
      get links() { return new Map([...page.links].filter(([host]) => accountPart(host) === at)); },
      get host() { return page.host; },
      get session() { return page.session; },
      get chatUri() { return page.chatUri; },
      get readOnly() { return page.rights.grantAt(at)?.access === 'read'; },
      who: () => (account ? name(account) : page.who()), ask: (method, path, json) => page.requests.askAt(at, method, path, json), draw: () => page.draw(),
    };
  }

  /** The items at a host's account, or undefined until they are loaded. */
  at(host: string): Leaving | undefined {
    return this.#parts.get(accountPart(host))?.left;
  }

  /** The items at the account of the host in view. */
  get left(): Leaving | undefined {
    return this.at(this.#page.host);
  }

  /** All accounts' items. */
  all(): Left[] {
    return [...this.#parts.values()].flatMap((p) => p.left?.of() ?? []);
  }

  /** Whether the open session's host is absent and accepts items. */
  get takes(): boolean {
    return !this.#page.link?.live && Boolean(this.left?.takes(this.#page.host));
  }

  /** Leaves a message for the open session. wake is a local time from an input field, or ''. */
  leaveMessage(words: string, wake: string): Promise<unknown> {
    const { host, session, chatUri, conversation } = this.#page;
    const model = conversation.models.get(placeOf(host, session));
    return this.left!.leave(host, { kind: 'message', session, ...(chatUri ? { chat: chatUri } : {}), turn: randomId(), text: words, ...(model ? { model } : {}) }, toRelay(wake));
  }
}
