// A session: its header, its conversation and the editor.

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { accountPart } from '../accounts';
import { app, absent, conversation, hosts, lender, remembered, rights, sessions } from '../app';
import { itsQuestion } from '../address';
import { array, text, type Pending } from '../store';
import type { Link } from '../link';
import type { CanvasRef, CanvasState, ChatState, ChatSummary, RootState, SessionState, Turn as AnyTurn } from '../ahp';
import { status } from '../reduce';
import { asOf, Wake } from './status';
import { statusWord, when } from '../words';
import { Icon, Lines, Menu, shut } from './bits';
import { skipping } from './bypass';
import { Composer, openTurn } from './composer';
import { FirstPane } from './asked';
import { rewritten } from './drafts';
import { later } from './later';
import { folderOf } from './order';
import { serversNeed, serversOf } from './served';
import * as told from '../told';
import { treeOf } from './tree';
import { toEdits, toQuestion } from './keys';
import { Turn } from './turn';
import { waitsForUser } from './waits';
import { plural, t } from '../language';

const LeftHere = later<{ host: string; session: string; now: number }>(() => import('./left').then((m) => m.LeftHere));

const atEnd = 48; // px from the end at which the view counts as at the end
const atFirst = 20; // turns drawn at first, and added at a time
const mostTurns = 60; // turns drawn at most
const wordsRest = 300; // ms without new text
const nearEdge = 600; // px from the drawn part's edge before more is drawn

export function titleOf(link = app.link, session = app.session): string {
  return text(link?.store.get(session)?.title) || text(link?.store.sessions.get(session)?.title) || t`New session`;
}

/** A chat's name: from the host, or the session's title for its default chat, or the chat's first words. */
function chatName(chat: ChatSummary | undefined): string {
  const { link, session } = app;
  if (text(chat?.title)) return text(chat!.title);
  if (chat?.resource === link?.store.chatOf(session)) return titleOf();
  return link?.store.firstWords(chat?.resource) || t`New chat`;
}

export function agentName(state: { provider?: string } | undefined): string {
  const agent = app.link?.store.agents.find((a) => a?.provider === state?.provider);
  return String(agent?.displayName || state?.provider || t`Agent`);
}

export function Session({ now }: { now: number }) {
  const { link, session, chatUri } = app;
  const edited = useRef(''); // the chat that has an editor
  if (!session) {
    edited.current = '';
    return <div class="chat" role="region" aria-labelledby="chat-title"><FirstPane /></div>;
  }
  const state = link?.store.get(session);
  const chat = link?.store.get<ChatState>(chatUri);
  // After a reconnect, the editor with its text and focus stays until the host has sent the chat.
  const place = `${app.host} ${session} ${app.chat}`;
  const gone = link?.errors.has(session) && !link.store.sessions.has(session);
  const editable = chat ?? (absent.takes || (edited.current === place && !gone) ? link?.seen(session)?.state ?? {} as ChatState : undefined);
  edited.current = editable ? place : '';
  const agent = agentName(state ?? link?.store.sessions.get(session));
  return (
    <div class="chat" role="region" aria-labelledby="chat-title">
      <Head agent={agent} state={state} />
      <Log key={`${app.host} ${session} ${chatUri}`} agent={agent} now={now} />
      {chat && rights.readOnly && <p id="looking" class="looking">{t`You can look at this, and change nothing. Good until ${when(rights.grantAt(app.host)?.expires, now)}.`}</p>}
      {chat && !rights.readOnly && chat.interactivity === 'read-only' && <p class="looking">{t`A different agent works here: you can only watch.`}</p>}
      {!editable && !gone && !link?.live && !rights.readOnly && link?.seen(session)?.state && <p class="looking" role="status">{t`You can read this, and answer when the host is online.`}</p>}
      {editable && !rights.readOnly && editable.interactivity !== 'read-only' && <Composer key={`${place} ${rewritten}`} chat={editable} />}
    </div>
  );
}

