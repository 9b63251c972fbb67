// One session: its head, the conversation, and what is written to the agent.

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { app } from '../app';
import { array, text, type Pending } from '../store';
import type { Json } from '../reduce';
import { statusWord, when } from '../words';
import { Icon, Menu } from './bits';
import { Composer } from './composer';
import { folderOf } from './order';
import { serversNeed, serversOf } from './servers';
import * as told from '../told';
import { Turn } from './turn';

const atEnd = 48; // px from the end that still count as being there
const atFirst = 20; // turns that are drawn, and as many more each time that the beginning comes near

export function titleOf(): string {
  const { link, session } = app;
  return text(link?.store.get(session)?.title) || text(link?.store.sessions.get(session)?.title) || 'New session';
}

export function agentName(state: Json): string {
  const agent = app.link?.store.agents.find((a) => a?.provider === state?.provider);
  return String(agent?.displayName || state?.provider || 'Agent');
}

export function Session({ now }: { now: number }) {
  const { link, session, chatUri } = app;
  const state = link?.store.get(session);
  const chat = link?.store.get(chatUri);
  const agent = agentName(state ?? link?.store.sessions.get(session));
  return (
    <div class="chat" role="region" aria-labelledby="chat-title">
      <Head agent={agent} state={state} />
      <Log key={`${app.host} ${session} ${chatUri}`} agent={agent} now={now} />
      {chat && app.readOnly && <p id="looking" class="looking">You can look at this, and change nothing. Good until {when(app.grant?.expires, now)}.</p>}
      {chat && !app.readOnly && chat.interactivity === 'read-only' && <p class="looking">This is the work of another agent: you can look at it.</p>}
      {chat && !app.readOnly && chat.interactivity !== 'read-only' && <Composer key={chatUri} chat={chat} />}
    </div>
  );
}

function Head({ agent, state }: { agent: string; state: Json }) {
  const { link, session } = app;
  const summary = link?.store.sessions.get(session);
  const sub = !session ? '' : [agent, link?.live && statusWord(summary?.status), folderOf(state ?? summary), app.hosts.length > 1 ? app.host : ''].filter(Boolean).join(' · ');
  return (
    <div class="chat-head">
      <div class="row">
        {session && <button id="back" class="quiet round" type="button" aria-label="Back to the list of sessions" onClick={() => app.leave()}><Icon name="back" /></button>}
        <div class="grow">
          <h2 id="chat-title" tabIndex={-1}>{session ? titleOf() : 'No session open'}</h2>
          {sub && <p id="chat-sub" class="dim">{sub}</p>}
        </div>
        {session && link && <SessionMenu archived={Boolean((summary?.status ?? 0) & 64)} />}
      </div>
      <Chips state={state} />
    </div>
  );
}

function SessionMenu({ archived }: { archived: boolean }) {
  const { link, session } = app;
  const may = link!.live && app.mayOperate;
  return (
    <Menu label="More">
      {may && <button type="button" onClick={() => app.open({ kind: 'rename', title: titleOf() })}>Rename</button>}
      {may && <button type="button" onClick={() => app.archive(link!, session, !archived)}>{archived ? 'Take out of the archive' : 'Archive'}</button>}
      {may && <button type="button" onClick={() => app.open({ kind: 'previews' })}>Ports of the host</button>}
      {may && app.lender.takes(link, session) && <button id="lend-device" type="button" onClick={() => app.open({ kind: 'lend' })}>Lend this device</button>}
      {app.byDevice && <button type="button" onClick={() => app.open({ kind: 'share' })}>Share</button>}
      {told.known() !== null && <button type="button" onClick={() => app.open({ kind: 'mute' })}>{told.muted(app.host, session) ? 'Muted…' : 'Mute…'}</button>}
      <button type="button" onClick={() => navigator.clipboard?.writeText(location.href).catch(() => {})}>Copy the address</button>
      {may && <button type="button" class="danger" onClick={() => app.remove(link!, session)}>Delete</button>}
    </Menu>
  );
}

