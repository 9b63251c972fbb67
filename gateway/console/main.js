// Puts the page together: who we are, which host, which session, and what the
// user may do. The address is #host=NAME&session=URI; a token in it is taken
// out at once.

import { code, Connection, ROOT } from './ahp.js';
import { Store } from './state.js';
import { View } from './view.js';

const tokenKey = 'ahp-relay-token';
const turnsShown = 50; // of a chat at first; hosts may send more
const sessionsMax = 1000; // to ask for
const untaken = 20_000; // ms after which a prompt that the host has not taken is given up
const hostsEvery = 15_000; // ms between looks at the hosts
const hostsSoon = 2_000; // the same while ours cannot be reached

// A token stands in the list of subprotocols, which allows no more (RFC 9110, section 5.6.2).
const tokenForm = /^[\w.~-]+$/;

const app = {
  token: sessionStorage.getItem(tokenKey) ?? '',
  tokenWhy: '',
  host: '',
  session: '', // URI of the session that is open
  hosts: [],
  hostsNote: '',
  grant: null, // what the relay says that the token allows
  hostsStale: false, // the relay could not be asked again
  away: false, // the host is not online
  listedAway: false, // the list of hosts says so too
  listing: false,
  sessionsNote: '',
  opening: '', // URI of the session that is being opened
  entering: '', // channel of the canvas that is being subscribed to
  openError: '',
  swap: null, // what a link wants to change: {token, host, session, now, then}
  canvas: '', // channel of the canvas that is shown
  canvasNote: '', // why there is nothing to show
  composerNote: '',
};

let conn = null;
let store = new Store('');

const view = new View({
  useToken, forget: () => forget(''), keep, swap, chooseHost, openSession, newSession, retry, send, sendAgain,
  discard: (pending) => { store.discard(pending); draw(); },
  stop, answer, earlier, chooseCanvas, closeCanvas, readCanvas, canvasTicket, tellCanvas,
  mcp, mcpNotify, authenticate, draw,
});

// ---- the token and the address

function useToken(given) {
  // The address that the relay printed will do as well.
  const params = new URLSearchParams(given.slice(given.indexOf('#') + 1));
  const token = (params.get('token') ?? given).trim();
  if (!tokenForm.test(token)) {
    app.tokenWhy = 'That does not look like a token.';
    draw();
    return;
  }
  adopt(token, params.get('host') ?? '');
}

/** Goes on with a token, at a host if one is named. */
function adopt(token, named) {
  app.token = token;
  app.grant = null;
  app.tokenWhy = '';
  sessionStorage.setItem(tokenKey, token);
  const host = named || app.host;
  if (conn?.live && host === app.host) {
    refresh(token);
    follow();
    return;
  }
  disconnect();
  if (named) setAddress(named, '');
  follow();
}

/** Goes on with another token; where it allows something else, on a new connection. */
async function refresh(token) {
  const current = conn;
  try {
    await current.request('relay/refreshToken', { channel: 'ahp-root://', token });
  } catch {
    if (conn !== current) return;
    disconnect();
    follow();
  }
}

function forget(why) {
  hostsRound++;
  sessionStorage.removeItem(tokenKey);
  app.token = '';
  app.tokenWhy = why;
  app.hosts = [];
  app.grant = null;
  disconnect();
  draw();
}

// Entries of the history that this page has been at, or has made.
const ours = { ours: true };

function setAddress(host, session, how = 'replaceState') {
  const params = new URLSearchParams();
  if (host) params.set('host', host);
  if (session) params.set('session', session);
  history[how](ours, '', `#${params}`);
}

/**
 * Goes where the address says. A link may lead anywhere, and anybody can make
 * one: where there is a token or a host already, it does not get another without
 * the user's word.
 */
