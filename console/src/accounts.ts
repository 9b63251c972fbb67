// Further accounts: of other tenants at this relay, or at other relays. Their hosts and sessions appear in
// the same lists as those of the page's own account. In this page, such a host is named "lab@work", and
// "@work" identifies the account in place of a token. A different relay must admit this page (relay serve
// --console-origin), and this page's own policy must admit the relays that the person has added: see
// furtherRelays in console.go.

import { elsewhere, relay } from './pins';
import { registered, registerKey } from './registered';
import type { Answer, Grant, HostInfo, HostList } from './relay';
import { array } from './store';
import { t } from './language';

/** A further account. If token is missing, this browser has a key for the account. */
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

/** The account of a host name, or of "@work" in place of a token; undefined for the page's own account. */
export function accountOf(name: string): Account | undefined {
  const at = name.indexOf('@');
  return at < 0 ? undefined : all.find((a) => a.name === name.slice(at + 1));
}

/** A host's name at its relay. */
export function bare(host: string): string {
  return host.split('@')[0];
}

/** The origin of a host's relay. */
export const relayOf = (host: string) => accountOf(host)?.relay ?? relay();

/** The account's part of a host's name, such as "@work"; '' for the page's own account. */
export function accountPart(host: string): string {
  return host.includes('@') ? host.slice(host.indexOf('@')) : '';
}

/** The parts of all accounts in the names of their hosts. */
export const accountParts = () => ['', ...all.map((a) => `@${a.name}`)];

/** The token for a host: the page's own, or the account's part, which stands for that account's. */
export const tokenOf = (host: string, own: string) => accountPart(host) || own;

/** A short name for a new account that no other account has. */
export function nameFor(wanted: string): string {
  const name = wanted.toLowerCase().replace(/[^\p{L}\p{N}.-]+/gu, '-').replace(/^[-.]+|[-.]+$/g, '').slice(0, 40) || 'relay';
  for (let n = 1; ; n++) {
    const one = n === 1 ? name : `${name}-${n}`;
    if (!all.some((a) => a.name === one)) return one;
  }
}

/**
 * The origin of an address that a person has typed, or '' if it is invalid. Without TLS, it must be on this
 * machine.
 */
export function originOf(typed: string): string {
  try {
    const { protocol, origin, hostname } = new URL(typed.includes('://') ? typed : `https://${typed}`);
    return protocol === 'https:' || (protocol === 'http:' && /^(localhost|127\.0\.0\.1|\[::1\])$/.test(hostname)) || origin === relay() ? origin : '';
  } catch {
    return '';
  }
}

/**
 * Adds an account, or replaces the account with the same name. It first reads the stored accounts, which
 * another tab may have changed.
 */
export function add(account: Account): void {
  keep([...registered().filter((a) => a.name !== account.name), account]);
}

export function remove(name: string): void {
  keep(registered().filter((a) => a.name !== name));
  admit();
}

/** Takes over a change by another tab. of is the key in the browser's storage event. */
export function tookChange(of: string | null): boolean {
  if (of !== registerKey && of !== null) return false;
  all = registered();
  return true;
}

const cookie = () => (location.protocol === 'https:' ? '__Host-ahp-relays' : 'ahp-relays');

/** The other relays that this page's policy admits. */
function admitted(): string {
  const said = document.cookie.split('; ').find((c) => c.startsWith(`${cookie()}=`)) ?? '';
  return decodeURIComponent(said.slice(said.indexOf('=') + 1));
}

/**
 * Makes the page's policy admit the relays of all accounts, and one more, at the next load. Returns whether a
 * reload is needed because the present policy lacks one.
 */
export function admit(more?: string): boolean {
  if (elsewhere()) return false; // a site's policy is in its page: see further
  const origins = [...new Set([...all.map((a) => a.relay), ...(more ? [more] : [])])].filter((r) => r !== relay()).sort().join(' ');
  const had = admitted();
  if (origins === '' && had === '') return false;
  document.cookie = `${cookie()}=${encodeURIComponent(origins)}; Path=/; SameSite=Lax; Max-Age=${origins ? cookieAge : 0}${location.protocol === 'https:' ? '; Secure' : ''}`;
  return origins.split(' ').some((o) => !had.split(' ').includes(o));
}

/**
 * Replaces the cached page for loads without a network, because its policy has changed. A page of a newer version is
 * not cached: its files are not.
 */
