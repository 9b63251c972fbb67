// Gives sealed hosts the keys of this browser's push subscriptions. It is loaded only for sealed hosts.

import { accountPart } from './accounts';
import { links } from './app';
import type { Link } from './link';
import { isRegistered } from './registered';
import { wayHere } from './look';
import * as notify from './notify';
import { possible, subscriptionAt } from './push';
import { keepTarget, targetOf } from './renewed';
import { subscribe } from './sealed/note';
import type { Way } from './told';

/**
 * Key in localStorage. If set, an account's sealed hosts leave questions out of notifications for this
 * device.
 */
const hidden = (at: string) => `told-without-details${at}`;

export const forgetDetails = (at: string) => localStorage.removeItem(hidden(at));

export async function keepDetails(at: string, details: boolean): Promise<void> {
  if (details) localStorage.removeItem(hidden(at));
  else if (isRegistered(at)) localStorage.setItem(hidden(at), '1');
  const target = await targetOf(at);
  if (target) await keepTarget(at, { ...target, details });
  await tellAll(at);
}

/** Shows or hides questions in this device's notifications. */
export async function setDetails(at: string, way: Way, details: boolean): Promise<void> {
  await notify.setWay(at, { ...way, details });
  await keepDetails(at, details);
}

/**
 * Gives a sealed host this browser's keys, or withdraws them. It sends nothing if the host has them already.
 */
export async function tell(link: Link): Promise<void> {
  const { seal } = link;
  if (!seal || !possible()) return;
  const at = accountPart(link.host);
  const way = wayHere(at);
  const subscription = way ? await subscriptionAt(at) : null;
  await subscribe(link.host, (what) => seal.ask(what), subscription ? way : '', localStorage.getItem(hidden(at)) === null, subscription?.toJSON().keys);
}

/** Calls tell for all connected sealed hosts of an account. An older host ignores it. */
export async function tellAll(at: string): Promise<void> {
  await Promise.allSettled([...links.values()].filter((l) => accountPart(l.host) === at).map(tell));
}