function route() {
  const params = new URLSearchParams(location.hash.slice(1));
  const host = params.get('host') ?? '';
  const session = params.get('session') ?? '';
  const token = (params.get('token') ?? '').trim();
  const isLink = history.state?.ours !== true;
  const otherToken = token !== '' && token !== app.token;
  const otherHost = host !== '' && host !== app.host && app.host !== '';
  if (app.token !== '' && (otherToken || (isLink && otherHost))) {
    setAddress(app.host, app.session); // a token must not stay there
    propose({ token, host, session });
  } else if (params.has('token')) {
    setAddress(host, session);
    useToken(token);
    return;
  } else if (isLink) setAddress(host, session);
  follow();
}

/** Goes where the address says, which is known to be all right. */
function follow() {
  const params = new URLSearchParams(location.hash.slice(1));
  const host = params.get('host') ?? '';
  const session = params.get('session') ?? '';
  if (host !== app.host) {
    disconnect();
    app.host = host;
  }
  if (session !== app.session) show(session);
  if (app.token && host && !conn) connect();
  if (app.token) refreshHosts();
  draw();
}

/** Asks the user about a link, with what the relay says of the tokens. */
async function propose({ token, host, session }) {
  const round = { token, host, session, now: null, then: null, why: '' };
  app.swap = round;
  draw();
  const [now, then] = await Promise.all([looked(app.token), token ? looked(token) : null]);
  if (app.swap !== round) return;
  const said = then ?? now;
  round.now = { grant: now.grant, host: app.host };
  round.then = { grant: said.grant, host: host || app.host };
  round.why = said.why;
  draw();
}

/** What the relay says of a token: {grant, why}. */
async function looked(token) {
  try {
    if (!tokenForm.test(token)) throw new Error('That does not look like a token.');
    const answer = await fetch('/api/hosts', { headers: { Authorization: `Bearer ${token}` }, cache: 'no-store' });
    if (answer.status === 401) throw new Error('The relay does not accept the token of the link.');
    if (!answer.ok) throw new Error(`The relay answered ${answer.status}.`);
    const { token: grant } = await answer.json();
    return { grant, why: '' };
  } catch (err) {
    return { why: err.message };
  }
}

function keep(asked) {
  if (app.swap === asked) app.swap = null; // else there is another question by now
  draw();
}

function swap() {
  const { token, host, session } = app.swap;
  app.swap = null;
  if (token) {
    adopt(token, host);
    if (session) openSession(session);
    return;
  }
  setAddress(host, session, 'pushState');
  follow();
}

function chooseHost(host) {
  setAddress(host, '', 'pushState');
  follow();
}

function openSession(session) {
  if (session === app.session) return;
  setAddress(app.host, session, 'pushState');
  follow();
}

// ---- hosts

let hostsAsked = 0; // when
let hostsRound = 0; // answers to all but the latest question are stale

async function refreshHosts() {
  hostsAsked = Date.now();
  const round = ++hostsRound;
  let answer;
  try {
    answer = await fetch('/api/hosts', { headers: { Authorization: `Bearer ${app.token}` }, cache: 'no-store' });
    const body = answer.ok ? await answer.json() : {};
    if (round !== hostsRound) return;
    if (answer.status === 401) {
      forget('The relay does not accept this token (any more).');
      return;
    }
    if (!answer.ok) throw new Error(`The relay answered ${answer.status}.`);
    app.hosts = Array.isArray(body.hosts) ? body.hosts : [];
    app.grant = body.token ?? null;
    app.hostsNote = app.hosts.length ? '' : 'This token opens no host that the relay knows.';
    app.hostsStale = false;
    hostsKnown();
  } catch (err) {
    if (round !== hostsRound) return;
    app.hostsStale = true;
    app.hostsNote = answer ? err.message : 'The relay cannot be reached.';
  }
  draw();
}

/** Draws conclusions from what the relay says of its hosts. */
function hostsKnown() {
  const info = hostInfo();
  const { name, code: closed } = conn?.state ?? {};
  // The relay may close a moment before its list says why.
  if (info && info.state !== 'online') app.away = app.listedAway = true;
  else if (app.listedAway || closed !== code.hostOffline) {
    if (app.away && name === 'retrying') conn.wake();
    app.away = app.listedAway = false;
  }
  if (!app.host && app.hosts.length === 1) {
    setAddress(app.hosts[0].host, '');
    follow();
  }
}

