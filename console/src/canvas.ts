// Renders canvases opened by an agent. A canvas is untrusted and knows nothing about
// this page: it runs in a sandboxed frame with its own origin and exchanges only
// messages with the page.

const scheme = 'ahp-canvas-content:';
const maxMessage = 256 * 1024; // characters of JSON from the canvas to its provider
const messagesPerSecond = 50; // average from the canvas
const maxBurst = 200;
const pagesPerSecond = 1; // average of page changes by the canvas
const maxPages = 20;
const maxReads = 8; // concurrent reads of a canvas
const maxWaiting = 5000; // queued reads of a canvas
const maxAddress = 8192; // characters

function isLoopback(hostname) {
  return hostname === 'localhost' || hostname === '127.0.0.1';
}

/**
 * How a canvas is loaded: the one place that decides it. Returns {name, entry},
 * name being
 *
 *   inband  its content is read over its channel, and rebuilt in the sandbox
 *   direct  the browser loads it from where it is
 *   live    the same, at an origin that the relay has given it: see Frame
 *   none    it is not loaded; why says the reason
 *
 * url is the canvas's, instanceId the canvas's own, page the address of this
 * page. Data URLs are rebuilt too, so that they reach as little.
 */
export function wayTo(url: string, instanceId: string, page: string): any {
  const no = (why: string): any => ({ name: 'none', why });
  if (!url) return no('It has no address now.');
  let parsed;
  try {
    parsed = new URL(url);
  } catch {
    return no('Its address is malformed.');
  }
  const from = new URL(page);
  if (parsed.username || parsed.password) return no('Its address contains a user name or a password.');
  switch (parsed.protocol) {
    case scheme:
      if (instanceOf(url) !== instanceId) return no('Its address belongs to a different canvas.');
      return { name: 'inband', entry: url };
    case 'data:':
      return { name: 'inband', entry: url };
    case 'http:':
      if (!isLoopback(parsed.hostname)) return no('Its address begins with http:, which is not safe.');
      if (!isLoopback(from.hostname)) return no("Its address is on the host's own machine, which is unreachable from here.");
      break;
    case 'https:':
      break;
    default:
      return no(`Addresses that begin with ${parsed.protocol} are not opened here.`);
  }
  if (parsed.origin === from.origin) return no('Its address is on this relay.');
  return { name: 'direct', entry: parsed.href };
}

/** What the relay answers that is asked for an address of a canvas on the web. */
export interface Ticket {
  url: string; // '' if the relay gives none
  expires: number; // ms; when access ends at the latest
  code?: number; // of the error
  why?: string;
}

const refusals = [-32008, -32009]; // the canvas is closed, or this client may not see it
const patience = 3000; // ms between checks whether the canvas is visible: the client may be about to subscribe
const attempts = 3;
const longest = 2 ** 31 - 1; // ms; limit for a timer

/** An address that a relay gives; '' for what is none of a page at another origin than the page's. A relay without a canvas domain has the host answer. */
export function elsewhere(address: any, page: string): string {
  try {
    const { protocol, origin, href } = new URL(address);
    return /^https?:$/.test(protocol) && origin !== page ? href : '';
  } catch {
    return '';
  }
}

