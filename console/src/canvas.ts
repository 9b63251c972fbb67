// Shows canvases opened by an agent. A canvas is untrusted: it runs in a sandboxed frame with its own origin,
// knows nothing about this page, and can only exchange messages with it.

import type { JsonObject, ResourceContents } from './ahp';
import type { RpcError } from './rpc';
import { t } from './language';

const scheme = 'ahp-canvas-content:';
const maxMessage = 256 * 1024; // characters of JSON from the canvas to its provider
const messagesPerSecond = 50; // average from the canvas
const maxBurst = 200;
const pagesPerSecond = 1; // average of page changes by the canvas
const maxPages = 20;
const maxReads = 8; // concurrent reads of a canvas
const maxWaiting = 5000; // queued reads of a canvas
const maxAddress = 8192; // characters

function isLoopback(hostname: string): boolean {
  return hostname === 'localhost' || hostname === '127.0.0.1';
}

/**
 * How a canvas is loaded:
 *
 *   inband  the page reads its content over the canvas's channel and rebuilds it in the sandbox
 *   direct  the browser loads it from its own address
 *   live    the browser loads it from an origin that the relay provides: see Frame
 *   none    it is not loaded; why gives the reason
 */
export type Way = { name: 'inband' | 'direct' | 'live'; entry: string } | { name: 'none'; why: string };

/**
 * Decides how a canvas is loaded; no other function does. page is this page's address. Data URLs are rebuilt
 * in the sandbox too, with the same limits.
 */
export function wayTo(url: string, instanceId: string, page: string): Way {
  const no = (why: string): Way => ({ name: 'none', why });
  if (!url) return no(t`It has no address now.`);
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    return no(t`Its address is malformed.`);
  }
  const from = new URL(page);
  if (parsed.username || parsed.password) return no(t`Its address contains a user name or a password.`);
  switch (parsed.protocol) {
    case scheme:
      if (instanceOf(url) !== instanceId) return no(t`Its address belongs to a different canvas.`);
      return { name: 'inband', entry: url };
    case 'data:':
      return { name: 'inband', entry: url };
    case 'http:':
      if (!isLoopback(parsed.hostname)) return no(t`Its address begins with http:, which is not safe.`);
      if (!isLoopback(from.hostname)) return no(t`Its address is on the host’s own machine, which is unreachable from here.`);
      break;
    case 'https:':
      break;
    default:
      return no(t`Addresses that begin with ${parsed.protocol} are not opened here.`);
  }
  if (parsed.origin === from.origin) return no(t`Its address is on this relay.`);
  return { name: 'direct', entry: parsed.href };
}

/** The relay's answer to a request for a canvas's address on the web. */
export interface Ticket {
  url: string; // '' if the relay gives none
  expires: number; // ms; when access ends at the latest
  code?: number; // of the error
  why?: string;
}

const refusals = [-32008, -32009]; // the canvas is closed, or this client may not see it
const patience = 3000; // ms between checks whether the canvas is visible, because the client may be about to subscribe
const attempts = 3;
const longest = 2 ** 31 - 1; // ms; the longest delay of a timer

/**
 * Returns the relay's address for a canvas, or '' unless it is a web page at another origin than page. A
 * relay without a canvas domain forwards the request, and the host answers.
 */
export function elsewhere(address: string | undefined, page: string): string {
  try {
    const { protocol, origin, href } = new URL(address!);
    return /^https?:$/.test(protocol) && origin !== page ? href : '';
  } catch {
    return '';
  }
}

