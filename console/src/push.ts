// Subscribes this device to encrypted notifications (Web Push).

import { app, requests } from './app';
import { deviceName } from './words';
import * as told from './told';
import { t } from './language';

const flag = 'told-on-this-device'; // the target's id; without it, the relay need not be asked

/** Reports whether this browser has push notifications. On a phone the page must be installed. */
export function possible(): boolean {
  return 'serviceWorker' in navigator && 'PushManager' in globalThis && 'Notification' in globalThis;
}

/** The id of this device's way, '' if it has none. */
export function wayHere(): string {
  return localStorage.getItem(flag) ?? '';
}

async function registration(): Promise<ServiceWorkerRegistration> {
  return navigator.serviceWorker.ready;
}

function bytes(base64url: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64url.replaceAll('-', '+').replaceAll('_', '/')), (c) => c.charCodeAt(0));
}

/** Enables notifications on this device; details includes the questions. */
export async function turnOn(details: boolean): Promise<void> {
  if (await Notification.requestPermission() !== 'granted') throw new Error(t`The browser does not let this page tell you anything: allow notifications in its settings.`);
  const { pushKey } = await requests.relay<told.Settings>('GET', 'api/notify');
  if (!pushKey) throw new Error(t`Notifications are not configured on this relay.`);
  const subscription = await (await registration()).pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: bytes(pushKey) });
  const { endpoint, keys } = subscription.toJSON();
  const way = await told.setWay({ kind: 'webpush', name: deviceName(), url: endpoint, keys: { p256dh: keys?.p256dh!, auth: keys?.auth! }, details });
  localStorage.setItem(flag, String(way.id));
  await (await import('./tell')).keepDetails(details);
}

/** Disables notifications, first at the relay, which would otherwise continue. */
export async function turnOff(): Promise<void> {
  const id = wayHere();
  if (id && told.known()?.ways?.some((w: { id?: string }) => w?.id === id)) await told.removeWay(id);
  localStorage.removeItem(flag);
  await (await import('./tell')).tellAll();
  const subscription = await (await registration()).pushManager.getSubscription();
  await subscription?.unsubscribe();
}

const lookEvery = 20_000; // ms

/** Reports to the relay that the page is in view, so it sends no notification. */
export function look(): void {
  setInterval(() => {
    if ((wayHere() || told.known()?.ways?.length) && !document.hidden && app.token) requests.relay('POST', 'api/notify/looking').catch(() => {});
  }, lookEvery);
}
