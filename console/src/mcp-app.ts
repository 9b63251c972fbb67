// Shows MCP Apps (SEP-1865): user interfaces from MCP servers, each beside its tool call. An app is
// untrusted. It runs in a sandboxed frame with its own origin, and can only exchange JSON-RPC messages with
// this page through the Bridge. The page answers ui/… itself. It forwards the methods that the host has
// promised to the app's own server, over the server's mcp:// channel.

import type { Block, ErrorObject, Id, JsonObject, McpCapabilities, Message, Params, Result, ResourceContents, Tool, ToolCall } from './ahp';
import { Bucket } from './canvas';
import type { McpRequest } from './rpc';
import { t } from './language';

const versions = ['2026-01-26', '2025-11-21']; // MCP Apps versions, best first
const maxMessage = 256 * 1024; // characters of JSON from the app
const maxDownload = 32 * 1024 * 1024; // characters of JSON for files to save
const maxContext = 64 * 1024; // characters of context for the agent
const messagesPerSecond = 50; // average from the app
const maxBurst = 200;
const maxCalls = 16; // concurrent calls of the app
const maxWaiting = 100; // notifications queued for an app that has not initialized
const maxToken = 200; // characters of a progress token
const teardownTime = 500; // ms an app has to end
const leastHeight = 48; // px
const mostHeight = 640;

const refused = -32000;
const invalidParams = -32602;
const methodNotFound = -32601;

// The capability in AhpMcpUiHostCapabilities for each server method.
const needs: Record<string, keyof McpCapabilities> = {
  'tools/list': 'serverTools',
  'tools/call': 'serverTools',
  'resources/list': 'serverResources',
  'resources/templates/list': 'serverResources',
  'resources/read': 'serverResources',
  'logging/setLevel': 'logging',
  'sampling/createMessage': 'sampling',
};
const lists: Record<string, 'serverTools' | 'serverResources'> = {
  'notifications/tools/list_changed': 'serverTools',
  'notifications/resources/list_changed': 'serverResources',
};

/** Returns the address of a tool call's app, or ''. */
export function appOf(call: ToolCall | undefined): string {
  if (call?.contributor?.kind !== 'mcp') return '';
  const uri = call._meta?.ui?.resourceUri ?? call._meta?.['ui/resourceUri'];
  return typeof uri === 'string' && uri.startsWith('ui://') ? uri : '';
}

/** Returns a tool call's arguments. */
export function argumentsOf(call: ToolCall): JsonObject {
  try {
    const input: unknown = JSON.parse((call.toolInput ?? '') as string);
    return isObject(input) ? input : {};
  } catch {
    return {};
  }
}

/** A CallToolResult of MCP. */
export interface ToolResult { content: Block[]; structuredContent?: unknown; isError?: boolean }

/** Returns a tool call's result as an MCP CallToolResult. */
export function resultOf(call: ToolCall): ToolResult {
  const known = ['text', 'image', 'audio', 'resource', 'resource_link'];
  const content = (Array.isArray(call.content) ? call.content : []).filter((c) => known.includes(c?.type ?? ''));
  if (content.length === 0 && typeof call.error?.message === 'string') content.push({ type: 'text', text: call.error.message });
  const result: ToolResult = { content };
  if (call.structuredContent !== undefined) result.structuredContent = call.structuredContent;
  if (call.success === false) result.isError = true;
  return result;
}

/** An app's HTML, and its sandbox requirements. */
export interface AppContent { html: string; meta: AppMeta }

/** Requirements that an app declares. */
export interface AppMeta { csp?: { resourceDomains?: unknown; connectDomains?: unknown }; prefersBorder?: unknown }

/** Reads an app from the server's answer. */
export function htmlOf(result: ResourceContents | undefined, uri: string): AppContent {
  const contents = Array.isArray(result?.contents) ? result.contents : [];
  const found = contents.find((c) => c?.uri === uri) ?? contents[0];
  const type = String(found?.mimeType ?? '').replaceAll(' ', '').toLowerCase();
  if (!type.startsWith('text/html;') || !type.includes('profile=mcp-app')) throw new Error(t`The server has sent something other than an app.`);
  const meta = isObject(found?._meta?.ui) ? found._meta.ui : {};
  if (typeof found?.text === 'string') return { html: found.text, meta };
  if (typeof found?.blob !== 'string') throw new Error(t`The server has sent an empty app.`);
  return { html: new TextDecoder().decode(Uint8Array.from(atob(found.blob), (c) => c.charCodeAt(0))), meta };
}

/** A kind of dynamic code. */
export type CodeKind = 'eval' | 'wasm' | 'worker';