function hostInfo() {
  return app.hosts.find((h) => h.host === app.host);
}

// ---- the connection

function connect() {
  // One id for each time the page is loaded, not for the tab: browsers copy
  // what a tab has stored when it is duplicated, and a host sends what
  // happens to the newest connection of a clientId only.
  const clientId = `console-${randomId()}`;
  const { host } = app;
  store = new Store(clientId);
  conn = new Connection({
    clientId,
    open: () => new WebSocket(`${location.origin.replace(/^http/, 'ws')}/ahp/${encodeURIComponent(host)}`, ['ahp', `bearer.${app.token}`]),
    on: { state: changed, sync: synced, action, notification, mcp: (...said) => view.mcpSaid(...said) },
  });
  conn.start();
}

function disconnect() {
  conn?.stop();
  conn = null;
  store = new Store('');
  Object.assign(app, { away: false, listedAway: false, listing: false, sessionsNote: '', opening: '', openError: '', canvas: '', canvasNote: '', composerNote: '' });
}

function changed(state) {
  if (state.name === 'live') app.away = false;
  else if (state.code === code.hostOffline) app.away = true;
  if (state.name === 'ended' && state.action === 'token') {
    forget(`${sentence(state.reason || 'token expired')} Please paste a new one.`);
    return;
  }
  // Browsers do not tell why a WebSocket was refused; this does.
  if (state.name !== 'connecting') refreshHosts();
  draw();
}

function synced(sync) {
  store.sync(sync);
  app.opening = '';
  app.openError = '';
  tidy();
  // What tells of sessions is not numbered, and so not replayed.
  list();
  if (app.session) enter();
  deliver();
}

function action(envelope) {
  store.apply(envelope);
  const listed = envelope?.action?.type === 'chat/canvasesChanged' && envelope.channel === chatUri();
  if (app.session && (envelope?.channel === app.session || listed)) enter(); // its chat, or what is open there, may be new
  deliver();
  draw();
}

function notification(method, params) {
  store.notification(method, params);
  if (method === 'root/sessionRemoved' && app.session && params?.session === app.session) {
    for (const channel of [chatUri(), app.session]) store.drop(channel);
    app.openError = 'it was deleted.';
  }
  draw();
}

function retry() {
  if (conn?.state.name === 'ended') {
    disconnect();
    connect();
  } else conn?.wake();
  refreshHosts();
}

// ---- sessions

async function list() {
  const from = conn;
  app.listing = store.sessions.size === 0;
  draw();
  try {
    const sessions = [];
    let cursor;
    do {
      const { items, nextCursor } = await from.request('listSessions', { channel: ROOT, cursor });
      if (from !== conn) return;
      sessions.push(...(Array.isArray(items) ? items : []));
      cursor = nextCursor;
    } while (cursor && sessions.length < sessionsMax);
    store.listed(sessions);
    app.sessionsNote = '';
  } catch (err) {
    if (from !== conn) return;
    app.sessionsNote = err.message;
  }
  app.listing = false;
  draw();
}

function show(session) {
  app.session = session;
  app.openError = '';
  app.composerNote = '';
  app.opening = '';
  app.canvas = '';
  if (!conn?.live) return;
  tidy();
  if (session) enter();
}

/** Ends the subscriptions that the open session does not need. */
function tidy() {
  const keep = [ROOT, app.session, chatUri(), app.canvas];
  for (const channel of [...conn.subscriptions]) {
    if (keep.includes(channel)) continue;
    conn.unsubscribe(channel);
    store.drop(channel);
  }
}