/** Returns the instance named by a content address, or undefined. */
function instanceOf(uri: string): string | undefined {
  const [, name] = /^ahp-canvas-content:\/([^/?#]+)/.exec(uri) ?? [];
  try {
    return name && decodeURIComponent(name);
  } catch {
    return undefined;
  }
}

/** Reports whether uri is an address of the instance's own content. */
export function isContentOf(uri: unknown, instanceId: string): uri is string {
  if (typeof uri !== 'string' || uri.length > maxAddress || instanceOf(uri) !== instanceId) return false;
  let path: string;
  try {
    path = decodeURIComponent(uri.replace(/[?#].*$/s, ''));
  } catch {
    return false;
  }
  return !/[\\\p{Cc}]/u.test(path) && !path.split('/').includes('..');
}

/** A resource's content: text or bytes. */
export interface Content { data: string | Uint8Array<ArrayBuffer>; type: string }

/** Reads a resource from the host's answer. */
export function contentOf(result: ResourceContents | undefined): Content {
  const content = Array.isArray(result?.contents) ? result.contents[0] : undefined;
  const type = typeof content?.mimeType === 'string' ? content.mimeType.split(';')[0].trim().toLowerCase() : '';
  if (typeof content?.text === 'string') return { data: content.text, type: type || 'text/plain' };
  if (typeof content?.blob !== 'string') throw new Error(t`The host has sent no content.`);
  const binary = atob(content.blob);
  const data = Uint8Array.from(binary, (c) => c.charCodeAt(0));
  // The host may send text as bytes, too.
  if (/^text\/|javascript|json|xml/.test(type) && type !== 'image/svg+xml') return { data: new TextDecoder().decode(data), type };
  return { data, type: type || 'application/octet-stream' };
}

/** A token bucket: rate events per second on average, and most at once. */
export class Bucket {
  #rate: number;
  #most: number;
  #left: number;
  #at: number;

  constructor(rate: number, most: number, now: number) {
    this.#rate = rate;
    this.#most = most;
    this.#left = most;
    this.#at = now;
  }

  take(now: number): boolean {
    this.#left = Math.min(this.#most, this.#left + ((now - this.#at) / 1000) * this.#rate);
    this.#at = now;
    if (this.#left < 1) return false;
    this.#left--;
    return true;
  }
}

let code: Promise<string> | undefined; // code for the sandbox, loaded when first needed

async function load(file: string): Promise<string> {
  const answer = await fetch(file);
  if (!answer.ok) throw new Error(t`The relay answered ${answer.status}.`);
  return answer.text();
}

/** Returns the sandbox's script: the module lexer as parseModule, then canvas-inband.js. */
async function inBandCode(): Promise<string> {
  // Do not load the lexer as a module: after that, some browsers accept no import map.
  code ??= Promise.all([load('canvas-inband.js'), load('vendor/es-module-lexer.js')]).then(([text, lexer]) => (
    `const parseModule = (() => {\n${lexer.replace(/\bexport (?=const |function )/g, '')}\nreturn parse;\n})();\n${text}`));
  try {
    return await code;
  } catch (err) {
    code = undefined; // allows a retry
    throw err;
  }
}

/** The state of a Frame's load. */
export interface FrameState { name: '' | 'loading' | 'shown' | 'refused' | 'failed' | 'ended'; why: string }

/** The callbacks of a Frame. */
export interface FrameEvents {
  read(uri: string): Promise<ResourceContents>; // asks the host for content
  ticket(uri: string): Promise<Ticket>; // asks the relay for the content's address on the web
  message(payload: unknown): void; // a message from the canvas to its provider
  state(state: FrameState): void;
}

/** A request by the sandbox for content. */
interface Read { port: MessagePort; id: number; uri: string }

/** A Frame shows one canvas in a node. */
export class Frame {
  #parent: HTMLElement;
  #on: FrameEvents;
  #instance: string;
  #turn = 0;
  #origin = 'null'; // of the frame's content
  #iframe: HTMLIFrameElement | null = null;
  #live = ''; // address of content with its own origin
  #expires = 0; // latest time at which the relay ends the access
  #timer: ReturnType<typeof setTimeout> | undefined;
  #port: MessagePort | null = null;
  #loading = false; // the frame has not reported success or failure yet
  #bucket = new Bucket(messagesPerSecond, maxBurst, performance.now());
  #turns = new Bucket(pagesPerSecond, maxPages, performance.now());
  #reading = 0;
  #queue: Read[] = [];
  #listen = (event: MessageEvent) => this.#heard(event);

  constructor(parent: HTMLElement, instanceId: string, on: FrameEvents) {
    this.#parent = parent;
    this.#instance = instanceId;
    this.#on = on;
    addEventListener('message', this.#listen);
  }

  /** Loads the canvas from an address and replaces the previous content. */
  async load(url: string): Promise<void> {
    this.#clear();
    const turn = ++this.#turn;
    let way = wayTo(url, this.#instance, location.href);
    if (way.name === 'none') {
      this.#on.state({ name: 'refused', why: way.why });
      return;
    }
    this.#on.state({ name: 'loading', why: '' });
    // If the relay has a canvas domain, the host's content gets an origin of its own there and is loaded as
    // an ordinary page.
    if (way.name === 'inband' && url.startsWith(scheme)) {
      const ticket: Ticket = await this.#on.ticket(url);
      if (turn !== this.#turn) return; // a newer load has started
      if (ticket.url !== '') {
        way = { name: 'live', entry: ticket.url };
        this.#live = url;
        this.#expires = ticket.expires;
        this.#await();
      }
    }
    const { name, entry } = way;
    const page = { inband: 'canvas-inband.html', direct: 'canvas-direct.html', live: entry }[name];
    const iframe = document.createElement('iframe');
    iframe.title = t`Canvas`;
    iframe.sandbox.value = 'allow-scripts'; // allow-same-origin only for content with its own origin
    if (name === 'live') {
      iframe.sandbox.value = 'allow-scripts allow-same-origin allow-forms allow-modals';
      iframe.allow = 'fullscreen; clipboard-write';
      this.#origin = new URL(entry).origin;
    }
    iframe.referrerPolicy = 'no-referrer';
    iframe.src = page;
    iframe.addEventListener('load', () => {
      if (name !== 'live') this.#begin(iframe, name, entry);
      else if (iframe === this.#iframe) {
        this.#on.state({ name: 'shown', why: '' });
        this.#await(); // the canvas may have ended during the load
      }
    }, { once: true });
    this.#iframe = iframe;
    this.#parent.append(iframe);
  }

  /**
   * Checks whether this client may still see a canvas that has its own origin, and reports the canvas's end.
   */
  async check(): Promise<void> {
    const turn = this.#turn;
    const ended = (why: string) => this.#on.state({ name: 'ended', why });
    for (let left = attempts; this.#live !== ''; left--) {
      if (Date.now() >= this.#expires) return ended(t`It was open for too long.`);
      const ticket: Ticket = await this.#on.ticket(this.#live);
      if (turn !== this.#turn) return;
      // The same canvas of the same client has the same origin.
      if (ticket.url !== '') return new URL(ticket.url).origin === this.#origin ? this.#on.state({ name: 'shown', why: '' }) : ended(t`It was opened with other rights.`);
      if (!refusals.includes(ticket.code!)) return; // not an answer about the canvas
      if (left <= 1) return ended(t`The host does not show it to you any more: ${ticket.why}`);
      await new Promise((done) => { setTimeout(done, patience); });
      if (turn !== this.#turn) return;
    }
  }

  #await(): void {
    clearTimeout(this.#timer);
    const left = this.#expires - Date.now();
    this.#timer = setTimeout(() => { if (left > longest) this.#await(); else this.check(); }, Math.max(0, Math.min(left, longest)));
  }

  /** Delivers a provider's message to the canvas. */
  deliver(payload: unknown): void {
    // A sandboxed frame has an opaque origin, so '*' is required. The frame contains
    // only the canvas.
    this.#iframe?.contentWindow?.postMessage(payload, this.#origin === 'null' ? '*' : this.#origin);
  }

  /** Closes the frame. No callback runs after this. */
  close(): void {
    removeEventListener('message', this.#listen);
    this.#clear();
    this.#on = { read: () => Promise.reject(new Error('closed')), ticket: () => Promise.resolve({ url: '', expires: 0 }), message() {}, state() {} };
  }

  #clear(): void {
    this.#turn++;
    this.#origin = 'null';
    this.#live = '';
    clearTimeout(this.#timer);
    this.#iframe?.remove();
    this.#port?.close();
    this.#iframe = this.#port = null;
    this.#loading = false;
    this.#queue = [];
  }

  // #begin starts the sandbox in a frame with our own page, which has no canvas content yet. That page
  // accepts its first message only with a port, which no other sender has.
  async #begin(iframe: HTMLIFrameElement, name: 'inband' | 'direct', entry: string): Promise<void> {
    const message: { entry: string; code?: string; content?: Content } = { entry };
    try {
      if (name === 'inband') message.code = await inBandCode();
      if (name === 'inband' && entry.startsWith(scheme)) message.content = contentOf(await this.#on.read(entry));
    } catch (err) {
      if (iframe === this.#iframe) this.#on.state({ name: 'failed', why: (err as Error).message });
      return;
    }
    if (iframe !== this.#iframe) return;
    const { port1, port2 } = new MessageChannel();
    if (name === 'inband') port1.onmessage = ({ data }) => this.#asked(port1, data);
    this.#port = port1;
    this.#loading = name === 'inband';
    iframe.contentWindow?.postMessage(message, '*', [port2]);
    if (name === 'direct') this.#on.state({ name: 'shown', why: '' });
  }

  // #heard handles a message from the canvas to its provider. Any page can post
  // messages, so it checks the source.
  #heard({ source, origin, data }: MessageEvent): void {
    if (!this.#iframe || source !== this.#iframe.contentWindow || origin !== this.#origin) return;
    let json: string | undefined;
    try {
      json = JSON.stringify(data);
    } catch {
      return; // not JSON
    }
    if (json === undefined || json.length > maxMessage || !this.#bucket.take(performance.now())) {
      this.#on.state({ name: 'shown', why: t`It sends too much: some messages were dropped.` });
      return;
    }
    this.#on.message(JSON.parse(json));
  }

  // #asked handles the sandbox's requests. Untrusted code may send them, so they permit only three things:
  // reading the canvas's own content, replacing the page in this frame, and reporting once that the canvas is
  // ready or cannot be shown. The page shows no text from these messages.
  #asked(port: MessagePort, asked: unknown): void {
    if (port !== this.#port || asked === null || typeof asked !== 'object') return;
    const { id, uri, navigate, ended } = asked as JsonObject;
    if (ended === 'shown' || ended === 'failed') this.#ended(ended);
    else if (navigate !== undefined) {
      if (isContentOf(navigate, this.#instance) && this.#turns.take(performance.now())) this.load(navigate);
    } else if (!Number.isSafeInteger(id)) return;
    else if (!isContentOf(uri, this.#instance)) port.postMessage({ id, error: 'not content of this canvas' });
    else if (this.#queue.length >= maxWaiting) port.postMessage({ id, error: 'too many reads at once' });
    else {
      this.#queue.push({ port, id: id as number, uri });
      this.#pump();
    }
  }

  #ended(name: 'shown' | 'failed'): void {
    if (this.#loading) this.#on.state({ name, why: name === 'failed' ? t`This page cannot show its content.` : '' });
    this.#loading = false;
  }

  async #pump(): Promise<void> {
    const next = this.#reading < maxReads ? this.#queue.shift() : undefined;
    if (!next) return;
    const { port, id, uri } = next;
    this.#reading++;
    try {
      port.postMessage({ id, ...contentOf(await this.#on.read(uri)) });
    } catch (err) {
      port.postMessage({ id, error: (err as Error).message, code: (err as RpcError).code });
    }
    this.#reading--;
    this.#pump();
  }
}
