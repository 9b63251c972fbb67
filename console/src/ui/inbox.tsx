// The session list of all hosts. Sessions that need the user come first.

import { useEffect, useRef, useState } from 'preact/hooks';
import type { RefObject } from 'preact';
import { app } from '../app';
import { text } from '../store';
import type { Json } from '../ahp';
import { ago, statusWord, when } from '../words';
import { Badge, Icon, pressed } from './bits';
import { memo } from './memo';
import { forgetHanded, isHanded } from './drafts';
import { useNear } from './near';
import { aim, folderOf, groups, hold, letGo, type Group } from './order';

export function Inbox({ now }: { now: number }) {
  const all = groups();
  const many = app.hosts.length > 1;
  const minute = Math.floor(now / 30_000); // rows are redrawn this often to update times
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => { // wherever the pointer is released; a click comes before the next draw
    for (const end of ['pointerup', 'pointercancel', 'blur']) addEventListener(end, letGo);
    return () => { for (const end of ['pointerup', 'pointercancel', 'blur']) removeEventListener(end, letGo); };
  }, []);
  return (
    <div class="side" role="navigation" aria-label="Sessions">
      <div class="side-head">
        <div class="search"><Icon name="search" />
          <input id="search" type="search" placeholder="Search sessions" aria-label="Search sessions" value={app.search} onInput={(e) => { app.search = e.currentTarget.value; app.draw(); }} /></div>
        {app.mayOperate && !app.narrow && (
          <button id="new-session" class="primary" type="button" disabled={!canCreate()} onClick={() => app.open({ kind: 'new' })}><Icon name="plus" /><span>New session</span></button>
        )}
      </div>
      <ul id="hosts" class={many ? 'hosts many' : 'hosts'} aria-label="Hosts">
        {app.hosts.map((h) => <Host key={h.host} info={h} now={now} />)}
      </ul>
      {app.hostsNote && <p id="hosts-note" class="dim" role="status">{app.hostsNote}</p>}
      <SignInNotes />
      {isHanded() && <p id="handed" class="notice" role="status"><span class="grow">Open the session that gets what you have shared.</span><button type="button" class="small" onClick={() => { forgetHanded(); app.draw(); }}>Discard</button></p>}
      <p id="sessions-note" class="dim" role="status">{note(all)}</p>
      <div id="sessions" ref={list} data-live={app.link?.live || !app.host ? 'yes' : 'no'} onKeyDown={walk} onPointerDown={hold} onPointerMove={aim}>
        {all.map((g) => <Section key={g.name} g={g} many={many} minute={minute} scroller={list} />)}
      </div>
      <About now={now} />
    </div>
  );
}

function canCreate(): boolean {
  return [...app.links.values()].some((l) => l.live && l.store.agents.length > 0);
}

