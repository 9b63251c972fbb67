// A browser may renew a push subscription by itself. The service worker gives the new one to the relay, or the
// page does when it opens. at is '' for the page's own account, or "@work" for a further one.

import { record } from './kept';
import { base64url } from './sealed/bytes';
import type { Settings, Way } from './told';

/** This browser's notification target at a relay, and the endpoint that the relay has. */
export interface Target { way: string; endpoint: string; name: string; details: boolean }

const targets = <T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>, at = '') => record('ahp-told', 'kept', mode, act, at);
const keyOf = (at: string) => `way${at}`;

export const targetOf = (at: string) => targets<Target | undefined>('readonly', (s) => s.get(keyOf(at)));
export const keepTarget = (at: string, target: Target) => targets('readwrite', (s) => s.put(target, keyOf(at)), at);
export const forgetTarget = (at: string) => targets('readwrite', (s) => s.delete(keyOf(at)));

/**
 * Gives a relay the browser's present subscription if the relay has an earlier one. A target that the relay
 * has removed because the earlier subscription was over is made again; one that a person has removed is not.
 * Returns whether it was given.
 */
export async function renew(at: string, now: PushSubscription, ask: <T>(method: string, path: string, json?: object) => Promise<T>): Promise<boolean> {
  const had = await targetOf(at);
  const { endpoint, keys } = now.toJSON();
  if (!had || had.endpoint === endpoint) return false;
  const { ways, deliveries } = await ask<Settings>('GET', 'api/notify');
  const way = ways?.find((w) => w?.id === had.way);
  if (!way && !deliveries?.some((d) => d?.way === had.way && d.outcome === 'gone')) return false;
  const key = now.options?.applicationServerKey;
  const next = { kind: 'webpush', name: had.name, details: had.details, ...way, url: endpoint, keys, ...(key ? { pushKey: base64url(new Uint8Array(key)) } : {}) };
  const { id } = await ask<Way>(way ? 'PUT' : 'POST', `api/notify/ways${way ? `/${encodeURIComponent(had.way)}` : ''}`, next);
  await keepTarget(at, { ...had, way: String(id), endpoint: endpoint! });
  return true;
}
