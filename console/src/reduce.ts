// The reducers of AHP 0.9 to 1.1, as pure functions from state and action to state. A reducer never changes
// its input. It returns the same object if nothing has changed, so callers can compare by identity.
// reduce() selects the reducer by the family of the action's type. For an unknown type it returns undefined,
// unlike for a known action without effect.

import type {
  Action, Annotation, AnnotationAction, AutomationAction, AutomationRunAction, CanvasAction, CanvasState, ChangesetAction, ChangesetState, ChatAction, ChatState, Config, ConfigAction,
  Contributor, Customization, InputNeeded, JsonObject, Operation, Part, QuestionAnswer, RootAction, RootState, SessionAction, SessionState, State, TerminalAction, TerminalPiece, TerminalState, ToolCall, Turn,
} from './ahp';

type Reduce<S, A> = (state: S, action: A) => S;
type Table<S, A> = Record<string, Reduce<S, A>>;

/** A reducer for any state. The family in an action's type determines the kind of the state. */
export type Reducer = Reduce<State, Action>;

// Status bits of sessions and chats.
export const status = { idle: 1, error: 2, working: 8, needsInput: 24, read: 32, archived: 64 };
const activity = 31;

function withFlag(bits: number, flag: number, on: boolean): number {
  return on ? bits | flag : bits & ~flag;
}

function isObject<T>(v: T): v is T & object {
  return v !== null && typeof v === 'object';
}

function list<T>(v: T[] | undefined): T[] {
  return Array.isArray(v) ? v : [];
}

/** A copy of an object without a member. */
function without<T extends object, K extends keyof T>(o: T, name: K): Omit<T, K> {
  const { [name]: _, ...rest } = o;
  return rest;
}

/** Replaces the item with the same key, or appends. */
function put<T>(items: T[] | undefined, item: T, key: (i: T) => unknown): T[] {
  const all = list(items);
  const i = all.findIndex((other) => key(other) === key(item));
  return i < 0 ? [...all, item] : all.with(i, item);
}

/** Removes the first item that fits. Returns the same array if none does. */
function take<T>(items: T[] | undefined, fits: (i: T) => boolean): T[] | undefined {
  const i = list(items).findIndex(fits);
  return i < 0 ? items : items!.toSpliced(i, 1);
}

function config<S extends { config?: Config }>(state: S, a: ConfigAction): S {
  if (!state.config) return state;
  return { ...state, config: { ...state.config, values: a.replace ? { ...a.config } : { ...state.config.values, ...a.config } } };
}

function addDirectory<S extends { workingDirectories?: string[] }>(state: S, directory: string): S {
  const had = list(state.workingDirectories);
  return had.includes(directory) ? state : { ...state, workingDirectories: [...had, directory] };
}

function dropDirectory<S extends { workingDirectories?: string[] }>(state: S, directory: string): S {
  const rest = take(state.workingDirectories, (d) => d === directory);
  return rest === state.workingDirectories ? state : { ...state, workingDirectories: rest };
}

// ---- the root

const root: Table<RootState, RootAction & ConfigAction> = {
  'root/agentsChanged': (s, a) => ({ ...s, agents: a.agents }),
  'root/activeSessionsChanged': (s, a) => ({ ...s, activeSessions: a.activeSessions }),
  'root/terminalsChanged': (s, a) => ({ ...s, terminals: a.terminals }),
  'root/configChanged': config,
};

// ---- sessions

/** Returns the status of a session with these pending requests. Automatic requests to a client's machine do not need the user. */
function waiting(bits: number, needed: InputNeeded[]): number {
  return needed.some((r) => r.kind !== 'toolClientExecution') ? (bits & ~activity) | status.needsInput : bits & ~16;
}

/** Changes a customization, which may be inside a container. */
function customization(state: SessionState, id: string, change: (c: Customization) => Customization): SessionState {
  const all = state.customizations;
  if (!all) return state;
  const i = all.findIndex((c) => c?.id === id);
  if (i >= 0) {
    const next = change(all[i]);
    return next === all[i] ? state : { ...state, customizations: all.with(i, next) };
  }
  const changed = all.map((c) => {
    if (c?.type === 'mcpServer' || !Array.isArray(c?.children)) return c;
    const j = c.children.findIndex((child) => child?.id === id);
    if (j < 0) return c;
    const next = change(c.children[j]);
    return next === c.children[j] ? c : { ...c, children: c.children.with(j, next) };
  });
  return changed.some((c, n) => c !== all[n]) ? { ...state, customizations: changed } : state;
}

function mcpServer(state: SessionState, id: string, change: (c: Customization) => Customization): SessionState {
  return customization(state, id, (c) => (c.type === 'mcpServer' ? change(c) : c));
}

