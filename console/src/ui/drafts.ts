// What the user has written and not sent survives the page.

import { app } from '../app';

const key = (chat: string) => `draft ${app.host} ${chat}`;
let handed = ''; // by another app, for the chat that is opened next

export function draftOf(chat: string): string {
  const draft = localStorage.getItem(key(chat)) ?? '';
  if (!handed) return draft;
  const all = [draft, handed].filter(Boolean).join('\n');
  handed = '';
  return all;
}

export function keepDraft(chat: string, text: string): void {
  try {
    if (text) localStorage.setItem(key(chat), text);
    else localStorage.removeItem(key(chat));
  } catch {
    // The device has no room: it is still on the page.
  }
}

/** Takes what another app shares with this one: ?title=&text=&url=. */
export function shared(): void {
  const params = new URLSearchParams(location.search);
  handed = ['title', 'text', 'url'].map((name) => params.get(name) ?? '').filter(Boolean).join('\n');
  if (location.search) history.replaceState(history.state, '', `/${location.hash}`);
}
