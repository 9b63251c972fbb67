// One host's sessions and the states of the followed channels. A state is replaced, never
// changed in place.

import { ROOT } from './rpc';
import type { Action, Agent, CanvasRef, CanvasState, ChangesetRef, ChatState, Customization, Envelope, Given, JsonObject, Params, RootState, SessionState, Snapshot, State, Summary, Sync, ToolCall, Turn } from './ahp';
import { reduce } from './reduce';
import { t } from './language';

const maxUnknown = 50; // distinct unknown action types
const maxKept = 20; // samples of each type
const maxNames = 200; // channels that the page has left and whose names it remembers
const longestName = 60; // characters of a chat's name

/** A prompt that the host has not confirmed. how: it waits for the end of a turn, or is read during that turn. */
export interface Pending { channel: string; clientSeq: number; turn: Turn; sent: number; failed: string; how?: 'queued' | 'steering'; during?: string }

/** An unknown type of action: its count and latest samples. */
export interface Unknown { count: number; latest: Action[] }

export class Store {
  sessions = new Map<string, Summary>(); // URI to summary
  listRevision = 0; // counts changes to sessions
  unknown = new Map<string, Unknown>();
  unknownCount = 0;
  confirmed = -1; // clientSeq of the latest own action that the host has applied or refused
  refusal = ''; // why the latest request, other than a prompt, was refused
  messages: { channel: string; payload: unknown }[] = []; // from canvas providers, until a canvas takes them
  pending: Pending[] = [];
  quiet = new Set<number>(); // clientSeq of actions that the user did not cause; a refusal is not shown
  revision = 0; // counts changes
  loading = ''; // chat whose earlier turns this page has requested
  loaded: Action[] | undefined; // until the host's answer: the latest of such turns, which may be those that a different page has requested
  givers: ReadonlyMap<string, string> = new Map(); // answers to the people who gave them; replaced at each change

  #channels = new Map<string, { state: State; fromSeq: number }>();
  #answers = new Map<string, string>(); // the user's answers, until the host confirms them
  #names = new Map<string, string>(); // channels that the page has left to the first words of their chats
  #runs = new Map<string, Map<string, [from: number, to: number]>>(); // channel to the times of its tool calls, as seen here
  #clientId: string;

  constructor(clientId: string) {
    this.#clientId = clientId;
  }

  /**
   * Returns a channel's state, or undefined. The caller names the kind of the channel. Members that a host
   * has omitted are absent.
   */
  get<S extends State = SessionState>(channel: string | undefined): S | undefined {
    return channel === undefined ? undefined : this.#channels.get(channel)?.state as S | undefined;
  }

  get agents(): Agent[] {
    return array(this.get<RootState>(ROOT)?.agents);
  }

  /**
   * Returns a session's open canvases: from the session's list or, since AHP 0.10, from its first chat. The
   * chat has only addresses; a title is known after a subscription.
   */
  canvasesOf(session: string): CanvasRef[] {
    const listed = array(this.get<ChatState>(this.chatOf(session))?.canvases).filter((c) => typeof c?.resource === 'string');
    const registered = listed.map(({ resource }, i) => (
      { title: listed.length > 1 ? t`Canvas ${i + 1}` : t`Canvas`, ...this.get<CanvasState>(resource) as Partial<CanvasRef>, channel: resource, registered: true }));
    return [...array(this.get(session)?.openCanvases).filter((c) => isObject(c) && typeof c.channel === 'string'), ...registered];
  }

  /** Returns a session's MCP server by id, or undefined. */
  mcpServer(session: string, id: string): Customization | undefined {
    return this.mcpServers(session).find((c) => c.id === id);
  }

  mcpServers(session: string): Customization[] {
    const all = array(this.get(session)?.customizations).filter(isObject);
    return all.concat(all.flatMap((c) => array(c.children).filter(isObject)));
  }

  /** Returns and removes the waiting messages from canvas providers. */
  takeMessages(): { channel: string; payload: unknown }[] {
    return this.messages.splice(0);
  }

