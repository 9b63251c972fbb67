// Adds the extras of MCP tool calls: the server's app, and a sign-in if the server
// needs it.

import { el, setText } from './dom';
import { App, appOf, argumentsOf, codeOf, htmlOf, resultOf } from './mcp-app';
import { text } from './store';
import { toolTone, toolWord } from './words';

const loadedAtOnce = 4; // the latest tool calls' apps; older apps load on a click
const maxQuestions = 3; // questions of an app in the queue

const mostAllowed = 200; // apps with permission to run dynamic code, kept by this browser
const codeNames = { eval: 'run code that it generates', wasm: 'run WebAssembly', worker: 'work in the background' };

const signIn = {
  required: ['Sign in', (name) => `${name} wants you to sign in.`],
  expired: ['Sign in again', (name) => `Your sign-in to ${name} has expired.`],
  insufficientScope: ['Grant access', (name) => `${name} needs more access than it has.`],
};

/** All tool calls of the page that come from MCP servers. */
export class McpCalls {
  #do;
  #calls = new Map(); // tool call's node to its view
  #tools = new Map(); // channel to a promise of the server's tools
  #model;

  constructor(actions) {
    this.#do = actions;
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.#each((c) => c.dress()));
    addEventListener('resize', () => this.#each((c) => c.dress()));
  }

  /** Notes that a node, which has parts.extra for us, shows a tool call. */
  show(node, call) {
    if (call.contributor?.kind !== 'mcp') return;
    let shown = this.#calls.get(node);
    if (!shown) this.#calls.set(node, (shown = new McpCall(node, this.#do, (channel) => this.toolsOf(channel))));
    shown.call = call;
  }

  /** Brings everything in step with a model: see main.js. */
  render(model) {
    const lost = this.#model?.live && !model.live;
    this.#model = model;
    if (lost) this.#tools.clear();
    for (const [node, shown] of this.#calls) {
      if (node.isConnected) continue;
      shown.close(); // a different session is in view, or the turn is gone
      this.#calls.delete(node);
    }
    const apps = [...this.#calls.values()].filter((c) => appOf(c.call)).sort((a, b) => a.isBefore(b));
    apps.forEach((c, i) => { c.isRecent = i >= apps.length - loadedAtOnce; });
    this.#each((c) => c.render(model));
  }

  /** Takes a notification of a server's. */
  serverSaid(channel, method, params) {
    if (method === 'notifications/tools/list_changed') this.#tools.delete(channel);
    this.#each((c) => c.serverSaid(channel, method, params));
  }

  #each(f) {
    for (const shown of this.#calls.values()) f(shown);
  }

  /** A promise of the tools that the server at a channel lists. */
  toolsOf(channel) {
    if (!this.#tools.has(channel)) {
      const all = this.#listTools(channel);
      this.#tools.set(channel, all);
      all.catch(() => this.#tools.delete(channel));
    }
    return this.#tools.get(channel);
  }

  async #listTools(channel) {
    const tools = [];
    let cursor;
    do {
      const page = await this.#do.mcp(channel, 'tools/list', cursor === undefined ? {} : { cursor }).result;
      tools.push(...(Array.isArray(page.tools) ? page.tools : []));
      cursor = page.nextCursor;
    } while (typeof cursor === 'string' && cursor !== '' && tools.length < 1000);
    return tools;
  }
}

/** One tool call. */
class McpCall {
  call;
  isRecent = false;
  #node;
  #do;
  #toolsOf;
  #model;
  #server; // its customization, undefined if there is none
  #app = null;
  #loading = ''; // the address being read
  #shown = { name: '', why: '' }; // state of the load
  #asked = false; // the user wants to see the app
  #left = false; // the user or the app has closed it
  #told = { input: undefined, end: undefined }; // data the app has received
  #context;
  #tool; // the server's description of the tool
  #form = null;
  #questions = [];
  #full = false; // it fills the page
  #wentBack = false; // the user left full screen, so the next request asks
  #at;

  constructor(node, actions, toolsOf) {
    this.#node = node;
    this.#do = actions;
    this.#toolsOf = toolsOf;
    const at = {
      auth: el('div', { hidden: true }),
      frame: el('div', { className: 'app-frame', hidden: true }),
      bar: el('div', { className: 'row app-bar', hidden: true }),
      questions: el('div', { className: 'app-questions' }),
      note: el('p', { className: 'dim', role: 'status', hidden: true }),
      open: el('button', { type: 'button', hidden: true }, 'Show the app'),
      close: el('button', { type: 'button', hidden: true }, 'Close the app'),
    };
    at.open.addEventListener('click', () => this.#reopen());
    at.close.addEventListener('click', () => this.#leave());
    const back = el('button', { type: 'button' }, 'Back to the chat');
    back.addEventListener('click', () => {
      this.#display('inline');
      this.#wentBack = true;
      this.dress();
    });
    at.bar.append(el('span', { className: 'grow' }), back);
    at.frame.append(at.bar);
    node.parts.extra.replaceChildren(at.auth, at.frame, at.questions, el('div', { className: 'row start app-row' }, at.note, at.open, at.close));
    this.#at = at;
  }

  isBefore(other) {
    return this.#node.compareDocumentPosition(other.#node) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1;
  }

  render(model) {
    this.#model = model;
    this.#server = model.mcpServer(this.call.contributor.customizationId);
    this.#renderApp();
    this.#renderAuth();
  }

  close() {
    this.#display('inline');
    this.#do.context(this, '', '');
    this.#app?.close();
    this.#app = null;
  }

  serverSaid(channel, method, params) {
    if (this.#app && channel === this.#server?.channel) this.#app.serverSaid(method, params);
  }

  /** Tells the app how the page looks now. */
  dress() {
    if (!this.#app || !this.#context) return;
    const now = this.#surroundings();
    const changed = Object.fromEntries(Object.entries(now).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(this.#context[name])));
    this.#context = { ...this.#context, ...now };
    if (Object.keys(changed).length) this.#app.tell('ui/notifications/host-context-changed', changed);
  }

  // ---- app

  #renderApp() {
    const uri = appOf(this.call);
    const runs = !['streaming', 'pending-confirmation'].includes(this.call.status);
    const can = uri !== '' && runs && Boolean(this.#server?.mcpApp);
    const ready = can && this.#model.live && text(this.#server.channel) !== '';
    const wanted = (this.isRecent || this.#asked) && !this.#left;
    if (ready && wanted && !this.#app && this.#loading === '' && this.#shown.name !== 'failed') this.#load(uri, this.#server.channel);
    this.#tell();
    this.#node.classList.toggle('has-app', this.#app !== null);
    this.#at.frame.hidden = this.#app === null;
    this.#at.close.hidden = this.#app === null;
    this.#at.open.hidden = !ready || this.#app !== null || this.#loading !== '' || (wanted && this.#shown.name !== 'failed');
    setText(this.#at.open, this.#shown.name === 'failed' ? 'Try again' : 'Show the app');
    const note = this.#note(can, ready, wanted);
    setText(this.#at.note, note);
    this.#at.note.hidden = note === '';
  }

  #note(can, ready, wanted) {
    if (this.#shown.name === 'failed') return `The app could not be loaded: ${this.#shown.why}`;
    if (this.#app && !ready) return this.#model.live ? 'Its MCP server is not ready: the app is inactive.' : 'Not connected: the app is inactive.';
    if (this.#loading) return 'Loading the app…';
    if (this.#shown.why) return this.#shown.why;
    if (can && wanted && !ready && this.#model.live) return 'Its app opens when its MCP server is ready.';
    return '';
  }

  async #load(uri, channel) {
    this.#loading = uri;
    this.#shown = { name: '', why: '' };
    let content;
    try {
      const [read, tools] = await Promise.all([this.#do.mcp(channel, 'resources/read', { uri }).result, this.#toolsOf(channel).catch(() => [])]);
      content = htmlOf(read, uri);
      this.#tool = tools.find((t) => t?.name === this.call.toolName);
    } catch (err) {
      this.#loading = '';
      // After a lost connection, the app is read again.
      if (this.#model.live && this.#server?.channel === channel) this.#shown = { name: 'failed', why: err.message };
      this.#do.draw();
      return;
    }
    this.#loading = '';
    const allowed = await this.#allowed(uri, codeOf(content.meta));
    if (!this.#node.isConnected || this.#left || this.#app) return;
    this.#told = { input: undefined, end: undefined };
    this.#app = new App(this.#at.frame, this.#bridge());
    this.#app.load(content, allowed);
    this.#at.frame.classList.toggle('bare', content.meta.prefersBorder === false);
    this.#do.draw();
  }

  /** What of the code that it wants to make itself the app may: the user is asked once. */
  async #allowed(uri, wanted) {
    const key = JSON.stringify([this.#do.host(), text(this.#server?.name), uri, wanted]);
    if (wanted.length === 0) return wanted;
    let known = [];
    try {
      known = JSON.parse(localStorage.getItem('apps-allowed')) ?? [];
    } catch { /* it is asked again */ }
    if (known.includes(key)) return wanted;
    this.#loading = uri; // until the user answers
    const yes = await this.#ask('The app asks for extra permissions:', wanted.map((kind) => codeNames[kind]).join(', '), 'Allow', () => true);
    this.#loading = '';
    if (!yes) return [];
    try {
      localStorage.setItem('apps-allowed', JSON.stringify([...known, key].slice(-mostAllowed)));
    } catch { /* as above */ }
    return wanted;
  }

  /** Shows the app among the turns, or so that it fills the page, with a way back above it. */
  #display(mode) {
    const { frame, bar } = this.#at;
    const full = mode === 'fullscreen' && this.#app !== null;
    if (full !== this.#full) {
      this.#full = full;
      bar.hidden = !full;
      setText(bar.firstChild, `An app of ${text(this.#server?.name) || 'an MCP server'}`);
      frame.popover = full ? 'manual' : null; // the top layer shows it without moving it: a moved frame reloads
      if (full) frame.showPopover();
    }
    return full ? 'fullscreen' : 'inline';
  }

  #keep(files) {
    const size = files.reduce((sum, f) => sum + f.data.length, 0);
    const names = files.map((f) => f.name).join(', ');
    return this.#ask('The app wants to save:', `${names} (${Math.max(1, Math.round(size / 1000))} KB)`, 'Save', () => {
      for (const { name, data } of files) {
        const url = URL.createObjectURL(new Blob([data], { type: 'application/octet-stream' }));
        el('a', { href: url, download: name }).click();
        setTimeout(() => URL.revokeObjectURL(url), 60_000);
      }
      return true;
    });
  }

  /** What the app can ask of the page: see Bridge. */
  #bridge() {
    return {
      capabilities: () => this.#server?.mcpApp?.capabilities ?? {},
      surroundings: () => {
        this.#context = { ...this.#surroundings(), ...(this.#tool ? { toolInfo: { tool: this.#tool } } : {}) };
        return this.#context;
      },
      call: (method, params) => {
        const channel = text(this.#server?.channel);
        if (!channel || !this.#model.live) throw new Error('The MCP server is unreachable.');
        return this.#do.mcp(channel, method, params);
      },
      notify: (method, params) => {
        const channel = text(this.#server?.channel);
        if (channel && this.#model.live) this.#do.mcpNotify(channel, method, params);
      },
      tools: () => this.#toolsOf(text(this.#server?.channel)),
      say: (words) => this.#ask('The app wants to send the agent:', words, 'Send', () => this.#do.send(words)),
      open: (url) => this.#ask('The app wants to open a page:', url, 'Open', () => {
        window.open(url, '_blank', 'noopener,noreferrer');
        return true;
      }),
      context: (words) => this.#do.context(this, text(this.call.displayName) || text(this.call.toolName), words),
      download: (files) => this.#keep(files),
      display: async (mode) => {
        const may = mode !== 'fullscreen' || !this.#wentBack || await this.#ask('The app wants to fill the page again.', '', 'Let it', () => true);
        const now = may ? this.#display(mode) : this.#display('inline');
        setTimeout(() => this.dress()); // after the next draw
        return now;
      },
      called: (name) => {
        this.#shown = { name: 'shown', why: `The app has called ${name}.` };
        this.#do.draw();
      },
      state: (shown) => {
        this.#shown = shown;
        this.#do.draw();
      },
      ended: () => this.#leave(),
    };
  }

  /** Tells the app what the tool was given, and what it ended with. */
  #tell() {
    if (!this.#app) return;
    const { status, toolInput } = this.call;
    if (this.#told.input === undefined || this.#told.input !== toolInput) {
      this.#told.input = toolInput ?? '';
      this.#app.tell('ui/notifications/tool-input', { arguments: argumentsOf(this.call) });
    }
    if (this.#told.end === status) return;
    if (status === 'completed') this.#app.tell('ui/notifications/tool-result', resultOf(this.call));
    else if (status === 'cancelled') this.#app.tell('ui/notifications/tool-cancelled', { reason: text(this.call.reason) || 'cancelled' });
    else return;
    this.#told.end = status;
  }

  #surroundings() {
    const style = getComputedStyle(document.documentElement);
    const variables = {};
    for (const [theirs, ours] of [
      ['--color-background-primary', '--raised'], ['--color-background-secondary', '--ground'], ['--color-background-tertiary', '--sunk'],
      ['--color-text-primary', '--ink'], ['--color-text-secondary', '--dim'], ['--color-border-primary', '--line'],
      ['--color-text-success', '--ok'], ['--color-text-warning', '--wait'], ['--color-text-danger', '--bad'], ['--color-ring-primary', '--accent'],
    ]) variables[theirs] = style.getPropertyValue(ours).trim();
    variables['--font-sans'] = getComputedStyle(document.body).fontFamily;
    const coarse = matchMedia('(pointer: coarse)').matches;
    return {
      theme: matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light',
      styles: { variables },
      displayMode: this.#full ? 'fullscreen' : 'inline',
      availableDisplayModes: ['inline', 'fullscreen'],
      containerDimensions: this.#full
        ? { width: this.#at.frame.clientWidth, height: this.#at.frame.clientHeight - this.#at.bar.offsetHeight }
        : { width: this.#at.frame.clientWidth || this.#node.clientWidth, maxHeight: 640 },
      locale: navigator.language,
      timeZone: Intl.DateTimeFormat().resolvedOptions().timeZone,
      userAgent: 'ahp-relay-console',
      platform: 'web',
      deviceCapabilities: { touch: coarse, hover: !coarse },
    };
  }

  /** Asks the user about something that the app wants: a promise of what became of it. */
  #ask(question, words, yes, act) {
    if (this.#questions.length >= maxQuestions) return Promise.resolve(false);
    return new Promise((resolve) => {
      const end = (done) => {
        this.#questions = this.#questions.filter((q) => q !== node);
        node.remove();
        resolve(done);
      };
      const button = (label, className, done) => {
        const made = el('button', { type: 'button', className }, label);
        made.addEventListener('click', () => end(done()));
        return made;
      };
      const node = el('div', { className: 'question', role: 'group', 'aria-label': question },
        el('p', { className: 'name' }, question), el('p', { className: 'text quoted' }, words),
        button(yes, 'primary', act), button('No', '', () => false));
      this.#questions.push(node);
      this.#at.questions.append(node);
    });
  }

  #reopen() {
    this.#left = false;
    this.#asked = true;
    this.#shown = { name: '', why: '' };
    this.#do.draw();
  }

  async #leave() {
    const app = this.#app;
    this.#left = true;
    this.#asked = false;
    this.#shown = { name: '', why: '' };
    for (const node of this.#questions.splice(0)) node.remove();
    this.#display('inline');
    this.#do.context(this, '', '');
    await app?.leave();
    if (this.#app === app) this.#app = null;
    this.#do.draw();
  }

  // ---- signing in

  /** What the server wants, undefined if nothing that concerns this call. */
  #wants() {
    if (this.#model?.readOnly) return undefined; // a user with more rights must sign in
    if (!['running', 'auth-required'].includes(this.call.status) && !this.#app) return undefined;
    const { state } = this.#server ?? {};
    if (state?.kind === 'authRequired') return state;
    return this.call.status === 'auth-required' ? this.call.auth : undefined;
  }

  #renderAuth() {
    const wants = this.#wants();
    const waits = wants !== undefined && ['running', 'auth-required'].includes(this.call.status);
    this.#node.toggleAttribute('data-waits', waits);
    const badge = this.#node.querySelector('.badge');
    const word = waits ? 'waits for you' : toolWord(this.call);
    setText(badge, word);
    badge.dataset.tone = toolTone(word);
    this.#at.auth.hidden = wants === undefined;
    if (wants === undefined) {
      this.#form?.node.remove();
      this.#form = null;
      return;
    }
    if (!this.#form) {
      this.#form = makeSignIn(() => this.#do.signIn(this.#name(), this.#wants()));
      this.#at.auth.append(this.#form.node);
    }
    const { title, why, scopes, where, button } = this.#form;
    const [label, says] = signIn[wants.reason] ?? signIn.required;
    setText(title, says(this.#name()));
    setText(why, text(wants.description));
    scopes.hidden = !Array.isArray(wants.requiredScopes) || wants.requiredScopes.length === 0;
    setText(scopes, scopes.hidden ? '' : `Needed: ${wants.requiredScopes.filter((s) => typeof s === 'string').join(' ')}`);
    setText(where, whereTo(wants.resource));
    setText(button, label);
    button.disabled = !this.#model.live;
  }

  #name() {
    return text(this.#server?.name) || 'The MCP server';
  }
}

/** Where a token is for, and where one comes from. */
function whereTo(resource) {
  const name = text(resource?.resource_name);
  const from = (Array.isArray(resource?.authorization_servers) ? resource.authorization_servers : []).filter((s) => typeof s === 'string');
  return [[name, text(resource?.resource)].filter(Boolean).join(' – '), from.length ? `Tokens come from ${from.join(', ')}` : ''].filter(Boolean).join('. ');
}

function makeSignIn(begin) {
  const title = el('p', { className: 'name' });
  const why = el('p', { className: 'text' });
  const scopes = el('p', { className: 'dim scopes' });
  const where = el('p', { className: 'dim' });
  const button = el('button', { type: 'button', className: 'primary' });
  button.addEventListener('click', begin);
  return { node: el('div', { className: 'sign-in' }, title, why, scopes, where, el('div', { className: 'row start' }, button)), title, why, scopes, where, button };
}
