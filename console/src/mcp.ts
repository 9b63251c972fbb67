// Shows what belongs to MCP tool calls: the server's app, and a sign-in if the server requires it.

import { visible } from './approval';
import type { AuthRequired, JsonObject, McpServer, Params, Resource, Result, Tool, ToolCall } from './ahp';
import { el, setText } from './dom';
import { App, appOf, argumentsOf, codeOf, htmlOf, resultOf, type AppContent, type AppEvents, type AppState, type CodeKind, type DisplayMode, type Download } from './mcp-app';
import type { McpRequest } from './rpc';
import { array, text } from './store';
import { toolTone, toolWord } from './words';
import { t } from './language';

const loadedAtOnce = 4; // apps of the latest tool calls; older apps are loaded by a click
const toolsMax = 1000; // most tools to request from a server
const maxQuestions = 3; // questions of an app in the queue
const restTime = 500; // ms for which a question must not have moved before it accepts a press

const mostAllowed = 200; // apps with permission to run dynamic code that this browser remembers
const codeNames: Record<CodeKind, string> = { eval: t`run code that it generates`, wasm: t`run WebAssembly`, worker: t`work in the background` };

const signIn: Record<string, [label: string, why: (name: string) => string]> = {
  required: [t`Sign in`, (name) => t`${name} wants you to sign in.`],
  expired: [t`Sign in again`, (name) => t`Your sign-in to ${name} has expired.`],
  insufficientScope: [t`Grant access`, (name) => t`${name} needs more access than it has.`],
};

/** The page's functions for MCP tool calls. */
export interface McpActions {
  draw(): void;
  send(words: string): boolean;
  mcp<M extends string>(channel: string, method: M, params: object): McpRequest<Result<M>>;
  mcpNotify(channel: string, method: string, params: object): void;
  context(from: object, label: string, words: string): boolean;
  host(): string;
  signIn(name: string, wants: AuthRequired | undefined): void;
}

/** The page's state for MCP tool calls. */
export interface McpModel {
  live: boolean;
  signsIn: boolean; // the user may sign in to servers
  mcpServer(id: string): McpServer | undefined;
}

/** A tool call's node. parts.extra holds what this file adds. */
export type McpNode = HTMLElement & { parts: { extra: HTMLElement } };

/** All MCP tool calls on the page. */
export class McpCalls {
  #do: McpActions;
  #calls = new Map<McpNode, McpCall>();
  #tools = new Map<string, Promise<Tool[]>>(); // by channel
  #model: McpModel | undefined;

