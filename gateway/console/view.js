// The page. Text of hosts goes into text nodes only: it is never parsed.

import { el, Keyed, setText } from './dom.js';
import { McpCalls } from './mcp.js';
import { CanvasPanel } from './panel.js';
import { answerOf, text, version } from './state.js';
import { ago, baseName, describe, statusWord, toolTone, toolWord, when } from './words.js';

const atEnd = 48; // px from the end that still count as being there

/** The page. do has what the user can ask for: see main.js. */
export class View {
  #do;
  #at = {}; // elements by id
  #hosts;
  #sessions;
  #turns;
  #canvases;
  #mcp;
  #shownChat;
  #following = true; // the end of the chat is kept in view
  #model;

  constructor(actions) {
    this.#do = actions;
    for (const node of document.querySelectorAll('[id]')) this.#at[node.id] = node;
    this.#hosts = new Keyed(this.#at.hosts,
      ({ host }) => makeItem('data-host', host, () => actions.chooseHost(host)),
      (n, h) => this.#updateHost(n, h));
    this.#sessions = new Keyed(this.#at.sessions,
      ({ resource }) => makeItem('data-session', resource, () => actions.openSession(resource)),
      (n, s) => this.#updateSession(n, s));
    this.#turns = new Keyed(this.#at.turns, makeTurn, (n, t) => this.#updateTurn(n, t));
    this.#canvases = new CanvasPanel(this.#at, actions);
    this.#mcp = new McpCalls(actions);
    this.#listen();
  }

