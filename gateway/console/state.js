// What is known of a host: snapshots, and the actions that change them. It is
// all untrusted data. What this page does not know is left as it is.

import { ROOT } from './ahp.js';

const maxUnknown = 100; // kinds of actions to count one by one

// Objects that came from the host get a number that grows when they change, so
// that the view need not compare them.
const changes = new WeakMap();

/** The number of changes of a turn or of a part of one. */
export function version(object) {
  return changes.get(object) ?? 0;
}

function touch(...objects) {
  for (const o of objects) changes.set(o, version(o) + 1);
}

// What the user said to a tool call that waits; not yet confirmed by the host.
const answers = new WeakMap();

/** 'allow' or 'deny' if the user has answered a tool call, else undefined. */
export function answerOf(toolCall) {
  return answers.get(toolCall);
}

/** Text of AHP: a string or {markdown}. */
export function text(value) {
  if (typeof value === 'string') return value;
  return typeof value?.markdown === 'string' ? value.markdown : '';
}

export class Store {
  sessions = new Map(); // URI to summary
  unknown = new Map(); // action type to how many were ignored
  unknownCount = 0;
  refusal = ''; // why the latest thing asked for, other than a prompt, was refused
  messages = []; // of providers of canvases to what is shown: {channel, payload}; whoever shows it takes them out
  pending = []; // prompts that the host has not confirmed: {channel, clientSeq, turn, sent, failed}

  #channels = new Map(); // URI to {state, fromSeq}
  #clientId;

  constructor(clientId) {
    this.#clientId = clientId;
  }

  /** The state of a channel, undefined if there is none. */
  get(channel) {
    return this.#channels.get(channel)?.state;
  }

  get agents() {
    return array(this.get(ROOT)?.agents);
  }

  /**
   * The canvases that are open in a session: as the session lists them, or,
   * since AHP 0.10, its first chat, which says nothing but where they are: what
   * one is called is known when it has been looked at.
   */
  canvasesOf(session) {
    const listed = array(this.get(this.chatOf(session))?.canvases).filter((c) => typeof c?.resource === 'string');
    const registered = listed.map(({ resource }, i) => (
      { title: listed.length > 1 ? `Canvas ${i + 1}` : 'Canvas', ...this.get(resource), channel: resource, registered: true }));
    return [...array(this.get(session)?.openCanvases).filter((c) => isObject(c) && typeof c.channel === 'string'), ...registered];
  }

  /** An MCP server of a session, by its id; undefined if there is none. */
  mcpServer(session, id) {
    return customization(this.get(session), id);
  }

  /** Takes the messages of providers that have come. */
  takeMessages() {
    return this.messages.splice(0);
  }

  /** The URI of the chat that a session shows first, undefined if it has none. */
  chatOf(session) {
    const state = this.get(session);
    return state?.defaultChat ?? array(state?.chats)[0]?.resource;
  }

  snapshot({ resource, state, fromSeq }) {
    if (!isObject(state)) return;
    if (Array.isArray(state.turns) || isObject(state.activeTurn)) {
      state.turns = array(state.turns).map(normalTurn);
      state.activeTurn = isObject(state.activeTurn) ? normalTurn(state.activeTurn) : undefined;
    }
    this.#channels.set(resource, { state, fromSeq: fromSeq ?? 0 });
    this.#settlePending(resource);
  }

  drop(channel) {
    this.#channels.delete(channel);
  }

