// A sealed connection to a host. It has the interface of a WebSocket: it opens when the host's Welcome has
// arrived, and delivers decrypted AHP messages.

import type { Id, JsonObject, Message } from '../ahp';
import { textOf, utf8, type Bytes } from './bytes';
import { Lie } from './lie';
import { Initiator, OtherKey, type Handshake } from './noise';
import { askBody, content, heartbeat, kinds, readClose, readHeartbeat, readWelcome, type Bye, type Parcel, type Session, type Welcome } from './record';
import { t } from '../language';

export const subprotocol = 'ahp.sealed.1';

// Times in ms.
const beat = 15_000;
const late = 20_000; // without a record; then the page shows the time of the last one
const silence = 45_000;
const handshake = 25_000;
const step = 2_500;
export const windowSeconds = 60; // wait beyond beat until the host ends the connection

/** Close codes that only this page uses. */
export const closed = { broken: 4400, otherKey: 4998, refused: 4999 };

// The codes of close frames, which are the relay's words. Others, such as 1000, count as a lost connection.
const relays = [1001, 1006, 1009, 1012, 1013, 4100, 4500, 4501, 4503, 4504];
const lost = 1012;

/** Callbacks of a SealedSocket that a WebSocket does not have. */
export interface SealedEvents {
  pending?(hostKey: Bytes): void; // the pairing waits for a person at the host
  welcome?(welcome: Welcome, hostKey: Bytes): Promise<void>; // the host has admitted this device; messages are delivered after the promise resolves
  unproved?(bye: Bye): Promise<Bye>; // the connection has ended before the host proved its key
}

