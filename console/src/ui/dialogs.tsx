// What lies above the page: a new session, signing in, a name, commands, a check.

import { useRef, useState } from 'preact/hooks';
import { safeUrl } from '../answers';
import { app } from '../app';
import * as push from '../push';
import { array, text } from '../store';
import type { Json } from '../reduce';
import { Copy, Dialog } from './bits';
import { nextOne, toQuestion } from './keys';
import { NewSession } from './newsession';
import { groups } from './order';
import { Previews } from './preview';
import { Share } from './share';
import { mayDo } from './shell';
import { when } from '../words';

export function Dialogs({ now }: { now: number }) {
  const { dialog } = app;
  switch (dialog?.kind) {
    case 'new': return <NewSession />;
    case 'sign-in': return <SignIn {...dialog} />;
    case 'rename': return <Rename title={dialog.title} />;
    case 'palette': return <Palette />;
    case 'told': return <Told />;
    case 'previews': return <Previews />;
    case 'share': return <Share />;
    case 'help': return <Help now={now} />;
  }
  return null;
}

const close = () => app.open(null);

function Rename({ title }: { title: string }) {
  const at = useRef<HTMLInputElement>(null);
  const submit = (e: Event) => {
    e.preventDefault();
    if (app.link && at.current!.value.trim()) app.rename(app.link, app.session, at.current!.value.trim());
    close();
  };
  return (
    <Dialog title="Rename the session" onClose={close}>
      <form class="fields" onSubmit={submit}><label for="new-title">Name</label><input id="new-title" ref={at} defaultValue={title} data-focus maxLength={200} /><div class="row start"><button class="primary" type="submit">Rename</button></div></form>
    </Dialog>
  );
}

/** Gives a host a token for what an agent of it needs. */
function SignIn({ link, agent, resources }: Json) {
  const [said, setSaid] = useState('');
  const [busy, setBusy] = useState(false);
  const at = useRef<HTMLInputElement>(null);
  const [which, setWhich] = useState(0);
  const resource = resources[which] ?? {};
  const servers = array(resource.authorization_servers).map(safeUrl).filter(Boolean);
  const submit = async (e: Event) => {
    e.preventDefault();
    const token = at.current!.value.trim();
    at.current!.value = '';
    if (!token) return;
    setBusy(true);
    setSaid('Sending…');
    try {
      await link.authenticate(resource.resource, token);
      if (which + 1 < resources.length) {
        setWhich(which + 1);
        setSaid('The host has taken it.');
      } else close();
    } catch (err) {
      setSaid((err as Error).message);
    }
    setBusy(false);
    app.draw();
  };
  return (
    <Dialog title={`Sign in to ${text(resource.resource_name) || text(resource.resource)}`} id="sign-in" onClose={close}>
      <form class="fields" onSubmit={submit} autocomplete="off">
        <p>{text(agent.displayName) || text(agent.provider)} on {link.host} asks for a token of {text(resource.resource)}.</p>
        {servers.length > 0 && <p class="dim">Tokens come from {servers.map((s: string) => <a key={s} href={s} target="_blank" rel="noopener noreferrer">{s}</a>)}</p>}
        {array(resource.scopes_supported).length > 0 && <p class="dim scopes">Scopes: {array(resource.scopes_supported).map(text).join(' ')}</p>}
        <label for="resource-token">Access token</label>
        <input id="resource-token" ref={at} type="password" autocomplete="off" autocapitalize="off" spellcheck={false} required aria-describedby="resource-note" />
        <p id="resource-note" class="dim">It goes to the host, and to nobody else. This page keeps it until it is closed, to give it again when the host asks.</p>
        <p class="error" role="status">{said}</p>
        <div class="row start"><button class="primary" type="submit" disabled={busy || !link.live}>Sign in</button><button type="button" onClick={close}>Not now</button></div>
      </form>
    </Dialog>
  );
}

/** Being told on this device. */
function Told() {
  const [on, setOn] = useState(push.isOn());
  const [details, setDetails] = useState(true);
  const [said, setSaid] = useState('');
  const [busy, setBusy] = useState(false);
  const act = async (what: () => Promise<string>) => {
    setBusy(true);
    try {
      setSaid(await what());
    } catch (err) {
      setSaid((err as Error).message);
    }
    setOn(push.isOn());
    setBusy(false);
  };
  return (
    <Dialog title="Be told on this device" id="told" onClose={close}>
      <div class="fields">
        <p>When an agent waits for you, is done or has failed, this device says so, whether the page is open or not. A press on it opens the session.</p>
        {!push.possible() && <p class="error">This browser cannot be told. On an iPhone, add the page to the home screen first, and open it there.</p>}
        {!on && <label class="check"><input type="checkbox" checked={details} onChange={(e) => setDetails(e.currentTarget.checked)} /> Show what is asked on the locked screen</label>}
        <p id="told-note" class="dim" role="status">{said}</p>
        <div class="row start">
          {!on && <button id="told-on" type="button" class="primary" disabled={busy || !push.possible()} onClick={() => act(async () => { await push.turnOn(details); return 'This device is told from now on.'; })}>Turn on</button>}
          {on && <button id="told-try" type="button" class="primary" disabled={busy} onClick={() => act(async () => ({ ok: 'A test is on its way.' })[await push.tryIt()] ?? 'The test did not go out.')}>Send a test</button>}
          {on && <button id="told-off" type="button" disabled={busy} onClick={() => act(async () => { await push.turnOff(); return 'This device is told nothing any more.'; })}>Turn off</button>}
        </div>
      </div>
    </Dialog>
  );
}

