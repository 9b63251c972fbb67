// Subscribes this device to encrypted notifications (Web Push). Each account has a subscription of its own,
// which contains its relay's key. A browser has one subscription for each service worker's registration, so
// each further account has its own registration. at is '' for the page's own account, or "@work" for a
// further one.

import { accountOf } from './accounts';
import { requests } from './app';
import { flag, wayHere } from './look';
import * as notify from './notify';
import { isRegistered } from './registered';
import { forgetTarget, keepTarget, renew, targetOf } from './renewed';
import { fromBase64url } from './sealed/bytes';
import { registerFor, scopeOf } from './trusted';
import { deviceName } from './words';
import * as told from './told';
import { t } from './language';

/** Reports whether this browser has push notifications. On a phone the page must be installed. */
export function possible(): boolean {
  return 'serviceWorker' in navigator && 'PushManager' in globalThis && 'Notification' in globalThis;
}

/**
 * Returns the service worker's registration for an account. The one of the page's own account also caches the
 * page.
 */
export async function registration(at: string): Promise<ServiceWorkerRegistration> {
  const account = accountOf(at);
  if (!at) return navigator.serviceWorker.ready;
  if (!account) throw new Error(gone()); // a different tab has removed it
  const made = await registerFor(account);
  if (!isRegistered(at)) { // removed meanwhile
    await made.unregister();
    throw new Error(gone());
  }
  return made;
}

const gone = () => t`Not signed in any more.`;

/** This device's subscription for an account, as it is, or null. */
export async function subscriptionAt(at: string): Promise<PushSubscription | null> {
  return (await registration(at)).pushManager.getSubscription();
}

/** Subscribes with the key of the account's relay. */
async function subscribed(at: string, { pushManager }: ServiceWorkerRegistration): Promise<PushSubscription> {
  const { pushKey } = await requests.relayAt<told.Settings>(at, 'GET', 'api/notify');
  if (!pushKey) throw new Error(t`Notifications are not configured on this relay.`);
  return pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: fromBase64url(pushKey) });
}

/** Asks the person to permit notifications; rejects if the browser does not permit them. */
export async function permit(): Promise<void> {
  if (await Notification.requestPermission() !== 'granted') throw new Error(t`The browser does not let this page tell you anything: allow notifications in its settings.`);
}

/** Enables an account's notifications on this device, after permit; details includes the questions. */
export async function turnOn(at: string, details: boolean): Promise<void> {
  const here = await registration(at);
  const subscription = await subscribed(at, here);
  const { endpoint, keys } = subscription.toJSON();
  const name = deviceName();
  const way = await notify.setWay(at, { kind: 'webpush', name, url: endpoint, keys: { p256dh: keys?.p256dh!, auth: keys?.auth! }, details });
  if (!isRegistered(at)) {
    await subscription.unsubscribe();
    await here.unregister();
    throw new Error(gone());
  }
  localStorage.setItem(flag(at), String(way.id));
  await keepTarget(at, { way: String(way.id), endpoint: endpoint!, name, details });
  await (await import('./tell')).keepDetails(at, details);
}

/** Gives an account's relay and its sealed hosts the present subscription, if the browser has renewed it. */
export async function renewed(at: string): Promise<void> {
  const id = wayHere(at);
  if (!id || !possible() || Notification.permission !== 'granted') return;
  const here = await registration(at);
  const now = await here.pushManager.getSubscription() ?? await subscribed(at, here);
  if (!(await targetOf(at))) await keepTarget(at, { way: id, endpoint: '', name: deviceName(), details: false }); // turned on by an earlier version of the page
  const given = await renew(at, now, (method, path, json) => requests.relayAt(at, method, path, json));
  const way = (await targetOf(at))?.way ?? id; // the service worker may have changed it
  if (way !== id && isRegistered(at)) localStorage.setItem(flag(at), way);
  if (given || way !== id) await Promise.all([notify.load(at), import('./tell').then((m) => m.tellAll(at))]);
}

/** Turns off an account's notifications: first at the relay, which would otherwise continue to send them. */
export async function turnOff(at: string): Promise<void> {
  const id = wayHere(at);
  if (id && told.known(at)?.ways?.some((w: { id?: string }) => w?.id === id)) await notify.removeWay(at, id);
  localStorage.removeItem(flag(at));
  await (await import('./tell')).tellAll(at);
  await forget(at);
}

/** Ends an account's subscription in this browser. */
export async function forget(at: string): Promise<void> {
  localStorage.removeItem(flag(at));
  const erased = 'indexedDB' in globalThis ? forgetTarget(at).catch(() => {}) : undefined;
  if (!possible()) return;
  const account = accountOf(at);
  if (at && !account) return;
  // For an account without one, getRegistration would return that of the page's own account.
  const here = account ? (await navigator.serviceWorker.getRegistrations()).find((r) => new URL(r.scope).pathname === scopeOf(account)) : await registration(at);
  await (await here?.pushManager.getSubscription())?.unsubscribe();
  if (account) await here?.unregister();
  await erased;
}
