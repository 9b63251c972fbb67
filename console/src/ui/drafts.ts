// Keeps unsent drafts across page loads.

import { keepDraft, keptDraft } from '../unsent';

let handed = ''; // text that another app shares, for the next chat that opens

/**
 * Returns the draft with which a chat begins. If a session is named, text that was written before its chat
 * was known is moved to the chat.
 */
export function draftOf(host: string, chat: string, session: string): string {
  const early = session && session !== chat ? keptDraft(host, session) : '';
  const draft = both(keptDraft(host, chat), early);
  if (early) {
    keepDraft(host, session, '');
    keepDraft(host, chat, draft);
  }
  const all = both(draft, handed);
  handed = '';
  return all;
}

export let rewritten = 0; // number of drafts that were changed outside the editor

/** Adds a text to a chat's draft. */
export function addToDraft(host: string, chat: string, text: string): void {
  keepDraft(host, chat, both(keptDraft(host, chat), text));
  rewritten++;
}

/** Joins two drafts for one chat. */
export const both = (first: string, second: string) => [first, second].filter(Boolean).join('\n');

/** Whether shared content waits for the next chat that opens. */
export function isHanded(): boolean {
  return handed !== '' || files !== undefined;
}

export function forgetHanded(): void {
  handed = '';
  if (files) handedFiles();
}

let files: Promise<File[]> | undefined;

/** Returns and removes the shared files. */
export async function handedFiles(): Promise<File[]> {
  const all = await (files ?? []);
  files = undefined;
  return all;
}

/** Reads content that an app has shared: ?title=&text=&url=, and files stored by the service worker. */
export function shared(): void {
  const params = new URLSearchParams(location.search);
  handed = ['title', 'text', 'url'].map((name) => params.get(name) ?? '').filter(Boolean).join('\n');
  if (params.has('files')) files = takeShared();
  if (location.search) history.replaceState(history.state, '', `/${location.hash}`);
}

async function takeShared(): Promise<File[]> {
  try {
    const kept = await caches.open('shared');
    const all = [];
    for (const request of await kept.keys()) {
      const answer = (await kept.match(request))!;
      const blob = await answer.blob();
      all.push(new File([blob], decodeURIComponent(answer.headers.get('X-Name') ?? ''), { type: blob.type }));
    }
    await caches.delete('shared');
    return all;
  } catch {
    return []; // no storage available
  }
}
