// Handles the browser's events, and the work of each second.

import { accounts, begun, begunKey, tookChange, type Account } from './accounts';
import * as device from './device';
import type { Dialog } from './dialog';
import type { Hosts } from './hosts';
import type { Link } from './link';
import type { Offline } from './offline';
import { text } from './store';
import { keepUnsent } from './unsent';

const untaken = 60_000; // ms until a prompt counts as not accepted; longer than a stalled connection lasts
const slept = 10_000; // ms between two ticks after which the page has slept, and must first hear from the host
const hostsEvery = 15_000; // ms between requests for the list of hosts
const hostsSoon = 2_000; // ms between them while the host in view is not connected

/** The parts of the page that events use. */
export interface EventsPage {
  readonly token: string;
  readonly byDevice: boolean;
  readonly link: Link | undefined;
  readonly links: Map<string, Link>;
  readonly hosts: Pick<Hosts, 'asked' | 'offline' | 'refresh'>;
  readonly past: Pick<Offline, 'load' | 'tick'>;
  readonly sessions: { flush(): void; opened(): void; tick(): void };
  readonly questions: { follow(): void; wake(): void };
  readonly absent: { follow(): void };
  route(): void;
  wander(): void;
  accountsChangedElsewhere(): void;
  open(dialog: Dialog | null): void;
  openSession(host: string, session: string): void;
  openQuestion(host: string, session: string, chat?: string): void;
  renew(account?: Account): void;
  draw(): void;
}

/** Handles the browser's events until the page is closed. */
export function follow(page: EventsPage): void {
  addEventListener('hashchange', () => page.route());
  addEventListener('popstate', () => page.wander());
  addEventListener('online', () => network(page, true));
  addEventListener('offline', () => network(page, false));
  addEventListener('storage', (e: StorageEvent) => { if (tookChange(e.key)) page.accountsChangedElsewhere(); });
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) {
      for (const link of page.links.values()) link.conn?.wake(true);
      page.questions.wake();
      if (page.token) page.hosts.refresh();
    }
    page.draw();
  });
  addEventListener('pagehide', () => {
    page.sessions.flush();
    keepUnsent(page.links.values(), true);
  });
  document.addEventListener('visibilitychange', () => {
    keepUnsent(page.links.values(), document.hidden);
    if (document.hidden) page.past.tick(Date.now(), true);
  });
  navigator.serviceWorker?.addEventListener('message', ({ data }) => { // the user clicked a notification
    const { host, session, chat, asks } = data?.open ?? {};
    if (!page.token || !host) return;
    page.open(null); // a dialog would hide the question
    if (asks === true) page.openQuestion(text(host), text(session), text(chat));
    else page.openSession(text(host), text(session));
    page.sessions.opened(); // it may have been open already
  });
  if (sessionStorage.getItem(begunKey)) page.open({ kind: 'account', first: begun() }); // the page was reloaded for this account
  setInterval(() => tick(page), 1000);
  if (page.token) page.past.load();
}

/** Applies the browser's network state, unless the relay is on this machine. */
function network(page: EventsPage, there: boolean): void {
  page.hosts.offline = !there && !/^(localhost|127\.0\.0\.1|\[::1\])$/.test(location.hostname);
  for (const link of page.links.values()) link.conn?.wake(true);
  if (there) page.questions.wake();
  if (there && page.token) page.hosts.refresh();
  page.draw();
}

let ticked = 0; // time of the last tick

function tick(page: EventsPage): void {
  const now = Date.now();
  for (const link of page.links.values()) link.store.expire(untaken, now - ticked > slept ? 1 : link.conn?.socket?.bufferedAmount);
  ticked = now;
  const pause = page.link?.conn && !page.link.live ? hostsSoon : hostsEvery;
  if (page.token && !document.hidden && Date.now() - page.hosts.asked > pause) page.hosts.refresh();
  if (page.token === device.DEVICE) page.renew();
  if (page.token) for (const a of accounts()) if (a.token === undefined) page.renew(a);
  if (!document.hidden) page.absent.follow();
  page.questions.follow();
  page.sessions.tick();
  page.past.tick();
  page.draw(); // updates times and countdowns
}