/**
 * Returns the kinds of dynamic code (eval, wasm, worker) that an app declares. The user must agree to them.
 */
export function codeOf(meta: AppMeta | undefined): CodeKind[] {
  const declared = meta?.csp?.resourceDomains;
  const kinds: Record<string, CodeKind> = { "'unsafe-eval'": 'eval', "'wasm-unsafe-eval'": 'wasm', 'blob:': 'worker' };
  return Object.entries(kinds).filter(([source]) => Array.isArray(declared) && declared.includes(source)).map(([, kind]) => kind);
}

/**
 * Returns the sandbox's address for an app, with the domains that it declares and the kinds of code that the
 * user permits. The relay checks both.
 */
export function sandboxFor(meta: AppMeta | undefined, allowed: string[] = []): string {
  const params = new URLSearchParams();
  for (const kind of allowed) params.append('allow', kind);
  for (const [name, domains] of Object.entries({ connect: meta?.csp?.connectDomains, resource: meta?.csp?.resourceDomains })) {
    for (const domain of Array.isArray(domains) ? domains : []) if (typeof domain === 'string') params.append(name, domain);
  }
  return params.size ? `mcp-app.html?${params}` : 'mcp-app.html';
}

function failure(code: number, message: string): Error & { code: number } {
  return Object.assign(new Error(message), { code });
}

function isObject<T>(value: T): value is T & (unknown extends T ? JsonObject : object) {
  return value !== null && typeof value === 'object' && !Array.isArray(value);
}

/** A file that an app wants to save. */
export interface Download { name: string; data: Uint8Array<ArrayBuffer> }

export type DisplayMode = 'inline' | 'fullscreen';

/** The callbacks of a Bridge. A promise of a boolean resolves to the user's decision. */
export interface BridgeEvents {
  send(message: Omit<Message, 'params'> & { params?: object }): void; // posts a message to the app
  capabilities(): McpCapabilities;
  surroundings(): JsonObject; // hostContext
  call(method: string, params: JsonObject): McpRequest<unknown>; // sends the server a request
  notify(method: string, params: JsonObject): void; // sends the server a notification
  tools(): Promise<Tool[]>; // the server's tools
  say(text: string): Promise<boolean>; // sends text to the agent
  open(url: string): Promise<boolean>; // opens a page
  context(text: string): boolean; // adds text to the user's next message; '' removes it; false: refused
  download(files: Download[]): Promise<boolean>; // saves files
  display(mode: DisplayMode): Promise<DisplayMode>; // returns the mode that applies now
  resize(height: number): void;
  called(name: string): void; // the app has called a tool
  ended(): void; // the app asks to be closed
}

/** An open request by the app. */
interface Entry { cancel?: (reason: string) => void; cancelled?: string }

/** A Bridge exchanges JSON-RPC messages with one app. */
export class Bridge {
  #on: BridgeEvents;
  #begun = false; // the app has initialized
  #waiting: [string, object][] = []; // notifications for an app that has not initialized yet
  #bucket: Bucket;
  #calls = new Map<unknown, Entry>(); // by the app's request id
  #asked = new Map<unknown, (value: unknown) => void>(); // our request id to the function that resolves it
  #ids = 0;
  #tokens = new Map<unknown, unknown>(); // our progress tokens to the app's
  #tokenCount = 0;
  #name: string; // prefix of its progress tokens, so they differ from other apps'
  #modes: unknown[] = []; // display modes of the app
  #closed = false;

  constructor(on: BridgeEvents, name: string, now = performance.now()) {
    this.#on = on;
    this.#name = name;
    this.#bucket = new Bucket(messagesPerSecond, maxBurst, now);
  }

