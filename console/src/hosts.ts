// The hosts of the page's own account and of further accounts, as listed by their relays.

import { accountOf, accounts, bare, type Accounts } from './accounts';
import { hostsOf, type Grant, type HostInfo } from './relay';
import type { Requests } from './requests';
import type { Rights } from './rights';
import { array, text } from './store';
import { setClock } from './words';
import { t } from './language';

const wokenFor = 20_000; // ms in which the result of a wake is shown

/** The parts of the page that the list of hosts uses. */
export interface HostsPage {
  readonly token: string;
  readonly accounts: Pick<Accounts, 'hosts' | 'look' | 'of'>;
  readonly rights: Pick<Rights, 'operatesAll'>;
  refused(): void; // the relay does not accept the token
  hostsKnown(): void;
  byDeviceAt(host: string): boolean;
  readonly requests: Pick<Requests, 'askAt'>;
  draw(): void;
}

export class Hosts {
  all: HostInfo[] = [];
  own: HostInfo[] = []; // of the page's own account
  grant: Grant | null = null; // the token's authority
  note = '';
  stale = false; // the last query failed
  offline = false; // the browser reports no network
  waking = new Map<string, string>(); // host to the state or result of a request to wake it
  asked = 0; // time of the last query
  #round = 0; // number of the last query
  #answered = 0; // the query of the newest answer; answers to earlier queries are ignored
  #page: HostsPage;

  constructor(page: HostsPage) {
    this.#page = page;
  }

  get(host: string): HostInfo | undefined {
    return this.all.find((h) => h.host === host);
  }

  /** Forgets the hosts and the authority of a token. */
  forget(): void {
    this.#answered = this.#round;
    this.all = [];
    this.own = [];
    this.grant = null;
  }

  /** Whether the last query failed for the list that has this host. */
  staleAt(host: string): boolean {
    return accountOf(host) ? Boolean(this.#page.accounts.of(accountOf(host))?.why) : this.stale;
  }

  /** Requests the lists of all relays. */
  async refresh(): Promise<void> {
    const page = this.#page;
    this.asked = Date.now();
    page.accounts.look();
    const round = ++this.#round;
    const { token } = page;
    /** Whether the answer is the newest so far. An answer to an earlier query counts too: on a slow network, the last query may always be under way. */
    const counts = () => {
      if (round <= this.#answered || token !== page.token) return false;
      this.#answered = round;
      return true;
    };
    let answer;
    try {
      answer = await hostsOf(token);
      const { status, body } = answer;
      if (!counts()) return;
      if (status === 401) {
        page.refused();
        return;
      }
      if (status !== 200) throw new Error(t`The relay answered ${status}.`);
      this.own = array(body.hosts);
      setClock(body.now);
      this.grant = body.token ?? null;
      this.note = this.own.length || accounts().length ? '' : page.byDeviceAt('') ? t`You have no host yet.` : t`This token opens no host on this relay.`;
      this.stale = false;
      this.take();
    } catch (err) {
      if (!answer && !counts()) return;
      this.stale = true;
      this.note = answer ? (err as Error).message : t`The relay is unreachable.`;
    }
    page.draw();
  }

  /** Applies the hosts of all accounts to the page. */
  take(): void {
    if (this.#page.token === '') return;
    this.all = [...this.own, ...this.#page.accounts.hosts()];
    this.#page.hostsKnown();
    this.#page.draw();
  }

  /** Whether this person may wake a host and the relay is able to. */
  mayWake(host: string): boolean {
    const info = this.get(host);
    return Boolean(info?.wakes && info.state !== 'online' && this.#page.byDeviceAt(host) && this.#page.rights.operatesAll(host) && !this.staleAt(host));
  }

  /** Asks the relay to wake a host. */
  async wake(host: string): Promise<void> {
    const { waking } = this;
    waking.set(host, t`Waking…`);
    this.#page.draw();
    const said = await this.#page.requests.askAt<{ by?: string; after?: number }>(host, 'POST', `api/hosts/${encodeURIComponent(bare(host))}/wake`)
      .then(({ status, body }) => (status === 200 ? t`Woken by ${body?.by === 'relay' ? t`the relay` : `“${text(body?.by)}”`}, back after ${Math.round(body?.after ?? 0)} s.` : t`Not woken: ${text(body?.error) || t`the relay answered ${status}`}.`), (err: Error) => t`Not woken: ${err.message}.`);
    waking.set(host, said);
    setTimeout(() => { if (waking.get(host) === said) waking.delete(host); this.#page.draw(); }, wokenFor);
    this.refresh();
    this.#page.draw();
  }
}