export async function keepPage(): Promise<void> {
  for (const name of await globalThis.caches?.keys() ?? []) if (name.startsWith('shell ')) await keepIn(await caches.open(name)).catch(() => {});
}

async function keepIn(cache: Cache): Promise<void> {
  const [had, now] = [await cache.match('/'), await fetch('/')];
  if (now.ok && await had?.text() === await now.clone().text()) await cache.put('/', now);
}

export const begunKey = 'ahp-adding'; // an account whose addition continues after the reload

/** Returns the account whose addition began before the page was reloaded. */
export function begun(): Account | undefined {
  const said = sessionStorage.getItem(begunKey);
  sessionStorage.removeItem(begunKey);
  return said ? JSON.parse(said) : undefined;
}

/** An account as described by its relay. */
export interface Known { hosts: HostInfo[]; grant: Grant | null; why: string; subject: string; signedOut: boolean }

/** The parts of the page used here. */
export interface AccountsPage {
  askAs<T>(token: string, method: string, path: string, json?: object): Promise<Answer<T>>;
  listed(): void; // the host list of an account has changed
  signedOut(account: Account): void;
}

export class Accounts {
  #known = new Map<string, Known>(); // by name
  #round = 0; // number of the last request
  #answered = new Map<string, number>(); // by name: the request of the newest answer; answers to earlier requests are ignored
  #page: AccountsPage;

  constructor(page: AccountsPage) {
    this.#page = page;
  }

  of(account: Account | undefined): Known | undefined {
    return account && this.#known.get(account.name);
  }

  /**
   * The name in this page of a host at a relay: under the account that lists the host, or else the first
   * account at that relay; '' if there is none.
   */
  named(host: string, at: string, own: HostInfo[]): string {
    const site = at.replace(/\/$/, '');
    const there = [...(site === relay() ? [host] : []), ...all.filter((a) => a.relay === site).map((a) => `${host}@${a.name}`)];
    const listed = [...own, ...this.hosts()];
    return there.find((name) => listed.some((h) => h.host === name)) ?? there[0] ?? '';
  }

  /** The hosts of all accounts, by their names in this page. */
  hosts(): HostInfo[] {
    return all.flatMap((a) => this.#known.get(a.name)?.hosts ?? []);
  }

  /** Shows the hosts stored by this device, until the relays answer. */
  keep(hosts: HostInfo[]): void {
    for (const a of all) {
      const had = this.#known.get(a.name);
      const kept = hosts.filter((h) => accountOf(h.host) === a);
      if (kept.length === 0 || had && (had.why === '' || had.signedOut)) continue;
      this.#known.set(a.name, { hosts: kept, grant: null, subject: '', signedOut: false, why: t`The relay is unreachable, or does not admit this page.`, ...(had && { why: had.why }) });
    }
  }

  /** Requests the hosts of all accounts. */
  look(): void {
    for (const a of all) this.ask(a);
  }

  /** Requests the hosts of an account. Returns why that failed, or ''. */
  async ask(account: Account): Promise<string> {
    const round = ++this.#round;
    const before = () => this.#known.get(account.name) ?? { hosts: [], grant: null, subject: '' }; // a stored list may be loaded in the meantime
    const next = await this.#page.askAs<HostList>(`@${account.name}`, 'GET', 'api/hosts').then(({ status, body }): Known => {
      if (status === 200) return { hosts: array(body.hosts).map((h) => ({ ...h, host: `${h.host}@${account.name}` })), grant: body.token ?? null, why: '', subject: String(body.token?.subject ?? ''), signedOut: false };
      const why = status === 401 ? t`Not signed in any more.` : t`The relay answered ${status}.`;
      const signedOut = status === 401;
      return { hosts: signedOut ? [] : before().hosts, grant: signedOut ? null : before().grant, why, subject: before().subject, signedOut };
    }, () => ({ ...before(), why: t`The relay is unreachable, or does not admit this page.`, signedOut: false }));
    if (!all.some((a) => a.name === account.name) || round < (this.#answered.get(account.name) ?? 0)) return next.why; // removed in the meantime, or late
    this.#answered.set(account.name, round);
    this.#known.set(account.name, next);
    if (next.signedOut) this.#page.signedOut(account);
    this.#page.listed();
    return next.why;
  }
}