  /** Returns the URI of a session's default chat, or undefined. */
  chatOf(session: string): string | undefined {
    const state = this.get(session);
    return state?.defaultChat ?? array(state?.chats)[0]?.resource;
  }

  snapshot({ resource, state, fromSeq }: Snapshot): void {
    if (!isObject(state)) return;
    this.#channels.set(resource, { state: normal(state as ChatState), fromSeq: fromSeq ?? 0 });
    this.revision++;
    this.#settlePending(resource);
  }

  drop(channel: string): void {
    this.#names.set(channel, this.firstWords(channel));
    if (this.#names.size > maxNames) this.#names.delete(this.#names.keys().next().value!);
    this.#channels.delete(channel);
    this.#runs.delete(channel);
    this.revision++;
  }

  /** Returns a chat's first words, even after the page has left the chat; '' if they are not known. */
  firstWords(channel: string | undefined): string {
    const chat = this.get<ChatState>(channel);
    const said = text((array(chat?.turns)[0] ?? chat?.activeTurn)?.message?.text).trim().split('\n')[0].slice(0, longestName);
    return said || this.#names.get(channel ?? '') || '';
  }

  /** Applies the outcome of a handshake: see Connection. */
  sync({ fresh, snapshots, actions, missing }: Sync): void {
    if (fresh) {
      this.#channels.clear();
      this.messages = [];
    }
    this.#runs.clear(); // some of them were missed
    for (const s of snapshots) this.snapshot(s);
    for (const a of actions) this.apply(a, 0);
    for (const m of missing) this.drop(m);
    for (const p of this.pending) this.#fail(p, t`The connection was lost before the host accepted this.`);
    this.#answers.clear();
    this.revision++;
  }

  /** Applies an action. It happened at the time now; 0 means an unknown time. */
  apply(envelope: Envelope, now = Date.now()): void {
    if (!isObject(envelope)) return;
    const { channel, action, serverSeq, origin, rejectionReason } = envelope;
    const entry = this.#channels.get(channel);
    // A rejection by the relay has no serverSeq, so it is handled first.
    if (origin?.clientId === this.#clientId) this.#confirm(origin.clientSeq, rejectionReason);
    if (!entry || !isObject(action) || rejectionReason !== undefined) return;
    if (serverSeq <= entry.fromSeq) return; // already in the snapshot
    entry.fromSeq = serverSeq;
    if (action.type === 'chat/turnsLoaded') {
      const own = channel === this.loading;
      if (!own && (entry.state as ChatState).turnsNextCursor) return; // for a different client: here, they would leave a gap
      if (own && this.loaded) {
        this.loaded = [action];
        return;
      }
      this.loading = '';
    }
    // A client's message to a provider is echoed to all clients and has an origin.
    if (action.type === 'canvas/message' && !origin) this.messages.push({ channel, payload: action.payload });
    this.#reduce(entry, action);
    if (action.toolCallId !== undefined && now) this.#note(channel, entry.state as ChatState, action.toolCallId as string, now);
    if (action.toolCallId !== undefined) this.#answers.delete(answerKey(channel, action.toolCallId as string));
    if (action.requestId !== undefined && action.type === 'chat/inputCompleted') this.#answers.delete(answerKey(channel, action.requestId as string));
  }

  /** Applies the latest earlier turns: those that came with the answer to this page's request. */
  load(): void {
    const entry = this.#channels.get(this.loading);
    const [own] = this.loaded ?? [];
    this.loaded = undefined;
    if (!own || !entry) return; // the turns follow
    this.loading = '';
    this.#reduce(entry, own);
  }

  /** Records when a tool call begins to run, and when it ends. */
  #note(channel: string, state: ChatState, id: string, now: number): void {
    const call = array(state.activeTurn?.responseParts).findLast((p) => p.toolCall?.toolCallId === id)?.toolCall;
    const runs = this.#runs.get(channel) ?? new Map<string, [number, number]>();
    const run = runs.get(id);
    if (call?.status === 'running' && !run) this.#runs.set(channel, runs.set(id, [now, 0]));
    else if (call?.status === 'completed' && run && !run[1]) run[1] = now;
  }

  /**
   * Returns the time in which a tool call has run: as reported by the host, or else as seen here. Returns
   * undefined if neither is known.
   */
  ranFor(channel: string, call: ToolCall): [from: number, to: number] | undefined {
    const said = call._meta?.['agenthost.ran'] as { startedAt?: string; durationMs?: number } | undefined;
    const from = Date.parse(said?.startedAt ?? '');
    if (from >= 0 && said!.durationMs! >= 0) return [from, from + said!.durationMs!];
    const seen = this.#runs.get(channel)?.get(call.toolCallId);
    return seen?.[1] ? seen : undefined;
  }

  #reduce(entry: { state: State }, action: Action): void {
    if (typeof action.type === 'string' && action.type.startsWith('chat/') && !(entry.state as ChatState).turns) return;
    let next;
    try {
      next = reduce(entry.state, action);
    } catch {
      // A malformed action changes nothing and is shown as unknown.
    }
    if (next === undefined) this.#ignore(action);
    else if (next !== entry.state) {
      entry.state = next;
      this.revision++;
    }
  }

