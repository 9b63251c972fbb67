// Keeps drafts, and prompts that no host has confirmed: these in the tab's storage while the page is hidden, because a
// phone may end such a page, and over a reload.

import { isRegistered } from './registered';
import { keep } from './storage';
import type { Pending } from './store';

const unsentKey = 'ahp-unsent';
const longest = 500_000; // characters of a prompt with its files

type Kept = Record<string, Pending[]>; // by host

function read(): Kept {
  try {
    return JSON.parse(sessionStorage.getItem(unsentKey) ?? '{}');
  } catch {
    return {};
  }
}

function write(kept: Kept): void {
  if (Object.keys(kept).length > 0) keep(sessionStorage, unsentKey, JSON.stringify(kept));
  else sessionStorage.removeItem(unsentKey);
}

/** Keeps the prompts of all links while the page is hidden, and otherwise none. */
export function keepUnsent(links: Iterable<{ host: string; store: { pending: Pending[] } }>, hidden: boolean): void {
  const kept = read();
  for (const { host, store } of links) {
    const all = hidden ? store.pending.filter((p) => JSON.stringify(p).length <= longest) : [];
    if (all.length > 0) kept[host] = all;
    else delete kept[host];
  }
  write(kept);
}

/** Returns and removes a host's prompts from before the page was loaded. */
export function takeUnsent(host: string): Pending[] {
  const kept = read();
  const mine = kept[host] ?? [];
  if (mine.length > 0) {
    delete kept[host];
    write(kept);
  }
  return mine;
}

/** Forgets all prompts: the page gets a different token. */
export function forgetUnsent(): void {
  write({});
}

const draftKey = (host: string, chat: string) => `draft ${host} ${chat}`;

/** A chat's stored draft. */
export const keptDraft = (host: string, chat: string) => localStorage.getItem(draftKey(host, chat)) ?? '';

export function keepDraft(host: string, chat: string, text: string): void {
  if (text && isRegistered(host)) keep(localStorage, draftKey(host, chat), text);
  else localStorage.removeItem(draftKey(host, chat));
}