function Head({ agent, state }: { agent: string; state: SessionState | undefined }) {
  const { link, session } = app;
  const summary = link?.store.sessions.get(session);
  const sub = !session ? '' : [agent, link?.live && statusWord(summary?.status!), folderOf(state ?? summary), hosts.all.length > 1 ? app.host : ''].filter(Boolean).join(' · ');
  return (
    <div class="chat-head">
      <div class="row">
        {session && <button id="back" class="quiet round" type="button" aria-label={t`Back to the list of sessions`} onClick={() => app.leave()}><Icon name="back" /></button>}
        <div class="grow">
          <h2 id="chat-title" tabIndex={-1}>{session ? titleOf() : t`No session open`}</h2>
          {sub && <p id="chat-sub" class="dim">{sub}</p>}
          {state && skipping(state.config) && <button id="skips" class="badge" data-tone="bad" type="button" title={skipping(state.config)} disabled={!link?.live || !rights.mayOperate} onClick={() => app.open({ kind: 'settings' })}>⚠ {t`The agent asks for no permission`}</button>}
        </div>
        {session && link && <SessionMenu />}
      </div>
      <Chips state={state} />
    </div>
  );
}

function SessionMenu() {
  const { link, session, chatUri } = app;
  const may = link!.live && rights.mayOperate;
  const store = link!.store;
  const { multipleChats } = store.agents.find((a) => a?.provider === store.get(session)?.provider)?.capabilities ?? {};
  const other = chatUri !== undefined && chatUri !== store.chatOf(session);
  return (
    <Menu label={t`More`}>
      {may && multipleChats && <button type="button" onClick={() => conversation.newChat()}>{t`New chat`}</button>}
      {may && other && <button type="button" onClick={() => app.open({ kind: 'confirm', title: t`Close this chat?`, says: t`This deletes its messages.`, yes: t`Close the chat`, act: () => conversation.closeChat() })}>{t`Close this chat`}</button>}
      {may && <button type="button" onClick={() => app.open({ kind: 'settings' })}>{t`Model and settings`}</button>}
      {may && <button type="button" onClick={() => conversation.newTerminal()}>{t`New terminal`}</button>}
      <button type="button" onClick={() => app.open({ kind: 'find' })}>{t`Find`}</button>
      <button type="button" onClick={() => app.open({ kind: 'usage' })}>{t`Usage`}</button>
      {may && <button type="button" onClick={() => app.open({ kind: 'previews' })}>{t`Host’s ports`}</button>}
      {may && lender.takes(link!, session) && <button id="lend-device" type="button" onClick={() => app.open({ kind: 'lend' })}>{t`Lend this device`}</button>}
      {app.sharesAt(app.host) && <button type="button" onClick={() => app.open({ kind: 'share' })}>{t`Share`}</button>}
      <SessionActions link={link!} session={session} />
    </Menu>
  );
}

/** The menu of a session, which may be open or in the list. */
export function SessionActions({ link, session, act = (f) => f() }: { link: Link; session: string; act?: (f: () => void) => void }) {
  const bits = link.store.sessions.get(session)?.status ?? 0;
  const may = link.live && rights.mayOperateAt(link.host);
  const archived = Boolean(bits & status.archived);
  const read = Boolean(bits & status.read);
  const own = link.privates?.has(session) === true;
  return (
    <>
      {may && <button type="button" onClick={() => act(() => app.open({ kind: 'rename', link, session, title: titleOf(link, session) }))}>{t`Rename`}</button>}
      {may && <button type="button" onClick={() => act(() => sessions.archive(link, session, !archived))}>{archived ? t`Unarchive` : t`Archive`}</button>}
      {may && <button type="button" onClick={() => act(() => sessions.markRead(link, session, !read))}>{read ? t`Mark as unread` : t`Mark as read`}</button>}
      {told.known(accountPart(link.host)) !== null && <button type="button" onClick={() => act(() => app.open({ kind: 'mute', host: link.host, session }))}>{told.muted(link.host, session) ? t`Muted…` : t`Mute…`}</button>}
      {link.live && link.privates && link.store.get(session) && <button type="button" data-do="private" onClick={() => act(() => sessions.keepPrivate(link, session, !own))}>{own ? t`Show to others` : t`Keep to myself`}</button>}
      <button type="button" onClick={() => act(() => { navigator.clipboard?.writeText(app.addressOf({ host: link.host, session })).catch(() => {}); })}>{t`Copy the address`}</button>
      {may && <button type="button" class="danger" onClick={() => act(() => sessions.remove(link, session))}>{t`Delete`}</button>}
    </>
  );
}