  /** Sends the app a notification, once it has initialized. */
  tell(method: string, params: object): void {
    if (this.#begun) this.#notify(method, params);
    else if (this.#waiting.length < maxWaiting) this.#waiting.push([method, params]);
  }

  /** Forwards a server's notification on the app's channel. */
  serverSaid(method: string, params: Params): void {
    if (Object.hasOwn(lists, method)) {
      if (this.#on.capabilities()[lists[method]]?.listChanged === true) this.tell(method, params);
    } else if (method === 'notifications/progress' && this.#tokens.has(params?.progressToken)) {
      this.tell(method, { ...params, progressToken: this.#tokens.get(params.progressToken) });
    }
  }

  /** Asks the app to end, and waits for a short time. */
  async teardown(): Promise<void> {
    if (!this.#begun || this.#closed) return;
    const id = `console-${++this.#ids}`;
    const answered = new Promise((resolve) => this.#asked.set(id, resolve));
    this.#on.send({ jsonrpc: '2.0', id, method: 'ui/resource-teardown', params: {} });
    await Promise.race([answered, new Promise((resolve) => setTimeout(resolve, teardownTime))]);
  }

  /** Closes the bridge and cancels the app's calls. Nothing is sent after this. */
  close(): void {
    this.#closed = true;
    for (const { cancel } of this.#calls.values()) cancel?.('The app was closed.');
    this.#calls.clear();
  }

  /** Handles a message posted by the app. */
  async heard(data: unknown, now = performance.now()): Promise<void> {
    if (this.#closed || !isObject(data) || data.jsonrpc !== '2.0') return;
    let message: Message;
    try {
      const json = JSON.stringify(data);
      if (json.length > (data.method === 'ui/download-file' ? maxDownload : maxMessage)) throw new Error();
      message = JSON.parse(json); // drops values that are not JSON
    } catch {
      this.#refuse(data.id, 'The message is too large or not JSON.');
      return;
    }
    const { id, method, params } = message;
    const isRequest = id !== undefined;
    if (isRequest && typeof id !== 'string' && !Number.isFinite(id)) return;
    if (typeof method !== 'string') {
      this.#asked.get(id)?.(undefined);
      this.#asked.delete(id);
    } else if (!this.#bucket.take(now)) {
      if (isRequest) this.#refuse(id, 'Too many messages.');
    } else if (isRequest) await this.#request(id, method, isObject(params) ? params : {});
    else this.#notified(method, isObject(params) ? params : {});
  }

  #notify(method: string, params: object): void {
    if (!this.#closed) this.#on.send({ jsonrpc: '2.0', method, params });
  }

  #refuse(id: unknown, message: string, code = refused): void {
    if (!this.#closed && (typeof id === 'string' || Number.isFinite(id))) this.#on.send({ jsonrpc: '2.0', id: id as Id, error: { code, message } });
  }

  async #request(id: string | number, method: string, params: JsonObject): Promise<void> {
    if (this.#calls.size >= maxCalls) return this.#refuse(id, 'Too many requests at once.');
    if (this.#calls.has(id)) return this.#refuse(id, 'The id is in use.', -32600);
    const entry: Entry = {};
    this.#calls.set(id, entry);
    let answer: Pick<Message, 'result' | 'error'>;
    try {
      answer = { result: (await this.#served(entry, method, params)) ?? {} };
    } catch (error) {
      const err = error as ErrorObject;
      answer = { error: { code: Number.isInteger(err.code) ? err.code : refused, message: err.message, ...(err.data === undefined ? {} : { data: err.data }) } };
    }
    if (this.#calls.get(id) === entry) this.#calls.delete(id);
    if (!this.#closed) this.#on.send({ jsonrpc: '2.0', id, ...answer });
  }

  #served(entry: Entry, method: string, params: JsonObject): unknown {
    switch (method) {
      case 'ping':
        return {};
      case 'ui/initialize':
        return this.#initialized(params);
      case 'ui/request-display-mode':
        return this.#display(params.mode);
      case 'ui/open-link':
        return this.#open(params.url);
      case 'ui/message':
        return this.#say(params);
      case 'ui/update-model-context':
        return this.#context(params);
      case 'ui/download-file':
        return this.#download(entry, params);
      case 'tools/call':
        return this.#callTool(entry, params);
    }
    return this.#passOn(entry, method, params);
  }

  #initialized({ protocolVersion, appCapabilities }: JsonObject): JsonObject {
    const caps = this.#on.capabilities();
    const modes = (appCapabilities as { availableDisplayModes?: unknown } | undefined)?.availableDisplayModes;
    this.#modes = Array.isArray(modes) ? modes : [];
    const hostCapabilities: JsonObject = { openLinks: {}, downloadFile: {}, message: { text: {} }, updateModelContext: { text: {}, structuredContent: {} }, sandbox: {} };
    for (const name of ['serverTools', 'serverResources'] as const) {
      if (isObject(caps[name])) hostCapabilities[name] = caps[name].listChanged === true ? { listChanged: true } : {};
    }
    if (isObject(caps.logging)) hostCapabilities.logging = {};
    if (isObject(caps.sampling)) hostCapabilities.sampling = isObject(caps.sampling.tools) ? { tools: {} } : {};
    return {
      protocolVersion: versions.includes(protocolVersion as string) ? protocolVersion : versions[0],
      hostInfo: { name: 'ahp-relay-console', version: '1' },
      hostCapabilities,
      hostContext: this.#on.surroundings(),
    };
  }

  async #open(url: unknown): Promise<JsonObject> {
    let parsed: URL;
    try {
      parsed = new URL(url as string);
    } catch {
      throw failure(invalidParams, 'Not an address.');
    }
    if (parsed.protocol !== 'https:' || parsed.username || parsed.password) return { isError: true };
    return (await this.#on.open(parsed.href)) ? {} : { isError: true };
  }

  async #say({ role, content }: JsonObject): Promise<JsonObject> {
    const blocks = Array.isArray(content) ? content : [content];
    const text = blocks.map((b) => (b?.type === 'text' && typeof b.text === 'string' ? b.text : '')).join('\n').trim();
    if (role !== 'user' || text === '') throw failure(invalidParams, 'Only text of the user can be sent.');
    return (await this.#on.say(text)) ? {} : { isError: true };
  }

  async #display(mode: unknown): Promise<JsonObject> {
    return { mode: await this.#on.display(mode === 'fullscreen' && this.#modes.includes('fullscreen') ? 'fullscreen' : 'inline') };
  }

  // The new context replaces the previous one.
  #context({ content, structuredContent }: JsonObject): JsonObject {
    const blocks: unknown = content === undefined ? [] : content;
    if (!Array.isArray(blocks) || blocks.some((b: Block | null) => b?.type !== 'text' || typeof b.text !== 'string')) throw failure(invalidParams, 'Only text can be in the context.');
    const parts = blocks.map((b: Block) => b.text!);
    if (isObject(structuredContent) && Object.keys(structuredContent).length > 0) parts.push(JSON.stringify(structuredContent, null, 2));
    const text = parts.join('\n').trim();
    if (text.length > maxContext) throw failure(invalidParams, 'The context is too long.');
    if (!this.#on.context(text)) throw failure(refused, 'The context cannot be stored now.');
    return {};
  }

  async #download(entry: Entry, { contents }: JsonObject): Promise<JsonObject> {
    if (!Array.isArray(contents) || contents.length === 0 || contents.length > 20) throw failure(invalidParams, 'No contents to keep.');
    const files: Download[] = [];
    for (const c of contents) {
      if (c?.type === 'resource') files.push(fileOf(c.resource, c.resource?.uri));
      else if (c?.type === 'resource_link' && /^https?:/i.test(c.uri)) return this.#open(c.uri);
      else if (c?.type === 'resource_link') {
        const read = await this.#passOn(entry, 'resources/read', { uri: c.uri });
        files.push(fileOf((read as Result<'resources/read'> | undefined)?.contents?.[0], c.name ?? c.uri));
      } else throw failure(invalidParams, 'Only resources, and links to them, can be saved.');
    }
    return (await this.#on.download(files)) ? {} : { isError: true };
  }

  // An app must not call a tool reserved for the model.
  async #callTool(entry: Entry, params: JsonObject): Promise<unknown> {
    this.#check('tools/call');
    const tool = (await this.#on.tools()).find((t) => t?.name === params.name);
    const visible = tool?._meta?.ui?.visibility;
    if (Array.isArray(visible) && !visible.includes('app')) throw failure(invalidParams, `Not a tool for apps: ${params.name}`);
    if (entry.cancelled || this.#closed) throw failure(refused, 'cancelled');
    this.#on.called(String(params.name));
    return this.#passOn(entry, 'tools/call', params);
  }

  #check(method: string): void {
    const need = Object.hasOwn(needs, method) ? needs[method] : undefined;
    if (!need || !isObject(this.#on.capabilities()[need])) throw failure(methodNotFound, `Method not found: ${method}`);
  }

  async #passOn(entry: Entry, method: string, params: JsonObject): Promise<unknown> {
    this.#check(method);
    const { channel, ...rest } = params; // the app must not choose the channel
    let token: string | undefined;
    const own = (rest._meta as JsonObject | undefined)?.progressToken;
    if (Number.isFinite(own) || (typeof own === 'string' && own.length <= maxToken)) {
      token = `${this.#name}-${++this.#tokenCount}`;
      this.#tokens.set(token, own);
      rest._meta = { ...rest._meta as JsonObject, progressToken: token };
    }
    const { result, cancel } = this.#on.call(method, rest);
    entry.cancel = cancel;
    if (entry.cancelled) cancel(entry.cancelled);
    try {
      return await result;
    } finally {
      this.#tokens.delete(token);
    }
  }

  #notified(method: string, params: JsonObject): void {
    switch (method) {
      case 'ui/notifications/initialized':
        this.#begun = true;
        for (const [method, params] of this.#waiting.splice(0)) this.#notify(method, params);
        break;
      case 'ui/notifications/size-changed':
        if (Number.isFinite(params.height)) this.#on.resize(Math.min(mostHeight, Math.max(leastHeight, params.height as number)));
        break;
      case 'ui/notifications/request-teardown':
        this.#on.ended();
        break;
      case 'notifications/message':
        if (isObject(this.#on.capabilities().logging)) {
          const { channel, ...rest } = params;
          this.#on.notify(method, rest);
        }
        break;
      case 'notifications/cancelled': {
        const entry = this.#calls.get(params.requestId);
        if (!entry) break;
        entry.cancelled = typeof params.reason === 'string' ? params.reason : 'cancelled';
        entry.cancel?.(entry.cancelled);
      }
    }
  }
}

/** Returns a resource as a file. The name is the last part of its address, without unsafe characters. */
function fileOf(resource: { text?: unknown; blob?: unknown } | undefined, address: unknown): Download {
  const last = String(address ?? '').split(/[?#]/)[0].split(/[/\\]/).filter(Boolean).at(-1) ?? '';
  let name = last;
  try {
    name = decodeURIComponent(last);
  } catch { /* as it is */ }
  name = name.replace(/[\p{Cc}\p{Cf}<>:"/\\|?*]/gu, '_').replace(/^\.+/, '').slice(0, 120) || 'download';
  if (typeof resource?.text === 'string') return { name, data: new TextEncoder().encode(resource.text) };
  if (typeof resource?.blob !== 'string') throw failure(invalidParams, 'A resource without content.');
  try {
    return { name, data: Uint8Array.from(atob(resource.blob), (c) => c.charCodeAt(0)) };
  } catch {
    throw failure(invalidParams, 'The resource’s content is malformed.');
  }
}

let count = 0; // apps created so far

/** The callbacks of an App. */
export interface AppEvents extends Omit<BridgeEvents, 'send' | 'resize'> {
  state(state: AppState): void;
  resized(): void; // its frame has another height
}

/** The state of an app's load. */
export interface AppState { name: '' | 'shown' | 'failed'; why: string }

/** An App shows one app in a node, with its own Bridge. */
export class App {
  #parent: HTMLElement;
  #on: AppEvents;
  #iframe: HTMLIFrameElement | null = null;
  #bridge: Bridge | null = null;
  #listen = ({ source, origin, data }: MessageEvent) => {
    // Other pages, and this page's other frames, can also post messages.
    if (this.#iframe && source === this.#iframe.contentWindow && origin === 'null') this.#bridge?.heard(data);
  };

  constructor(parent: HTMLElement, on: AppEvents) {
    this.#parent = parent;
    this.#on = on;
    addEventListener('message', this.#listen);
  }

  /** Shows an app in place of the previous one. allowed has the permitted kinds from codeOf(meta). */
  load({ html, meta }: AppContent, allowed: CodeKind[] = []): void {
    this.#clear();
    const iframe = document.createElement('iframe');
    iframe.title = 'MCP App';
    iframe.sandbox.value = 'allow-scripts'; // never allow-same-origin
    iframe.referrerPolicy = 'no-referrer';
    iframe.allow = ''; // no camera, microphone or location
    iframe.src = sandboxFor(meta, allowed);
    this.#bridge = new Bridge({
      ...this.#on,
      // A sandboxed frame has an opaque origin, so '*' is required. The frame contains
      // only the app.
      send: (message) => iframe.contentWindow?.postMessage(message, '*'),
      resize: (height) => {
        const now = String(Math.ceil(height));
        if (iframe.height !== now) this.#on.resized();
        iframe.height = now;
      },
    }, `app-${++count}`);
    iframe.addEventListener('load', () => {
      iframe.contentWindow?.postMessage({ html }, '*', [new MessageChannel().port2]); // starts the sandbox page
      this.#on.state({ name: 'shown', why: '' });
    }, { once: true });
    this.#iframe = iframe;
    this.#parent.append(iframe);
  }

  tell(method: string, params: object): void {
    this.#bridge?.tell(method, params);
  }

  serverSaid(method: string, params: Params): void {
    this.#bridge?.serverSaid(method, params);
  }

  /** Lets the app end in good order, and then closes it. */
  async leave(): Promise<void> {
    await this.#bridge?.teardown();
    this.close();
  }

  /** Closes the app at once. No callback runs after this. */
  close(): void {
    removeEventListener('message', this.#listen);
    this.#clear();
  }

  #clear(): void {
    this.#bridge?.close();
    this.#iframe?.remove();
    this.#bridge = this.#iframe = null;
  }
}
