// Further accounts: of different tenants at this relay, and at different relays. Their hosts
// and sessions stand in the same list as the page's own. Such a host is named "lab@work",
// and "@work" stands for the account where a token is named. A different relay has to admit
// this page (relay serve --console-origin), and the page's own policy admits the relays that
// the person has added: see furtherRelays in console.go.

import { elsewhere, relay } from './pins';
import { registered, registerKey } from './registered';
import type { Answer, Grant, HostInfo, HostList } from './relay';
import { array } from './store';
import { t } from './language';

/** A further account. Without a token, this browser has a key for it. */
export interface Account { name: string; relay: string; token?: string }

const cookieAge = 34_560_000; // s, the longest that browsers allow

let all = registered();

export function accounts(): Account[] {
  return all;
}

function keep(next: Account[]): void {
  all = next;
  localStorage.setItem(registerKey, JSON.stringify(next));
}

/** The account of a host, or of a token that stands for one; undefined for the page's own. */
export function accountOf(name: string): Account | undefined {
  const at = name.indexOf('@');
  return at < 0 ? undefined : all.find((a) => a.name === name.slice(at + 1));
}

/** A host's name at its relay. */
export function bare(host: string): string {
  return host.split('@')[0];
}

/** A relay's origin, by its host. */
export const relayOf = (host: string) => accountOf(host)?.relay ?? relay();

/** What stands for the account of a host, where a token is named. */
export function tokenOf(host: string, own: string): string {
  return host.includes('@') ? host.slice(host.indexOf('@')) : own;
}

/** A name for a new account at a relay: short, and not in use. */
export function nameFor(wanted: string): string {
  const name = wanted.toLowerCase().replace(/[^\p{L}\p{N}.-]+/gu, '-').replace(/^[-.]+|[-.]+$/g, '').slice(0, 40) || 'relay';
  for (let n = 1; ; n++) {
    const one = n === 1 ? name : `${name}-${n}`;
    if (!all.some((a) => a.name === one)) return one;
  }
}

/** The origin of an address that a person types, '' if it is none. Only this machine is reached without TLS. */
export function originOf(typed: string): string {
  try {
    const { protocol, origin, hostname } = new URL(typed.includes('://') ? typed : `https://${typed}`);
    return protocol === 'https:' || (protocol === 'http:' && /^(localhost|127\.0\.0\.1|\[::1\])$/.test(hostname)) || origin === relay() ? origin : '';
  } catch {
    return '';
  }
}

/** Adds an account, or replaces the one of that name. A different tab may have changed the others. */
export function add(account: Account): void {
  keep([...registered().filter((a) => a.name !== account.name), account]);
}

export function remove(name: string): void {
  keep(registered().filter((a) => a.name !== name));
  admit();
}

/** Takes a change by a different tab: by the key of the event of the browser's storage. */
export function tookChange(of: string | null): boolean {
  if (of !== registerKey && of !== null) return false;
  all = registered();
  return true;
}

const cookie = () => (location.protocol === 'https:' ? '__Host-ahp-relays' : 'ahp-relays');

/** The relays that this page's policy admits beside its own. */
function admitted(): string {
  const said = document.cookie.split('; ').find((c) => c.startsWith(`${cookie()}=`)) ?? '';
  return decodeURIComponent(said.slice(said.indexOf('=') + 1));
}

/**
 * Has the page's policy admit the relays of all accounts, and a further one, from the next
 * load on. Reports whether the policy of this load lacks one.
 */
export function admit(more?: string): boolean {
  if (elsewhere()) return false; // a site's policy is in its page: see further
  const origins = [...new Set([...all.map((a) => a.relay), ...(more ? [more] : [])])].filter((r) => r !== relay()).sort().join(' ');
  const had = admitted();
  if (origins === '' && had === '') return false;
  document.cookie = `${cookie()}=${encodeURIComponent(origins)}; Path=/; SameSite=Lax; Max-Age=${origins ? cookieAge : 0}${location.protocol === 'https:' ? '; Secure' : ''}`;
  return origins.split(' ').some((o) => !had.split(' ').includes(o));
}