  /** Takes the outcome of a handshake: see Connection. */
  sync({ fresh, snapshots, actions, missing }) {
    if (fresh) {
      this.#channels.clear();
      this.messages = [];
    }
    for (const s of snapshots) this.snapshot(s);
    for (const a of actions) this.apply(a);
    for (const m of missing) this.drop(m);
    for (const p of this.pending) this.#fail(p, 'The connection was lost before the host had taken this.');
    for (const { state } of this.#channels.values()) forgetAnswers(state);
  }

  /** Applies an action envelope. */
  apply(envelope) {
    const { channel, action, serverSeq, origin, rejectionReason } = envelope ?? {};
    const entry = this.#channels.get(channel);
    // The relay refuses in the host's stead, without a number of its own: so this comes first.
    if (origin?.clientId === this.#clientId) this.#confirm(origin.clientSeq, rejectionReason, entry?.state);
    if (!entry || !isObject(action) || rejectionReason !== undefined) return;
    if (serverSeq <= entry.fromSeq) return; // it is in the snapshot
    entry.fromSeq = serverSeq;
    // What a client said to the provider comes back to all, and has an origin.
    if (action.type === 'canvas/message' && !origin) this.messages.push({ channel, payload: action.payload });
    const reduce = Object.hasOwn(reducers, action.type) ? reducers[action.type] : undefined;
    if (!reduce) this.#ignore(action.type);
    else if (!action.type.startsWith('chat/') || entry.state.turns) reduce(entry.state, action);
  }

  /** Applies a notification about the list of sessions. */
  notification(method, params) {
    switch (method) {
      case 'root/sessionAdded':
        if (params?.summary?.resource) this.sessions.set(params.summary.resource, params.summary);
        break;
      case 'root/sessionSummaryChanged': {
        const known = this.sessions.get(params?.session);
        if (known && isObject(params.changes)) this.sessions.set(params.session, { ...known, ...params.changes });
        break;
      }
      case 'root/sessionRemoved':
        this.sessions.delete(params?.session);
        break;
    }
  }

  /** Takes the list of all sessions. */
  listed(items) {
    this.sessions = new Map(items.filter((s) => s?.resource).map((s) => [s.resource, s]));
  }

  /** Notes a prompt that was sent, to show it until the host has it. */
  sent(channel, clientSeq, { turnId, startedAt, message }) {
    const turn = { id: turnId, startedAt, message, responseParts: [] };
    this.pending.push({ channel, clientSeq, turn, sent: Date.now(), failed: '' });
  }

  discard(pending) {
    this.pending = this.pending.filter((p) => p !== pending);
  }

  /** Notes what the user said to a tool call. */
  answered(turn, part, answer) {
    answers.set(part.toolCall, answer);
    touch(turn, part);
  }

  /** Gives prompts up that the host has not taken for so long, in ms. */
  expire(age) {
    const before = Date.now() - age;
    for (const p of this.pending) {
      if (p.sent < before) this.#fail(p, 'The host has not taken this.');
    }
  }

  #fail(pending, why) {
    if (pending.failed) return;
    pending.failed = why;
    touch(pending.turn);
  }

  #confirm(clientSeq, rejectionReason, state) {
    const p = this.pending.find((p) => p.clientSeq === clientSeq);
    if (rejectionReason === undefined) {
      if (p) this.discard(p);
      return;
    }
    const why = `Refused: ${text(rejectionReason) || 'no reason given'}.`;
    if (p) this.#fail(p, why);
    else this.refusal = why;
    if (state) forgetAnswers(state);
  }

  // A snapshot may show that a prompt has arrived.
  #settlePending(channel) {
    const { turns, activeTurn } = this.get(channel);
    const ids = new Set([...array(turns), activeTurn].map((t) => t?.id));
    this.pending = this.pending.filter((p) => p.channel !== channel || !ids.has(p.turn.id));
  }

  #ignore(type) {
    this.unknownCount++;
    if (!this.unknown.has(type) && this.unknown.size >= maxUnknown) return;
    this.unknown.set(type, (this.unknown.get(type) ?? 0) + 1);
  }
}

