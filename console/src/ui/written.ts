// What the user writes for a question stays while the user is elsewhere, until it is sent, the page is closed, or the page gets a
// different token, which may be that of another person.

import { useState } from 'preact/hooks';
import { person, view } from '../app';

const all = new Map<string, unknown>(); // by token, place and question

/** Returns what is written for a question of the chat in view, and functions that change and forget it. */
export function useWritten<T>(question: string, begin: () => T): [T, (change: (had: T) => T) => void, () => void] {
  const place = `${person.token} ${view.host} ${view.chatUri} ${question}`;
  const [value, set] = useState(() => (all.get(place) as T | undefined) ?? begin());
  const write = (change: (had: T) => T) => set((had) => {
    const now = change(had);
    all.set(place, now);
    return now;
  });
  return [value, write, () => { all.delete(place); }];
}
