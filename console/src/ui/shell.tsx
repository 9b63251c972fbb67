// The whole page: bar, session list, session, side pane and dialogs.

import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { app, hosts, links, rights, sessions } from '../app';
import { elsewhere, relay } from '../pins';
import type { Grant } from '../relay';
import { text } from '../store';
import type { Side } from '../swap';
import { describe, when, mayDo, NAME } from '../words';
import { Icon } from './bits';
import { CanvasPane } from './canvas';
import { Dialogs } from './dialogs';
import { Inbox } from './inbox';
import { keys } from './keys';
import { Asks } from './lend';
import { later } from './later';
import { Session, titleOf } from './session';
import { needing } from './order';
import { plural, rich, t } from '../language';

const Changed = later<{ host: string }>(() => import('./sealed').then((m) => m.Changed));
const SidePane = later(() => import('./pane').then((m) => m.SidePane));

export function Shell({ now }: { now: number }) {
  const open = app.session !== '';
  useTitle();
  useFocus(open);
  useEffect(() => keys(), []);
  const hasToken = app.token !== '';
  return (
    <div class="page" data-pane={open ? 'chat' : 'list'} data-side={app.pane ? app.pane.kind : ''}>
      {hasToken && open && <nav class="skip" aria-label={t`Skip`}><button type="button" onClick={() => (document.querySelector('#prompt') as HTMLElement ?? document.querySelector('#chat-title'))?.focus()}>{t`To the message`}</button></nav>}
      <Bar now={now} />
      {!hasToken && <Gate />}
      {hasToken && app.link?.keyChanged && <Changed key={app.host} host={app.host} />}
      {hasToken && !app.link?.keyChanged && (
        <main id="app" class="app">
          <Inbox now={now} />
          <Session now={now} />
          <CanvasPane />
          {app.pane && app.pane.kind !== 'canvas' && <SidePane />}
        </main>
      )}
      <Swap now={now} />
      <Dialogs now={now} />
      <Asks />
      <Undo />
    </div>
  );
}

function Bar({ now }: { now: number }) {
  const { link } = app;
  const state = link?.conn?.state;
  const unpaired = link?.unpaired(hosts.get(app.host));
  const said = hosts.offline
    ? { tone: 'bad', text: t`No network`, more: '' }
    : link?.keyChanged ? { tone: 'bad', text: t`The key has changed`, more: '' }
    : unpaired ? { tone: 'wait', text: t`Not paired`, more: '' }
    : app.host ? describe(state, { away: Boolean(link?.away), host: hosts.get(app.host), asOf: link?.seal?.asOf, now }) : overview();
  const [what, ...then] = said.text.split(/(?= – )/); // a phone shows only the first part beside the list's heading
  const canRetry = !hosts.offline && !unpaired && !link?.keyChanged && (state?.name === 'retrying' || state?.name === 'ended');
  return (
    <header class="bar">
      <img class="logo" src="/favicon.svg" alt="" width="24" height="24" />
      <h1>{NAME}</h1>
      {rights.readOnly && <span id="read-only" class="badge" data-tone="wait">{t`read-only`}</span>}
      {app.token !== '' && (
        <div id="status" class="status" data-tone={said.tone} data-state={state?.name ?? 'none'}>
          <span class="unseen" role="status">{said.text}</span>
          <button id="status-open" class="quiet small" type="button" title={t`Status`} onClick={() => app.open({ kind: 'status' })}>
            <span class="dot" aria-hidden="true" /><span id="status-text">{what}<span class="then">{then.join('')}</span></span><span id="status-more" aria-hidden="true">{said.more}</span>
          </button>
          {canRetry && <button id="retry" class="quiet small" type="button" onClick={() => app.retry()}>{t`Try now`}</button>}
        </div>
      )}
      {app.token !== '' && <button id="bell" class="quiet round list-only" type="button" aria-label={t`Notifications`} title={t`Notifications`} onClick={() => app.open({ kind: 'told' })}><Icon name="bell" /></button>}
      {app.token !== '' && <button class="quiet round wide-only" type="button" aria-label={t`Commands`} title={t`Commands (Ctrl K)`} onClick={() => app.open({ kind: 'palette' })}><Icon name="list" /></button>}
    </header>
  );
}

/** Counts for all hosts, shown while none is selected. */
function overview() {
  const live = [...links.values()].filter((l) => l.live).length;
  if (hosts.stale) return { tone: 'bad', text: t`Relay unreachable`, more: '' };
  if (hosts.all.length === 0) return { tone: 'wait', text: hosts.note ? t`No host` : t`Connecting`, more: hosts.note ? '' : '…' };
  return { tone: live === hosts.all.length ? 'ok' : 'wait', text: plural(hosts.all.length, '{1} of {0} host live', '{1} of {0} hosts live', live), more: '' };
}