/** Since 0.9, plugins and servers have enablement, and before that, enabled. */
function toggled(c: Customization, a: SessionAction): Customization {
  if (!Array.isArray(a.enablement)) return typeof a.enabled === 'boolean' ? { ...c, enabled: a.enabled } : c;
  if (c.type !== 'plugin' && c.type !== 'mcpServer') return { ...c, enabled: a.enablement[0]?.enabled ?? true };
  return a.enablement.length > 0 ? { ...c, enablement: [...a.enablement] } : without(c, 'enablement');
}

function replaceDirectory(s: SessionState, a: SessionAction): SessionState {
  const had = s.workingDirectories;
  const i = list(had).indexOf(a.directory);
  if (i < 0) return s;
  const other = had!.indexOf(a.replacement);
  if (other >= 0 && other < i) return { ...s, workingDirectories: had!.toSpliced(i, 1) };
  return { ...s, workingDirectories: had!.with(i, a.replacement).filter((d, n) => n === i || d !== a.replacement) };
}

function reorder<T>(items: T[], order: string[] | undefined, key: (i: T) => string): T[] {
  const byKey = new Map(items.map((i) => [key(i), i]));
  const first = [...new Set(list(order))].filter((k) => byKey.has(k));
  return [...first.map((k) => byKey.get(k)!), ...items.filter((i) => !first.includes(key(i)))];
}

const session: Table<SessionState, SessionAction> = {
  'session/ready': (s) => ({ ...s, lifecycle: 'ready' }),
  'session/creationFailed': (s, a) => ({ ...s, lifecycle: 'failed', creationError: a.error }),
  'session/titleChanged': (s, a) => ({ ...s, title: a.title }),
  'session/isReadChanged': (s, a) => ({ ...s, status: withFlag(s.status, status.read, a.isRead) }),
  'session/isArchivedChanged': (s, a) => ({ ...s, status: withFlag(s.status, status.archived, a.isArchived) }),
  'session/activityChanged': (s, a) => ({ ...s, activity: a.activity }),
  'session/metaChanged': (s, a) => ({ ...s, _meta: a._meta }),
  'session/configChanged': config,
  'session/changesetsChanged': (s, a) => (a.changesets ? { ...s, changesets: a.changesets } : without(s, 'changesets')),
  'session/serverToolsChanged': (s, a) => ({ ...s, serverTools: a.tools }),

  'session/chatAdded': (s, a) => ({ ...s, chats: put(s.chats, a.summary, (c) => c?.resource) }),
  'session/chatRemoved': (s, a) => {
    const chats = take(s.chats, (c) => c?.resource === a.chat);
    if (chats === s.chats) return s;
    return s.defaultChat === a.chat ? without({ ...s, chats }, 'defaultChat') : { ...s, chats };
  },
  'session/chatUpdated': (s, a) => {
    const i = list(s.chats).findIndex((c) => c?.resource === a.chat);
    return i < 0 ? s : { ...s, chats: s.chats!.with(i, { ...s.chats![i], ...without(a.changes, 'resource') }) };
  },
  'session/chatsReordered': (s, a) => ({ ...s, chats: reorder(list(s.chats), a.chats, (c) => c?.resource) }),
  'session/defaultChatChanged': (s, a) => ({ ...s, defaultChat: a.defaultChat }),

  'session/activeClientSet': (s, a) => ({ ...s, activeClients: put(s.activeClients, a.activeClient, (c) => c?.clientId) }),
  'session/activeClientRemoved': (s, a) => {
    const activeClients = take(s.activeClients, (c) => c?.clientId === a.clientId);
    return activeClients === s.activeClients ? s : { ...s, activeClients };
  },
  'session/activeClientChanged': (s, a) => ({ ...s, activeClient: a.activeClient ?? undefined }), // before 0.9

  'session/workingDirectorySet': (s, a) => addDirectory(s, a.directory),
  'session/workingDirectoryRemoved': (s, a) => dropDirectory(s, a.directory),
  'session/workingDirectoryReplaced': replaceDirectory,

  'session/inputNeededSet': (s, a) => {
    const inputNeeded = put(s.inputNeeded, a.request, (r) => r?.id);
    return { ...s, inputNeeded, status: waiting(s.status, inputNeeded) };
  },
  'session/inputNeededRemoved': (s, a) => {
    const inputNeeded = take(s.inputNeeded, (r) => r?.id === a.id);
    if (inputNeeded === s.inputNeeded) return s;
    const next = { ...s, inputNeeded, status: waiting(s.status, inputNeeded!) };
    return inputNeeded!.length > 0 ? next : without(next, 'inputNeeded');
  },

  'session/artifactSet': (s, a) => ({ ...s, artifacts: put(s.artifacts, a.artifact, (x) => x?.uri) }),
  'session/artifactRemoved': (s, a) => {
    const artifacts = take(s.artifacts, (x) => x?.uri === (a.uri ?? a.artifact?.uri));
    return artifacts === s.artifacts ? s : { ...s, artifacts };
  },

  'session/customizationsChanged': (s, a) => ({ ...s, customizations: a.customizations }),
  'session/customizationToggled': (s, a) => customization(s, a.id, (c) => toggled(c, a)),
  'session/customizationUpdated': (s, a) => (isObject(a.customization) ? { ...s, customizations: put(s.customizations, a.customization, (c) => c?.id) } : s),
  'session/customizationRemoved': (s, a) => {
    const rest = take(s.customizations, (c) => c?.id === a.id);
    if (rest !== s.customizations) return { ...s, customizations: rest };
    const changed = list(s.customizations).map((c) => {
      if (c?.type === 'mcpServer' || !Array.isArray(c?.children)) return c;
      const children = take(c.children, (child) => child?.id === a.id);
      return children === c.children ? c : { ...c, children };
    });
    return changed.some((c, i) => c !== s.customizations![i]) ? { ...s, customizations: changed } : s;
  },
  'session/mcpServerStateChanged': (s, a) => mcpServer(s, a.id, (c) => ({ ...c, state: a.state, channel: a.channel })), // an absent channel has ended
  'session/mcpServerStartRequested': (s, a) => mcpServer(s, a.id, (c) => ({ ...c, state: { kind: 'starting' }, channel: undefined })),
  'session/mcpServerStopRequested': (s, a) => mcpServer(s, a.id, (c) => ({ ...c, state: { kind: 'stopped' }, channel: undefined })),
  'session/mcpServerBackgroundRequested': (s, a) => mcpServer(s, a.id, (c) => (
    c.state?.kind === 'starting' && c.state.blocking ? { ...c, state: { ...c.state, blocking: false } } : c)),

  'session/canvasesChanged': (s, a) => ({ ...s, canvases: a.canvases }), // from the proposal
  'session/openCanvasesChanged': (s, a) => ({ ...s, openCanvases: a.openCanvases }),
};

