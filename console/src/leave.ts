// Removes further accounts: their keys, pins, subscriptions and everything else that this browser keeps
// for them, and nothing from a different account.

import { accounts, keepPage, remove, tokenOf, type Account } from './accounts';
import { app } from './app';
import * as device from './device';
import { forgetKeys } from './left';
import { nameIn, pinsOf, unpin } from './pins';
import { forget, wayHere } from './push';
import { forgetDetails } from './tell';

const patience = 5_000; // ms for a relay to answer; the keys go then

export async function leave(account: Account): Promise<void> {
  await leaveAll([account]);
}

/** Removes accounts: from the page at once, then from the browser and their relays. */
export async function leaveAll(all = accounts()): Promise<void> {
  if (all.length === 0) return;
  const ways = all.map(({ name }) => wayHere(`@${name}`));
  const subscriptions = all.map(({ name }) => forget(`@${name}`)); // begins while the account is known
  for (const { name } of all) remove(name);
  app.accountsChanged();
  await Promise.all([keepPage(), ...subscriptions, ...all.map((a, i) => erase(a, ways[i]))].map((done) => done.catch(() => {})));
}

async function erase(account: Account, way: string): Promise<void> {
  const at = `@${account.name}`;
  forgetDetails(at);
  app.remembered.forget(at);
  for (const kept of Object.keys(localStorage)) if (/^(draft|new-session) /.test(kept) && tokenOf(kept.split(' ')[1], '') === at) localStorage.removeItem(kept);
  const local = (async () => {
    for (const pin of await pinsOf(account.name)) await unpin(nameIn(pin));
    await forgetKeys(at);
  })();
  const told = (async () => {
    if (way) await endWay(account, way);
    if (account.token === undefined) await device.signOut(account);
  })();
  await Promise.allSettled([local, Promise.race([told, new Promise((resolve) => { setTimeout(resolve, patience); })])]);
  if (account.token === undefined) await device.forget(account);
}

/** Has the relay send this browser nothing more for an account. */
async function endWay({ relay, token, ...more }: Account, way: string): Promise<void> {
  const path = `api/notify/ways/${encodeURIComponent(way)}`;
  if (token === undefined) await device.call('DELETE', path, undefined, { relay, ...more });
  else await fetch(`${relay}/${path}`, { method: 'DELETE', headers: { Authorization: `Bearer ${token}` } });
}