/** The instance that an address of content names, undefined if none. */
function instanceOf(uri) {
  const [, name] = /^ahp-canvas-content:\/([^/?#]+)/.exec(uri) ?? [];
  try {
    return name && decodeURIComponent(name);
  } catch {
    return undefined;
  }
}

/** Whether something is an address of an instance's own content. */
export function isContentOf(uri, instanceId) {
  if (typeof uri !== 'string' || uri.length > maxAddress || instanceOf(uri) !== instanceId) return false;
  let path;
  try {
    path = decodeURIComponent(uri.replace(/[?#].*$/s, ''));
  } catch {
    return false;
  }
  return !/[\\\p{Cc}]/u.test(path) && !path.split('/').includes('..');
}

/** What a host says of a resource, as {data, type}: data is a string or bytes. */
export function contentOf(result) {
  const content = Array.isArray(result?.contents) ? result.contents[0] : undefined;
  const type = typeof content?.mimeType === 'string' ? content.mimeType.split(';')[0].trim().toLowerCase() : '';
  if (typeof content?.text === 'string') return { data: content.text, type: type || 'text/plain' };
  if (typeof content?.blob !== 'string') throw new Error('The host has sent no content.');
  const binary = atob(content.blob);
  const data = Uint8Array.from(binary, (c) => c.charCodeAt(0));
  // The host may send text as bytes, too.
  if (/^text\/|javascript|json|xml/.test(type) && type !== 'image/svg+xml') return { data: new TextDecoder().decode(data), type };
  return { data, type: type || 'application/octet-stream' };
}

/** Allows so many things per second, on average. */
export class Bucket {
  #rate: number;
  #most: number;
  #left: number;
  #at: number;

  constructor(rate, most, now) {
    this.#rate = rate;
    this.#most = most;
    this.#left = most;
    this.#at = now;
  }

  take(now) {
    this.#left = Math.min(this.#most, this.#left + ((now - this.#at) / 1000) * this.#rate);
    this.#at = now;
    if (this.#left < 1) return false;
    this.#left--;
    return true;
  }
}

let code: any; // code for the sandbox, loaded when first needed

async function load(file) {
  const answer = await fetch(file);
  if (!answer.ok) throw new Error(`The relay answered ${answer.status}.`);
  return answer.text();
}

/** A script: canvas-inband.js, and before it what it reads modules with, as parseModule. */
async function inBandCode() {
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

/**
 * A Frame shows one canvas in a node. `on` has the callbacks
 *
 *   read(uri)         asks the host for content: a promise of what it says
 *   ticket(uri)       asks the relay for an address on the web of content: a
 *                     promise of a Ticket
 *   message(payload)  the canvas says something to its provider
 *   state({name, why}) name is loading, shown, refused, failed or ended
 */
export class Frame {
  #parent: any;
  #on: any;
  #instance: string;
  #turn = 0;
  #origin = 'null'; // of the frame's content
  #iframe: any = null;
  #live = ''; // address of content with its own origin
  #expires = 0; // when the relay ends that access at the latest
  #timer: any;
  #port: any = null;
  #loading = false; // the frame has not reported success or failure yet
  #bucket = new Bucket(messagesPerSecond, maxBurst, performance.now());
  #turns = new Bucket(pagesPerSecond, maxPages, performance.now());
  #reading = 0;
  #queue: any[] = [];
  #listen = (event: any) => this.#heard(event);

  constructor(parent, instanceId, on) {
    this.#parent = parent;
    this.#instance = instanceId;
    this.#on = on;
    addEventListener('message', this.#listen);
  }

  /** Loads the canvas from an address, in place of what was there. */
  async load(url) {
    this.#clear();
    const turn = ++this.#turn;
    let way = wayTo(url, this.#instance, location.href);
    if (way.name === 'none') {
      this.#on.state({ name: 'refused', why: way.why });
      return;
    }
    this.#on.state({ name: 'loading', why: '' });
    // Prefer a separate origin for a host's content, if the relay has a canvas domain:
    // then the content is an ordinary page.
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
    const page = { inband: 'canvas-inband.html', direct: 'canvas-direct.html', live: way.entry }[way.name];
    const iframe = document.createElement('iframe');
    iframe.title = 'Canvas';
    iframe.sandbox.value = 'allow-scripts'; // allow-same-origin only for content with its own origin
    if (way.name === 'live') {
      iframe.sandbox.value = 'allow-scripts allow-same-origin allow-forms allow-modals';
      iframe.allow = 'fullscreen; clipboard-write';
      this.#origin = new URL(way.entry).origin;
    }
    iframe.referrerPolicy = 'no-referrer';
    iframe.src = page;
    iframe.addEventListener('load', () => {
      if (way.name !== 'live') this.#begin(iframe, way);
      else if (iframe === this.#iframe) this.#on.state({ name: 'shown', why: '' });
    }, { once: true });
    this.#iframe = iframe;
    this.#parent.append(iframe);
  }

  /** Looks whether a canvas at an origin of its own is still shown to this client, and says if it has ended. */
  async check() {
    const turn = this.#turn;
    const ended = (why: string) => this.#on.state({ name: 'ended', why });
    for (let left = attempts; this.#live !== ''; left--) {
      if (Date.now() >= this.#expires) return ended('It was open for too long.');
      const ticket: Ticket = await this.#on.ticket(this.#live);
      if (turn !== this.#turn) return;
      // The same canvas of the same client has the same origin.
      if (ticket.url !== '') return new URL(ticket.url).origin === this.#origin ? this.#on.state({ name: 'shown', why: '' }) : ended('It was opened with other rights.');
      if (!refusals.includes(ticket.code!)) return; // no statement about the canvas
      if (left <= 1) return ended(`The host does not show it to you any more: ${ticket.why}`);
      await new Promise((done) => { setTimeout(done, patience); });
      if (turn !== this.#turn) return;
    }
  }

  #await() {
    clearTimeout(this.#timer);
    const left = this.#expires - Date.now();
    this.#timer = setTimeout(() => { if (left > longest) this.#await(); else this.check(); }, Math.max(0, Math.min(left, longest)));
  }

  /** Gives the canvas a message of its provider. */
  deliver(payload) {
    // A sandboxed frame has an opaque origin, so '*' is required. The frame contains
    // only the canvas.
    this.#iframe?.contentWindow?.postMessage(payload, this.#origin === 'null' ? '*' : this.#origin);
  }

  /** Ends all. No callback is called any more. */
  close() {
    removeEventListener('message', this.#listen);
    this.#clear();
    this.#on = { read: () => Promise.reject(new Error('closed')), ticket: () => Promise.resolve({ url: '', expires: 0 }), message() {}, state() {} };
  }

  #clear() {
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

  // #begin starts the sandbox. The frame has loaded our own page, without canvas
  // content. That page accepts its first message only with a port, which no other
  // sender has.
  async #begin(iframe, { name, entry }) {
    const message: any = { entry };
    try {
      if (name === 'inband') message.code = await inBandCode();
      if (name === 'inband' && entry.startsWith(scheme)) message.content = contentOf(await this.#on.read(entry));
    } catch (err) {
      if (iframe === this.#iframe) this.#on.state({ name: 'failed', why: err.message });
      return;
    }
    if (iframe !== this.#iframe) return;
    const { port1, port2 } = new MessageChannel();
    if (name === 'inband') port1.onmessage = ({ data }) => this.#asked(port1, data);
    this.#port = port1;
    this.#loading = name === 'inband';
    iframe.contentWindow.postMessage(message, '*', [port2]);
    if (name === 'direct') this.#on.state({ name: 'shown', why: '' });
  }

  // #heard handles a message from the canvas to its provider. Any page can post
  // messages, so it checks the source.
  #heard({ source, origin, data }) {
    if (!this.#iframe || source !== this.#iframe.contentWindow || origin !== this.#origin) return;
    let json;
    try {
      json = JSON.stringify(data);
    } catch {
      return; // not JSON
    }
    if (json === undefined || json.length > maxMessage || !this.#bucket.take(performance.now())) {
      this.#on.state({ name: 'shown', why: 'It sends too much: some messages were dropped.' });
      return;
    }
    this.#on.message(JSON.parse(json));
  }

  // #asked handles the sandbox's requests. Untrusted code may send them, so they allow
  // only three things: reading the canvas's own content, replacing the page in this
  // frame, and reporting once that the canvas is ready or cannot be shown. The page
  // shows no text from these messages.
  #asked(port, asked) {
    if (port !== this.#port || asked === null || typeof asked !== 'object') return;
    const { id, uri, navigate, ended } = asked;
    if (ended === 'shown' || ended === 'failed') this.#ended(ended);
    else if (navigate !== undefined) {
      if (isContentOf(navigate, this.#instance) && this.#turns.take(performance.now())) this.load(navigate);
    } else if (!Number.isSafeInteger(id)) return;
    else if (!isContentOf(uri, this.#instance)) port.postMessage({ id, error: 'not content of this canvas' });
    else if (this.#queue.length >= maxWaiting) port.postMessage({ id, error: 'too many reads at once' });
    else {
      this.#queue.push({ port, id, uri });
      this.#pump();
    }
  }

  #ended(name) {
    if (this.#loading) this.#on.state({ name, why: name === 'failed' ? 'This page cannot show its content.' : '' });
    this.#loading = false;
  }

  async #pump() {
    if (this.#reading >= maxReads || this.#queue.length === 0) return;
    const { port, id, uri } = this.#queue.shift();
    this.#reading++;
    try {
      port.postMessage({ id, ...contentOf(await this.#on.read(uri)) });
    } catch (err) {
      port.postMessage({ id, error: err.message, code: err.code });
    }
    this.#reading--;
    this.#pump();
  }
}
