// Arranges a session's chats as a tree.

import { text } from '../store';
import type { ChatSummary } from '../ahp';

/** Returns a chat's parent, or ''. */
function over(chat: ChatSummary): string {
  return text(chat?.parentChat) || (['tool', 'fork', 'sideChat'].includes(chat?.origin?.kind!) ? text(chat.origin!.chat) : '');
}

/** Returns the chats in the order of a tree, each with its depth. */
export function treeOf(chats: ChatSummary[]): { chat: ChatSummary; depth: number }[] {
  const known = new Set(chats.map((c) => c.resource));
  const all: { chat: ChatSummary; depth: number }[] = [];
  const done = new Set<ChatSummary>();
  const add = (c: ChatSummary, depth: number) => {
    if (done.has(c)) return; // a host may send cycles
    done.add(c);
    all.push({ chat: c, depth });
    for (const child of chats) if (child !== c && over(child) === c.resource) add(child, depth + 1);
  };
  for (const c of chats) if (!known.has(over(c)) || over(c) === c.resource) add(c, 0);
  for (const c of chats) add(c, 0);
  return all;
}
