// The user's notification settings. Each account's relay stores them for the account's subject. at is '' for
// the page's own account, or "@work" for a further one.

import { accountPart, bare } from './accounts';
import { app, requests } from './app';
import { isKnownSealed } from './pins';
import { array, text } from './store';
import { relayNow } from './words';
import { t } from './language';

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

function keep(at: string, token: string, settings: Settings | null): void {
  said.set(at, { token, settings });
  app.draw();
}

/** Loads an account's settings; rejects if the relay does not answer. */
export async function load(at: string): Promise<void> {
  const { token } = app;
  const { status, body } = await requests.askAt<Settings>(at, 'GET', 'api/notify');
  if (status !== 200 && status !== 404) throw new Error(text(body?.error) || t`The relay answered ${status}.`);
  if (token === app.token) keep(at, token, status === 404 ? null : body);
}

/** Returns the mute that covers a session, or undefined. */
export function muted(host: string, session: string): MuteOf | undefined {
  return array(known(accountPart(host))?.mutes).find((m) => m?.host === bare(host) && (!m.session || m.session === session) && (!m.until || Date.parse(m.until) > relayNow()));
}

/** Changes quiet hours or mutes. It first loads them, because they may have been changed elsewhere. */
async function setTimes(at: string, change: (had: { quiet: Quiet | null; mutes: MuteOf[] }) => object): Promise<void> {
  const { token } = app;
  const { quiet, mutes } = await requests.relayAt<Settings>(at, 'GET', 'api/notify');
  const next = change({ quiet: quiet ?? null, mutes: array(mutes) });
  keep(at, token, await requests.relayAt(at, 'PUT', 'api/notify/times', next));
}

/**
 * Mutes a session, or a host if no session is named. Without hours, it has no end. A sealed host is muted
 * whole: its relay must not learn a session's URI, and could not find that session's notifications.
 */
export async function mute(host: string, session: string, hours = 0): Promise<void> {
  const named = await isKnownSealed(host) ? '' : session;
  return setTimes(accountPart(host), ({ quiet, mutes }) => ({ quiet, mutes: [...others(mutes, host, named), { host: bare(host), ...(named ? { session: named } : {}), ...(hours ? { until: new Date(relayNow() + hours * 3600_000).toISOString() } : {}) }] }));
}

export function unmute(host: string, session: string): Promise<void> {
  return setTimes(accountPart(host), ({ quiet, mutes }) => ({ quiet, mutes: others(mutes, host, session) }));
}

function others(mutes: MuteOf[], host: string, session: string): MuteOf[] {
  return mutes.filter((m) => m?.host !== bare(host) || (m?.session ?? '') !== session);
}

/** Sets the quiet hours {from, to, zone}; null removes them. */
export function setQuiet(at: string, quiet: Quiet | null): Promise<void> {
  return setTimes(at, ({ mutes }) => ({ quiet, mutes }));
}

/**
 * Adds a target, or changes the target with this id. The result has secrets, which the relay shows only once.
 */
export async function setWay(at: string, way: Way): Promise<Way> {
  const made = way.id ? await requests.relayAt<Way>(at, 'PUT', `api/notify/ways/${encodeURIComponent(way.id)}`, way) : await requests.relayAt<Way>(at, 'POST', 'api/notify/ways', way);
  await load(at);
  return made;
}

export async function removeWay(at: string, id: string): Promise<void> {
  await requests.relayAt(at, 'DELETE', `api/notify/ways/${encodeURIComponent(id)}`);
  await load(at);
}

/**
 * Sends a test notification to a target. Returns the outcome, with a line for each part that its
 * notifications cannot have.
 */
export async function tryWay(at: string, id: string): Promise<string> {
  const { outcome, why, missing } = await requests.relayAt<{ outcome?: string; why?: string; missing?: unknown[] }>(at, 'POST', `api/notify/ways/${encodeURIComponent(id)}/test`);
  load(at).catch(() => {});
  return [outcome === 'ok' ? t`The test was delivered.` : t`The test was not taken: ${text(why) || outcome}.`, ...array(missing).map(text)].join('\n');
}