/** The session's chats, canvases, changes and terminals. */
function Chips({ state }: { state: SessionState | undefined }) {
  const { link, session, chatUri, pane } = app;
  const chats = array(state?.chats).filter((c) => c?.interactivity !== 'hidden');
  const canvases = session && link ? link.store.canvasesOf(session) : [];
  const chat = link?.store.get<ChatState>(chatUri);
  const changesets = [...array(state?.changesets), ...array(chat?.changesets)].filter((c) => typeof c?.uriTemplate === 'string' && !c.uriTemplate.includes('{'));
  const terminals = array(link?.store.get<RootState>('ahp-root://')?.terminals).filter((t) => t?.claim?.session === session && session);
  const { changes }: Partial<SessionState> = link?.store.sessions.get(session) ?? {};
  const servers = serversOf(state);
  const need = serversNeed(servers);
  const folders = state ? app.folders : [];
  return (
    <><Tree chats={chats} />
    <Chats chats={chats} />
    <div class="all-chips">
      <ul id="canvases" class="chips" aria-label={t`Canvases`} hidden={canvases.length === 0}>
        {canvases.map((c) => (
          <li key={c.channel} data-canvas={c.channel}>
            <button type="button" class="chip" aria-pressed={pane?.channel === c.channel} onClick={() => app.showPane({ kind: 'canvas', channel: c.channel })}>
              <Icon name="canvas" /><span>{canvasTitle(c)}</span><span class="badge" data-tone="wait" hidden={!isStale(c)}>{t`stale`}</span>
            </button>
          </li>
        ))}
      </ul>
      {(changesets.length > 0 || terminals.length > 0 || servers.length > 0 || folders.length > 0) && (
        <ul class="chips" aria-label={t`Work`}>
          {changesets.map((c) => (
            <li key={c.uriTemplate}><button type="button" class="chip" aria-pressed={pane?.channel === c.uriTemplate} onClick={() => app.showPane({ kind: 'changes', channel: c.uriTemplate, title: text(c.label) })}><Icon name="diff" /><span>{text(c.label) || t`Changes`}</span>{changes?.files! > 0 && c === changesets[0] && <Lines of={changes!} />}</button></li>
          ))}
          {terminals.map((term) => (
            <li key={term.resource}><button type="button" class="chip" aria-pressed={pane?.channel === term.resource} onClick={() => app.showPane({ kind: 'terminal', channel: term.resource, title: text(term.title) })}><Icon name="command" /><span>{text(term.title) || t`Terminal`}</span></button></li>
          ))}
          {folders.length > 0 && <li><button type="button" class="chip" data-kind="files" aria-pressed={pane?.kind === 'files' || pane?.kind === 'file'} onClick={() => app.showPane({ kind: 'files', channel: pane?.kind === 'files' ? pane.channel : folders[0] })}><Icon name="folder" /><span>{t`Files`}</span></button></li>}
          {servers.length > 0 && (
            <li><button type="button" class="chip" data-kind="servers" aria-pressed={pane?.kind === 'servers'} onClick={() => app.showPane({ kind: 'servers', channel: 'servers' })}><Icon name="tool" /><span>{t`MCP servers`}</span>{need.word && <span class="badge" data-tone={need.tone}>{need.word}</span>}</button></li>
          )}
        </ul>
      )}
    </div></>
  );
}

