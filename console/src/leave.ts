// Removes further accounts: their keys, pins, subscriptions and everything else that this browser keeps
// for them, and nothing from a different account. The register goes first: see registered.ts.

import { type Account, accounts, keepPage, remove } from './accounts';
import { person, remembered } from './app';
import * as device from './device';
import { forgetKeys } from './left';
import { forgetPins } from './pins';
import { wayHere } from './look';
import { forget } from './push';
import { isRegistered } from './registered';
import { forgetDetails } from './tell';

const patience = 5_000; // ms for a relay to answer

export async function leave(account: Account): Promise<void> {
  await leaveAll([account]);
}

/** Removes accounts: from the page and the browser at once, then at their relays. */
export async function leaveAll(all = accounts()): Promise<void> {
  if (all.length === 0) return;
  const ways = all.map(({ name }) => wayHere(`@${name}`));
  const subscriptions = all.map(({ name }) => forget(`@${name}`)); // must begin while the account is still known
  for (const { name } of all) remove(name);
  person.accountsChanged();
  await Promise.all([sweep(), keepPage(), ...subscriptions, ...all.map((a, i) => end(a, ways[i]))].map((done) => done.catch(() => {})));
}

/** Erases what is kept for accounts that the browser does not have any more. Their device keys go with end. */
export async function sweep(): Promise<void> {
  for (const kept of Object.keys(localStorage)) if (/^(draft|new-session) /.test(kept) && !isRegistered(kept.split(' ')[1])) localStorage.removeItem(kept);
  await Promise.allSettled([forgetPins(), forgetKeys()]);
}

/** Erases an account's key, and has its relay forget this browser. */
async function end(account: Account, way: string): Promise<void> {
  const { name, relay, token } = account;
  forgetDetails(`@${name}`);
  remembered.forget(`@${name}`);
  const self = token === undefined ? await device.takeOut(account) : undefined;
  const ways = way ? [`api/notify/ways/${encodeURIComponent(way)}`] : [];
  const told = self ? device.signOut(account, self, ways) : Promise.all(ways.map((path) => fetch(`${relay}/${path}`, { method: 'DELETE', headers: { Authorization: `Bearer ${token}` } })));
  await Promise.race([told, new Promise((resolve) => { setTimeout(resolve, patience); })]);
}
