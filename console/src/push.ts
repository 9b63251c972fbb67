// Has the relay push to this device what agents want, by the browser's own way
// (Web Push), encrypted for it.

import { app } from './app';
import type { Json } from './reduce';
import { array } from './store';

const flag = 'told-on-this-device'; // so that the relay is asked only where there is something to ask

/** Whether this browser can be told. On a phone it has to be installed first. */
export function possible(): boolean {
  return 'serviceWorker' in navigator && 'PushManager' in globalThis && 'Notification' in globalThis;
}

export function isOn(): boolean {
  return localStorage.getItem(flag) !== null;
}

async function registration(): Promise<ServiceWorkerRegistration> {
  return navigator.serviceWorker.ready;
}

function bytes(base64url: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64url.replaceAll('-', '+').replaceAll('_', '/')), (c) => c.charCodeAt(0));
}

/** Has this device told from now on; details says whether what is asked is in it. Returns the way's id. */
export async function turnOn(details: boolean): Promise<string> {
  if (await Notification.requestPermission() !== 'granted') throw new Error('The browser does not let this page tell you anything: allow notifications in its settings.');
  const { pushKey } = await app.relay('GET', 'api/notify');
  if (!pushKey) throw new Error('This relay pushes nothing.');
  const subscription = await (await registration()).pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: bytes(pushKey) });
  const { endpoint, keys } = subscription.toJSON();
  const way = await app.relay('POST', 'api/notify/ways', { kind: 'webpush', name: 'This browser', url: endpoint, keys: { p256dh: keys?.p256dh, auth: keys?.auth }, details });
  localStorage.setItem(flag, String(way.id));
  return String(way.id);
}

export async function turnOff(): Promise<void> {
  const id = localStorage.getItem(flag) ?? '';
  localStorage.removeItem(flag);
  const subscription = await (await registration()).pushManager.getSubscription();
  await subscription?.unsubscribe();
  if (id) await app.relay('DELETE', `api/notify/ways/${encodeURIComponent(id)}`);
}

/** Sends a test; says how that went. */
export async function tryIt(): Promise<string> {
  const said = await app.relay('POST', `api/notify/ways/${encodeURIComponent(localStorage.getItem(flag) ?? '')}/test`);
  return String(said.outcome ?? '');
}

/** Whether the relay knows of this device still. */
export async function known(): Promise<boolean> {
  const { ways } = await app.relay('GET', 'api/notify');
  return array(ways).some((w: Json) => w?.id === localStorage.getItem(flag));
}

const lookEvery = 20_000; // ms

/** Tells the relay that somebody looks, so that nobody is told twice. */
export function look(): void {
  setInterval(() => {
    if (isOn() && !document.hidden && app.token) app.relay('POST', 'api/notify/looking').catch(() => {});
  }, lookEvery);
}
