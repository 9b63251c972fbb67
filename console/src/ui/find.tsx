// Searches the open conversation, and jumps to a turn.

import { useEffect, useState } from 'preact/hooks';
import { conversation, nav, view } from '../app';
import { array, text } from '../store';
import type { ChatState, Turn } from '../ahp';
import { when } from '../words';
import { Dialog } from './bits';
import { plural, t } from '../language';

const mostFound = 50; // turns
const around = 60; // characters beside a match

/** A turn that contains the words. */
interface Found { turn: string; at: string; who: string; before: string; match: string; after: string }

/** Returns all text of a turn: prompt, answers, and what its tools did. */
function said(turn: Turn): [who: string, words: string][] {
  return [[t`You`, text(turn.message?.text)], ...array(turn.responseParts).map((p): [string, string] => {
    const call = p?.toolCall;
    if (!call) return [t`Agent`, text(p?.content) || text(p?.request?.message)];
    const output = array(call.content).map((c) => text(c?.text)).join('\n');
    return [text(call.displayName) || t`Tool`, [text(call.pastTenseMessage) || text(call.invocationMessage), text(call.toolInput), output].join('\n')];
  })];
}

/** Returns the latest turns that contain the words, the latest first. */
export function find(turns: Turn[], query: string): Found[] {
  const wanted = query.trim().toLowerCase();
  const found: Found[] = [];
  if (!wanted) return found;
  for (const turn of turns.toReversed()) {
    for (const [who, words] of said(turn)) {
      const i = words.toLowerCase().indexOf(wanted);
      if (i < 0) continue;
      found.push({ turn: String(turn.id), at: turn.startedAt, who, before: words.slice(Math.max(0, i - around), i), match: words.slice(i, i + wanted.length), after: words.slice(i + wanted.length, i + wanted.length + around) });
      break;
    }
    if (found.length === mostFound) break;
  }
  return found;
}

export function Find() {
  const [query, setQuery] = useState('');
  const [all, setAll] = useState(false); // also search turns that are not loaded
  const { link, chatUri } = view;
  const past = link?.seen(view.session);
  const chat = link?.store.get<ChatState>(chatUri) ?? (past?.chat === chatUri ? past?.state : undefined);
  const turns = [...array(chat?.turns), ...(chat?.activeTurn ? [chat.activeTurn] : [])];
  const more = Boolean(link?.live && chat?.turnsNextCursor);
  useEffect(() => { if (all && more) conversation.earlier(); }, [all, chat?.turnsNextCursor]);
  const found = find(turns, query);
  const close = () => nav.open(null);
  return (
    <Dialog title={t`Find in this conversation`} id="find" onClose={close}>
      <input type="search" aria-label={t`Words`} placeholder={t`Words`} data-focus value={query} onInput={(e) => setQuery(e.currentTarget.value)} />
      {query.trim() && <p class="dim" role="status">{found.length === 0 ? t`Nothing found.` : found.length === mostFound ? plural(found.length, '{0} or more turns.', '{0} or more turns.') : plural(found.length, '{0} turn.', '{0} turns.')} {more ? all ? t`Loading older turns…` : t`Older turns are not loaded.` : ''}
        {more && !all && <> <button type="button" class="small" onClick={() => setAll(true)}>{t`Search older turns`}</button></>}</p>}
      <ul class="list" aria-label={t`Found`}>
        {found.map((f) => (
          <li key={f.turn}><button type="button" class="item" data-found={f.turn} onClick={() => { nav.open(null); nav.seek(f.turn); }}>
            <span class="row"><span class="dim">{f.who}</span><span class="dim time">{when(f.at)}</span></span>
            <span class="text" dir="auto">{f.before}<mark>{f.match}</mark>{f.after}</span>
          </button></li>
        ))}
      </ul>
    </Dialog>
  );
}