/** Replaces the page's copy for loads without a network: its policy has changed. */
export async function keepPage(): Promise<void> {
  for (const name of await globalThis.caches?.keys() ?? []) if (name.startsWith('shell ')) await (await caches.open(name)).add('/').catch(() => {});
}

export const begunKey = 'ahp-adding'; // an account that waits for a load with a policy for its relay

/** Takes the account that was begun before the page was loaded again. */
export function begun(): Account | undefined {
  const said = sessionStorage.getItem(begunKey);
  sessionStorage.removeItem(begunKey);
  return said ? JSON.parse(said) : undefined;
}

/** An account as its relay has described it. */
export interface Known { hosts: HostInfo[]; grant: Grant | null; why: string; subject: string; signedOut: boolean }

/** The parts of the page that are used. */
export interface AccountsPage {
  askAs<T>(token: string, method: string, path: string, json?: object): Promise<Answer<T>>;
  listed(): void; // an account's hosts are known anew
  signedOut(account: Account): void;
}

export class Accounts {
  #known = new Map<string, Known>(); // by name
  #page: AccountsPage;

  constructor(page: AccountsPage) {
    this.#page = page;
  }

  of(account: Account | undefined): Known | undefined {
    return account && this.#known.get(account.name);
  }

  /** A host's name in this page: by the account at a relay that lists it, else by the first account there; '' without any. */
  named(host: string, at: string, own: HostInfo[]): string {
    const site = at.replace(/\/$/, '');
    const there = [...(site === relay() ? [host] : []), ...all.filter((a) => a.relay === site).map((a) => `${host}@${a.name}`)];
    const listed = [...own, ...this.hosts()];
    return there.find((name) => listed.some((h) => h.host === name)) ?? there[0] ?? '';
  }

  /** The hosts of all accounts, under their names in this page. */
  hosts(): HostInfo[] {
    return all.flatMap((a) => this.#known.get(a.name)?.hosts ?? []);
  }

  /** Takes the hosts as this device has kept them, until the accounts' relays answer. */
  keep(hosts: HostInfo[]): void {
    for (const a of all) {
      const had = this.#known.get(a.name);
      const kept = hosts.filter((h) => accountOf(h.host) === a);
      if (kept.length === 0 || had && (had.why === '' || had.signedOut)) continue;
      this.#known.set(a.name, { hosts: kept, grant: null, subject: '', signedOut: false, why: t`The relay is unreachable, or does not admit this page.`, ...(had && { why: had.why }) });
    }
  }

  /** Asks all accounts' relays for their hosts. */
  look(): void {
    for (const a of all) this.ask(a);
  }

  /** Asks an account's relay for its hosts. The result is why it has given none, or ''. */
  async ask(account: Account): Promise<string> {
    const before = () => this.#known.get(account.name) ?? { hosts: [], grant: null, subject: '' }; // an older list may be read meanwhile
    const next = await this.#page.askAs<HostList>(`@${account.name}`, 'GET', 'api/hosts').then(({ status, body }): Known => {
      if (status === 200) return { hosts: array(body.hosts).map((h) => ({ ...h, host: `${h.host}@${account.name}` })), grant: body.token ?? null, why: '', subject: String(body.token?.subject ?? ''), signedOut: false };
      const why = status === 401 ? t`Not signed in any more.` : t`The relay answered ${status}.`;
      const signedOut = status === 401;
      return { hosts: signedOut ? [] : before().hosts, grant: signedOut ? null : before().grant, why, subject: before().subject, signedOut };
    }, () => ({ ...before(), why: t`The relay is unreachable, or does not admit this page.`, signedOut: false }));
    if (!all.some((a) => a.name === account.name)) return next.why; // removed meanwhile
    this.#known.set(account.name, next);
    if (next.signedOut) this.#page.signedOut(account);
    this.#page.listed();
    return next.why;
  }
}