/** What belongs to the session: chats, canvases, changes, terminals. */
function Chips({ state }: { state: Json }) {
  const { link, session, chatUri, pane } = app;
  const chats = array(state?.chats).filter((c) => c?.interactivity !== 'hidden');
  const canvases = session && link ? link.store.canvasesOf(session) : [];
  const chat = link?.store.get(chatUri);
  const changesets = [...array(state?.changesets), ...array(chat?.changesets)].filter((c) => typeof c?.uriTemplate === 'string' && !c.uriTemplate.includes('{'));
  const terminals = array(link?.store.get('ahp-root://')?.terminals).filter((t) => t?.claim?.session === session && session);
  const servers = serversOf(state);
  const need = serversNeed(servers);
  return (
    <div class="all-chips">
      {chats.length > 1 && (
        <ul class="chips" aria-label="Chats">
          {chats.map((c) => (
            <li key={c.resource}><button type="button" class={`chip chat-chip${c.parentChat || c.origin?.kind === 'tool' ? ' below' : ''}`} aria-pressed={c.resource === chatUri} onClick={() => app.chooseChat(c.resource)}>
              <span>{text(c.title) || 'Chat'}</span>{statusWord(c.status) && <span class="badge" data-tone={c.status & 16 ? 'wait' : 'ok'}>{statusWord(c.status)}</span>}
            </button></li>
          ))}
        </ul>
      )}
      <ul id="canvases" class="chips" aria-label="Canvases" hidden={canvases.length === 0}>
        {canvases.map((c) => (
          <li key={c.channel} data-canvas={c.channel}>
            <button type="button" class="chip" aria-pressed={pane?.channel === c.channel} onClick={() => app.showPane({ kind: 'canvas', channel: c.channel })}>
              <Icon name="canvas" /><span>{canvasTitle(c)}</span><span class="badge" data-tone="wait" hidden={!isStale(c)}>stale</span>
            </button>
          </li>
        ))}
      </ul>
      {(changesets.length > 0 || terminals.length > 0 || servers.length > 0) && (
        <ul class="chips" aria-label="Work">
          {changesets.map((c) => (
            <li key={c.uriTemplate}><button type="button" class="chip" aria-pressed={pane?.channel === c.uriTemplate} onClick={() => app.showPane({ kind: 'changes', channel: c.uriTemplate, title: text(c.label) })}><Icon name="diff" /><span>{text(c.label) || 'Changes'}</span></button></li>
          ))}
          {terminals.map((t) => (
            <li key={t.resource}><button type="button" class="chip" aria-pressed={pane?.channel === t.resource} onClick={() => app.showPane({ kind: 'terminal', channel: t.resource, title: text(t.title) })}><Icon name="command" /><span>{text(t.title) || 'Terminal'}</span></button></li>
          ))}
          {servers.length > 0 && (
            <li><button type="button" class="chip" data-kind="servers" aria-pressed={pane?.kind === 'servers'} onClick={() => app.showPane({ kind: 'servers', channel: 'servers' })}><Icon name="tool" /><span>MCP servers</span>{need.word && <span class="badge" data-tone={need.tone}>{need.word}</span>}</button></li>
          )}
        </ul>
      )}
    </div>
  );
}

/** Whether the provider is away. Since AHP 0.10 such a canvas has no address. */
export function isStale(canvas: Json): boolean {
  return canvas?.availability === 'stale' || (canvas?.instanceId !== undefined && canvas.availability === undefined && !text(canvas.url));
}

export function canvasTitle(canvas: Json): string {
  return text(canvas?.title) || text(canvas?.displayName) || text(canvas?.canvasId) || 'Canvas';
}

