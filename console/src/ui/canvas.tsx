// The canvas pane beside a session.

import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { accountOf } from '../accounts';
import { conversation, draw, lender, nav, receivers, requests, rights, view } from '../app';
import { elsewhere, Frame, type Ticket } from '../canvas';
import type { Instance } from '../lend';
import { relay } from '../pins';
import type { RpcError } from '../rpc';
import { text } from '../store';
import type { CanvasState } from '../ahp';
import { CameraView } from './lend';
import { canvasTitle, isStale } from './session';
import { t } from '../language';

/** Returns the web address of the content, if the relay has a canvas domain. */
async function ticketOf(channel: string, uri: string): Promise<Ticket> {
  // This page's policy permits frames only from the canvas domain of its own relay.
  if ((accountOf(view.host)?.relay ?? relay()) !== relay()) return { url: '', expires: 0, code: -32601, why: '' };
  try {
    const { url, expires } = await requests.request('relay/canvasTicket', { channel, uri });
    return { url: elsewhere(url, location.origin), expires: Date.parse(text(expires)) || Infinity };
  } catch (err) {
    return { url: '', expires: 0, code: (err as RpcError).code, why: (err as Error).message }; // the relay has no canvas domain, or refused
  }
}

/** Sends a canvas's message to its provider. AHP has no such message since 0.10. */
function tell(channel: string, payload: unknown): void {
  const { link } = view;
  const registered = link?.store.canvasesOf(view.session).some((c) => c.channel === channel && c.registered);
  if (link?.live && rights.mayOperate && !registered) link.conn!.dispatch(channel, { type: 'canvas/message', payload });
}

interface Shown { name: string; why: string }

/** Keeps the frame in step with the canvas that should be shown. */
class Holder {
  node: HTMLElement | null = null;
  frame: Frame | null = null;
  shown: Shown = { name: '', why: '' }; // state of the load
  #channel = '';
  #url = ''; // address of the load
  #live = false;
  #turn = 0; // counts loads of canvases lent by this device

  /** own is set if this device provides the canvas: its address is then newer than the host's. */
  follow(channel: string, state: CanvasState | undefined, live: boolean, own?: Instance): void {
    const url = own?.url || text(state?.url) || text(state?.contentUri);
    const turn = own?.turn ?? 0;
    if (channel !== this.#channel || !state) {
      this.frame?.close();
      this.frame = null;
      this.#channel = channel;
      this.shown = { name: '', why: '' };
    }
    const back = live && !this.#live;
    this.#live = live;
    if (!state || !this.node) return;
    this.frame ??= new Frame(this.node, text(state.instanceId), {
      read: (uri: string) => requests.request('canvasReadResource', { channel, uri }),
      ticket: (uri: string) => ticketOf(channel, uri),
      message: (payload: unknown) => { if (!own) tell(channel, payload); }, // this device is the provider
      state: (shown: Shown) => {
        this.shown = shown;
        draw();
      },
    });
    const again = turn !== this.#turn;
    this.#turn = turn;
    if (this.shown.name === '' || again || (back && this.shown.name === 'failed')) this.load(url);
    else if (back) this.frame.check();
    // When a provider ends, it removes the address. The loaded canvas may stay.
    else if (url !== this.#url && !(isStale(state) && url === '')) this.load(url);
  }

  load(url = this.#url): void {
    this.#url = url;
    this.frame!.load(url);
  }

  deliver(channel: string, payload: unknown): void {
    if (channel === this.#channel) this.frame?.deliver(payload);
  }
}

export function CanvasPane() {
  const holder = useRef<Holder>();
  holder.current ??= new Holder();
  const { current } = holder;
  const title = useRef<HTMLHeadingElement>(null);
  const { link } = view;
  const channel = view.pane?.kind === 'canvas' ? view.pane.channel : '';
  const state = channel ? link?.store.get<CanvasState>(channel) : undefined;
  const live = Boolean(link?.live);
  const ref = channel && link ? link.store.canvasesOf(view.session).find((c) => c.channel === channel) : undefined;
  useEffect(() => {
    receivers.deliver = (to, payload) => current.deliver(to, payload);
    return () => { // the sign-in page shows no canvas
      receivers.deliver = () => {};
      current.follow('', undefined, false);
    };
  }, []);
  const own = lender.instanceOf(link, view.session, state);
  const camera = own?.kind === 'camera';
  useLayoutEffect(() => current.follow(channel, camera ? undefined : state, live, own));
  useLayoutEffect(() => { if (channel) title.current?.focus({ preventScroll: true }); }, [channel]);
  const stale = isStale(state ?? ref);
  const { shown } = current;
  const ended = Boolean(state) && shown.name === 'ended';
  const note = channel && !camera ? noteOf(link?.errors.get(channel) ?? '', state, shown, live) : '';
  return (
    <section id="canvas" class="beside canvas" aria-labelledby="canvas-title" hidden={channel === ''}>
      <header class="beside-head">
        <div class="row">
          <h2 id="canvas-title" tabIndex={-1} ref={title}>{canvasTitle(state ?? ref)}</h2>
          <span id="canvas-badge" class="badge" data-tone={stale || ended ? 'wait' : 'ok'}>{ended ? 'ended' : stale ? 'stale' : text(state?.availability)}</span>
          <button id="canvas-close" class="danger" type="button" disabled={!live} hidden={!rights.mayOperate || ref?.registered === true} onClick={() => conversation.perform(channel, { type: 'canvas/closeRequested' })}>{t`Close`}</button>
          <button id="canvas-hide" type="button" onClick={() => nav.showPane(null)}>{t`Hide`}</button>
        </div>
        <p id="canvas-status" class="dim" role="status">{[text(state?.status), shown.name === 'shown' && shown.why].filter(Boolean).join(' · ')}</p>
      </header>
      <div id="canvas-body" class="canvas-body">
        <div id="canvas-frame" class="canvas-frame" hidden={!['shown', 'loading', 'ended'].includes(shown.name)} ref={(node) => { current.node = node; }} />
        {camera && <CameraView instance={own} />}
        <p id="canvas-note" class="empty" role="status" hidden={note === ''}>{note}</p>
        {state && shown.name === 'failed' && live && <button id="canvas-again" type="button" onClick={() => current.load()}>{t`Try again`}</button>}
        {ended && (
          <div id="canvas-ended" class="canvas-stale" role="status">
            <p>{t`This canvas has ended.`} {shown.why} {t`You see its last state.`}</p>
            <button type="button" disabled={!live} onClick={() => current.load()}>{t`Open it again`}</button>
          </div>
        )}
        <p id="canvas-stale" class="canvas-stale" role="status" hidden={!state || !stale || ended}>{t`Stale: this canvas’s provider is gone. You see its last content.`}</p>
      </div>
    </section>
  );
}

function noteOf(error: string, state: CanvasState | undefined, { name, why }: Shown, live: boolean): string {
  if (error) return t`This canvas cannot be shown: ${error}`;
  if (!state) return live ? t`Opening…` : t`This canvas opens when the host is online.`;
  if (name === 'refused' && state.provider?.kind === 'client' && !text(state.url)) return t`This is shown on the device that provides it, and nowhere else.`;
  if (name === 'refused') return `${t`Not shown.`} ${why}`;
  if (name === 'failed') return t`This canvas could not be loaded: ${why}`;
  return name === 'loading' ? t`Loading…` : '';
}
