// The only file that creates script URLs, all of which are known at build time. The page's policy
// (require-trusted-types-for) refuses all other code. DOMPurify cleans HTML.

import type { Account } from './accounts';
import { t } from './language';
import { backoff } from './rpc';

declare const HIGHLIGHT_WORKER: string;

const ours: Record<string, string> = { '/sw.js': '/sw.js', [HIGHLIGHT_WORKER]: HIGHLIGHT_WORKER };

const forAccounts = '/sw.js?account='; // the service worker for a further account's notifications

interface Policy { createScriptURL(url: string): string }

const policy: Policy = (globalThis as { trustedTypes?: { createPolicy(name: string, rules: Policy): Policy } }).trustedTypes?.createPolicy('console', {
  createScriptURL(url: string) {
    if (url.startsWith(forAccounts)) return url;
    if (!Object.hasOwn(ours, url)) throw new TypeError(`not a script of this page: ${url}`);
    return ours[url];
  },
}) ?? { createScriptURL: (url: string) => url };

const longestPause = 600_000; // ms

/** Registers the service worker, which caches the page so that it opens without a network. A failed install is tried again. */
export async function registerWorker(): Promise<void> {
  for (let attempt = 0; 'serviceWorker' in navigator; attempt++) {
    try {
      const worker = await activated(await navigator.serviceWorker.register(policy.createScriptURL('/sw.js')));
      if (!navigator.serviceWorker.controller) worker.postMessage('claim'); // a page that was loading while the worker claimed its pages
      return;
    } catch {
      await pause(backoff(attempt, Math.random, longestPause)); // the page also works without it
    }
  }
}

/** Waits for a time, or until the network is back. */
async function pause(ms: number): Promise<void> {
  await new Promise<void>((resolve) => {
    const over = () => {
      clearTimeout(timer);
      removeEventListener('online', over);
      resolve();
    };
    const timer = setTimeout(over, ms);
    addEventListener('online', over);
  });
}

/** Returns a registration's worker when it is active. Without a network, the browser gives up a new one. */
async function activated({ active, waiting, installing }: ServiceWorkerRegistration): Promise<ServiceWorker> {
  const worker = active ?? waiting ?? installing;
  return new Promise((resolve, reject) => {
    const look = () => {
      if (worker?.state === 'activated') resolve(worker);
      if (!worker || worker.state === 'redundant') reject(new Error(t`The browser does not keep this page’s service worker.`));
    };
    worker?.addEventListener('statechange', look);
    look();
  });
}

/** The scope of an account's service worker. No page has an address there. */
export const scopeOf = ({ name }: Account) => `/accounts/${encodeURIComponent(name)}/`;

/** Registers the service worker for a further account's notifications, and returns the registration when it can take them. */
export async function registerFor(account: Account): Promise<ServiceWorkerRegistration> {
  const script = `${forAccounts}${encodeURIComponent(account.name)}&${new URLSearchParams({ relay: `${account.relay}/` })}`;
  const made = await navigator.serviceWorker.register(policy.createScriptURL(script), { scope: scopeOf(account) });
  await activated(made);
  return made;
}

export function highlighter(): Worker {
  return new Worker(policy.createScriptURL(HIGHLIGHT_WORKER));
}