const mostChips = 4; // chats shown side by side

/** A session's chats. Chats of subagents are below their parents. */
function Chats({ chats }: { chats: ChatSummary[] }) {
  if (chats.length < 2 || chats.length > mostChips) return null;
  return <ul class="chips chats" aria-label={t`Chats`}>{treeOf(chats).map((c) => <ChatChip key={c.chat.resource} {...c} />)}</ul>;
}

/** Many chats, in a menu. */
function Tree({ chats }: { chats: ChatSummary[] }) {
  const at = useRef<HTMLDetailsElement>(null);
  if (chats.length <= mostChips) return null;
  const need = chats.filter((c) => c.status & 16).length;
  const work = chats.filter((c) => (c.status & 24) === 8).length;
  return (
    <details class="tree" ref={at}>
      <summary class="chip"><Icon name="agent" /><span class="grow">{chatName(chats.find((c) => c.resource === app.chatUri))}</span><span class="dim">{plural(chats.length, '{0} chat', '{0} chats')}</span>
        {(need > 0 || work > 0) && <span class="badge" data-tone={need ? 'wait' : 'ok'}>{need ? plural(need, '{0} needs you', '{0} need you') : plural(work, '{0} working', '{0} working')}</span>}</summary>
      <ul aria-label={t`Chats`} onClick={() => shut(at.current!)}>{treeOf(chats).map((c) => <ChatChip key={c.chat.resource} {...c} />)}</ul>
    </details>
  );
}

function ChatChip({ chat, depth }: { chat: ChatSummary; depth: number }) {
  const word = statusWord(chat.status);
  return (
    <li style={{ '--depth': depth }}><button type="button" class={`chip chat-chip${depth > 0 ? ' below' : ''}`} aria-pressed={chat.resource === app.chatUri} onClick={() => app.chooseChat(chat.resource)}>
      <span dir="auto">{chatName(chat)}</span>{word && <span class="badge" data-tone={chat.status & 16 ? 'wait' : 'ok'}>{word}</span>}
    </button></li>
  );
}

/** Whether the canvas's provider is absent. Since AHP 0.10, such a canvas has no address. */
export function isStale(canvas: CanvasRef | CanvasState | undefined): boolean {
  return canvas?.availability === 'stale' || (canvas?.instanceId !== undefined && canvas.availability === undefined && !text(canvas.url));
}

export function canvasTitle(canvas: CanvasRef | CanvasState | undefined): string {
  return text(canvas?.title) || text(canvas?.displayName) || text(canvas?.canvasId) || t`Canvas`;
}

