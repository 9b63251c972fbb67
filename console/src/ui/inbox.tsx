// The session list of all hosts. Sessions that need the user come first.

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { RefObject } from 'preact';
import { app, absent, links, questions, rights, sessions } from '../app';
import { text } from '../store';
import type { Summary } from '../ahp';
import type { Asked } from '../asked';
import { asOf, SignInNotes, unpaired, Wake } from './status';
import { ago, hostWord, statusWord } from '../words';
import { Question, useRest } from './asked';
import { Badge, Icon, Lines, pressed } from './bits';
import { later } from './later';
import { memo } from './memo';
import { forgetHanded, isHanded } from './drafts';
import { useNear } from './near';
import { aim, folderOf, groups, held, hold, letGo, type Group } from './order';
import { plural, t } from '../language';

const LeftAll = later<{ now: number }>(() => import('./left').then((m) => m.LeftAll));

/** Grey rows that are shown until the sessions are known. */
function Skeletons() {
  return <div class="skeletons" aria-hidden="true">{[0, 1, 2, 3].map((i) => <div key={i} class="skeleton"><i /><i /></div>)}</div>;
}

export function Inbox({ now }: { now: number }) {
  const all = groups();
  const many = app.hosts.all.length > 1;
  const minute = Math.floor(now / 30_000); // changes when rows must be redrawn because of their times
  const list = useRef<HTMLDivElement>(null);
  useRest();
  const had = document.activeElement as HTMLElement | null;
  const row = had?.closest<HTMLElement>('#sessions [data-key]')?.dataset.key;
  useLayoutEffect(() => { // an element that moves loses the focus, and in a different group the row is a new element
    if (row && document.activeElement === document.body) (had!.isConnected ? had : list.current!.querySelector<HTMLElement>(`[data-key="${CSS.escape(row)}"] button`))?.focus({ preventScroll: true });
  });
  useEffect(() => { // the pointer may be released anywhere; a click comes before the next draw
    for (const end of ['pointerup', 'pointercancel', 'blur']) addEventListener(end, letGo);
    return () => { for (const end of ['pointerup', 'pointercancel', 'blur']) removeEventListener(end, letGo); };
  }, []);
  return (
    <div class="side" role="navigation" aria-label={t`Sessions`}>
      <div class="side-head">
        <div class="row"><div class="search grow"><Icon name="search" />
          <input id="search" type="search" placeholder={t`Search sessions`} aria-label={t`Search sessions`} value={app.search} onInput={(e) => { app.search = e.currentTarget.value; app.draw(); }} /></div>
          {many && <button id="filter" class="quiet round" type="button" aria-label={t`Hosts`} title={t`Hosts`} onClick={() => app.open({ kind: 'status' })}><Icon name="filter" /></button>}</div>
        {app.byDevice && app.hosts.grant?.access === 'admin' && app.hosts.all.length === 0 ? <a id="connect-host" class="button primary" href="/device">{t`Connect a host`}</a>
          : rights.mayCreate && (unpaired().length === 0 || unpaired().length < app.hosts.all.length) && (
            <button id="new-session" class="primary" type="button" disabled={![...links.values()].some((l) => sessions.mayBegin(l))} onClick={() => app.open({ kind: 'new' })}><Icon name="plus" /><span>{t`New session`}</span></button>
          )}
      </div>
      {app.onlyHost && <button id="only-host" class="chip" type="button" onClick={() => app.chooseHost(app.host)}><span>{t`Only ${app.onlyHost}`}</span><Icon name="close" /></button>}
      {app.hosts.note && <p id="hosts-note" class="dim" role="status">{app.hosts.note}</p>}
      {isHanded() && <p id="handed" class="notice" role="status"><span class="grow">{t`Open the session that gets what you have shared.`}</span><button type="button" class="small" onClick={() => { forgetHanded(); app.draw(); }}>{t`Discard`}</button></p>}
      <p id="sessions-note" class="dim" role="status">{note(all, now)}</p>
      {all.length > 0 && !app.search && all[0].name !== 'needs' && [...links.values()].some((l) => l.live) && <p class="calm dim">{t`Nothing needs you`}</p>}
      {app.hosts.all.filter((h) => wakes(h.host)).map((h) => (
        <p key={h.host} class="notice waking" data-wake={h.host} data-tone={h.state === 'online' ? 'ok' : undefined}><span class="grow">{ageOf(h.host, now) || (many ? h.host : t`Host ${hostWord(h.state)}`)}</span><Wake host={h.host} /></p>
      ))}
      {absent.all().length > 0 && <LeftAll now={now} />}
      <div id="sessions" ref={list} data-live={app.link?.live || !app.host ? 'yes' : 'no'} onKeyDown={walk} onPointerDown={hold} onPointerMove={aim}>
        {all.map((g) => <Section key={g.name} g={g} many={many} minute={minute} scroller={list} had={row} />)}
        {all.length === 0 && links.size > 0 && [...links.values()].some((l) => l.listing) && <Skeletons />}
        <SignInNotes />
      </div>
    </div>
  );
}

/** Whether a host has a line of its own, with the button that wakes it. */
const wakes = (host: string) => app.hosts.mayWake(host) || app.hosts.waking.has(host);

/** The age of a host's list, '' if the host is connected or its list is not known. */
function ageOf(host: string, now: number): string {
  const link = links.get(host);
  if (!link || link.live || !link.listAt || link.store.sessions.size === 0) return '';
  return `${app.hosts.all.length > 1 ? `${host}: ` : ''}${asOf(host, link.listAt, now)}`;
}

