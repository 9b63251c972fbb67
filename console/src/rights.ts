// The page's authority at the hosts. The host-agent enforces it; the page only hides what would be refused.

import { accountOf, type Accounts } from './accounts';
import type { Grant } from './relay';
import { array } from './store';

const belowTalk = ['read'];
const belowApprove = ['read', 'talk'];
const belowOperate = ['read', 'talk', 'approve'];

/** The parts of the page that determine its authority. */
export interface RightsPage {
  readonly host: string;
  readonly hosts: { readonly grant: Grant | null }; // the token's authority, from the relay
  readonly accounts: Pick<Accounts, 'of'>;
  readonly links: Map<string, { seal?: { readonly level: string } }>;
}

export class Rights {
  #page: RightsPage;

  constructor(page: RightsPage) {
    this.#page = page;
  }

  /** The authority at a host, from the host's account. */
  grantAt(host: string): Grant | null {
    return accountOf(host) ? this.#page.accounts.of(accountOf(host))?.grant ?? null : this.#page.hosts.grant;
  }

  /** For a sealed host, the level that the host has given to this device; otherwise the token's level. */
  #access(host = this.#page.host): string {
    const seal = this.#page.links.get(host)?.seal;
    return seal ? seal.level : this.grantAt(host)?.access ?? '';
  }

  /** The authority at the host in view, for a comparison. */
  get level(): string {
    return `${this.#access()} ${this.narrow}`;
  }

  /** Whether the token permits only looking. */
  get readOnly(): boolean {
    return belowTalk.includes(this.#access());
  }

  /** Whether the token permits operating the host, beyond talking and approving. */
  get mayOperate(): boolean {
    return this.mayOperateAt(this.#page.host);
  }

  mayOperateAt(host: string): boolean {
    return !belowOperate.includes(this.#access(host));
  }

  /** Whether the token permits approving. */
  get mayApprove(): boolean {
    return this.mayAnswer(this.#page.host, true);
  }

  /** Whether the token for a host permits answers to questions, or with approval set, to approvals too. */
  mayAnswer(host: string, approval: boolean): boolean {
    return !(approval ? belowApprove : belowTalk).includes(this.#access(host));
  }

  /**
   * Whether the token for a host is limited to certain sessions, so the page cannot create sessions
   * there.
   */
  narrowAt(host: string): boolean {
    return array(this.grantAt(host)?.channels).length > 0;
  }

  get narrow(): boolean {
    return this.narrowAt(this.#page.host);
  }

  /** Whether the token for a host permits operating all of it. Only then can the page sign its agents in. */
  operatesAll(host = this.#page.host): boolean {
    return this.mayOperateAt(host) && !this.narrowAt(host);
  }

  /** Whether the page can create sessions at any host. */
  get mayCreate(): boolean {
    return [this.#page.host, ...this.#page.links.keys()].some((h) => this.operatesAll(h));
  }
}