// ---- chats

function blocks(part: Part): boolean {
  if (part.kind === 'inputRequest') return part.response === undefined;
  return part.kind === 'toolCall' && ['pending-confirmation', 'pending-result-confirmation', 'auth-required'].includes(part.toolCall?.status!);
}

function chatStatus(s: ChatState, ended?: number): number {
  const now = ended ?? (!s.activeTurn ? status.idle : s.activeTurn.responseParts.some(blocks) ? status.needsInput : status.working);
  return (s.status & ~activity) | now;
}

function fresh(s: ChatState): ChatState {
  const now = chatStatus(s);
  return now === s.status ? s : { ...s, status: now };
}

function inTurn(s: ChatState, turnId: string, change: (turn: Turn) => Turn): ChatState {
  const turn = s.activeTurn;
  if (!turn || turn.id !== turnId) return s;
  const next = change(turn);
  return next === turn ? s : { ...s, activeTurn: next };
}

function addPart(s: ChatState, turnId: string, part: Part): ChatState {
  return inTurn(s, turnId, (turn) => ({ ...turn, responseParts: [...turn.responseParts, part] }));
}

/** Makes a text longer. */
function grow(s: ChatState, a: ChatAction, kind: string): ChatState {
  return inTurn(s, a.turnId, (turn) => {
    // Most actions extend the last part.
    const i = turn.responseParts.findLastIndex((p) => (p.kind === 'toolCall' ? p.toolCall?.toolCallId : p.id) === a.partId);
    const part = turn.responseParts[i];
    if (part?.kind !== kind) return turn;
    return { ...turn, responseParts: turn.responseParts.with(i, { ...part, content: part.content as string + a.content }) };
  });
}

function inTool(s: ChatState, a: ChatAction, from: string[], change: (call: ToolCall) => ToolCall): ChatState {
  return inTurn(s, a.turnId, (turn) => {
    const i = turn.responseParts.findIndex((p) => p.kind === 'toolCall' && p.toolCall?.toolCallId === a.toolCallId);
    const call = turn.responseParts[i]?.toolCall;
    if (!call || !from.includes(call.status)) return turn;
    const next = change(call);
    return next === call ? turn : { ...turn, responseParts: turn.responseParts.with(i, { ...turn.responseParts[i], toolCall: next }) };
  });
}

/** The members of a tool call that never change. */
function base(call: Omit<ToolCall, 'status' | 'toolInput' | 'content'>, meta?: JsonObject): Omit<ToolCall, 'status'> {
  const { toolCallId, toolName, displayName, intention, contributor, _meta } = call;
  return { toolCallId, toolName, displayName, intention, contributor, _meta: meta ?? _meta };
}