  /** Applies a session list notification. */
  notification(method: string, params: Params): void {
    switch (method) {
      case 'root/sessionAdded':
        if (params?.summary?.resource) this.sessions.set(params.summary.resource, params.summary);
        break;
      case 'root/sessionSummaryChanged': {
        const known = this.sessions.get(params?.session!);
        if (known && isObject(params.changes)) this.sessions.set(params.session!, { ...known, ...params.changes });
        break;
      }
      case 'root/sessionRemoved':
        this.sessions.delete(params?.session!);
        break;
      default:
        return;
    }
    this.listRevision++;
    this.revision++;
  }

  /** Replaces the session list. */
  listed(items: Summary[]): void {
    this.sessions = new Map(items.filter((s) => s?.resource).map((s) => [s.resource, s]));
    this.listRevision++;
    this.revision++;
  }

  /** Records a sent prompt, to show it until the host confirms it. */
  sent(channel: string, clientSeq: number, { turnId, startedAt, message }: Pick<Turn, 'startedAt' | 'message'> & { turnId: string }, how?: Pending['how']): void {
    const turn = { id: turnId, startedAt, message, responseParts: [] };
    this.pending = [...this.pending, { channel, clientSeq, turn, sent: Date.now(), failed: '', ...(how ? { how, during: this.get<ChatState>(channel)?.activeTurn?.id } : {}) }];
    this.revision++;
  }

  discard(pending: Pending): void {
    this.pending = this.pending.filter((p) => p.turn !== pending.turn);
    this.revision++;
  }

  /** Records the user's answer to a tool call or a question. */
  answered(channel: string, id: string, answer: string): void {
    this.#answers.set(answerKey(channel, id), answer);
    this.revision++;
  }

  /** Returns the user's answer until the host confirms it. */
  answerOf(channel: string, id: string): string | undefined {
    return this.#answers.get(answerKey(channel, id));
  }

  /** Records who gave a chat's answers: see hostagent/given.go. */
  given(channel: string, answers: Given[] | undefined): void {
    const all = new Map(this.givers);
    for (const a of array(answers)) if (text(a?.subject)) all.set(answerKey(channel, `${a.type} ${a.id}`), [text(a.subject), text(a.device)].filter(Boolean).join(' · '));
    this.givers = all;
    this.revision++;
  }

  /** Returns the person who gave an answer, by the type of its action; '' if unknown. */
  giverOf(channel: string, type: string, id: string): string {
    return this.givers.get(answerKey(channel, `${type} ${id}`)) ?? '';
  }

  /** Marks prompts as failed that the host has not confirmed for age ms. unsent: the connection has bytes to send, which may be theirs. */
  expire(age: number, unsent = 0): void {
    const now = Date.now();
    for (const p of this.pending) {
      if (unsent) p.sent = now;
      else if (p.sent < now - age) this.#fail(p, t`The host has not accepted this.`);
    }
  }