function note(all: Group[]): string {
  const own = [...app.links.values()].map((l) => l.note).find(Boolean);
  if (own) return own;
  if (all.length > 0) return app.host && !app.link?.live ? 'As last seen:' : '';
  if (app.search) return 'No session matches.';
  if ([...app.links.values()].some((l) => l.listing)) return 'Loading…';
  return [...app.links.values()].some((l) => l.live) ? 'There are no sessions yet.' : '';
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

function Section({ g, many, minute, scroller }: { g: Group; many: boolean; minute: number; scroller: RefObject<HTMLDivElement> }) {
  const [open, setOpen] = useState(false);
  const folded = g.name === 'archived' && !open && !app.search;
  return (
    <section data-group={g.name}>
      <h2>{g.name === 'archived'
        ? <button type="button" class="quiet small" aria-expanded={!folded} onClick={() => setOpen(!open)}>{g.title} ({g.rows.length})</button>
        : <>{g.title} <span class="dim">{g.rows.length}</span></>}</h2>
      {!folded && <Rows g={g} many={many} minute={minute} scroller={scroller} />}
    </section>
  );
}

function Rows({ g, many, minute, scroller }: { g: Group; many: boolean; minute: number; scroller: RefObject<HTMLDivElement> }) {
  const list = useRef<HTMLUListElement>(null);
  const near = useNear(g.keys, list, scroller);
  return (
    <ul class="list" ref={list}>
      {near.map((piece) => {
        if ('gap' in piece) return <li key={`before ${piece.before}`} class="gap" aria-hidden="true" style={{ height: `${piece.gap}px` }} />;
        const { link, session } = g.rows[piece.row];
        const key = g.keys[piece.row];
        return (
          <SessionRow key={key} id={key} row={piece.row} of={g.rows.length} host={link.host} session={session} many={many} minute={minute}
            current={session.resource === app.session && link.host === app.host} live={link.live} />
        );
      })}
    </ul>
  );
}

/** A listed session's menu, opened by a long press or the secondary mouse button. */
function act(e: Event, host: string, session: string): void {
  e.preventDefault();
  app.open({ kind: 'session', link: app.links.get(host), session });
}

interface RowProps { id: string; row: number; of: number; host: string; session: Json; many: boolean; current: boolean; live: boolean; minute: number }

const SessionRow = memo(({ id, row, of, host, session, many, current, live }: RowProps) => {
  const word = statusWord(session.status);
  const tone = { 'needs you': 'wait', working: 'ok', failed: 'bad' }[word as string] ?? '';
  const unread = (session.status & 32) === 0 && (session.status & 8) === 0;
  const changes = session.changes;
  return (
    <li data-session={session.resource} data-row={row} data-key={id} aria-setsize={of} aria-posinset={row + 1} data-host-of={host} data-unread={unread ? '' : undefined} data-stale={live ? undefined : ''}>
      <button type="button" class="item" aria-current={current ? 'true' : undefined} onClick={() => app.openSession(host, session.resource)} {...pressed((e) => act(e, host, session.resource))}>
        <span class="row"><span class="name">{text(session.title) || 'New session'}</span>{word && <Badge tone={tone}>{word}</Badge>}</span>
        {text(session.activity) && word !== '' && <span class="activity">{text(session.activity)}</span>}
        <span class="dim">
          {[ago(session.modifiedAt), folderOf(session), many ? host : ''].filter(Boolean).join(' · ')}
          {changes?.files > 0 && <span class="stat"> <span class="added">+{changes.additions ?? 0}</span> <span class="removed">−{changes.deletions ?? 0}</span></span>}
        </span>
      </button>
    </li>
  );
});

function Host({ info, now }: { info: Json; now: number }) {
  const { hostsStale } = app;
  const silent = info.state === 'online' && info.notAnsweringSince;
  const tone = hostsStale ? '' : silent ? 'wait' : info.state === 'online' ? 'ok' : 'bad';
  const detail = hostsStale ? `last known: ${info.state} since ${when(info.since, now)}` : hostDetail(info, now);
  return (
    <li data-host={info.host}>
      <button type="button" class="item" aria-current={info.host === app.host ? 'true' : undefined} aria-pressed={app.hosts.length > 1 ? info.host === app.onlyHost : undefined}
        title={detail} onClick={() => app.chooseHost(info.host)}>
        <span class="row"><span class="name">{info.host}</span><Badge tone={tone}>{hostsStale ? 'unknown' : silent ? 'not answering' : info.state}</Badge></span>
        <span class="dim">{detail}</span>
      </button>
    </li>
  );
}

function hostDetail(info: Json, now: number): string {
  const parts = [`since ${when(info.notAnsweringSince ?? info.since, now)}`];
  if (info.state !== 'online' && info.reason) parts.push(info.reason);
  if (info.state === 'online') parts.push(`${info.clients} ${info.clients === 1 ? 'client' : 'clients'}`);
  if (info.keptAwake) parts.push(keptAwake(info.keptAwake));
  if (info.hostVersion) parts.push(`host ${info.hostVersion}`);
  if (info.agentVersion) parts.push(`agent ${info.agentVersion}`);
  return parts.join(' · ');
}

/** What keeps a host's machine from sleep: "kept awake by 2 sessions and 1 person". */
function keptAwake({ sessions, people }: { sessions: number; people: number }): string {
  const by = [];
  if (sessions > 0) by.push(`${sessions} ${sessions === 1 ? 'session' : 'sessions'}`);
  if (people > 0) by.push(`${people} ${people === 1 ? 'person' : 'people'}`);
  return `kept awake by ${by.join(' and ')}`;
}

/** Agents that want to be signed in before they can do anything. */
function SignInNotes() {
  if (app.readOnly) return null;
  const wanted = [];
  for (const link of app.links.values()) {
    if (!link.live) continue;
    for (const agent of link.store.agents) {
      const needs = link.unsigned(agent);
      if (needs.length > 0) wanted.push({ link, agent, needs });
    }
  }
  return (
    <>
      {wanted.map(({ link, agent, needs }) => (
        <button key={`${link.host} ${agent.provider}`} type="button" class="notice" onClick={() => app.open({ kind: 'sign-in', link, who: text(agent.displayName) || agent.provider, resources: needs })}>
          <Icon name="key" /><span>{text(agent.displayName) || agent.provider} may want you to sign in to {text(needs[0].resource_name) || needs[0].resource}</span>
        </button>
      ))}
    </>
  );
}

function About({ now }: { now: number }) {
  const [open, setOpen] = useState(false);
  const { link } = app;
  const { serverInfo, protocolVersion } = link?.conn?.info ?? {};
  const lines: [string, string][] = !open ? [] : [
    ['Protocol', protocolVersion ?? 'not agreed yet'],
    ...(serverInfo ? [['Host software', `${serverInfo.name ?? ''} ${serverInfo.version ?? ''}`] as [string, string]] : []),
    ['Client id', link?.conn?.clientId ?? 'none'],
    ['Last serverSeq', String(link?.conn?.lastSeen ?? 'none')],
    ...(app.grant ? [['Signed in as', `${text(app.grant.subject) || 'an unnamed user'}, until ${when(app.grant.expires, now)}`] as [string, string]] : []),
  ];
  return (
    <details class="about" onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>This connection</summary>
      <dl id="about">{lines.map(([term, value]) => [<dt>{term}</dt>, <dd>{value}</dd>])}</dl>
      {open && link && link.store.unknownCount > 0 && <Unknown />}
      {open && !app.byDevice && <label class="check"><input type="checkbox" checked={app.kept} onChange={(e) => app.keep(e.currentTarget.checked)} /> Keep the token on this device</label>}
      {open && <div class="row start wrap">
        <button type="button" onClick={() => app.open({ kind: 'help' })}>Check</button>
        {app.byDevice ? <a class="button" href="/device">Devices, sign out</a> : <button id="forget" type="button" onClick={() => app.forget()}>Forget the token</button>}
      </div>}
    </details>
  );
}

/** The host's unknown updates. */
function Unknown() {
  const { store } = app.link!;
  return (
    <details>
      <summary>Updates not understood: {store.unknownCount}</summary>
      {[...store.unknown].map(([type, { count, latest }]) => (
        <details key={type}><summary><code>{type}</code> ({count})</summary><pre>{latest.map((a) => JSON.stringify(a, null, 1)).join('\n')}</pre></details>
      ))}
    </details>
  );
}