function Log({ agent, now }: { agent: string; now: number }) {
  const { link, chatUri } = app;
  const past = link?.seen(app.session);
  const chat = link?.store.get<ChatState>(chatUri) ?? (past?.chat === chatUri ? past?.state : undefined); // not a prop, because a growing answer is drawn separately
  const [drawn, again] = useState(0);
  const grew = useRef(() => {});
  useLayoutEffect(() => {
    const draw = () => {
      grew.current();
      again((n) => n + 1);
    };
    app.drawLog = draw;
    return () => { if (app.drawLog === draw) app.drawLog = null; };
  }, []);
  const at = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const following = useRef(true); // keep the chat's end in view
  const was = useRef(0); // scrollTop
  const start = useRef<Element | null>(null); // a question in view from its start, until the user scrolls
  const anchor = useRef({ id: '', top: 0 }); // the turn that keeps its place in the view; top: px below the view's top
  const wanted = useRef(false); // the user wants older turns than those loaded
  const [away, setAway] = useState(false);
  const [part, setPart] = useState<Part | null>(null); // the turns that are drawn; null: those at the end
  const online = Boolean(link?.live);
  const live = online && Boolean(link!.store.get(chatUri)); // a state from an earlier time can be answered only at the relay, if at all
  const open = absent.takes && !rights.readOnly ? openTurn(chat) : undefined;
  const turns: AnyTurn[] = chat?.turns ?? [];
  const { from, to } = rangeOf(turns, part);
  const shown = turns.slice(from, to);
  const ends = to === turns.length;
  const pending = ends ? link?.store.pending.filter((p) => p.channel === chatUri && (p.failed || !p.how)) ?? [] : [];
  const more = from > 0 || (live && chat?.turnsNextCursor);

  const toEnd = () => {
    const log = at.current!;
    if (!start.current?.isConnected) log.scrollTop = log.scrollHeight;
    else { // a scroll to the end would hide the start
      start.current.scrollIntoView({ block: 'start' });
      was.current = log.scrollTop;
    }
  };
  /** Notes a scroll by the page as done: on a phone, the header stays. */
  const landed = (follows: boolean) => {
    was.current = at.current!.scrollTop;
    following.current = follows;
    setAway(!follows);
    noteAnchor();
  };
  const formShown = useRef<string>(); // the form that was shown from its first field
  /** Shows a waiting form from its start, once, if it is higher than the view. Otherwise it shows the end. */
  const toFormOrEnd = () => {
    const form = at.current!.querySelector<HTMLElement>('.ask:not(.answered)');
    if (!form || form.dataset.request === formShown.current || form.offsetHeight <= at.current!.clientHeight) return toEnd();
    formShown.current = form.dataset.request;
    form.scrollIntoView({ block: 'start' });
    landed(false);
  };
  const left = () => at.current!.scrollHeight - at.current!.scrollTop - at.current!.clientHeight; // px to the end
  const show = (first: number, last: number) => setPart({ first: String(turns[first]?.id), n: last === turns.length ? Infinity : last - first });
  const scrolled = () => {
    const log = at.current!;
    const moved = log.scrollTop !== was.current; // not the page's own scroll, which noted the anchor before later growth
    // Scrolling up stops following the end. A change caused by new text does not.
    const up = log.scrollTop < was.current;
    if (Math.abs(log.scrollTop - was.current) > 1) start.current = null;
    if (Math.abs(log.scrollTop - was.current) > 4) { // on a phone, the header makes room
      const reads = following.current || up ? '' : 'down';
      const { dataset } = log.closest<HTMLElement>('.chat')!;
      if (dataset.reads !== reads) dataset.reads = reads;
    }
    was.current = log.scrollTop;
    if (ends && left() < atEnd) following.current = true;
    else if (up) following.current = false;
    setAway(!following.current);
    if (following.current) setPart(null); // the turns in view were removed
    else if (log.scrollTop < nearEdge && from > 0) earlier();
    else if (left() < nearEdge && !ends) {
      const last = Math.min(turns.length, to + atFirst);
      show(Math.max(from, last - mostTurns), last);
    }
    else if (!part && from > 0) show(from, to); // keeps the visible turns in view while text arrives
    if (moved) noteAnchor();
  };
  /** Records the turn at the top of the view. */
  const noteAnchor = () => {
    const log = at.current!;
    if (following.current) return;
    for (const turn of inner.current!.children as Iterable<HTMLElement> & HTMLCollection) {
      const { top, bottom } = (turn as HTMLElement).getBoundingClientRect();
      const view = log.getBoundingClientRect().top;
      if (bottom <= view) continue;
      anchor.current = { id: (turn as HTMLElement).dataset.turn!, top: top - view };
      return;
    }
  };
  /** Keeps the turn at the top of the view in its place while the content above it changes. */
  const keepAnchor = () => {
    const log = at.current!;
    const turn = anchor.current.id && turnNode(inner.current!, anchor.current.id);
    if (!turn) return;
    log.scrollTop += turn.getBoundingClientRect().top - log.getBoundingClientRect().top - anchor.current.top;
    was.current = log.scrollTop;
  };
  const earlier = () => {
    following.current = false; // the user is not reading the end
    noteAnchor();
    if (from > 0) {
      const first = Math.max(0, from - atFirst);
      show(first, Math.min(to, first + mostTurns));
    } else {
      wanted.current = true;
      conversation.earlier();
    }
  };
  useLayoutEffect(() => { // the requested turns have arrived
    if (!wanted.current || from === 0) return;
    wanted.current = false;
    earlier();
  }, [turns]);
  // Scrolls right after layout, before the observer below reports the new size.
  useLayoutEffect(() => { if (following.current) toFormOrEnd(); });
  useEffect(() => {
    const resized = new ResizeObserver(() => { // by text, a phone's keyboard or an app
      if (following.current) toFormOrEnd();
      else keepAnchor();
      if (app.sought === itsQuestion) again((n) => n + 1); // the changes in question are loading
    });
    resized.observe(at.current!);
    resized.observe(inner.current!);
    // While text arrives, each draw scrolls to the end. The observer would cause a second layout of each
    // frame.
    let rest: ReturnType<typeof setTimeout> | undefined;
    grew.current = () => {
      resized.unobserve(inner.current!);
      clearTimeout(rest);
      rest = setTimeout(() => resized.observe(inner.current!), wordsRest);
    };
    return () => {
      clearTimeout(rest);
      resized.disconnect();
    };
  }, []);
  const key = [shown[0]?.id, shown.length, turns.length, Boolean(chat?.activeTurn), pending.length, Boolean(chat?.steeringMessage), chat?.queuedMessages?.length, more].join(' ');
  useLayoutEffect(() => { if (!following.current) keepAnchor(); }, [key]);
  // A link may name a turn: older turns are loaded until it is found, and it is then scrolled into view.
  const [looked, setLooked] = useState(0);
  useLayoutEffect(() => {
    if (!app.sought || !chat) return;
    if (app.sought === itsQuestion) {
      const edits = live ? toEdits() : undefined;
      if (edits) {
        start.current = edits.asked;
        landed(left() < atEnd);
        if (edits.loaded) app.arrived();
      } else if (live && (toQuestion() || array(chat.activeTurn?.responseParts).every((p) => !waitsForUser(p)))) app.arrived();
      return;
    }
    const i = turns.findIndex((t) => String(t.id) === app.sought);
    const active = String(chat.activeTurn?.id) === app.sought;
    if (i < 0 && !active && live && chat.turnsNextCursor && looked < mostLooks) {
      setLooked(looked + 1);
      conversation.earlier();
      return;
    }
    const node = i < 0 && !active ? null : turnNode(inner.current!, app.sought);
    if (i >= 0 && !node) {
      following.current = false;
      anchor.current.id = '';
      show(Math.max(0, i - 5), Math.min(turns.length, i + atFirst));
      return;
    }
    if (node) {
      following.current = false;
      setAway(true);
      node.scrollIntoView({ block: 'start' });
      node.tabIndex = -1;
      node.focus({ preventScroll: true });
      noteAnchor();
    } else if (live) conversation.note = t`The linked turn no longer exists.`;
    else return;
    app.arrived();
    app.draw();
  }, [app.sought, turns, part, live, app.sought === itsQuestion && chat?.activeTurn, app.sought === itsQuestion && drawn]);
  const all = [...shown.map((turn) => ({ turn })), ...(ends && chat?.activeTurn ? [{ turn: chat.activeTurn }] : []), ...pending.map((p) => ({ turn: p.turn, pending: p }))] as { turn: AnyTurn; pending?: Pending }[];
  const note = chatNote(chat, all.length, online);
  return (
    <div class="chat-body">
      <div id="log" class="log" role="log" aria-label={t`Conversation`} tabIndex={0} ref={at} onScroll={scrolled}>
        {past && !link?.store.get(chatUri) && <p id="past" class="notice" role="status"><span class="grow">{asOf(app.host, past.at, now, past.clock)}.</span><Wake host={app.host} /></p>}
        {more && <button id="earlier" type="button" onClick={earlier}>{t`Show earlier turns`}</button>}
        <div id="turns" ref={inner}>
          {all.map(({ turn, pending: p }) => (
            <Turn key={String(turn.id)} turn={turn} agent={agent} pending={p} channel={chatUri!} day={dayOf(now)} level={rights.level} readOnly={rights.readOnly}
              active={turn === chat?.activeTurn} live={live && turn === chat?.activeTurn} connected={live} leaves={turn === open} last={turn === turns.at(-1) && !chat?.activeTurn}
              answers={turn === open ? absent.left!.revision : turn === chat?.activeTurn ? link!.store.revision : 0} givers={link?.store.givers} changesets={link?.store.get(app.session)?.changesets} />
          ))}
        </div>
        {ends && <Waiting chat={chat} />}
        {ends && absent.left && absent.left.of(app.host, app.session).length > 0 && <LeftHere host={app.host} session={app.session} now={now} />}
        {!chat && online && !note && <div class="skeletons" aria-hidden="true">{[0, 1, 2].map((i) => <div key={i} class="skeleton"><i /><i /><i /></div>)}</div>}
        {note && <p id="chat-note" class="empty">{note}</p>}
      </div>
      {away && <button id="to-end" type="button" onClick={() => { following.current = true; start.current = null; setPart(null); toEnd(); at.current!.focus({ preventScroll: true }); }}><Icon name="down" /> {t`Latest`}</button>}
    </div>
  );
}