  #fail(pending: Pending, failed: string): void {
    if (pending.failed) return;
    this.pending = this.pending.map((p) => (p === pending ? { ...p, failed } : p));
    this.revision++;
  }

  #confirm(clientSeq: number, rejectionReason: unknown): void {
    this.confirmed = clientSeq;
    const p = this.pending.find((other) => other.clientSeq === clientSeq);
    const quiet = this.quiet.delete(clientSeq);
    if (rejectionReason === undefined || quiet) {
      if (p) this.discard(p);
      return;
    }
    const why = t`Refused: ${text(rejectionReason) || t`no reason given`}.`;
    if (p) this.#fail(p, why);
    else this.refusal = why;
    this.#answers.clear();
    this.revision++;
  }

  // #settlePending removes prompts that a snapshot contains.
  #settlePending(channel: string): void {
    const { turns, activeTurn, queuedMessages, steeringMessage } = this.get<ChatState>(channel)!;
    const all = [...array(turns), activeTurn];
    const ids = new Set([...all, ...array(queuedMessages), steeringMessage].map((t) => t?.id));
    // The host chooses the id of a waiting message's turn.
    const begun = (p: Pending) => p.how && all.slice(all.findIndex((t) => t?.id === p.during) + 1).some((t) => t && text(t.message?.text) === text(p.turn.message?.text));
    this.pending = this.pending.filter((p) => p.channel !== channel || !ids.has(p.turn.id) && !begun(p));
  }

  #ignore(action: Action): void {
    this.unknownCount++;
    this.revision++;
    const type = String(action.type);
    const known = this.unknown.get(type);
    if (!known && this.unknown.size >= maxUnknown) return;
    this.unknown.set(type, { count: (known?.count ?? 0) + 1, latest: [...(known?.latest ?? []), action].slice(-maxKept) });
  }
}

function answerKey(channel: string, id: string): string {
  return `${channel}\n${id}`;
}

/** Returns the terminal of the tool call that runs in a chat, or ''. */
export function runningTerminal(chat: ChatState | undefined): string {
  const call = array(chat?.activeTurn?.responseParts).findLast((p) => p.toolCall?.status === 'running')?.toolCall;
  return text(array(call?.content).find((c) => c?.type === 'terminal')?.resource);
}

/** Gives every turn an array of parts, because a host may omit it. */
export function normal(state: Partial<ChatState>): State {
  if (!Array.isArray(state.turns) && !isObject(state.activeTurn)) return state;
  return {
    ...state,
    turns: array(state.turns).filter(isObject).map(normalTurn),
    activeTurn: isObject(state.activeTurn) ? normalTurn(state.activeTurn) : undefined,
  };
}

function normalTurn(turn: Turn): Turn {
  return { ...turn, responseParts: array(turn.responseParts).filter(isObject) };
}

const turnName = '{turnId}';

/** Returns the changesets that exist for each turn, with the addresses for this turn. */
export function ofTurn(changesets: ChangesetRef[], turn: string): { channel: string; title: string }[] {
  return changesets.filter((c) => typeof c?.uriTemplate === 'string' && c.uriTemplate.includes(turnName) && !c.uriTemplate.replace(turnName, '').includes('{'))
    .map((c) => ({ channel: c.uriTemplate.replace(turnName, encodeURIComponent(turn)), title: text(c.label) || t`Changes of this turn` }));
}

/** Returns a host's text: a string, or Markdown as plain text. */
export function text(value: unknown): string {
  if (typeof value === 'string') return value;
  return typeof (value as { markdown: string } | undefined)?.markdown === 'string' ? (value as { markdown: string }).markdown : '';
}

/** Reports whether a host's value is an object. Without a type, its members are unknown. */
export function isObject<T>(value: T): value is T & (unknown extends T ? JsonObject : object) {
  return value !== null && typeof value === 'object';
}

/** Returns a host's list, or an empty list if the value is no list. */
export function array<T>(value: readonly T[] | null | undefined): T[];
export function array(value: unknown): unknown[];
export function array(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}