/** The members of a tool call that stay after an approval. */
function confirmed(call: ToolCall): Partial<ToolCall> {
  const { invocationMessage, toolInput, confirmed: how, selectedOption } = call;
  return { invocationMessage, toolInput, confirmed: how, ...(selectedOption ? { selectedOption } : {}) };
}

/** The client that runs a tool cannot change after the tool's start. */
function contributorOf(had: Contributor | undefined, now: Contributor | undefined): Contributor | undefined {
  if (!now) return had;
  if (had?.kind === 'client') return now.kind === 'client' && now.clientId === had.clientId ? now : had;
  return now.kind === 'client' ? had : now;
}

function toolReady(call: ToolCall, a: ChatAction): ToolCall {
  const kept = { ...base(call, a._meta), contributor: contributorOf(call.contributor, a.contributor), intention: a.intention ?? call.intention };
  const toolInput = a.toolInput ?? (call.status === 'streaming' ? undefined : call.toolInput);
  if (a.confirmed) return { status: 'running', ...kept, invocationMessage: a.invocationMessage, toolInput, confirmed: a.confirmed };
  const was: Partial<ToolCall> = call.status === 'pending-confirmation' ? call : {};
  const options = a.options ?? was.options;
  return {
    status: 'pending-confirmation', ...kept, invocationMessage: a.invocationMessage, toolInput,
    confirmationTitle: a.confirmationTitle ?? was.confirmationTitle,
    riskAssessment: a.riskAssessment ?? was.riskAssessment,
    edits: a.edits ?? was.edits,
    editable: a.editable ?? was.editable,
    ...(options ? { options } : {}),
  };
}

function toolConfirmed(call: ToolCall, a: ChatAction): ToolCall {
  const selectedOption = a.selectedOptionId && list(call.options).find((o) => o.id === a.selectedOptionId);
  const kept = { ...base(call, a._meta), invocationMessage: call.invocationMessage };
  const chosen = selectedOption ? { selectedOption } : {};
  if (!a.approved) {
    return { status: 'cancelled', ...kept, toolInput: call.toolInput, reason: a.reason, reasonMessage: a.reasonMessage, userSuggestion: a.userSuggestion, ...chosen };
  }
  // Input that is a reference is edited in the referenced resource.
  const toolInput = a.editedToolInput !== undefined && typeof call.toolInput !== 'object' ? a.editedToolInput : call.toolInput;
  return { status: 'running', ...kept, toolInput, confirmed: a.confirmed, ...chosen };
}

function toolComplete(call: ToolCall, a: ChatAction): ToolCall {
  const paused = call.status === 'auth-required';
  if (paused && a.result?.success) return call; // the call has not continued after the pause
  const said = call.status === 'pending-confirmation' ? { ...confirmed(call), confirmed: 'not-needed', selectedOption: undefined } : confirmed(call);
  if (said.selectedOption === undefined) delete said.selectedOption;
  return {
    status: a.requiresResultConfirmation && !paused ? 'pending-result-confirmation' : 'completed',
    ...base(call, a._meta), ...said,
    ...(paused && call.content ? { content: call.content } : {}),
    ...a.result,
  };
}

function toolResultConfirmed(call: ToolCall, a: ChatAction): ToolCall {
  const kept = { ...base(call, a._meta), ...confirmed(call) };
  if (!a.approved) return { status: 'cancelled', ...without(kept, 'confirmed'), reason: 'result-denied' };
  const { success, pastTenseMessage, content, structuredContent, error } = call;
  return { status: 'completed', ...kept, success, pastTenseMessage, content, structuredContent, error };
}

/** Changes the status of a call that pauses for a token, or continues. */
function paused(call: ToolCall, a: ChatAction, now: Pick<ToolCall, 'status' | 'auth'>): ToolCall {
  return { ...base(call, a._meta), ...confirmed(call), ...(call.content ? { content: call.content } : {}), ...now };
}

function startTurn(s: ChatState, a: ChatAction): ChatState {
  const next: ChatState = { ...s, activeTurn: { id: a.turnId, startedAt: a.startedAt, message: a.message, responseParts: [], usage: undefined }, modifiedAt: a.startedAt };
  next.status = withFlag(chatStatus(next), status.read, false);
  if (a.queuedMessageId) {
    if (next.steeringMessage?.id === a.queuedMessageId) next.steeringMessage = undefined;
    if (next.queuedMessages) {
      const rest = next.queuedMessages.filter((m) => m.id !== a.queuedMessageId);
      next.queuedMessages = rest.length > 0 ? rest : undefined;
    }
  }
  return next;
}