  constructor(actions: McpActions) {
    this.#do = actions;
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.#each((c) => c.dress()));
    addEventListener('resize', () => this.#each((c) => c.dress()));
  }

  /** Records that a node shows this tool call. */
  show(node: McpNode, call: ToolCall): void {
    if (call.contributor?.kind !== 'mcp') return;
    const shown = this.#calls.get(node);
    if (shown) shown.call = call;
    else this.#calls.set(node, new McpCall(node, call, this.#do, (channel) => this.toolsOf(channel)));
  }

  /** Updates all calls from the model: see main.tsx. */
  render(model: McpModel): void {
    const lost = this.#model?.live && !model.live;
    this.#model = model;
    if (lost) this.#tools.clear();
    for (const [node, shown] of this.#calls) {
      if (node.isConnected) continue;
      shown.close(); // another session is in view, or the turn was removed
      this.#calls.delete(node);
    }
    const apps = [...this.#calls.values()].filter((c) => appOf(c.call)).sort((a, b) => a.isBefore(b));
    apps.forEach((c, i) => { c.isRecent = i >= apps.length - loadedAtOnce; });
    this.#each((c) => c.render(model));
  }

  /** Handles a server's notification. */
  serverSaid(channel: string, method: string, params: Params): void {
    if (method === 'notifications/tools/list_changed') this.#tools.delete(channel);
    this.#each((c) => c.serverSaid(channel, method, params));
  }

  #each(f: (call: McpCall) => void): void {
    for (const shown of this.#calls.values()) f(shown);
  }

  /** Lists the tools of the server at a channel. */
  toolsOf(channel: string): Promise<Tool[]> {
    const known = this.#tools.get(channel);
    if (known) return known;
    const all = this.#listTools(channel);
    this.#tools.set(channel, all);
    all.catch(() => this.#tools.delete(channel));
    return all;
  }

  async #listTools(channel: string): Promise<Tool[]> {
    const tools: Tool[] = [];
    let cursor: unknown;
    let pages = 0; // an empty page counts, too
    do {
      const page: Result<'tools/list'> = await this.#do.mcp(channel, 'tools/list', cursor === undefined ? {} : { cursor }).result;
      tools.push(...(Array.isArray(page.tools) ? page.tools : []));
      cursor = page.nextCursor;
    } while (typeof cursor === 'string' && cursor !== '' && tools.length + ++pages < toolsMax);
    return tools;
  }
}

let resting: ReturnType<typeof setTimeout> | undefined;

/**
 * Disables the consent to all apps' questions until they have rested. Apps decide when a question appears and,
 * by the height of their frames, where: a press may be meant for what was there before.
 */
function moved(): void {
  const disable = (on: boolean) => { for (const yes of document.querySelectorAll<HTMLButtonElement>('.app-questions .primary')) yes.disabled = on; };
  disable(true);
  clearTimeout(resting);
  resting = setTimeout(disable, restTime, false);
}

/** One tool call. */
class McpCall {
  call: ToolCall;
  isRecent = false;
  #node: McpNode;
  #do: McpActions;
  #toolsOf: (channel: string) => Promise<Tool[]>;
  #model: McpModel | undefined;
  #server: McpServer | undefined;
  #app: App | null = null;
  #loading = ''; // the address being read
  #shown: AppState = { name: '', why: '' };
  #asked = false; // the user has asked to see the app
  #left = false; // the user or the app has closed it
  #told: { input?: string; end?: string } = {}; // data that the app has received
  #context: JsonObject | undefined;
  #tool: Tool | undefined; // the server's description of the tool
  #form: SignInForm | null = null;
  #questions: HTMLElement[] = [];
  #full = false; // it fills the page
  #wentBack = false; // the user has left full screen, so the app's next request asks first
  #at: { auth: HTMLElement; frame: HTMLElement; bar: HTMLElement; questions: HTMLElement; note: HTMLElement; open: HTMLElement; close: HTMLElement };
  #title = el('span', { className: 'grow' });

  constructor(node: McpNode, call: ToolCall, actions: McpActions, toolsOf: (channel: string) => Promise<Tool[]>) {
    this.call = call;
    this.#node = node;
    this.#do = actions;
    this.#toolsOf = toolsOf;
    const at = {
      auth: el('div', { hidden: true }),
      frame: el('div', { className: 'app-frame', hidden: true }),
      bar: el('div', { className: 'row app-bar', hidden: true }),
      questions: el('div', { className: 'app-questions' }),
      note: el('p', { className: 'dim', role: 'status', hidden: true }),
      open: el('button', { type: 'button', hidden: true }, t`Show the app`),
      close: el('button', { type: 'button', hidden: true }, t`Close the app`),
    };
    at.open.addEventListener('click', () => this.#reopen());
    at.close.addEventListener('click', () => this.#leave());
    const back = el('button', { type: 'button' }, t`Back to the chat`);
    back.addEventListener('click', () => {
      this.#display('inline');
      this.#wentBack = true;
      this.dress();
    });
    at.bar.append(this.#title, back);
    at.frame.append(at.bar);
    node.parts.extra.replaceChildren(at.auth, at.frame, at.questions, el('div', { className: 'row start app-row' }, at.note, at.open, at.close));
    this.#at = at;
  }

  isBefore(other: McpCall): number {
    return this.#node.compareDocumentPosition(other.#node) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1;
  }

  render(model: McpModel): void {
    this.#model = model;
    this.#server = model.mcpServer(this.call.contributor?.customizationId ?? '');
    this.#renderApp();
    this.#renderAuth();
  }

  close(): void {
    this.#display('inline');
    this.#do.context(this, '', '');
    this.#app?.close();
    this.#app = null;
  }

  serverSaid(channel: string, method: string, params: Params): void {
    if (this.#app && channel === this.#server?.channel) this.#app.serverSaid(method, params);
  }

  /** Notifies the app of the page's appearance. */
  dress(): void {
    const before = this.#context;
    if (!this.#app || !before) return;
    const now = this.#surroundings();
    const changed = Object.fromEntries(Object.entries(now).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name])));
    this.#context = { ...before, ...now };
    if (Object.keys(changed).length) this.#app.tell('ui/notifications/host-context-changed', changed);
  }

  // ---- app

  get #live(): boolean {
    return Boolean(this.#model?.live);
  }

  #renderApp(): void {
    const uri = appOf(this.call);
    const runs = !['streaming', 'pending-confirmation'].includes(this.call.status);
    const can = uri !== '' && runs && Boolean(this.#server?.mcpApp);
    const channel = text(this.#server?.channel);
    const ready = can && this.#live && channel !== '';
    const wanted = (this.isRecent || this.#asked) && !this.#left;
    if (ready && wanted && !this.#app && this.#loading === '' && this.#shown.name !== 'failed') this.#load(uri, channel);
    this.#tell();
    this.#node.classList.toggle('has-app', this.#app !== null);
    this.#at.frame.hidden = this.#app === null;
    this.#at.close.hidden = this.#app === null;
    this.#at.open.hidden = !ready || this.#app !== null || this.#loading !== '' || (wanted && this.#shown.name !== 'failed');
    setText(this.#at.open, this.#shown.name === 'failed' ? t`Try again` : t`Show the app`);
    const note = this.#note(can, ready, wanted);
    setText(this.#at.note, note);
    this.#at.note.hidden = note === '';
  }

  #note(can: boolean, ready: boolean, wanted: boolean): string {
    if (this.#shown.name === 'failed') return t`The app could not be loaded: ${this.#shown.why}`;
    if (this.#app && !ready) return this.#live ? t`Its MCP server is not ready: the app is inactive.` : t`Not connected: the app is inactive.`;
    if (this.#loading) return t`Loading the app…`;
    if (this.#shown.why) return this.#shown.why;
    if (can && wanted && !ready && this.#live) return t`Its app opens when its MCP server is ready.`;
    return '';
  }

  async #load(uri: string, channel: string): Promise<void> {
    this.#loading = uri;
    this.#shown = { name: '', why: '' };
    let content: AppContent;
    try {
      const [read, tools] = await Promise.all([this.#do.mcp(channel, 'resources/read', { uri }).result, this.#toolsOf(channel).catch((): Tool[] => [])]);
      content = htmlOf(read, uri);
      this.#tool = tools.find((t) => t?.name === this.call.toolName);
    } catch (err) {
      this.#loading = '';
      // After a lost connection, the app is read again.
      if (this.#live && this.#server?.channel === channel) this.#shown = { name: 'failed', why: (err as Error).message };
      this.#do.draw();
      return;
    }
    this.#loading = '';
    const allowed = await this.#allowed(uri, codeOf(content.meta));
    if (!this.#node.isConnected || this.#left || this.#app) return;
    this.#told = {};
    this.#app = new App(this.#at.frame, this.#bridge());
    moved();
    this.#app.load(content, allowed);
    this.#at.frame.classList.toggle('bare', content.meta.prefersBorder === false);
    this.#do.draw();
  }

  /** Returns the permitted kinds of dynamic code. The user is asked once for each app. */
  async #allowed(uri: string, wanted: CodeKind[]): Promise<CodeKind[]> {
    const key = JSON.stringify([this.#do.host(), text(this.#server?.name), uri, wanted]);
    if (wanted.length === 0) return wanted;
    let known: string[] = [];
    try {
      known = JSON.parse(localStorage.getItem('apps-allowed') ?? '[]');
    } catch { /* the user is asked again */ }
    if (known.includes(key)) return wanted;
    this.#loading = uri; // until the user answers
    const yes = await this.#ask(t`The app asks for extra permissions:`, wanted.map((kind) => codeNames[kind]).join(', '), t`Allow`, () => true);
    this.#loading = '';
    if (!yes) return [];
    try {
      localStorage.setItem('apps-allowed', JSON.stringify([...known, key].slice(-mostAllowed)));
    } catch { /* as above */ }
    return wanted;
  }

  /** Shows the app inline, or over the whole page with a button to return. */
  #display(mode: DisplayMode): DisplayMode {
    const { frame, bar } = this.#at;
    const full = mode === 'fullscreen' && this.#app !== null;
    if (full !== this.#full) {
      this.#full = full;
      moved();
      bar.hidden = !full;
      setText(this.#title, t`An app of ${text(this.#server?.name) || t`an MCP server`}`);
      frame.popover = full ? 'manual' : null; // the top layer shows it without moving it: a moved frame reloads
      if (full) frame.showPopover();
    }
    return full ? 'fullscreen' : 'inline';
  }

  #keep(files: Download[]): Promise<boolean> {
    const size = files.reduce((sum, f) => sum + f.data.length, 0);
    const names = files.map((f) => f.name).join(', ');
    return this.#ask(t`The app wants to save:`, `${names} (${Math.max(1, Math.round(size / 1000))} KB)`, t`Save`, () => {
      for (const { name, data } of files) {
        const url = URL.createObjectURL(new Blob([data], { type: 'application/octet-stream' }));
        el('a', { href: url, download: name }).click();
        setTimeout(() => URL.revokeObjectURL(url), 60_000);
      }
      return true;
    });
  }

  /** Returns the callbacks for the app. */
  #bridge(): AppEvents {
    return {
      capabilities: () => this.#server?.mcpApp?.capabilities ?? {},
      surroundings: () => {
        const now: JsonObject = { ...this.#surroundings(), ...(this.#tool ? { toolInfo: { tool: this.#tool } } : {}) };
        this.#context = now;
        return now;
      },
      call: (method, params) => {
        const channel = text(this.#server?.channel);
        if (!channel || !this.#live) throw new Error(t`The MCP server is unreachable.`);
        return this.#do.mcp(channel, method, params);
      },
      notify: (method, params) => {
        const channel = text(this.#server?.channel);
        if (channel && this.#live) this.#do.mcpNotify(channel, method, params);
      },
      tools: () => this.#toolsOf(text(this.#server?.channel)),
      say: (words) => this.#ask(t`The app wants to send the agent:`, words, t`Send`, () => this.#do.send(words)),
      open: (url) => this.#ask(t`The app wants to open a page:`, url, t`Open`, () => {
        window.open(url, '_blank', 'noopener,noreferrer');
        return true;
      }),
      context: (words) => this.#do.context(this, text(this.call.displayName) || text(this.call.toolName), words),
      download: (files) => this.#keep(files),
      display: async (mode) => {
        const may = mode !== 'fullscreen' || !this.#wentBack || await this.#ask(t`The app wants to fill the page again.`, '', t`Let it`, () => true);
        const now = may ? this.#display(mode) : this.#display('inline');
        setTimeout(() => this.dress()); // after the next draw
        return now;
      },
      resized: moved,
      called: (name) => {
        this.#shown = { name: 'shown', why: t`The app has called ${name}.` };
        this.#do.draw();
      },
      state: (shown) => {
        this.#shown = shown;
        this.#do.draw();
      },
      ended: () => this.#leave(),
    };
  }

  /** Sends the app the tool's input and result. */
  #tell(): void {
    if (!this.#app) return;
    const { status, toolInput } = this.call;
    if (this.#told.input === undefined || this.#told.input !== toolInput) {
      this.#told.input = (toolInput ?? '') as string;
      this.#app.tell('ui/notifications/tool-input', { arguments: argumentsOf(this.call) });
    }
    if (this.#told.end === status) return;
    if (status === 'completed') this.#app.tell('ui/notifications/tool-result', resultOf(this.call));
    else if (status === 'cancelled') this.#app.tell('ui/notifications/tool-cancelled', { reason: text(this.call.reason) || 'cancelled' });
    else return;
    this.#told.end = status;
  }

  #surroundings(): JsonObject {
    const style = getComputedStyle(document.documentElement);
    const variables: Record<string, string> = {};
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

  /**
   * Asks the user about an app's request. Resolves to act's result if the user agrees, and otherwise to
   * false.
   */
  #ask(question: string, words: string, yes: string, act: () => boolean): Promise<boolean> {
    if (this.#questions.length >= maxQuestions) return Promise.resolve(false);
    return new Promise<boolean>((resolve) => {
      const end = (done: boolean) => {
        this.#questions = this.#questions.filter((q) => q !== node);
        node.remove();
        resolve(done);
      };
      const button = (label: string, className: string, done: () => boolean) => {
        const made = el('button', { type: 'button', className }, label);
        made.addEventListener('click', () => end(done()));
        return made;
      };
      const node: HTMLElement = el('div', { className: 'question', role: 'group', 'aria-label': question },
        el('p', { className: 'name' }, question), el('p', { className: 'text quoted' }, visible(words)),
        button(yes, 'primary', act), button(t`No`, '', () => false));
      this.#questions.push(node);
      this.#at.questions.append(node);
      moved();
    });
  }

  #reopen(): void {
    this.#left = false;
    this.#asked = true;
    this.#shown = { name: '', why: '' };
    this.#do.draw();
  }

  async #leave(): Promise<void> {
    const app = this.#app;
    this.#left = true;
    this.#asked = false;
    this.#shown = { name: '', why: '' };
    for (const node of this.#questions.splice(0)) node.remove();
    this.#display('inline');
    this.#do.context(this, '', '');
    await app?.leave();
    if (this.#app === app) this.#app = null;
    moved();
    this.#do.draw();
  }

  // ---- signing in

  /** Returns the server's request for a sign-in, or undefined if none affects this call. */
  #wants(): AuthRequired | undefined {
    if (!this.#model?.signsIn) return undefined; // a user with more rights must sign in
    if (!['running', 'auth-required'].includes(this.call.status) && !this.#app) return undefined;
    const { state } = this.#server ?? {};
    if (state?.kind === 'authRequired') return state as AuthRequired;
    return this.call.status === 'auth-required' ? this.call.auth : undefined;
  }

  #renderAuth(): void {
    const wants = this.#wants();
    const waits = wants !== undefined && ['running', 'auth-required'].includes(this.call.status);
    this.#node.toggleAttribute('data-waits', waits);
    const badge = this.#node.querySelector<HTMLElement>('.badge')!;
    const word = waits ? t`waits for you` : toolWord(this.call);
    setText(badge, word);
    badge.dataset.tone = waits ? 'wait' : toolTone(this.call);
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
    const [label, says] = signIn[wants.reason ?? ''] ?? signIn.required;
    setText(title, says(this.#name()));
    setText(why, text(wants.description));
    const needed = array(wants.requiredScopes).filter((s) => typeof s === 'string');
    scopes.hidden = needed.length === 0;
    setText(scopes, scopes.hidden ? '' : `Needed: ${needed.join(' ')}`);
    setText(where, whereTo(wants.resource));
    setText(button, label);
    button.disabled = !this.#live;
  }

  #name(): string {
    return text(this.#server?.name) || t`The MCP server`;
  }
}

/** Describes a resource and its authorization servers. */
function whereTo(resource: Resource | undefined): string {
  const name = text(resource?.resource_name);
  const from = array(resource?.authorization_servers).filter((s) => typeof s === 'string');
  return [[name, text(resource?.resource)].filter(Boolean).join(' – '), from.length ? t`Tokens come from ${from.join(', ')}` : ''].filter(Boolean).join('. ');
}

interface SignInForm { node: HTMLElement; title: HTMLElement; why: HTMLElement; scopes: HTMLElement; where: HTMLElement; button: HTMLButtonElement }

function makeSignIn(begin: () => void): SignInForm {
  const title = el('p', { className: 'name' });
  const why = el('p', { className: 'text' });
  const scopes = el('p', { className: 'dim scopes' });
  const where = el('p', { className: 'dim' });
  const button = el('button', { type: 'button', className: 'primary' });
  button.addEventListener('click', begin);
  return { node: el('div', { className: 'sign-in' }, title, why, scopes, where, el('div', { className: 'row start' }, button)), title, why, scopes, where, button };
}