  #listen() {
    const at = this.#at;
    at['token-form'].addEventListener('submit', (event) => {
      event.preventDefault();
      const given = at.token.value;
      at.token.value = '';
      this.#do.useToken(given);
    });
    at.back.addEventListener('click', () => this.#do.openSession(''));
    at.retry.addEventListener('click', () => this.#do.retry());
    at['new-session'].addEventListener('click', () => this.#do.newSession());
    at.about.parentElement.addEventListener('toggle', () => this.#renderAbout(this.#model.about));
    at.forget.addEventListener('click', () => this.#do.forget());
    at['swap-keep'].addEventListener('click', () => this.#do.keep(this.#model.swap));
    at['swap-take'].addEventListener('click', () => this.#do.swap());
    at.swap.addEventListener('close', () => { // by the Escape key too
      if (this.#model?.swap) this.#do.keep(this.#model.swap);
    });
    at.earlier.addEventListener('click', () => this.#do.earlier());
    at.stop.addEventListener('click', () => {
      this.#do.stop();
      this.#toPrompt();
    });
    at['to-end'].addEventListener('click', () => this.#toEnd());
    at.log.addEventListener('scroll', () => this.#scrolled(), { passive: true });
    const resized = new ResizeObserver(() => { // by the keyboard of a phone, or by an app
      if (this.#following) this.#toEnd();
    });
    resized.observe(at.log);
    resized.observe(at.turns);
    at.composer.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#send();
    });
    at.prompt.addEventListener('keydown', (event) => {
      // On a touch keyboard Enter is the only way to begin a new line.
      const enter = event.key === 'Enter' && !event.shiftKey && !event.isComposing;
      if (!enter || isTouch()) return;
      event.preventDefault();
      this.#send();
    });
  }

  #send() {
    const { prompt } = this.#at;
    if (prompt.value.trim() !== '' && this.#do.send(prompt.value)) {
      prompt.value = '';
      this.#toEnd();
      this.#toPrompt();
    }
  }

  // Send and Stop take turns: the one that was pressed goes, and the focus
  // with it. On a touch screen, getting it would call up the keyboard.
  #toPrompt() {
    if (!isTouch()) this.#at.prompt.focus({ preventScroll: true });
  }

  /** Gives the canvas that is shown a message of its provider. */
  deliver(channel, payload) {
    this.#canvases.deliver(channel, payload);
  }

  /** Takes what an MCP server has told. */
  mcpSaid(channel, method, params) {
    this.#mcp.serverSaid(channel, method, params);
  }

  /** Shows a model: see main.js. */
  render(model) {
    const before = this.#model;
    this.#model = model;
    this.#at.gate.hidden = model.hasToken;
    this.#at.app.hidden = !model.hasToken;
    setText(this.#at['token-why'], model.tokenWhy);
    this.#at.app.dataset.pane = model.session ? 'chat' : 'list';
    this.#at.back.hidden = !model.session;
    this.#renderSwap(model);
    this.#renderStatus(model);
    this.#renderSide(model);
    this.#renderChat(model);
    this.#mcp.render(model);
    this.#canvases.render(model);
    const title = model.session ? titleOf(model) : model.host;
    document.title = title ? `${title} – AHP relay` : 'AHP relay';
    if (before && before.session !== model.session) this.#moveFocus(model);
    if (before?.hasToken !== model.hasToken && !model.hasToken) this.#at.token.focus();
  }

  #moveFocus(model) {
    if (model.session) this.#at['chat-title'].focus({ preventScroll: true });
    else this.#at.sessions.querySelector('button')?.focus({ preventScroll: true });
  }

  #renderSwap({ swap, now }) {
    const { swap: dialog } = this.#at;
    if (!swap) {
      if (dialog.open) dialog.close();
      return;
    }
    const lines = swap.then ? changes(swap, now) : [];
    this.#at['swap-what'].replaceChildren(...lines.flatMap(([term, value, other]) => [
      el('dt', {}, term), el('dd', { className: value === other ? 'dim' : 'name' }, value === other ? value : `${value} → ${other}`),
    ]));
    setText(this.#at['swap-note'], swap.then ? swap.why : 'Asking the relay…');
    this.#at['swap-take'].disabled = !swap.then || swap.why !== '';
    if (!dialog.open) dialog.showModal();
  }

  #renderStatus({ conn, hasToken, away, hostInfo, now }) {
    const { status, retry } = this.#at;
    status.hidden = !hasToken;
    const said = describe(conn, { away, host: hostInfo, now });
    status.dataset.tone = said.tone;
    status.dataset.state = conn?.name ?? 'none';
    setText(this.#at['status-text'], said.text);
    setText(this.#at['status-more'], said.more);
    retry.hidden = conn?.name !== 'retrying' && conn?.name !== 'ended';
  }

  #renderSide(model) {
    this.#hosts.show(model.hosts, (h) => h.host);
    setText(this.#at['hosts-note'], model.hostsNote);
    this.#at.sessions.classList.toggle('stale', !model.live);
    this.#sessions.show(model.sessions, (s) => s.resource);
    setText(this.#at['sessions-note'], model.sessionsNote);
    this.#at['new-session'].disabled = !model.canCreate;
    this.#at['new-session'].hidden = model.readOnly || model.narrow;
    this.#at['read-only'].hidden = !model.readOnly;
    if (this.#at.about.parentElement.open) this.#renderAbout(model.about);
  }

  #renderAbout(about) {
    const lines = Object.entries(about);
    const key = JSON.stringify(lines);
    if (this.#at.about.dataset.shown === key) return;
    this.#at.about.dataset.shown = key;
    this.#at.about.replaceChildren(...lines.flatMap(([term, value]) => [el('dt', {}, term), el('dd', {}, String(value))]));
  }

  #updateHost(node, info) {
    const { button, name, badge, detail } = node.parts;
    setText(name, info.host);
    const { hostsStale, now } = this.#model;
    const silent = info.state === 'online' && info.notAnsweringSince;
    setText(badge, hostsStale ? 'unknown' : silent ? 'not answering' : info.state);
    badge.dataset.tone = hostsStale ? '' : silent ? 'wait' : info.state === 'online' ? 'ok' : 'bad';
    setText(detail, hostsStale ? `last known: ${info.state} since ${when(info.since, now)}` : hostDetail(info, now));
    setCurrent(button, info.host === this.#model.host);
  }

  #updateSession(node, session) {
    const { button, name, badge, detail } = node.parts;
    setText(name, text(session.title) || 'New session');
    const word = statusWord(session.status);
    setText(badge, word);
    badge.hidden = word === '';
    badge.dataset.tone = { 'needs you': 'wait', 'working': 'ok', 'failed': 'bad' }[word] ?? '';
    const where = baseName(session.workingDirectories?.[0]);
    setText(detail, [ago(session.modifiedAt, this.#model.now), where].filter(Boolean).join(' · '));
    setCurrent(button, session.resource === this.#model.session);
  }

  #renderChat(model) {
    const { log } = this.#at;
    const same = model.chatUri === this.#shownChat;
    if (!same) this.#following = true;
    this.#shownChat = model.chatUri;

    setText(this.#at['chat-title'], model.session ? titleOf(model) : 'No session open');
    setText(this.#at['chat-sub'], model.session ? subtitle(model) : '');
    this.#renderComposer(model);
    const height = log.scrollHeight;
    const first = this.#at.turns.firstChild;
    this.#turns.show(model.turns, ({ turn }) => String(turn.id));
    this.#at.earlier.hidden = !model.hasEarlier;
    setText(this.#at['chat-note'], model.chatNote);
    this.#at['chat-note'].hidden = model.chatNote === '';
    // Earlier turns push what is read down: keep it where it is.
    const prepended = same && first?.isConnected && first !== this.#at.turns.firstChild;
    if (prepended) log.scrollTop += log.scrollHeight - height;
    else if (this.#following) this.#toEnd();
    this.#scrolled();
  }

  #toEnd() {
    this.#at.log.scrollTop = this.#at.log.scrollHeight;
  }

  #scrolled() {
    const { log } = this.#at;
    this.#following = log.scrollHeight - log.scrollTop - log.clientHeight < atEnd;
    this.#at['to-end'].hidden = this.#following;
  }

  #renderComposer({ hasChat, canSend, canStop, composerNote, readOnly, until, now }) {
    this.#at.composer.hidden = !hasChat || readOnly;
    this.#at['looking'].hidden = !hasChat || !readOnly;
    setText(this.#at['looking'], `You can look at this, and change nothing. Good until ${when(until, now)}.`);
    this.#at.send.disabled = !canSend;
    this.#at.stop.hidden = !canStop;
    this.#at.send.hidden = canStop;
    setText(this.#at['composer-note'], composerNote);
  }

  #updateTurn(node, { turn, pending, agent }) {
    const shown = node.shown;
    const active = turn === this.#model.activeTurn;
    const live = active && this.#model.live;
    const doing = live ? 'working…' : active ? 'The connection was lost while the agent worked.' : '';
    if (shown.turn === turn && shown.version === version(turn) && shown.doing === doing && shown.pending === Boolean(pending) && shown.readOnly === this.#model.readOnly) return;
    node.shown = { turn, version: version(turn), doing, pending: Boolean(pending), readOnly: this.#model.readOnly };
    const { prompt, time, reply, who, parts, progress, outcome } = node.parts;
    setText(prompt, text(turn.message?.text));
    setText(time, when(turn.startedAt, this.#model.now));
    setText(who, agent);
    reply.hidden = Boolean(pending);
    node.classList.toggle('pending', Boolean(pending));
    // A screen reader is told the whole of an answer, not each word.
    node.setAttribute('aria-busy', String(live));
    node.classList.toggle('live', live);
    setText(progress, doing);
    this.#updateParts(node, parts, turn);
    outcome.replaceChildren(...this.#outcome(turn, pending));
  }

  #updateParts(node, parent, turn) {
    const had = node.shownParts;
    turn.responseParts.forEach((part, i) => {
      const old = had[i];
      const { readOnly } = this.#model;
      if (old && old.part === part && old.version === version(part) && old.readOnly === readOnly) return;
      const now = { part, version: version(part), readOnly, node: this.#showPart(old, turn, part) };
      if (!old) parent.append(now.node);
      else if (old.node !== now.node) {
        const focused = old.node.contains(document.activeElement);
        old.node.replaceWith(now.node);
        // The button that was pressed is gone.
        if (focused) this.#toPrompt();
      }
      had[i] = now;
    });
    for (const old of had.splice(turn.responseParts.length)) old.node.remove();
  }

  /** Returns the node of a part: the old one, if it could be brought up to date. */
  #showPart(old, turn, part) {
    switch (part.kind) {
      case 'markdown':
      case 'reasoning': {
        const content = text(part.content);
        if (old?.part === part) { // texts only grow
          const shown = old.node.words;
          shown.appendData(content.slice(shown.length));
          return old.node;
        }
        return part.kind === 'markdown' ? words('p', content) : thinking(content);
      }
      case 'toolCall':
        return this.#tool(old?.node, turn, part);
      case 'error':
        return el('p', { className: 'text error' }, text(part.error?.message) || 'Something failed.');
      case 'systemNotification':
        return el('p', { className: 'text dim' }, text(part.content));
    }
    return el('p', { className: 'dim' }, `[${text(part.kind) || 'something'}: not shown here]`);
  }

  /**
   * A tool call keeps its node, also through a new snapshot: an app in it would
   * have to begin anew.
   */
  #tool(old, turn, part) {
    const call = isObject(part.toolCall) ? part.toolCall : {};
    const same = old?.parts?.extra && old.dataset.call === text(call.toolCallId);
    const node = same ? old : makeTool(text(call.toolCallId));
    const { body } = node.parts;
    const focused = body.contains(document.activeElement);
    body.replaceChildren(...this.#toolBody(turn, part, call));
    if (focused) this.#toPrompt(); // the button that was pressed is gone
    node.dataset.status = text(call.status);
    this.#mcp.show(node, call);
    return node;
  }

  #toolBody(turn, part, call) {
    const said = text(call.pastTenseMessage) || text(call.invocationMessage) || text(call.intention);
    const asked = text(call.confirmationTitle) || 'May the agent do this?';
    const state = toolWord(call);
    const nodes = [el('p', { className: 'row' },
      el('span', { className: 'name' }, text(call.displayName) || text(call.toolName) || 'Tool'),
      el('span', { className: 'badge', 'data-tone': toolTone(state) }, state))];
    const pending = call.status === 'pending-confirmation';
    if (said && !(pending && said === asked)) nodes.push(el('p', { className: 'text' }, said));
    if (text(call.toolInput)) nodes.push(el('pre', { tabIndex: 0, 'aria-label': 'Input' }, text(call.toolInput)));
    const output = toolOutput(call);
    if (output) nodes.push(el('pre', { tabIndex: 0, 'aria-label': 'Output' }, output));
    if (pending) nodes.push(this.#question(turn, part, asked));
    else if (call.status === 'pending-result-confirmation') {
      nodes.push(this.#question(turn, part, 'May the agent use this result?'));
    }
    return nodes;
  }

  #question(turn, part, title) {
    if (this.#model.readOnly) return el('p', { className: 'dim' }, 'Waits for somebody who may answer.');
    const answer = answerOf(part.toolCall);
    const button = (label, value, className) => {
      const node = el('button', { type: 'button', className, disabled: answer !== undefined }, label);
      node.addEventListener('click', () => this.#do.answer(turn, part, value));
      return node;
    };
    return el('div', { className: 'question', role: 'group', 'aria-label': title },
      el('p', { className: 'name' }, title),
      button('Allow', 'allow', 'primary'),
      button('Deny', 'deny', ''),
      answer ? el('span', { className: 'dim' }, 'sent…') : '');
  }

  #outcome(turn, pending) {
    if (pending && !pending.failed) return [el('p', { className: 'dim' }, 'sending…')];
    if (pending) {
      const again = el('button', { type: 'button' }, 'Send again');
      again.addEventListener('click', () => this.#do.sendAgain(pending));
      const discard = el('button', { type: 'button' }, 'Discard');
      discard.addEventListener('click', () => this.#do.discard(pending));
      return [el('p', { className: 'error' }, pending.failed), el('div', { className: 'row start' }, again, discard)];
    }
    switch (turn.state) {
      case 'cancelled':
        return [el('p', { className: 'dim' }, 'Stopped.')];
      case 'error':
        if (turn.responseParts.some((p) => p.kind === 'error')) return [];
        return [el('p', { className: 'error' }, text(turn.error?.message) || 'This turn failed.')];
    }
    return [];
  }
}

/** A line of a list. */
function makeItem(attribute, value, chosen) {
  const name = el('span', { className: 'name' });
  const badge = el('span', { className: 'badge' });
  const detail = el('span', { className: 'dim' });
  const button = el('button', { type: 'button', className: 'item' }, el('span', { className: 'row' }, name, badge), detail);
  button.addEventListener('click', chosen);
  return Object.assign(el('li', { [attribute]: value }, button), { parts: { button, name, badge, detail } });
}

function makeTurn() {
  const prompt = el('p', { className: 'text' });
  const time = el('span', { className: 'dim' });
  const who = el('h3');
  const parts = el('div', { className: 'parts' });
  const progress = el('p', { className: 'progress' });
  const reply = el('div', { className: 'reply' }, who, parts, progress);
  const outcome = el('div', { className: 'outcome' });
  const node = el('article', { className: 'turn' },
    el('div', { className: 'prompt' }, el('h3', {}, 'User ', time), prompt), reply, outcome);
  return Object.assign(node, { parts: { prompt, time, reply, who, parts, progress, outcome }, shown: {}, shownParts: [] });
}

/** A tool call: what is the same for all, and what is not. */
function makeTool(id) {
  const body = el('div', { className: 'tool-body' });
  const extra = el('div', { className: 'tool-extra' });
  return Object.assign(el('section', { className: 'tool', 'data-call': id }, body, extra), { parts: { body, extra } });
}

/** An element with one text node, which can be made longer. */
function words(tag, content) {
  const node = el(tag, { className: 'text' });
  node.words = node.appendChild(document.createTextNode(content));
  return node;
}

function thinking(content) {
  const inner = words('p', content);
  const node = el('details', { className: 'thinking' }, el('summary', {}, 'Thinking'), inner);
  node.words = inner.words;
  return node;
}

function isTouch() {
  return matchMedia('(pointer: coarse)').matches;
}

function toolOutput(call) {
  const content = Array.isArray(call.content) ? call.content.filter(isObject) : [];
  const lines = content.map((c) => (c.type === 'text' ? text(c.text) : `[${text(c.title) || text(c.type) || 'something'}: not shown here]`));
  if (text(call.error?.message)) lines.push(text(call.error.message));
  return lines.join('\n');
}

/** What a link would change: [term, value, other]. */
function changes({ now: is, then: wanted }, time) {
  const word = (grant, f) => (grant ? f(grant) : 'unknown');
  const rows = [['Signed in as', (g) => text(g.subject) || 'nobody in particular'], ['May', mayDo], ['Until', (g) => when(g.expires, time)]];
  return [
    ['Host', is.host || 'none', wanted.host || 'none'],
    ...rows.map(([term, f]) => [term, word(is.grant, f), word(wanted.grant, f)]),
  ];
}

function mayDo({ access, channels }) {
  return [text(access) || 'all', ...(Array.isArray(channels) ? channels : [])].join(', ');
}

function hostDetail(info, now) {
  const parts = [`since ${when(info.notAnsweringSince ?? info.since, now)}`];
  if (info.state !== 'online' && info.reason) parts.push(info.reason);
  if (info.state === 'online') parts.push(`${info.clients} ${info.clients === 1 ? 'client' : 'clients'}`);
  if (info.hostVersion) parts.push(`host ${info.hostVersion}`);
  if (info.agentVersion) parts.push(`agent ${info.agentVersion}`);
  return parts.join(' · ');
}

function titleOf({ sessionState, sessionSummary }) {
  return text(sessionState?.title) || text(sessionSummary?.title) || 'New session';
}

function subtitle({ agent, live, sessionSummary, sessionState }) {
  const where = sessionState?.workingDirectories?.[0] ?? sessionSummary?.workingDirectories?.[0];
  return [agent, live && statusWord(sessionSummary?.status), baseName(where)].filter(Boolean).join(' · ');
}

function setCurrent(button, current) {
  if (current) button.setAttribute('aria-current', 'true');
  else button.removeAttribute('aria-current');
}

function isObject(value) {
  return value !== null && typeof value === 'object';
}