function note(all: Group[], now: number): string {
  const own = [...links.values()].map((l) => l.note).find(Boolean);
  if (own) return own;
  if (all.length > 0) {
    return [...links.values()].filter((l) => !wakes(l.host) && (!app.onlyHost || l.host === app.onlyHost)).map((l) => ageOf(l.host, now)).filter(Boolean).join('. ');
  }
  if (app.search) return t`No session matches.`;
  if ([...links.values()].some((l) => l.listing)) return '';
  return [...links.values()].some((l) => l.live) ? t`There are no sessions yet.` : unpaired().length > 0 ? t`Only paired devices show a sealed host’s sessions.` : '';
}

/** Handles the arrow keys in the list. */
function walk(e: KeyboardEvent): void {
  const row = (e.target as Element).closest<HTMLElement>('li[data-session]');
  if (!row || (e.key !== 'ArrowDown' && e.key !== 'ArrowUp')) return;
  const all = [...document.querySelectorAll<HTMLElement>('#sessions li[data-session]')];
  const next = all[all.indexOf(row) + (e.key === 'ArrowDown' ? 1 : -1)];
  next?.querySelector('button')!.focus();
  e.preventDefault();
}

interface ListProps { g: Group; many: boolean; minute: number; scroller: RefObject<HTMLDivElement>; had?: string } // had: see useNear

function Section({ g, ...rest }: ListProps) {
  const [open, setOpen] = useState(false);
  const folded = g.name === 'archived' && !open && !app.search;
  return (
    <section data-group={g.name}>
      <h2>{g.name === 'archived'
        ? <button type="button" class="quiet small" aria-expanded={!folded} onClick={() => setOpen(!open)}>{g.title} ({g.rows.length})</button>
        : <>{g.title} <span class="dim">{g.rows.length}</span></>}</h2>
      {!folded && <Rows g={g} {...rest} />}
    </section>
  );
}

function Rows({ g, many, minute, scroller, had }: ListProps) {
  const list = useRef<HTMLUListElement>(null);
  const near = useNear(g.keys, list, scroller, had);
  return (
    <ul class="list" ref={list}>
      {near.map((piece) => {
        if ('gap' in piece) return <li key={`before ${piece.before}`} class="gap" aria-hidden="true" style={{ height: `${piece.gap}px` }} />;
        const { link, session } = g.rows[piece.row];
        const key = g.keys[piece.row];
        return (
          <SessionRow key={key} id={key} row={piece.row} of={g.rows.length} host={link.host} session={session} many={many} minute={minute}
            {...askedOf(link.host, session)} current={session.resource === app.session && link.host === app.host} live={link.live} />
        );
      })}
    </ul>
  );
}

/** A listed session's menu, opened by a long press or the secondary mouse button. */
function act(e: Event, host: string, session: string): void {
  e.preventDefault();
  app.open({ kind: 'session', link: links.get(host)!, session });
}

const shown = new Map<string, { q?: Asked; more: number }>(); // by row key

/**
 * Returns the first question of a session that needs the user. While rows keep their places, they also keep
 * their questions.
 */
function askedOf(host: string, session: Summary) {
  const key = `${host} ${session.resource}`;
  const [q, ...more] = session.status & 16 ? questions.of(host, session.resource) : [];
  if (!held()) shown.set(key, { q, more: more.length });
  const had = shown.get(key) ?? { more: 0 };
  return { ...had, given: had.q && questions.given(had.q), over: had.q?.digest !== q?.digest };
}

interface RowProps { q?: Asked; more: number; given?: string; over: boolean; id: string; row: number; of: number; host: string; session: Summary; many: boolean; current: boolean; live: boolean; minute: number }

const SessionRow = memo(({ id, row, of, host, session, many, current, live, q, more, given, over }: RowProps) => {
  const word = statusWord(session.status);
  const unread = (session.status & 32) === 0 && (session.status & 8) === 0;
  const changes = session.changes;
  return (
    <li data-session={session.resource} data-row={row} data-key={id} aria-setsize={of} aria-posinset={row + 1} data-host-of={host} data-unread={unread ? '' : undefined} data-stale={live ? undefined : ''}>
      <button type="button" class="item" aria-current={current ? 'true' : undefined} onClick={() => (q ? app.openQuestion(host, session.resource, q.chat) : app.openSession(host, session.resource))} {...pressed((e) => act(e, host, session.resource))}>
        <span class="row">
          {unread && <span class="mark"><span class="unseen">{t`Unread:`} </span></span>}
          <span class="name" dir="auto">{text(session.title) || t`New session`}</span>
          <span class="dim time">{ago(session.modifiedAt)}</span>
        </span>
        {text(session.activity) && word !== '' && !q && <span class="activity" dir="auto">{text(session.activity)}</span>}
        <span class="dim sub">
          {(session.status & 26) === 2 && <Badge tone="bad">{t`failed`}</Badge>}
          <span class="where">{[folderOf(session), many ? host : ''].filter(Boolean).join(' · ')}</span>
          {changes?.files! > 0 && <Lines of={changes!} />}
        </span>
      </button>
      {q && !current && <Question key={`${q.id} ${q.digest}`} q={q} given={given} over={over} connected={live} />}
      {more > 0 && !current && <p class="asked dim">{plural(more, 'Another question in this session.', '{0} more questions in this session.')}</p>}
    </li>
  );
});