/** Subscribes what is needed to show the open session, and is not there yet. */
async function enter() {
  enterCanvas();
  const from = conn;
  const { session } = app;
  const wanted = [session, store.chatOf(session)].find((uri) => uri && !store.get(uri));
  if (!wanted || app.opening === wanted || app.openError) return;
  app.opening = wanted;
  draw();
  try {
    const options = wanted === session ? {} : { view: { turns: turnsShown } };
    const snapshot = await from.subscribe(wanted, options);
    if (from !== conn || app.opening !== wanted) {
      if (from === conn) from.unsubscribe(wanted); // the user has gone elsewhere
      return;
    }
    app.opening = '';
    app.openError = '';
    store.snapshot(snapshot ?? {});
    if (store.get(wanted)) enter();
    else app.openError = 'The host has sent no state for this.';
  } catch (err) {
    if (from !== conn || app.opening !== wanted) return;
    app.opening = '';
    if (from.live) app.openError = err.message; // else it is tried again
  }
  draw();
}

async function newSession() {
  const from = conn;
  const provider = store.agents[0]?.provider;
  if (!provider) return;
  const channel = `${provider}:/${randomId()}`;
  app.sessionsNote = '';
  try {
    await from.request('createSession', { channel, provider });
    if (from === conn) openSession(channel);
  } catch (err) {
    const hint = err.code === code.authRequired ? ' Sign in with another client first.' : '';
    app.sessionsNote = `No session was made: ${err.message}${hint}`;
  }
  draw();
}

// ---- the chat

function chatUri() {
  return app.session ? store.chatOf(app.session) : undefined;
}

function perform(channel, action) {
  app.composerNote = store.refusal = '';
  try {
    return conn.dispatch(channel, action);
  } catch (err) {
    app.composerNote = err.message;
    return undefined;
  }
}

/** Sends a prompt; false if it cannot be sent now. */
function send(prompt) {
  const channel = chatUri();
  if (!mayTalk(store.get(channel))) return false;
  const action = {
    type: 'chat/turnStarted',
    turnId: randomId(),
    startedAt: new Date().toISOString(),
    message: { text: prompt, origin: { kind: 'user' } },
  };
  const clientSeq = perform(channel, action);
  if (clientSeq !== undefined) store.sent(channel, clientSeq, action);
  draw();
  return clientSeq !== undefined;
}

function mayTalk(chat) {
  return Boolean(conn?.live && chat && !chat.activeTurn && !store.pending.some((p) => p.channel === chatUri() && !p.failed));
}

function sendAgain(pending) {
  if (send(pending.turn.message.text)) store.discard(pending);
  draw();
}

function stop() {
  const turn = store.get(chatUri())?.activeTurn;
  if (!turn) return;
  const duration = Math.max(0, Date.now() - Date.parse(turn.startedAt)) || 0;
  perform(chatUri(), { type: 'chat/turnCancelled', turnId: turn.id, duration });
  draw();
}

function answer(turn, part, value) {
  const { toolCallId, status } = part.toolCall;
  const approved = value === 'allow';
  const result = status === 'pending-result-confirmation';
  const sent = perform(chatUri(), {
    type: result ? 'chat/toolCallResultConfirmed' : 'chat/toolCallConfirmed',
    turnId: turn.id,
    toolCallId,
    approved,
    ...(result ? {} : approved ? { confirmed: 'user-action' } : { reason: 'denied' }),
  });
  if (sent !== undefined) store.answered(turn, part, value);
  draw();
}

async function earlier() {
  const channel = chatUri();
  const cursor = store.get(channel)?.turnsNextCursor;
  if (!cursor) return;
  try {
    await conn.request('fetchTurns', { channel, cursor }); // they come as an action
  } catch (err) {
    app.composerNote = err.message;
  }
  draw();
}

// ---- canvases

/** Shows a canvas of the session, or hides the one that is shown. */
function chooseCanvas(channel) {
  app.canvas = channel === app.canvas ? '' : channel;
  app.canvasNote = '';
  if (conn?.live) {
    tidy();
    enterCanvas();
  }
  draw();
}