// How the actions that this page shows change a state, in place.
const reducers = {
  'root/agentsChanged': (root, a) => { root.agents = a.agents; },
  'root/activeSessionsChanged': (root, a) => { root.activeSessions = a.activeSessions; },

  'session/titleChanged': (session, a) => { session.title = a.title; },
  'session/ready': (session) => { session.lifecycle = 'ready'; },
  'session/creationFailed': (session, a) => {
    session.lifecycle = 'creationFailed';
    session.creationError = a.error;
  },
  'session/chatAdded': (session, a) => {
    session.chats = [...array(session.chats).filter((c) => c?.resource !== a.summary?.resource), a.summary];
  },
  'session/chatRemoved': (session, a) => { session.chats = array(session.chats).filter((c) => c?.resource !== a.chat); },
  'session/chatsReordered': () => {}, // no order is shown
  'session/chatUpdated': () => {}, // the list of sessions tells the same

  'session/canvasesChanged': (session, a) => { session.canvases = a.canvases; },
  'session/openCanvasesChanged': (session, a) => { session.openCanvases = a.openCanvases; },

  'session/customizationsChanged': (session, a) => { session.customizations = a.customizations; },
  'session/customizationUpdated': (session, a) => {
    if (!isObject(a.customization)) return;
    const all = array(session.customizations);
    const i = all.findIndex((c) => c?.id === a.customization.id);
    session.customizations = i < 0 ? [...all, a.customization] : all.with(i, a.customization);
  },
  'session/customizationRemoved': (session, a) => {
    const rest = (all) => array(all).filter((c) => c?.id !== a.id);
    session.customizations = rest(session.customizations);
    for (const c of session.customizations) if (Array.isArray(c?.children)) c.children = rest(c.children);
  },
  'session/customizationToggled': (session, a) => {
    const c = customization(session, a.id);
    if (c && typeof a.enabled === 'boolean') c.enabled = a.enabled;
  },
  'session/mcpServerStateChanged': (session, a) => {
    const c = customization(session, a.id);
    if (c?.type === 'mcpServer') Object.assign(c, { state: a.state, channel: a.channel }); // a channel that is absent is no more
  },
  'session/inputNeededSet': () => {}, // the list of sessions tells the same
  'session/inputNeededRemoved': () => {},

  'canvas/updated': (canvas, a) => {
    for (const name of ['title', 'status', 'url', 'contentUri', 'availability']) {
      if (a[name] === null) delete canvas[name];
      else if (a[name] !== undefined) canvas[name] = a[name];
    }
  },
  'canvas/stateChanged': (canvas, a) => {
    if (!isObject(a.canvas)) return;
    for (const name of Object.keys(canvas)) delete canvas[name];
    Object.assign(canvas, a.canvas);
  },
  'canvas/message': () => {}, // see Store.messages
  'canvas/closeRequested': () => {},

  'chat/canvasesChanged': (chat, a) => { chat.canvases = a.canvases; },

  'chat/turnStarted': (chat, a) => {
    // A turn in progress gives way, as at the host.
    chat.activeTurn = normalTurn({ id: a.turnId, startedAt: a.startedAt, message: a.message });
  },
  'chat/turnComplete': (chat, a) => endTurn(chat, a, 'complete'),
  'chat/turnCancelled': (chat, a) => endTurn(chat, a, 'cancelled'),
  'chat/error': (chat, a) => endTurn(chat, a, 'error'),
  'chat/responsePart': (chat, a) => withTurn(chat, a, (turn) => {
    if (isObject(a.part)) turn.responseParts.push(a.part);
  }),
  'chat/delta': (chat, a) => grow(chat, a, 'markdown'),
  'chat/reasoning': (chat, a) => grow(chat, a, 'reasoning'),
  'chat/truncated': (chat, a) => {
    const keep = a.turnId === undefined ? 0 : chat.turns.findIndex((t) => t.id === a.turnId) + 1;
    if (a.turnId !== undefined && keep === 0) return;
    chat.turns = chat.turns.slice(0, keep);
    chat.activeTurn = undefined;
  },
  'chat/turnsLoaded': (chat, a) => {
    const known = new Set(chat.turns.map((t) => t.id));
    const older = array(a.turns).filter(isObject).map(normalTurn).filter((t) => !known.has(t.id));
    chat.turns = [...older, ...chat.turns];
    chat.turnsNextCursor = a.turnsNextCursor;
  },

  'chat/toolCallStart': (chat, a) => withTurn(chat, a, (turn) => {
    const { toolCallId, toolName, displayName, intention, contributor, _meta } = a;
    turn.responseParts.push({
      kind: 'toolCall',
      toolCall: { status: 'streaming', toolCallId, toolName, displayName, intention, contributor, _meta },
    });
  }),
  'chat/toolCallDelta': (chat, a) => withTool(chat, a, ['streaming'], (call) => {
    call.invocationMessage = a.invocationMessage ?? call.invocationMessage;
  }),
  'chat/toolCallReady': (chat, a) => withTool(chat, a, ['streaming', 'running'], (call) => {
    const { invocationMessage, toolInput, confirmationTitle, confirmed } = a;
    Object.assign(call, { invocationMessage, toolInput, confirmationTitle, confirmed });
    if (isObject(a._meta)) call._meta = a._meta;
    call.status = confirmed ? 'running' : 'pending-confirmation';
    answers.delete(call);
  }),
  'chat/toolCallConfirmed': (chat, a) => withTool(chat, a, ['pending-confirmation'], (call) => {
    call.status = a.approved ? 'running' : 'cancelled';
    if (a.approved) call.toolInput = a.editedToolInput ?? call.toolInput;
    else call.reason = a.reason;
  }),
  'chat/toolCallContentChanged': (chat, a) => withTool(chat, a, ['running'], (call) => { call.content = a.content; }),
  'chat/toolCallComplete': (chat, a) => withTool(chat, a, ['running', 'pending-confirmation', 'auth-required'], (call) => {
    const { pastTenseMessage, content, structuredContent, success, error } = a.result ?? {};
    Object.assign(call, { pastTenseMessage, content, structuredContent, success, error });
    call.status = a.requiresResultConfirmation ? 'pending-result-confirmation' : 'completed';
    answers.delete(call);
  }),
  'chat/toolCallAuthRequired': (chat, a) => withTool(chat, a, ['running'], (call) => Object.assign(call, { status: 'auth-required', auth: a.auth })),
  'chat/toolCallAuthResolved': (chat, a) => withTool(chat, a, ['auth-required'], (call) => Object.assign(call, { status: 'running', auth: undefined })),
  'chat/toolCallResultConfirmed': (chat, a) => withTool(chat, a, ['pending-result-confirmation'], (call) => {
    call.status = a.approved ? 'completed' : 'cancelled';
    if (!a.approved) call.reason = 'result-denied';
  }),
};