interface Command { name: string; hint?: string; run: () => void }

function commands(): Command[] {
  const { link, session } = app;
  const may = link?.live && !app.readOnly;
  const all: Command[] = [
    { name: 'Next session that needs you', hint: 'Alt N', run: nextOne },
    { name: 'Go to the question', hint: 'Alt A', run: () => setTimeout(toQuestion) },
  ];
  if (!app.readOnly && !app.narrow) all.push({ name: 'New session', run: () => app.open({ kind: 'new' }) });
  if (session && may) {
    all.push({ name: 'Stop the agent', hint: 'Ctrl .', run: () => app.stop() }, { name: 'Archive this session', run: () => app.archive(link!, session, true) });
  }
  if (session && app.byDevice) all.push({ name: 'Share this session', run: () => app.open({ kind: 'share' }) });
  all.push({ name: 'Be told on this device', run: () => app.open({ kind: 'told' }) });
  all.push({ name: 'Check the connection', run: () => app.open({ kind: 'help' }) });
  for (const { rows } of groups()) {
    for (const { link: of, session: s } of rows.slice(0, 200)) all.push({ name: text(s.title) || 'New session', hint: of.host, run: () => app.openSession(of.host, s.resource) });
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
    <Dialog title="Commands" id="palette" onClose={close}>
      <input role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant={found.length ? `palette-${chosen}` : undefined} aria-label="Command or session" placeholder="Command or session" data-focus value={query}
        onInput={(e) => { setQuery(e.currentTarget.value); setAt(0); }}
        onKeyDown={(e) => {
          if (e.key === 'ArrowDown') setAt(Math.min(chosen + 1, found.length - 1));
          else if (e.key === 'ArrowUp') setAt(Math.max(chosen - 1, 0));
          else if (e.key === 'Enter') run(found[chosen]);
          else return;
          e.preventDefault();
        }} />
      <ul id="palette-list" role="listbox" aria-label="Commands" class="list">
        {found.map((c, i) => <li key={c.name + c.hint + i} id={`palette-${i}`} role="option" aria-selected={i === chosen} class="item" onClick={() => run(c)}><span class="row"><span class="name">{c.name}</span><span class="dim">{c.hint}</span></span></li>)}
      </ul>
    </Dialog>
  );
}

interface Check { what: string; ok: boolean | null; says: string }

/** What can be known of the way to the host, in words. */
function checks(now: number): Check[] {
  const { link, hostInfo, grant } = app;
  const state = link?.conn?.state;
  const info = link?.conn?.info ?? {};
  return [
    { what: 'Network', ok: navigator.onLine, says: navigator.onLine ? 'This device says that it has one.' : 'This device says that it has none.' },
    { what: 'Relay', ok: !app.hostsStale, says: app.hostsStale ? app.hostsNote : `${location.host} answers.` },
    { what: 'Token', ok: grant !== null, says: grant ? `${text(grant.subject) || 'nobody in particular'} may ${mayDo(grant)}, until ${when(grant.expires, now)}.` : 'Not known.' },
    { what: 'Host-agent', ok: hostInfo ? hostInfo.state === 'online' : null, says: hostInfo ? `${hostInfo.host} is ${hostInfo.state} since ${when(hostInfo.since, now)}${hostInfo.reason ? `: ${hostInfo.reason}` : ''}.` : 'No host is chosen.' },
    { what: 'Host', ok: link ? link.live && !hostInfo?.notAnsweringSince : null, says: link ? (hostInfo?.notAnsweringSince ? `It has not answered since ${when(hostInfo.notAnsweringSince, now)}.` : `The connection is ${state?.name ?? 'not there'}${state?.reason ? `: ${state.reason}` : ''}.`) : 'No host is chosen.' },
    { what: 'Versions', ok: link ? Boolean(info.protocolVersion) : null, says: `AHP ${info.protocolVersion ?? 'not agreed'}; host ${[info.serverInfo?.name, info.serverInfo?.version ?? hostInfo?.hostVersion].filter(Boolean).join(' ') || 'unknown'}; agent ${hostInfo?.agentVersion ?? 'unknown'}.` },
    { what: 'Understood', ok: !link?.store.unknownCount, says: link?.store.unknownCount ? `${link.store.unknownCount} updates were not: ${[...link.store.unknown.keys()].join(', ')}.` : 'All that the host has said.' },
  ];
}

function Help({ now }: { now: number }) {
  const all = checks(now);
  return (
    <Dialog title="Check" id="help" onClose={close}>
      <ul class="checks">{all.map((c) => <li key={c.what}><span class="badge" data-tone={c.ok === null ? '' : c.ok ? 'ok' : 'bad'}>{c.ok === null ? '–' : c.ok ? 'good' : 'bad'}</span><span class="name">{c.what}</span><span>{c.says}</span></li>)}</ul>
      <div class="row start"><button type="button" class="primary" onClick={() => app.retry()}>Look again</button><Copy text={() => all.map((c) => `${c.ok === null ? '-' : c.ok ? 'good' : 'bad'}  ${c.what}: ${c.says}`).join('\n')} label="Copy all" /></div>
    </Dialog>
  );
}
