// The only file that creates script URLs, all of which are known at build time. The page's policy
// (require-trusted-types-for) refuses all other code. DOMPurify cleans HTML.

import type { Account } from './accounts';
import { t } from './language';

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

/** Registers the service worker, which caches the page so that it opens without a network. */
export function registerWorker(): void {
  navigator.serviceWorker?.register(policy.createScriptURL('/sw.js')).catch(() => {}); // the page also works without it
}

/** The scope of an account's service worker. No page has an address there. */
export const scopeOf = ({ name }: Account) => `/accounts/${encodeURIComponent(name)}/`;

/** Registers the service worker for a further account's notifications, and returns the registration when it can take them. */
export async function registerFor(account: Account): Promise<ServiceWorkerRegistration> {
  const script = `${forAccounts}${encodeURIComponent(account.name)}&${new URLSearchParams({ relay: `${account.relay}/` })}`;
  const made = await navigator.serviceWorker.register(policy.createScriptURL(script), { scope: scopeOf(account) });
  const worker = made.active ?? made.waiting ?? made.installing;
  if (worker && worker.state !== 'activated') {
    await new Promise<void>((resolve, reject) => {
      worker.addEventListener('statechange', () => {
        if (worker.state === 'activated') resolve();
        if (worker.state === 'redundant') reject(new Error(t`The browser does not keep this page’s service worker.`));
      });
    });
  }
  return made;
}

export function highlighter(): Worker {
  return new Worker(policy.createScriptURL(HIGHLIGHT_WORKER));
}