function normalTurn(turn) {
  turn.responseParts = array(turn.responseParts).filter(isObject);
  return turn;
}

function withTurn(chat, { turnId }, change) {
  const turn = chat.activeTurn;
  if (turn?.id !== turnId || turn === undefined) return;
  change(turn);
  touch(turn);
}

function withTool(chat, action, from, change) {
  withTurn(chat, action, (turn) => {
    const part = turn.responseParts.find((p) => p.kind === 'toolCall' && p.toolCall?.toolCallId === action.toolCallId);
    if (!part || !from.includes(part.toolCall.status)) return;
    change(part.toolCall);
    touch(part);
  });
}

function grow(chat, action, kind) {
  withTurn(chat, action, (turn) => {
    const part = turn.responseParts.find((p) => p.kind === kind && p.id === action.partId);
    if (!part) return;
    part.content = text(part.content) + text(action.content);
    touch(part);
  });
}

function endTurn(chat, action, state) {
  withTurn(chat, action, (turn) => {
    turn.state = state;
    turn.duration = action.duration;
    // VS Code's host tells the error in a field, others in a part.
    if (action.error) turn.error = action.error;
    if (isObject(action.part)) turn.responseParts.push(action.part);
    for (const part of turn.responseParts) {
      if (part.kind !== 'toolCall' || ['completed', 'cancelled'].includes(part.toolCall?.status)) continue;
      part.toolCall = { ...part.toolCall, status: 'cancelled', reason: 'skipped' };
      touch(part);
    }
    chat.turns.push(turn);
    chat.activeTurn = undefined;
  });
}

/** A customization of a session, by itself or in a container. */
function customization(session, id) {
  const all = array(session?.customizations).filter(isObject);
  return all.concat(all.flatMap((c) => array(c.children).filter(isObject))).find((c) => c.id === id);
}

function forgetAnswers(state) {
  for (const part of array(state.activeTurn?.responseParts)) {
    if (part.kind === 'toolCall' && answers.delete(part.toolCall)) touch(state.activeTurn, part);
  }
}

function isObject(value) {
  return value !== null && typeof value === 'object';
}

function array(value) {
  return Array.isArray(value) ? value : [];
}
