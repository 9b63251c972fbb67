// The user's notification settings. The relay keeps them for the token's subject.

import { app } from './app';
import { array, text } from './store';
import type { Json } from './ahp';
import { t } from './language';

let said: Json; // undefined: not loaded; null: not configured on this relay
let of = ''; // the token used for the load

/** Returns the settings from the relay's last answer, or undefined. */
export function known(): Json {
  return of === app.token ? said : undefined;
}

function keep(token: string, value: Json): void {
  of = token;
  said = value;
  app.draw();
}

/** Loads the settings; rejects if the relay does not answer. */
export async function load(): Promise<void> {
  const { token } = app;
  const { status, body } = await app.ask('GET', 'api/notify');
  if (status !== 200 && status !== 404) throw new Error(text(body?.error) || t`The relay answered ${status}.`);
  if (token === app.token) keep(token, status === 404 ? null : body);
}

/** Returns the mute that covers a session, or undefined. */
export function muted(host: string, session: string, now = Date.now()): Json {
  return array(known()?.mutes).find((m) => m?.host === host && (!m.session || m.session === session) && (!m.until || Date.parse(m.until) > now));
}

/** Changes the quiet settings, on top of changes made elsewhere meanwhile. */
async function setTimes(change: (had: { quiet: Json; mutes: Json[] }) => Json): Promise<void> {
  const { token } = app;
  const { quiet, mutes } = await app.relay('GET', 'api/notify');
  const next = change({ quiet: quiet ?? null, mutes: array(mutes) });
  keep(token, await app.relay('PUT', 'api/notify/times', next));
}

/** Mutes a session, or a host if none is named, until a time; undefined means for good. */
export function mute(host: string, session: string, until?: Date): Promise<void> {
  return setTimes(({ quiet, mutes }) => ({ quiet, mutes: [...others(mutes, host, session), { host, ...(session ? { session } : {}), ...(until ? { until: until.toISOString() } : {}) }] }));
}

export function unmute(host: string, session: string): Promise<void> {
  return setTimes(({ quiet, mutes }) => ({ quiet, mutes: others(mutes, host, session) }));
}

function others(mutes: Json[], host: string, session: string): Json[] {
  return mutes.filter((m) => m?.host !== host || (m?.session ?? '') !== session);
}

/** Sets the quiet hours {from, to, zone}; null for none. */
export function setQuiet(quiet: Json): Promise<void> {
  return setTimes(({ mutes }) => ({ quiet, mutes }));
}

/** Adds a target, or changes the target with its id. The result has secrets that the relay shows only once. */
export async function setWay(way: Json): Promise<Json> {
  const made = way.id ? await app.relay('PUT', `api/notify/ways/${encodeURIComponent(way.id)}`, way) : await app.relay('POST', 'api/notify/ways', way);
  await load();
  return made;
}

export async function removeWay(id: string): Promise<void> {
  await app.relay('DELETE', `api/notify/ways/${encodeURIComponent(id)}`);
  await load();
}

/** Sends a test to a target and returns the outcome, with a line for each part that the notifications lack. */
export async function tryWay(id: string): Promise<string> {
  const { outcome, why, missing } = await app.relay('POST', `api/notify/ways/${encodeURIComponent(id)}/test`);
  load().catch(() => {});
  return [outcome === 'ok' ? t`The test was delivered.` : t`The test was not taken: ${text(why) || outcome}.`, ...array(missing).map(text)].join('\n');
}
