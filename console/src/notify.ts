// Changes the user's notification settings: targets, quiet hours and mutes. It is loaded with their dialogs.

import { accountPart, bare } from './accounts';
import { app, requests } from './app';
import { isKnownSealed } from './pins';
import { array, text } from './store';
import { keep, type MuteOf, type Quiet, type Settings, type Way } from './told';
import { relayNow } from './words';
import { t } from './language';

/** Loads an account's settings; rejects if the relay does not answer. */
export async function load(at: string): Promise<void> {
  const { token } = app;
  const { status, body } = await requests.askAt<Settings>(at, 'GET', 'api/notify');
  if (status !== 200 && status !== 404) throw new Error(text(body?.error) || t`The relay answered ${status}.`);
  if (token === app.token) keep(at, token, status === 404 ? null : body);
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