/** Subscribes to the canvas that is shown, if that is not done yet. */
async function enterCanvas() {
  const from = conn;
  const channel = app.canvas;
  if (channel && store.get(app.session) && !store.canvasesOf(app.session).some((c) => c.channel === channel)) {
    app.canvas = ''; // it was closed
    tidy();
  }
  if (!app.canvas || !conn.live || conn.subscriptions.has(channel) || app.entering === channel) return;
  app.entering = channel;
  try {
    const snapshot = await from.subscribe(channel);
    if (from === conn && channel === app.canvas) store.snapshot(snapshot ?? {});
    else if (from === conn) from.unsubscribe(channel);
  } catch (err) {
    if (from === conn && channel === app.canvas && from.live) app.canvasNote = err.message;
  }
  if (app.entering === channel) app.entering = '';
  draw();
}

/** Asks the host to close a canvas. It goes when the host has taken it from the list. */
function closeCanvas(channel) {
  perform(channel, { type: 'canvas/closeRequested' });
  draw();
}

function readCanvas(channel, uri) {
  if (!conn?.live) return Promise.reject(new Error('not connected'));
  return conn.request('canvasReadResource', { channel, uri });
}

/** An address on the web for content, '' if the relay gives none. */
async function canvasTicket(channel, uri) {
  try {
    const { url } = await conn.request('relay/canvasTicket', { channel, uri });
    return typeof url === 'string' ? url : '';
  } catch {
    return ''; // it has no domain for canvases
  }
}

/** What a canvas says to its provider. Since AHP 0.10 there is no way to it. */
function tellCanvas(channel, payload) {
  const registered = store.canvasesOf(app.session).some((c) => c.channel === channel && c.registered);
  if (conn?.live && !readOnly() && !registered) conn.dispatch(channel, { type: 'canvas/message', payload });
}

// ---- MCP servers

/** Asks an MCP server: {result: a promise, cancel}. */
function mcp(channel, method, params) {
  if (!conn?.live) return { result: Promise.reject(new Error('not connected')), cancel() {} };
  return conn.mcp(channel, method, params);
}

function mcpNotify(channel, method, params) {
  if (conn?.live) conn.mcpNotify(channel, method, params);
}

/** Gives the host a token for a resource. It is kept nowhere. */
function authenticate(resource, token) {
  if (!conn?.live) return Promise.reject(new Error('not connected'));
  return conn.request('authenticate', { channel: ROOT, resource, token });
}

// ---- what providers say

/** Gives the canvas that is shown what its provider said. */
function deliver() {
  for (const { channel, payload } of store.takeMessages()) view.deliver(channel, payload);
}

// ---- drawing

let due = false;

/** Draws the page before the browser next paints it. */
function draw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    view.render(model());
  });
}

function model() {
  const uri = chatUri();
  const chat = store.get(uri);
  const sessionState = store.get(app.session);
  const agent = agentName(sessionState);
  const turns = [...(chat?.turns ?? []), ...(chat?.activeTurn ? [chat.activeTurn] : [])].map((turn) => ({ turn, agent }));
  const pending = store.pending.filter((p) => p.channel === uri).map((p) => ({ turn: p.turn, pending: p, agent }));
  const live = Boolean(conn?.live);
  return {
    now: Date.now(),
    hasToken: app.token !== '',
    swap: app.swap,
    tokenWhy: app.tokenWhy,
    conn: conn?.state,
    away: app.away,
    host: app.host,
    hostInfo: hostInfo(),
    hosts: app.hosts,
    hostsNote: app.hostsNote,
    hostsStale: app.hostsStale,
    live,
    sessions: [...store.sessions.values()].sort(byTime),
    sessionsNote: sessionsNote(live),
    canCreate: live && store.agents.length > 0,
    readOnly: readOnly(),
    narrow: Boolean(app.grant?.channels?.length), // to some sessions: others cannot be begun
    until: app.grant?.expires,
    session: app.session,
    sessionState,
    sessionSummary: store.sessions.get(app.session),
    agent,
    chatUri: uri,
    hasChat: Boolean(chat),
    activeTurn: chat?.activeTurn,
    hasEarlier: Boolean(live && chat?.turnsNextCursor),
    turns: [...turns, ...pending],
    chatNote: chatNote(chat, turns.length + pending.length, live),
    mcpServer: (id) => store.mcpServer(app.session, id),
    canvases: store.canvasesOf(app.session),
    canvas: app.canvas,
    canvasState: store.get(app.canvas),
    canvasNote: app.canvasNote,
    canSend: mayTalk(chat) && !readOnly(),
    canStop: Boolean(live && chat?.activeTurn),
    composerNote: composerNote(chat, live),
    about: about(),
  };
}

