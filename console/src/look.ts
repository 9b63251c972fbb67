// Reports that the page is in view. All pages load this file, and push.ts only with notifications.

import { accountParts } from './accounts';
import { app, requests } from './app';
import * as told from './told';

const push = () => import('./push');

export const flag = (at: string) => `told-on-this-device${at}`; // id of this browser's notification target; if it is missing, there is none

/** The id of this browser's notification target, or ''. */
export function wayHere(at: string): string {
  return localStorage.getItem(flag(at)) ?? '';
}

const lookEvery = 20_000; // ms

/**
 * Reports to the relays that the page is in view, so they send no notification here. It also handles renewed
 * subscriptions, until each account's relay has answered.
 */
export function look(): void {
  const due = new Set(accountParts());
  const catchUp = () => { if (app.token) for (const at of [...due]) { due.delete(at); if (wayHere(at)) push().then((m) => m.renewed(at)).catch(() => due.add(at)); } };
  catchUp();
  navigator.serviceWorker?.addEventListener('message', ({ data }) => {
    if (typeof data?.renewed !== 'string') return;
    due.add(data.renewed);
    catchUp();
  });
  for (const at of accountParts()) if (at && wayHere(at)) push().then((m) => m.registration(at)).then((r) => r.update()).catch(() => {}); // no page load updates these workers
  setInterval(() => {
    catchUp();
    if (document.hidden || !app.token) return;
    for (const at of accountParts()) if (wayHere(at) || told.known(at)?.ways?.length) requests.relayAt(at, 'POST', 'api/notify/looking').catch(() => {});
  }, lookEvery);
}