function endTurn(s: ChatState, a: ChatAction, state: string): ChatState {
  const active = s.activeTurn;
  if (!active || active.id !== a.turnId) return s;
  const responseParts = active.responseParts.map((part): Part => {
    const call = part.toolCall;
    if (part.kind !== 'toolCall' || !isObject(call) || ['completed', 'cancelled'].includes(call.status)) return part;
    const streaming = call.status === 'streaming';
    return {
      kind: 'toolCall',
      toolCall: {
        status: 'cancelled', ...base(call), invocationMessage: streaming ? call.invocationMessage ?? '' : call.invocationMessage,
        toolInput: streaming ? undefined : call.toolInput, reason: 'skipped',
      },
    };
  });
  if (isObject(a.part)) responseParts.push(a.part);
  const duration = Math.max(0, a.duration ?? 0);
  const turn: Turn = { id: active.id, startedAt: active.startedAt, duration, message: active.message, responseParts, usage: active.usage, state };
  if (a.error) turn.error = a.error; // VS Code's host has the error in a field, other hosts in a part
  const began = Date.parse(active.startedAt);
  const next = { ...s, turns: [...s.turns, turn], activeTurn: undefined, modifiedAt: Number.isNaN(began) ? s.modifiedAt : new Date(began + duration).toISOString() };
  return { ...next, status: chatStatus(next, state === 'error' ? status.error : undefined) };
}

function resume(s: ChatState, a: ChatAction): ChatState {
  const last = s.turns.at(-1);
  const end = last?.responseParts.at(-1);
  if (s.activeTurn || !last || last.id !== a.turnId || last.state !== 'error' || end?.kind !== 'error' || end.resumable !== true) return s;
  const { id, startedAt, message, responseParts, usage } = last;
  const next = { ...s, turns: s.turns.slice(0, -1), activeTurn: { id, startedAt: startedAt ?? s.modifiedAt, message, responseParts, usage } };
  return { ...next, status: withFlag(chatStatus(next), status.read, false) };
}

function truncate(s: ChatState, a: ChatAction): ChatState {
  const keep = a.turnId === undefined ? 0 : s.turns.findIndex((t) => t.id === a.turnId) + 1;
  if (a.turnId !== undefined && keep === 0) return s;
  const next = { ...s, turns: s.turns.slice(0, keep), activeTurn: undefined };
  if (a.turnId === undefined) delete next.turnsNextCursor;
  return { ...next, status: chatStatus(next) };
}

/** Changes an open question. */
function inQuestion(s: ChatState, id: string, change: (part: Part) => Part): ChatState {
  const i = list(s.activeTurn?.responseParts).findIndex((p) => p.kind === 'inputRequest' && p.response === undefined && p.request?.id === id);
  if (i < 0) return s;
  return { ...s, activeTurn: { ...s.activeTurn!, responseParts: s.activeTurn!.responseParts.with(i, change(s.activeTurn!.responseParts[i])) } };
}

function some(answers: Record<string, QuestionAnswer>): Record<string, QuestionAnswer> | undefined {
  return Object.keys(answers).length > 0 ? answers : undefined;
}

function inputRequested(s: ChatState, a: ChatAction): ChatState {
  if (!s.activeTurn || !isObject(a.request)) return s;
  const asked = inQuestion(s, a.request.id, (p) => ({ kind: 'inputRequest', request: { ...a.request!, answers: a.request!.answers ?? p.request!.answers } }));
  const next = asked !== s ? asked : addPart(s, s.activeTurn.id, { kind: 'inputRequest', request: a.request });
  return { ...next, status: withFlag(chatStatus(next), status.read, false) };
}

function pendingSet(s: ChatState, a: ChatAction): ChatState {
  const entry = { id: a.id, message: a.message };
  return a.kind === 'steering' ? { ...s, steeringMessage: entry } : { ...s, queuedMessages: put(s.queuedMessages, entry, (m) => m?.id) };
}

function pendingRemoved(s: ChatState, a: ChatAction): ChatState {
  if (a.kind === 'steering') return s.steeringMessage?.id === a.id ? { ...s, steeringMessage: undefined } : s;
  const rest = list(s.queuedMessages).filter((m) => m?.id !== a.id);
  if (rest.length === list(s.queuedMessages).length) return s;
  return { ...s, queuedMessages: rest.length > 0 ? rest : undefined };
}