/** Whether the token lets us look only. The host-agent refuses the rest; we need not offer it. */
function readOnly() {
  return app.grant?.access === 'read';
}

function agentName(session) {
  const agent = store.agents.find((a) => a?.provider === session?.provider);
  return String(agent?.displayName || session?.provider || 'Agent');
}

function byTime(a, b) {
  return String(b.modifiedAt).localeCompare(String(a.modifiedAt));
}

function sessionsNote(live) {
  if (app.sessionsNote) return app.sessionsNote;
  if (app.listing) return 'Loading…';
  if (store.sessions.size > 0) return live ? '' : 'As last seen:';
  return live ? 'This host has no sessions yet.' : '';
}

function chatNote(chat, shown, live) {
  if (!app.session && readOnly()) return app.host ? 'Choose a session.' : 'Choose a host.';
  if (!app.session) return app.host ? 'Choose a session, or begin a new one.' : 'Choose a host.';
  if (app.openError) return `This session cannot be shown: ${app.openError}`;
  if (!chat) return live ? 'Opening…' : 'This session opens when the host is there.';
  const failed = store.get(app.session)?.creationError?.message;
  if (typeof failed === 'string') return failed;
  return shown === 0 ? 'Nothing has been said yet.' : '';
}

function composerNote(chat, live) {
  if (live && store.refusal) return store.refusal;
  if (!live) return 'Not connected. You can write, and send it once the page is live again.';
  const parts = chat?.activeTurn?.responseParts;
  if (parts?.some((p) => waitsForUser(p.toolCall))) return 'The agent waits for your answer.';
  if (parts) return 'The agent is working. Wait, or stop it, to send a message.';
  return app.composerNote;
}

function waitsForUser(call) {
  if (call?.status === 'running' && call.contributor?.kind === 'mcp') {
    return store.mcpServer(app.session, call.contributor.customizationId)?.state?.kind === 'authRequired';
  }
  return call?.status === 'auth-required' || String(call?.status).startsWith('pending-');
}

function about() {
  const { serverInfo, protocolVersion } = conn?.info ?? {};
  const kinds = [...store.unknown].map(([type, n]) => `${type} (${n})`).join(', ');
  return {
    'Protocol': protocolVersion ?? 'not agreed yet',
    ...(serverInfo ? { 'Host software': `${serverInfo.name ?? ''} ${serverInfo.version ?? ''}` } : {}),
    'Client id': conn?.clientId ?? 'none',
    'Last serverSeq': conn?.lastSeen ?? 'none',
    'Updates not shown': store.unknownCount ? `${store.unknownCount}: ${kinds}` : '0',
  };
}

function sentence(s) {
  return `${s[0].toUpperCase()}${s.slice(1)}.`;
}

/** A random UUID. crypto.randomUUID is there on https and localhost only. */
function randomId() {
  const b = crypto.getRandomValues(new Uint8Array(16));
  b[6] = (b[6] & 0x0f) | 0x40;
  b[8] = (b[8] & 0x3f) | 0x80;
  return [...b].map((x, i) => ([4, 6, 8, 10].includes(i) ? '-' : '') + x.toString(16).padStart(2, '0')).join('');
}

// ---- what comes from outside

addEventListener('hashchange', route);
addEventListener('popstate', route);
addEventListener('online', () => conn?.wake());
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) conn?.wake();
});
setInterval(() => {
  store.expire(untaken);
  const pause = conn && !conn.live ? hostsSoon : hostsEvery;
  if (app.token && !document.hidden && Date.now() - hostsAsked > pause) refreshHosts();
  draw(); // times and countdowns go on
}, 1000);
route();