/** A range of turns. With n = Infinity, it includes later turns. */
interface Part { first: string; n: number }

const mostLooks = 200; // loads of older turns to find a turn

/** Returns the range of turns that are drawn. */
function rangeOf(turns: AnyTurn[], part: Part | null): { from: number; to: number } {
  const from = part ? turns.findIndex((t) => String(t.id) === part.first) : -1;
  if (from < 0) return { from: Math.max(0, turns.length - atFirst), to: turns.length };
  return { from, to: Math.min(turns.length, from + part!.n) };
}

function turnNode(all: HTMLElement, id: string): HTMLElement | null {
  return ([...all.children] as HTMLElement[]).find((t) => t.dataset.turn === id) ?? null;
}

function dayOf(now: number): number {
  return Math.floor(now / 86_400_000);
}

/** The queued messages. */
function Waiting({ chat }: { chat: ChatState | undefined }) {
  const waiting = [...(chat?.steeringMessage ? [{ kind: 'steering' as const, m: chat.steeringMessage }] : []), ...array(chat?.queuedMessages).map((m) => ({ kind: 'queued' as const, m }))];
  if (waiting.length === 0) return null;
  return (
    <ul class="waiting" aria-label={t`Waiting messages`}>
      {waiting.map(({ kind, m }) => (
        <li key={m.id}><span class="badge">{kind === 'steering' ? t`steers` : t`next`}</span><span class="text">{text(m.message?.text) || array(m.message?.attachments).map((a) => text(a?.label)).join(', ')}</span>
          {!rights.readOnly && <button type="button" class="quiet round" aria-label={t`Take back`} onClick={() => conversation.unqueue(kind, m.id)}><Icon name="close" /></button>}</li>
      ))}
    </ul>
  );
}

function chatNote(chat: ChatState | undefined, shown: number, live: boolean): string {
  const { link, session, chatUri } = app;
  const error = link?.errors.get(session) ?? (chatUri && link?.errors.get(chatUri));
  if (error) return t`This session cannot be shown: ${error}`;
  if (!chat) return live ? '' : `${t`This session opens when the host is online.`} ${remembered.why(app.host, session)}`.trim();
  const failed = text(link?.store.get(session)?.creationError?.message);
  if (failed) return failed;
  return shown === 0 ? t`No messages yet.` : '';
}