const chat: Table<ChatState, ChatAction> = {
  'chat/turnStarted': startTurn,
  'chat/turnComplete': (s, a) => endTurn(s, a, 'complete'),
  'chat/turnCancelled': (s, a) => endTurn(s, a, 'cancelled'),
  'chat/error': (s, a) => endTurn(s, a, 'error'),
  'chat/turnResume': resume,
  'chat/responsePart': (s, a) => (isObject(a.part) && a.part.kind !== 'error' ? addPart(s, a.turnId, a.part) : s), // errors have their own action
  'chat/delta': (s, a) => grow(s, a, 'markdown'),
  'chat/reasoning': (s, a) => grow(s, a, 'reasoning'),
  'chat/usage': (s, a) => inTurn(s, a.turnId, (turn) => ({ ...turn, usage: a.usage })),
  'chat/activityChanged': (s, a) => ({ ...s, activity: a.activity }),
  'chat/truncated': truncate,
  'chat/turnsLoaded': (s, a) => {
    const known = new Set(s.turns.map((t) => t.id));
    return { ...s, turns: [...list(a.turns).filter((t) => isObject(t) && !known.has(t.id)), ...s.turns], turnsNextCursor: a.turnsNextCursor };
  },

  'chat/toolCallStart': (s, a) => addPart(s, a.turnId, { kind: 'toolCall', toolCall: { ...base(a as unknown as ToolCall), status: 'streaming' } }),
  'chat/toolCallDelta': (s, a) => inTool(s, a, ['streaming'], (call) => ({
    ...call,
    ...(a._meta !== undefined ? { _meta: a._meta } : {}),
    ...(a.content !== undefined ? { partialInput: (call.partialInput ?? '') + a.content } : {}),
    invocationMessage: a.invocationMessage ?? call.invocationMessage,
  })),
  'chat/toolCallReady': (s, a) => fresh(inTool(s, a, ['streaming', 'running', 'pending-confirmation'], (call) => toolReady(call, a))),
  'chat/toolCallConfirmed': (s, a) => fresh(inTool(s, a, ['pending-confirmation'], (call) => toolConfirmed(call, a))),
  'chat/toolCallComplete': (s, a) => fresh(inTool(s, a, ['running', 'pending-confirmation', 'auth-required'], (call) => toolComplete(call, a))),
  'chat/toolCallResultConfirmed': (s, a) => fresh(inTool(s, a, ['pending-result-confirmation'], (call) => toolResultConfirmed(call, a))),
  'chat/toolCallContentChanged': (s, a) => inTool(s, a, ['running'], (call) => (
    { ...call, ...(a._meta !== undefined ? { _meta: a._meta } : {}), content: a.content as ToolCall['content'] })),
  'chat/toolCallAuthRequired': (s, a) => fresh(inTool(s, a, ['running'], (call) => (
    call.contributor?.kind === 'mcp' ? paused(call, a, { status: 'auth-required', auth: a.auth }) : call))),
  'chat/toolCallAuthResolved': (s, a) => fresh(inTool(s, a, ['auth-required'], (call) => paused(call, a, { status: 'running' }))),

  'chat/inputRequested': inputRequested,
  'chat/inputAnswerChanged': (s, a) => inQuestion(s, a.requestId, (p) => {
    const answers = { ...p.request!.answers, [a.questionId]: a.answer! };
    if (a.answer === undefined) delete answers[a.questionId];
    return { ...p, request: { ...p.request!, answers: some(answers) } };
  }),
  'chat/inputCompleted': (s, a) => {
    const next = inQuestion(s, a.requestId, (p) => (
      { ...p, request: { ...p.request!, answers: some({ ...p.request!.answers, ...a.answers }) }, response: a.response }));
    return next === s ? s : fresh(next);
  },

  'chat/pendingMessageSet': pendingSet,
  'chat/pendingMessageRemoved': pendingRemoved,
  'chat/queuedMessagesReordered': (s, a) => (s.queuedMessages ? { ...s, queuedMessages: reorder(s.queuedMessages, a.order, (m) => m?.id) } : s),
  'chat/draftChanged': (s, a) => ({ ...s, draft: a.draft }),
  'chat/configChanged': config,
  'chat/workingDirectorySet': (s, a) => addDirectory(s, a.directory),
  'chat/workingDirectoryRemoved': (s, a) => dropDirectory(s, a.directory),

  'chat/backgroundWorkSet': (s, a) => {
    const work = a.work ?? a.backgroundWork;
    return isObject(work) ? { ...s, backgroundWork: put(s.backgroundWork, work, (w) => w?.id) } : s;
  },
  'chat/backgroundWorkRemoved': (s, a) => {
    const backgroundWork = take(s.backgroundWork, (w) => w?.id === a.id);
    if (backgroundWork === s.backgroundWork) return s;
    return backgroundWork!.length > 0 ? { ...s, backgroundWork } : without(s, 'backgroundWork');
  },
  'chat/movableChanged': (s, a) => ({ ...s, movable: a.movable }),
  'chat/changesetsChanged': (s, a) => (a.changesets ? { ...s, changesets: a.changesets } : without(s, 'changesets')),
  'chat/canvasesChanged': (s, a) => (a.canvases ? { ...s, canvases: a.canvases } : without(s, 'canvases')),
  'chat/isReadChanged': (s, a) => ({ ...s, status: withFlag(s.status, status.read, a.isRead) }),
  'chat/isArchivedChanged': (s, a) => ({ ...s, status: withFlag(s.status, status.archived, a.isArchived) }),
};

