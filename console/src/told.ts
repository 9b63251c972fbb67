// The user's notification settings. Each account's relay stores them for the account's subject. at is '' for
// the page's own account, or "@work" for a further one.

import { accountPart, bare } from './accounts';
import { app } from './app';
import { array } from './store';
import { relayNow } from './words';

/** A notification target. */
export interface Way { id?: string; kind?: string; name?: string; kinds?: string[]; details?: boolean; paused?: boolean; to?: string; url?: string; token?: string; secret?: string; keys?: PushSubscriptionJSON['keys'] }

/** The quiet hours of a day. */
export interface Quiet { from?: string; to?: string; zone?: string }

/** A session or host whose notifications are muted. */
export interface MuteOf { host?: string; session?: string; until?: string }

/** A notification that was sent, or tried. */
export interface Delivery { id: string; at: string; way?: string; host: string; session: string; kind: string; outcome: string; why?: string }

/** The settings, and the history of one day. */
export interface Settings { pushKey?: string; ways?: Way[]; mail?: boolean; url?: string; quiet?: Quiet | null; mutes?: MuteOf[]; deliveries?: Delivery[] }

const said = new Map<string, { token: string; settings: Settings | null }>(); // by at, with the page's token; null: not configured on this relay

/** Returns an account's settings as last received from its relay, or undefined. */
export function known(at: string): Settings | null | undefined {
  const last = said.get(at);
  return last?.token === app.token ? last.settings : undefined;
}

/** Keeps an account's settings as its relay has sent them. */
export function keep(at: string, token: string, settings: Settings | null): void {
  said.set(at, { token, settings });
  app.draw();
}

/** Returns the mute that covers a session, or undefined. */
export function muted(host: string, session: string): MuteOf | undefined {
  return array(known(accountPart(host))?.mutes).find((m) => m?.host === bare(host) && (!m.session || m.session === session) && (!m.until || Date.parse(m.until) > relayNow()));
}