function Gate() {
  const at = useRef<HTMLInputElement>(null);
  const submit = (e: Event) => {
    e.preventDefault();
    const given = at.current!.value;
    at.current!.value = '';
    app.useToken(given);
  };
  return (
    <main id="gate">
      <form id="token-form" class="card" autocomplete="off" onSubmit={submit}>
        <h2>{t`Sign in`}</h2>
        <p id="token-why" role="alert">{app.tokenWhy}</p>
        {elsewhere() ? <p class="dim">{rich`With a token of the relay ${<code>{relay()}</code>}. It opens the way to your sealed hosts, and gives no authority there.`}</p> : <>
          <a class="button primary" href="/device">{t`Sign in on this device`}</a>
          <p class="dim">{t`With a signed-in device, or your organization’s account. It stays signed in.`}</p>
          <h3>{t`Or with a token`}</h3>
        </>}
        <label for="token">{t`Client token`}</label>
        <input id="token" ref={at} type="password" autocomplete="off" autocapitalize="off" spellcheck={false} required aria-describedby="token-help" />
        <p id="token-help" class="dim">{rich`Paste a token, or the whole address that ${<code>relay demo</code>} printed. Only this tab keeps it, unless you choose to keep it on this device.`}</p>
        <button type="submit">{t`Connect`}</button>
      </form>
    </main>
  );
}

function Swap({ now }: { now: number }) {
  const swap = app.swaps.open;
  const at = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const node = at.current!;
    if (swap && !node.open) node.showModal();
    else if (!swap && node.open) node.close();
  });
  const lines = swap?.now && swap.then ? changes(swap.now, swap.then, now) : [];
  return (
    <dialog id="swap" ref={at} aria-labelledby="swap-title" onClose={() => { if (app.swaps.open && app.swaps.open.key === swap?.key) app.swaps.keep(); /* else there is another question by now */ }}>
      <h2 id="swap-title">{t`A link wants to change this page’s connection`}</h2>
      <dl id="swap-what">
        {lines.map(([term, is, wanted]) => [<dt>{term}</dt>, <dd class={is === wanted ? 'dim' : 'name'}>{is === wanted ? is : `${is} → ${wanted}`}</dd>])}
      </dl>
      <p id="swap-note" class="dim" role="status">{swap?.then ? swap.why : t`Asking the relay…`}</p>
      <div class="row start">
        <button id="swap-keep" class="primary" type="button" onClick={() => app.swaps.keep()}>{t`Do not change`}</button>
        <button id="swap-take" type="button" disabled={!swap?.then || swap.why !== ''} onClick={() => app.swaps.take()}>{t`Change it`}</button>
      </div>
    </dialog>
  );
}

/** The changes that a link proposes: [term, current value, new value]. */
function changes(is: Side, wanted: Side, time: number): [string, string, string][] {
  const word = (grant: Grant | undefined, f: (g: Grant) => string) => (grant ? f(grant) : t`unknown`);
  const rows: [string, (g: Grant) => string][] = [
    [t`Signed in as`, (g) => text(g.subject) || t`an unnamed user`], [t`May`, mayDo], [t`Until`, (g) => when(g.expires, time)]];
  return [
    [t`Host`, is.host || t`none`, wanted.host || t`none`],
    ...rows.map(([term, f]): [string, string, string] => [term, word(is.grant, f), word(wanted.grant, f)]),
  ];
}

function Undo() {
  if (!sessions.deleted) return null;
  return <div class="toast" role="status">{t`Session deleted.`} <button type="button" onClick={() => sessions.undo()}>{t`Undo`}</button></div>;
}

let badge = -1;

function useTitle(): void {
  const title = app.session ? titleOf() : app.host;
  const n = needing();
  const now = `${n > 0 ? `(${n}) ` : ''}${title ? `${title} – ${NAME}` : NAME}`;
  if (document.title !== now) document.title = now;
  if (n === badge) return;
  badge = n;
  (navigator as { setAppBadge?: (n: number) => Promise<void> }).setAppBadge?.(n).catch(() => {});
}

/** Moves the focus when the session changes. */
function useFocus(open: boolean): void {
  const had = useRef<string | null>(null);
  useLayoutEffect(() => {
    const is = open ? app.session : '';
    if (had.current !== null && had.current !== is) {
      if (open && document.activeElement?.closest('[data-ask]')) { /* the question in view has it already */ }
      else if (open) (document.querySelector('#chat-title') as HTMLElement)?.focus({ preventScroll: true });
      else (document.querySelector('#sessions button') as HTMLElement)?.focus({ preventScroll: true });
    }
    had.current = is;
  });
}
