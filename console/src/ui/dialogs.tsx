// Dialogs: new session, sign-in, rename, commands.

import { useRef, useState } from 'preact/hooks';
import type { Account } from '../accounts';
import { conversation, nav, person, rights, sessions, view } from '../app';
import type { Link } from '../link';
import { text } from '../store';
import type { AuthRequired, Resource } from '../ahp';
import { Dialog } from './bits';
import { nextOne, toQuestion } from './keys';
import { later } from './later';
import { groups } from './order';
import { SessionActions, titleOf } from './session';
import { t } from '../language';

const AddAccount = later<{ first?: Account }>(() => import('./accounts').then((m) => m.AddAccount));
const Find = later(() => import('./find').then((m) => m.Find));
const Help = later<{ now: number }>(() => import('./check').then((m) => m.Help));
const Lend = later(() => import('./lend').then((m) => m.Lend));
const Mute = later<{ host: string; session: string; now: number }>(() => import('./told').then((m) => m.Mute));
const NewSession = later(() => import('./newsession').then((m) => m.NewSession));
const Pair = later<{ link?: string; host?: string }>(() => import('./sealed').then((m) => m.Pair));
const Previews = later(() => import('./preview').then((m) => m.Previews));
const Sealed = later<{ link: Link; request?: string }>(() => import('./sealed').then((m) => m.Sealed));
const Settings = later(() => import('./newsession').then((m) => m.Settings));
const Share = later(() => import('./share').then((m) => m.Share));
const SignIn = later<{ link: Link; who: string; resources: Resource[]; more?: AuthRequired }>(() => import('./signin').then((m) => m.SignIn));
const Status = later<{ now: number }>(() => import('./statussheet').then((m) => m.Status));
const Told = later<{ now: number }>(() => import('./told').then((m) => m.Told));
const Usage = later(() => import('./usage').then((m) => m.Usage));

export function Dialogs({ now }: { now: number }) {
  const { dialog } = view;
  switch (dialog?.kind) {
    case 'new': return <NewSession />;
    case 'sign-in': return <SignIn link={dialog.link} who={dialog.who} resources={dialog.resources} more={dialog.more} />;
    case 'session': return <OneSession link={dialog.link} session={dialog.session} />;
    case 'rename': return <Rename link={dialog.link} session={dialog.session} title={dialog.title} />;
    case 'palette': return <Palette />;
    case 'told': return <Told now={now} />;
    case 'mute': return <Mute host={dialog.host ?? view.host} session={dialog.session ?? view.session} now={now} />;
    case 'settings': return <Settings />;
    case 'previews': return <Previews />;
    case 'share': return <Share />;
    case 'lend': return <Lend />;
    case 'find': return <Find />;
    case 'usage': return <Usage />;
    case 'status': return <Status now={now} />;
    case 'confirm': return <Confirm {...dialog} />;
    case 'pair': return <Pair key={dialog.link} link={dialog.link} host={dialog.host} />;
    case 'sealed': return <Sealed link={dialog.link} request={dialog.request} />;
    case 'account': return <AddAccount first={dialog.first} />;
    case 'help': return <Help now={now} />;
  }
  return null;
}

const close = () => nav.open(null);

/** A dialog that asks before an action that cannot be undone. */
function Confirm({ title, says, yes, act }: { title: string; says: string; yes: string; act: () => void }) {
  return (
    <Dialog title={title} id="confirm" onClose={close}>
      <p>{says}</p>
      <div class="answers">
        <button type="button" data-focus onClick={close}>{t`Cancel`}</button>
        <button id="confirm-yes" type="button" class="danger" onClick={() => { close(); act(); }}>{yes}</button>
      </div>
    </Dialog>
  );
}

/** A listed session's menu. */
function OneSession({ link, session }: { link: Link; session: string }) {
  const act = (f: () => void) => {
    close();
    f();
  };
  return (
    <Dialog title={titleOf(link, session)} id="one-session" onClose={close}>
      <div class="actions">
        <button type="button" class="primary" onClick={() => act(() => nav.openSession(link.host, session))}>{t`Open`}</button>
        <SessionActions link={link} session={session} act={act} />
      </div>
    </Dialog>
  );
}

