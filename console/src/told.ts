// The user's notification settings. The relay keeps them for the token's subject.

import { app, requests } from './app';
import { array, text } from './store';
import { t } from './language';

/** A notification target. */
export interface Way { id?: string; kind?: string; name?: string; kinds?: string[]; details?: boolean; paused?: boolean; to?: string; url?: string; token?: string; secret?: string; keys?: PushSubscriptionJSON['keys'] }

/** The quiet hours of a day. */
export interface Quiet { from?: string; to?: string; zone?: string }

/** A session, or a host, without notifications. */
export interface MuteOf { host?: string; session?: string; until?: string }

/** A notification that was sent, or tried. */
export interface Delivery { id: string; at: string; way?: string; host: string; session: string; kind: string; outcome: string; why?: string }

/** The settings, and the history of a day. */
export interface Settings { pushKey?: string; ways?: Way[]; mail?: boolean; quiet?: Quiet | null; mutes?: MuteOf[]; deliveries?: Delivery[] }

let said: Settings | null | undefined; // undefined: not loaded; null: not configured on this relay
let of = ''; // the token used for the load

/** Returns the settings from the relay's last answer, or undefined. */
export function known(): Settings | null | undefined {
  return of === app.token ? said : undefined;
}

function keep(token: string, value: Settings | null): void {
  of = token;
  said = value;
  app.draw();
}

/** Loads the settings; rejects if the relay does not answer. */
export async function load(): Promise<void> {
  const { token } = app;
  const { status, body } = await requests.ask<Settings>('GET', 'api/notify');
  if (status !== 200 && status !== 404) throw new Error(text(body?.error) || t`The relay answered ${status}.`);
  if (token === app.token) keep(token, status === 404 ? null : body);
}

/** Returns the mute that covers a session, or undefined. */
export function muted(host: string, session: string, now = Date.now()): MuteOf | undefined {
  return array(known()?.mutes).find((m) => m?.host === host && (!m.session || m.session === session) && (!m.until || Date.parse(m.until) > now));
}

/** Changes the quiet settings, on top of changes made elsewhere meanwhile. */
async function setTimes(change: (had: { quiet: Quiet | null; mutes: MuteOf[] }) => object): Promise<void> {
  const { token } = app;
  const { quiet, mutes } = await requests.relay<Settings>('GET', 'api/notify');
  const next = change({ quiet: quiet ?? null, mutes: array(mutes) });
  keep(token, await requests.relay('PUT', 'api/notify/times', next));
}

/** Mutes a session, or a host if none is named, until a time; undefined means for good. */
export function mute(host: string, session: string, until?: Date): Promise<void> {
  return setTimes(({ quiet, mutes }) => ({ quiet, mutes: [...others(mutes, host, session), { host, ...(session ? { session } : {}), ...(until ? { until: until.toISOString() } : {}) }] }));
}

export function unmute(host: string, session: string): Promise<void> {
  return setTimes(({ quiet, mutes }) => ({ quiet, mutes: others(mutes, host, session) }));
}

function others(mutes: MuteOf[], host: string, session: string): MuteOf[] {
  return mutes.filter((m) => m?.host !== host || (m?.session ?? '') !== session);
}

/** Sets the quiet hours {from, to, zone}; null for none. */
export function setQuiet(quiet: Quiet | null): Promise<void> {
  return setTimes(({ mutes }) => ({ quiet, mutes }));
}

/** Adds a target, or changes the target with its id. The result has secrets that the relay shows only once. */
export async function setWay(way: Way): Promise<Way> {
  const made = way.id ? await requests.relay<Way>('PUT', `api/notify/ways/${encodeURIComponent(way.id)}`, way) : await requests.relay<Way>('POST', 'api/notify/ways', way);
  await load();
  return made;
}

export async function removeWay(id: string): Promise<void> {
  await requests.relay('DELETE', `api/notify/ways/${encodeURIComponent(id)}`);
  await load();
}

/** Sends a test to a target and returns the outcome, with a line for each part that the notifications lack. */
export async function tryWay(id: string): Promise<string> {
  const { outcome, why, missing } = await requests.relay<{ outcome?: string; why?: string; missing?: unknown[] }>('POST', `api/notify/ways/${encodeURIComponent(id)}/test`);
  load().catch(() => {});
  return [outcome === 'ok' ? t`The test was delivered.` : t`The test was not taken: ${text(why) || outcome}.`, ...array(missing).map(text)].join('\n');
}