export class SealedSocket {
  readyState = 0;
  onopen: ((event: object) => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: Bye) => void) | null = null;
  onlife: (() => void) | null = null; // the host has given a sign of life
  heard = 0; // time of the last record
  level = '';

  #socket: WebSocket;
  #initiator: Initiator;
  #on: SealedEvents;
  #session: Session | undefined;
  #reading = false; // a handshake message is being read
  #welcomed = false;
  #sending: Promise<unknown> = Promise.resolve();
  #opening: Promise<unknown> = Promise.resolve();
  #bye: Bye | undefined;
  #timer: ReturnType<typeof setInterval> | undefined;
  #slow: ReturnType<typeof setTimeout>;
  #ticked = 0;
  #quiet = 0; // ms without a record while this machine was awake and connected
  #beaten = 0;
  #asks = new Map<unknown, (answer: JsonObject) => void>();
  #asked = 0;
  #refreshes = new Set<Id | undefined>(); // ids of requests to the relay

  constructor(socket: WebSocket, cfg: Handshake, on: SealedEvents = {}) {
    this.#socket = socket;
    this.#initiator = new Initiator(cfg);
    this.#on = on;
    socket.binaryType = 'arraybuffer';
    this.#slow = setTimeout(() => this.#fail(new Error('no answer for 25 s')), handshake);
    socket.onopen = () => this.#begin();
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code, reason }) => this.#opening.then(() => this.#ended(code, reason));
  }

  get bufferedAmount(): number {
    return this.#socket.bufferedAmount;
  }

  /** Time of the last record if a heartbeat is late; otherwise 0. */
  get asOf(): number {
    return this.#quiet > late ? this.heard : 0;
  }

  send(text: string): void {
    if (this.readyState !== 1) return;
    const refresh = text.includes('"relay/refreshToken"') && JSON.parse(text);
    if (refresh && refresh.method === 'relay/refreshToken') { // the relay answers this request, so it may read it
      this.#refreshes.add(refresh.id);
      this.#socket.send(text);
    } else this.#post(content.message, utf8(text));
  }

  /** Sends a request about devices to the host-agent. */
  ask(what: object): Promise<JsonObject> {
    return new Promise((resolve, reject) => {
      if (this.readyState !== 1) {
        reject(new Error('not connected'));
        return;
      }
      const id = ++this.#asked;
      this.#asks.set(id, (answer) => (answer?.error === undefined ? resolve(answer) : reject(new Error(String(answer.error)))));
      this.#post(content.ask, askBody({ id, ...what }));
    });
  }

  close(): void {
    if (this.readyState >= 2) return;
    if (this.#welcomed) this.#post(content.close, new Uint8Array([1000 >> 8, 1000 & 255]));
    this.#over();
  }

  #begin(): void {
    if (this.#socket.protocol !== subprotocol) {
      this.#fail(new Error(t`The relay carries no sealed connections, and this host is opened sealed only.`));
      return;
    }
    this.#initiator.start().then((first) => this.#put(first), (err) => this.#fail(err));
  }

  #put(frame: Bytes): void {
    if (this.#socket.readyState === 1) this.#socket.send(frame);
  }

  #post(what: number, body: Bytes): void {
    try {
      const frames = this.#session!.seal(what, body);
      this.#sending = this.#sending.then(async () => { for (const frame of await frames) this.#put(frame); }).catch((err) => this.#fail(err));
    } catch (err) {
      this.#fail(err as Error);
    }
  }

  #receive(data: unknown): void {
    if (this.readyState >= 2) return;
    if (typeof data === 'string') this.#relaySaid(data);
    else if (this.#session) this.#open(new Uint8Array(data as ArrayBuffer));
    else this.#shake(new Uint8Array(data as ArrayBuffer)).catch((err) => this.#fail(err));
  }

  /**
   * Handles the relay's answer to a request that went to the relay. All other unsealed messages are ignored.
   */
  #relaySaid(data: string): void {
    const { id, method, result, error } = (parsed(data) ?? {}) as Message;
    if (method !== undefined || !this.#refreshes.delete(id)) this.#fail(new Lie('a message that is not sealed'));
    else this.onmessage?.({ data: JSON.stringify({ jsonrpc: '2.0', id, result, error }) });
  }

  async #shake(frame: Bytes): Promise<void> {
    if (this.#reading) throw new Lie('a handshake message out of turn');
    this.#reading = true;
    const { answer, session } = await this.#initiator.read(frame);
    this.#reading = false;
    this.#put(answer);
    if (!session) return;
    clearTimeout(this.#slow);
    this.#session = session;
    this.#ticked = this.#beaten = this.heard = Date.now();
    this.#timer = setInterval(() => this.#tick(), step);
  }

  #open(frame: Bytes): void {
    const opened = this.#session!.open(frame);
    this.#opening = this.#opening.then(async () => {
      const parcels = await opened;
      if (this.readyState >= 2 || frame[0] === kinds.body) return; // a shared body without its tag proves nothing
      this.#quiet = 0;
      this.heard = Date.now();
      this.onlife?.();
      this.#beat();
      for (const parcel of parcels) if (this.readyState < 2) await this.#take(parcel);
    }).catch((err) => this.#fail(err));
    opened.catch(() => {}); // reported above
  }

  async #take({ content: what, body }: Parcel): Promise<void> {
    if (what === content.close) this.#bye = readClose(body);
    else if (what === content.pending && !this.#welcomed) this.#on.pending?.(this.#initiator.hostKey!);
    else if (what === content.welcome && !this.#welcomed) {
      const welcome = readWelcome(body);
      this.#welcomed = true;
      this.level = welcome.level;
      await this.#on.welcome?.(welcome, this.#initiator.hostKey!);
      this.readyState = 1;
      this.#post(content.ask, askBody({ id: 0, do: 'share', parts: true }));
      this.onopen?.({});
    } else if (what === content.heartbeat) readHeartbeat(body);
    else if (!this.#welcomed || this.#bye) throw new Error('a sealed record out of turn');
    else if (what === content.message) this.onmessage?.({ data: textOf(body) });
    else if (what === content.answer) {
      const answer = parsed(textOf(body)) as JsonObject;
      this.#asks.get(answer?.id)?.(answer);
      this.#asks.delete(answer?.id);
    } else throw new Error('a sealed record out of turn');
  }

  #beat(): void {
    if (Date.now() - this.#beaten < beat - step) return;
    this.#beaten = Date.now();
    this.#post(content.heartbeat, heartbeat(this.#session!.opened));
  }

  /**
   * Counts silence, except while this machine slept, the browser throttled the page, or there was no network.
   */
  #tick(): void {
    const now = Date.now();
    const passed = now - this.#ticked;
    this.#ticked = now;
    if (passed < 3 * step && globalThis.navigator?.onLine !== false) this.#quiet += passed;
    if (this.#quiet > silence) this.#fail(new Error(t`No sealed message for 45 s. The relay may be holding them back.`));
    else this.#beat();
  }

  #fail(err: Error): void {
    if (err instanceof OtherKey) this.#report(closed.otherKey, err.message);
    else this.#report(closed.broken, err.message);
  }

  /**
   * Handles the end of the WebSocket. Only a Close record is a statement of the host; a code of the relay is
   * not about the host.
   */
  #ended(code: number, reason: string): void {
    const bye = this.#bye;
    if (bye) this.#report(bye.code >= 4500 ? closed.refused : bye.code, bye.reason);
    else {
      const unsaid = !this.#welcomed && (code === 4500 || code === 4503) ? t`The connection ended before the host had proved itself.` : '';
      this.#report(relays.includes(code) ? code : lost, reason ? t`the relay says: ${reason}` : unsaid);
    }
  }

  #report(code: number, reason: string): void {
    if (this.readyState >= 2) return;
    const unproved = !this.#welcomed && !this.#bye;
    this.#over();
    const bye = { code, reason };
    if (unproved && this.#on.unproved) this.#on.unproved(bye).catch(() => bye).then((b) => this.onclose?.(b));
    else this.onclose?.(bye);
  }

  #over(): void {
    this.readyState = 3;
    clearInterval(this.#timer);
    clearTimeout(this.#slow);
    for (const end of this.#asks.values()) end({ error: t`The connection was lost.` });
    this.#asks.clear();
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#sending.then(() => this.#socket.close(1000));
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