// ---- changesets, annotations, terminals, canvases, watches, automations

function operation<S extends ChangesetState | Operation>(o: S, a: ChangesetAction): S {
  return a.status === 'error' ? { ...o, status: a.status, error: a.error } : { ...without(o as ChangesetState | Operation, 'error') as S, status: a.status };
}

const changeset: Table<ChangesetState, ChangesetAction> = {
  'changeset/statusChanged': operation,
  'changeset/fileSet': (s, a) => ({ ...s, files: put(s.files, a.file, (f) => f?.id) }),
  'changeset/fileRemoved': (s, a) => {
    const files = take(s.files, (f) => f?.id === a.fileId);
    return files === s.files ? s : { ...s, files: files! };
  },
  'changeset/filesReviewChanged': (s, a) => {
    const named = new Set(list(a.files));
    const files = s.files.map((f) => (!named.has(f.id) || f.reviewed === a.reviewed ? f : { ...f, reviewed: a.reviewed }));
    return files.some((f, i) => f !== s.files[i]) ? { ...s, files } : s;
  },
  'changeset/contentChanged': (s, a) => ({ ...(a.error === undefined ? without(s, 'error') : { ...s, error: a.error }), files: a.files, ...(a.operations === undefined ? {} : { operations: a.operations }) }),
  'changeset/operationsChanged': (s, a) => (a.operations === undefined ? without(s, 'operations') : { ...s, operations: a.operations }),
  'changeset/operationStatusChanged': (s, a) => {
    const i = list(s.operations).findIndex((o) => o.id === a.operationId);
    return i < 0 ? s : { ...s, operations: s.operations!.with(i, operation(s.operations![i], a)) };
  },
  'changeset/cleared': (s) => (s.files.length === 0 ? s : { ...s, files: [] }),
};

interface Annotated { annotations: Annotation[] }

function inAnnotation(s: Annotated, id: string, change: (a: Annotation) => Annotation): Annotated {
  const i = s.annotations.findIndex((x) => x.id === id);
  if (i < 0) return s;
  const next = change(s.annotations[i]);
  return next === s.annotations[i] ? s : { ...s, annotations: s.annotations.with(i, next) };
}

const annotations: Table<Annotated, AnnotationAction> = {
  'annotations/set': (s, a) => ({ ...s, annotations: put(s.annotations, a.annotation, (x) => x?.id) }),
  'annotations/updated': (s, a) => inAnnotation(s, a.annotationId, (x) => {
    const next = { ...x };
    for (const name of ['turnId', 'origin', 'resource', 'range', 'resolved']) if (a[name] !== undefined) next[name] = a[name];
    return next;
  }),
  'annotations/removed': (s, a) => {
    const rest = take(s.annotations, (x) => x?.id === a.annotationId);
    return rest === s.annotations ? s : { ...s, annotations: rest! };
  },
  'annotations/entrySet': (s, a) => inAnnotation(s, a.annotationId, (x) => ({ ...x, entries: put(x.entries, a.entry, (e) => e?.id) })),
  'annotations/entryRemoved': (s, a) => inAnnotation(s, a.annotationId, (x) => {
    const entries = take(x.entries, (e) => e?.id === a.entryId);
    return entries === x.entries ? x : { ...x, entries };
  }),
};

const mostTerminal = 4 << 20; // characters kept of a terminal's output

const printed = (piece: TerminalPiece) => piece.output ?? piece.value ?? '';

/** Keeps the latest half of an output that is too long: a view prints an output whose start has changed anew. */
function latest(content: TerminalPiece[]): TerminalPiece[] {
  if (content.reduce((sum, piece) => sum + printed(piece).length, 0) <= mostTerminal) return content;
  const kept: TerminalPiece[] = [];
  for (let room = mostTerminal / 2; room > 0; room -= printed(kept[0]).length) {
    const piece = content.at(-1 - kept.length)!;
    kept.unshift({ ...piece, [piece.output === undefined ? 'value' : 'output']: printed(piece).slice(-room) });
  }
  return kept;
}

function terminalData(s: TerminalState, a: TerminalAction): TerminalState {
  const content = list(s.content);
  const tail = content.at(-1);
  if (tail?.type === 'command' && !tail.isComplete) return { ...s, content: latest(content.with(-1, { ...tail, output: tail.output! + a.data })) };
  if (tail?.type === 'unclassified') return { ...s, content: latest(content.with(-1, { ...tail, value: tail.value! + a.data })) };
  return { ...s, content: latest([...content, { type: 'unclassified', value: a.data }]) };
}

