// Gives sealed hosts the keys of this browser's push subscription. Loaded only for sealed hosts.

import { links } from './app';
import type { Link } from './link';
import { possible, wayHere } from './push';
import { subscribe } from './sealed/note';
import * as told from './told';

const hidden = 'told-without-details'; // in localStorage. Set: sealed hosts tell this device no questions

export async function keepDetails(details: boolean): Promise<void> {
  if (details) localStorage.removeItem(hidden);
  else localStorage.setItem(hidden, '1');
  await tellAll();
}

/** Shows or hides questions in this device's notifications. */
export async function setDetails(way: told.Way, details: boolean): Promise<void> {
  await told.setWay({ ...way, details });
  await keepDetails(details);
}

/** Gives a sealed host this browser's keys, or withdraws them. A host that has them already is not asked. */
export async function tell(link: Link): Promise<void> {
  const { seal } = link;
  if (!seal || !possible()) return;
  const way = wayHere();
  const subscription = way ? await (await navigator.serviceWorker.ready).pushManager.getSubscription() : null;
  await subscribe(link.host, (what) => seal.ask(what), subscription ? way : '', localStorage.getItem(hidden) === null, subscription?.toJSON().keys);
}

/** Tells all sealed hosts that are connected. A host of an older version tells this device nothing. */
export async function tellAll(): Promise<void> {
  await Promise.allSettled([...links.values()].map(tell));
}