function Log({ agent, now }: { agent: string; now: number }) {
  const { link, chatUri } = app;
  const chat = link?.store.get(chatUri); // not given: it is drawn by itself while an answer grows
  const [, again] = useState(0);
  useLayoutEffect(() => {
    const draw = () => again((n) => n + 1);
    app.drawLog = draw;
    return () => { if (app.drawLog === draw) app.drawLog = null; };
  }, []);
  const at = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const following = useRef(true); // the end of the chat is kept in view
  const was = useRef(0); // scrollTop
  const [away, setAway] = useState(false);
  const [most, setMost] = useState(atFirst);
  const live = Boolean(link?.live);
  const turns: Json[] = chat?.turns ?? [];
  const shown = turns.length > most ? turns.slice(-most) : turns;
  const pending = link?.store.pending.filter((p) => p.channel === chatUri) ?? [];
  const more = turns.length > shown.length || (live && chat?.turnsNextCursor);

  const toEnd = () => { at.current!.scrollTop = at.current!.scrollHeight; };
  const scrolled = () => {
    const log = at.current!;
    // Whoever goes up wants to read that. Words that come in between are no such wish.
    const up = log.scrollTop < was.current;
    was.current = log.scrollTop;
    if (log.scrollHeight - log.scrollTop - log.clientHeight < atEnd) following.current = true;
    else if (up) following.current = false;
    setAway(!following.current);
    if (following.current) setMost(atFirst); // what was read is taken out of the document
    if (log.scrollTop < 300 && !following.current && turns.length > most) earlier();
  };
  const earlier = () => {
    following.current = false; // who wants these does not read the end
    if (turns.length > most) setMost(most + atFirst);
    else app.earlier();
  };
  useEffect(() => {
    const resized = new ResizeObserver(() => { if (following.current) toEnd(); }); // by the keyboard of a phone, or by an app
    resized.observe(at.current!);
    resized.observe(inner.current!);
    return () => resized.disconnect();
  }, []);
  // Earlier turns push what is read down: keep it where it is.
  const had = useRef({ first: '', height: 0 });
  const first = String(shown[0]?.id ?? '');
  useLayoutEffect(() => {
    const log = at.current!;
    if (had.current.first !== first && had.current.first !== '' && !following.current) log.scrollTop += log.scrollHeight - had.current.height;
    else if (following.current) toEnd();
    had.current = { first, height: log.scrollHeight };
  });
  const all = [...shown.map((turn) => ({ turn })), ...(chat?.activeTurn ? [{ turn: chat.activeTurn }] : []), ...pending.map((p) => ({ turn: p.turn, pending: p }))] as { turn: Json; pending?: Pending }[];
  const note = chatNote(chat, all.length, live);
  return (
    <div class="chat-body">
      <div id="log" class="log" role="log" aria-label="Conversation" tabIndex={0} ref={at} onScroll={scrolled}>
        {more && <button id="earlier" type="button" onClick={earlier}>Show earlier turns</button>}
        <div id="turns" ref={inner}>
          {all.map(({ turn, pending: p }) => (
            <Turn key={String(turn.id)} turn={turn} agent={agent} pending={p} channel={chatUri!} day={dayOf(now)} readOnly={app.readOnly}
              active={turn === chat?.activeTurn} live={live && turn === chat?.activeTurn} connected={live} last={turn === turns.at(-1) && !chat?.activeTurn}
              answers={turn === chat?.activeTurn ? link!.store.revision : 0} />
          ))}
        </div>
        <Waiting chat={chat} />
        {note && <p id="chat-note" class="empty">{note}</p>}
      </div>
      {away && <button id="to-end" type="button" onClick={() => { following.current = true; toEnd(); }}><Icon name="down" /> Latest</button>}
    </div>
  );
}

function dayOf(now: number): number {
  return Math.floor(now / 86_400_000);
}

/** What waits to be said to the agent. */
function Waiting({ chat }: { chat: Json }) {
  const waiting = [...(chat?.steeringMessage ? [{ kind: 'steering' as const, m: chat.steeringMessage }] : []), ...array(chat?.queuedMessages).map((m) => ({ kind: 'queued' as const, m }))];
  if (waiting.length === 0) return null;
  return (
    <ul class="waiting" aria-label="Waiting messages">
      {waiting.map(({ kind, m }) => (
        <li key={m.id}><span class="badge">{kind === 'steering' ? 'steers' : 'next'}</span><span class="text">{text(m.message?.text)}</span>
          {!app.readOnly && <button type="button" class="quiet round" aria-label="Take back" onClick={() => app.unqueue(kind, m.id)}><Icon name="close" /></button>}</li>
      ))}
    </ul>
  );
}

function chatNote(chat: Json, shown: number, live: boolean): string {
  const { link, session, chatUri } = app;
  if (!session) return app.readOnly ? 'Choose a session.' : 'Choose a session, or begin a new one.';
  const error = link?.errors.get(session) ?? (chatUri && link?.errors.get(chatUri));
  if (error) return `This session cannot be shown: ${error}`;
  if (!chat) return live ? 'Opening…' : 'This session opens when the host is there.';
  const failed = text(link?.store.get(session)?.creationError?.message);
  if (failed) return failed;
  return shown === 0 ? 'Nothing has been said yet.' : '';
}