const terminal: Table<TerminalState, TerminalAction> = {
  'terminal/data': terminalData,
  'terminal/input': (s) => s, // its effect arrives as data
  'terminal/resized': (s, a) => ({ ...s, cols: a.cols, rows: a.rows }),
  'terminal/claimed': (s, a) => ({ ...s, claim: a.claim }),
  'terminal/titleChanged': (s, a) => ({ ...s, title: a.title }),
  'terminal/cwdChanged': (s, a) => ({ ...s, cwd: a.cwd }),
  'terminal/exited': (s, a) => (s.lifecycle ? { ...s, lifecycle: { status: 'exited', exitCode: a.exitCode } } : { ...s, exitCode: a.exitCode }),
  'terminal/cleared': (s) => ({ ...s, content: [] }),
  'terminal/commandDetectionAvailable': (s) => ({ ...s, supportsCommandDetection: true }),
  'terminal/commandExecuted': (s, a) => ({
    ...s, supportsCommandDetection: true,
    content: [...list(s.content), { type: 'command', commandId: a.commandId, commandLine: a.commandLine, output: '', timestamp: a.timestamp, isComplete: false }],
  }),
  'terminal/commandFinished': (s, a) => ({
    ...s,
    content: s.content!.map((p) => (
      p.type === 'command' && p.commandId === a.commandId ? { ...p, isComplete: true, exitCode: a.exitCode, durationMs: a.durationMs } : p)),
  }),
};

const canvas: Table<CanvasState, CanvasAction> = {
  'canvas/updated': (s, a) => { // from the proposal: null clears
    const next: JsonObject = { ...s };
    for (const name of ['title', 'status', 'url', 'contentUri', 'availability']) {
      if (a[name] === null) delete next[name];
      else if (a[name] !== undefined) next[name] = a[name];
    }
    return next;
  },
  'canvas/stateChanged': (s, a) => (isObject(a.canvas) ? { ...a.canvas } : s),
  'canvas/message': (s) => s, // delivered to the canvas's view
  'canvas/closeRequested': (s) => s,
};

const resourceWatch: Table<State, Action> = { 'resourceWatch/changed': (s) => s };

interface Automations { automations?: { resource: string }[]; entries?: { resource: string }[] }

const automation: Table<Automations, AutomationAction> = {
  'automation/createRequested': (s) => s,
  'automation/updateRequested': (s) => s,
  'automation/set': (s, a) => ({ ...s, [entriesOf(s)]: put(s[entriesOf(s)], a.automation, (x) => x?.resource) }),
  'automation/removed': (s, a) => {
    const rest = take(s[entriesOf(s)], (x) => x?.resource === a.resource);
    return rest === s[entriesOf(s)] ? s : { ...s, [entriesOf(s)]: rest };
  },
};

/** The catalogue was renamed within 0.9. */
function entriesOf(s: Automations): 'automations' | 'entries' {
  return 'automations' in s ? 'automations' : 'entries';
}

interface AutomationRun { lifecycle?: unknown; sessions: string[]; primarySession?: string }

const automationRun: Table<AutomationRun, AutomationRunAction> = {
  'automationRun/lifecycleChanged': (s, a) => ({ ...s, lifecycle: a.lifecycle }),
  'automationRun/sessionSet': (s, a) => (s.sessions.includes(a.session) ? s : { ...s, sessions: [...s.sessions, a.session] }),
  'automationRun/sessionRemoved': (s, a) => {
    const sessions = take(s.sessions, (x) => x === a.session)!;
    if (sessions === s.sessions) return s;
    return s.primarySession === a.session ? without({ ...s, sessions }, 'primarySession') : { ...s, sessions };
  },
  'automationRun/primarySessionChanged': (s, a) => (a.primarySession === undefined ? without(s, 'primarySession') : { ...s, primarySession: a.primarySession }),
  'automationRun/cancelRequested': (s) => s,
};

const families: Record<string, Record<string, unknown>> = { root, session, chat, changeset, annotations, terminal, canvas, resourceWatch, automation, automationRun };

/** The types of all actions that are known. */
export const actionTypes: string[] = Object.values(families).flatMap((table) => Object.keys(table));

function reducerFor(type: unknown): Reducer | undefined {
  if (typeof type !== 'string') return undefined;
  const name = type.slice(0, type.indexOf('/'));
  const table = Object.hasOwn(families, name) ? families[name] : undefined;
  return table && Object.hasOwn(table, type) ? table[type] as Reducer : undefined;
}

/** The state after an action; undefined if the action's type is not known. */
export function reduce(state: State, action: Action): State | undefined {
  return reducerFor(action?.type)?.(state, action);
}

function only(name: string): Reducer {
  return (state, action) => (Object.hasOwn(families[name], action.type) ? (families[name][action.type] as Reducer)(state, action) : state);
}

/** A reducer for each kind of channel; unknown actions leave the state unchanged. */
export const reducers: Record<string, Reducer> = Object.fromEntries(Object.keys(families).map((name) => [name, only(name)]));
