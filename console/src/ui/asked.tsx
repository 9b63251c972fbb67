// Open questions with their answers, in the session list and in the first pane.

import { useLayoutEffect, useRef } from 'preact/hooks';
import { hosts, links, nav, questions, rights, sessions, view } from '../app';
import type { Asked } from '../asked';
import { visible } from '../approval';
import { text } from '../store';
import { ago, commandIn, pretty, unmarked } from '../words';
import { Icon, isNarrow } from './bits';
import { needing } from './order';
import { unpaired } from './status';
import { plural, t } from '../language';

const restTime = 500; // ms for which a question must not have moved before it accepts an answer

const places = new WeakMap<Element, { top: number; since: number }>();

/** An element's position in its list. Scrolling by the user does not change it. */
function topOf(e: Element): number {
  const by = e.closest('#sessions, .first')!;
  return e.getBoundingClientRect().top + by.scrollTop;
}

/** Records the positions of all questions after each draw. */
export function useRest(): void {
  useLayoutEffect(() => {
    for (const e of document.querySelectorAll('[data-asked]')) {
      const top = topOf(e);
      if (Math.abs((places.get(e)?.top ?? NaN) - top) <= 2) continue;
      places.set(e, { top, since: performance.now() });
    }
  });
}

/**
 * Whether a question has not moved for restTime. If it has, a press may be meant for what was there before.
 */
function rests(e: Element): boolean {
  const place = places.get(e);
  return place !== undefined && Math.abs(place.top - topOf(e)) <= 2 && performance.now() - place.since >= restTime;
}

const mostRows = 10; // of a command before it is folded

/** Estimates how many rows a command takes. */
const rowsOf = (command: string) => command.split('\n').reduce((n, line) => n + 1 + Math.floor(line.length / (isNarrow() ? 40 : 80)), 0);

/** A question with its text, the whole input, and the answers that need no more context. */
export function Question({ q, given, over = false, connected }: { q: Asked; given: string | undefined; over?: boolean; connected: boolean }) {
  const at = useRef<HTMLDivElement>(null);
  const may = rights.mayAnswer(q.host, q.kind === 'approval');
  const approval = q.kind === 'approval';
  const { command, whole } = commandIn(q.detail);
  const input = whole ? command : pretty(q.detail);
  const folds = approval && rowsOf(input) > mostRows;
  // The text of an approval is shown completely, because it may be the command itself. A folded command can only be refused here.
  const options = may && connected ? q.options.filter((o) => o.deny || !folds) : [];
  return (
    <div class="asked" data-asked={q.id} ref={at}>
      {q.text && <p class="asked-text" dir="auto">{approval ? visible(q.text) : unmarked(q.text)}</p>}
      {q.detail && (approval ? <pre class={folds ? 'command folded' : 'command'}>{visible(input)}</pre> : <p class="asked-text" dir="auto">{unmarked(q.detail)}</p>)}
      {q.risky && <p class="risk danger"><Icon name="alert" />{t`The host marks this as dangerous.`}</p>}
      {options.length > 0 && (
        <div class="answers">
          {options.every((o) => o.deny) && <button type="button" class="primary" onClick={() => nav.openQuestion(q.host, q.session, q.chat)}>{t`Read it first`}</button>}
          {options.map((o) => (
            <button key={o.id} type="button" class={o.deny || !approval ? '' : 'primary'} disabled={given === '' || over} onClick={() => { if (rests(at.current!)) questions.answer(q, o); }}>{o.label}</button>
          ))}
        </div>
      )}
      {given !== undefined && <p class={given ? 'error' : 'dim'} role="status">{given ? t`Not answered: ${given}` : t`Sending…`}</p>}
    </div>
  );
}

/** The pane that a wide screen shows while no session is open: all questions. */
export function FirstPane() {
  useRest();
  const all = questions.all().filter((q) => !view.onlyHost || q.host === view.onlyHost);
  const live = [...links.values()].some((l) => l.live);
  const needs = all.length > 0 || needing() > 0; // the questions may come later than the list of sessions
  const working = sessions.all().filter(({ session }) => (session.status & 24) === 8).length;
  return (
    <div class="first">
      <h2 id="chat-title" tabIndex={-1}>{needs ? t`Needs you` : live ? t`Nothing needs you` : t`No session open`}</h2>
      {all.length === 0 && <p id="chat-note" class="dim">{needs ? t`Choose a session.` : !live ? (sessions.all().length > 0 ? t`Choose a session.` : unpaired().length > 0 ? t`Only paired devices show a sealed host’s sessions.` : t`Sessions appear when a host is online.`) : working > 0 ? `${plural(working, '{0} session is working.', '{0} sessions are working.')} ${t`A question appears here.`}` : rights.readOnly ? t`Choose a session.` : t`Choose a session, or begin a new one.`}</p>}
      <ul class="cards" aria-label={t`Questions`}>
        {all.map((q) => (
          <li key={`${q.host} ${q.id} ${q.digest}`} class="item-card">
            <button type="button" class="item" onClick={() => nav.openQuestion(q.host, q.session, q.chat)}>
              <span class="row"><span class="name">{q.title || text(links.get(q.host)?.store.sessions.get(q.session)?.title) || t`New session`}</span><span class="dim time">{ago(q.at)}</span></span>
              {hosts.all.length > 1 && <span class="dim">{q.host}</span>}
            </button>
            <Question q={q} given={questions.given(q)} connected={links.get(q.host)?.live === true} />
          </li>
        ))}
      </ul>
    </div>
  );
}
