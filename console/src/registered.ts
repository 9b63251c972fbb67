// The register of the further accounts, for all tabs: the one place that knows which accounts this browser
// still has. Each write of an account's data asks here at its own moment.

import type { Account } from './accounts';

export const registerKey = 'ahp-accounts';
export const mostAccounts = 8;

/** The accounts that the browser has now. A different tab may have changed them. */
export function registered(): Account[] {
  try {
    const all: unknown = JSON.parse(localStorage.getItem(registerKey) ?? '[]');
    return Array.isArray(all) ? all.filter((a: Account | null) => typeof a?.name === 'string' && typeof a.relay === 'string').slice(0, mostAccounts) : [];
  } catch {
    return []; // none, or no browser
  }
}

/** Whether the browser has the account of a host, or of a token that stands for one. The page's own has no name. */
export const isRegistered = (host: string) => !host.includes('@') || registered().some((a) => a.name === host.slice(host.indexOf('@') + 1));