function Rename({ link, session, title }: { link: Link; session: string; title: string }) {
  const at = useRef<HTMLInputElement>(null);
  const submit = (e: Event) => {
    e.preventDefault();
    if (at.current!.value.trim()) sessions.rename(link, session, at.current!.value.trim());
    close();
  };
  return (
    <Dialog title={t`Rename the session`} onClose={close}>
      <form class="fields" onSubmit={submit}><label for="new-title">{t`Name`}</label><input id="new-title" ref={at} defaultValue={title} data-focus maxLength={200} /><div class="row start"><button class="primary" type="submit">{t`Rename`}</button></div></form>
    </Dialog>
  );
}

interface Command { name: string; hint?: string; run: () => void }

function commands(): Command[] {
  const { link, session } = view;
  const may = link?.live && !rights.readOnly;
  const all: Command[] = [
    { name: t`Next session that needs you`, hint: 'Alt N', run: nextOne },
    { name: t`Go to the question`, hint: 'Alt A', run: () => setTimeout(toQuestion) },
  ];
  if (rights.mayCreate) all.push({ name: t`New session`, run: () => nav.open({ kind: 'new' }) });
  if (session && may) {
    all.push({ name: t`Stop the agent`, hint: 'Ctrl .', run: () => conversation.stop() });
    if (rights.mayOperate) all.push({ name: t`Archive this session`, run: () => sessions.archive(link!, session, true) });
  }
  if (session) all.push({ name: t`Find in this conversation`, hint: 'Ctrl F', run: () => nav.open({ kind: 'find' }) }, { name: t`Usage of this session`, run: () => nav.open({ kind: 'usage' }) });
  if (session && person.sharesAt(view.host)) all.push({ name: t`Share this session`, run: () => nav.open({ kind: 'share' }) });
  all.push({ name: t`Notifications, quiet hours`, run: () => nav.open({ kind: 'told' }) });
  if (session) all.push({ name: t`Mute this session`, run: () => nav.open({ kind: 'mute' }) });
  all.push({ name: t`Status of hosts and connection`, run: () => nav.open({ kind: 'status' }) });
  all.push({ name: t`Check the connection`, run: () => nav.open({ kind: 'help' }) });
  for (const { rows } of groups()) {
    for (const { link: of, session: s } of rows.slice(0, 200)) all.push({ name: text(s.title) || t`New session`, hint: of.host, run: () => nav.openSession(of.host, s.resource) });
  }
  return all;
}

function Palette() {
  const [query, setQuery] = useState('');
  const [at, setAt] = useState(0);
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = commands().filter((c) => words.every((w) => `${c.name} ${c.hint ?? ''}`.toLowerCase().includes(w))).slice(0, 30);
  const chosen = Math.min(at, found.length - 1);
  const run = (c?: Command) => {
    close();
    c?.run();
  };
  return (
    <Dialog title={t`Commands`} id="palette" onClose={close}>
      <input role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant={found.length ? `palette-${chosen}` : undefined} aria-label={t`Command or session`} placeholder={t`Command or session`} data-focus value={query}
        onInput={(e) => { setQuery(e.currentTarget.value); setAt(0); }}
        onKeyDown={(e) => {
          if (e.key === 'ArrowDown') setAt(Math.min(chosen + 1, found.length - 1));
          else if (e.key === 'ArrowUp') setAt(Math.max(chosen - 1, 0));
          else if (e.key === 'Enter') run(found[chosen]);
          else return;
          e.preventDefault();
        }} />
      <ul id="palette-list" role="listbox" aria-label={t`Commands`} class="list">
        {found.map((c, i) => <li key={c.name + c.hint + i} id={`palette-${i}`} role="option" aria-selected={i === chosen} class="item" onClick={() => run(c)}><span class="row"><span class="name">{c.name}</span><span class="dim">{c.hint}</span></span></li>)}
      </ul>
    </Dialog>
  );
}
