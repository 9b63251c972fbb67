// The canvases of a session: a list of those that are open, and one of them.

import { Frame } from './canvas.js';
import { el, Keyed, setText } from './dom.js';
import { text } from './state.js';

export class CanvasPanel {
  #at;
  #do;
  #list;
  #frame = null;
  #channel = ''; // of the canvas in the frame
  #url = ''; // that it was loaded from
  #shown = { name: '', why: '' }; // how that went
  #live = false;
  #model;

  constructor(at, actions) {
    this.#at = at;
    this.#do = actions;
    this.#list = new Keyed(at.canvases, ({ channel }) => makeChip(channel, () => actions.chooseCanvas(channel)), (n, c) => this.#updateChip(n, c));
    at['canvas-hide'].addEventListener('click', () => actions.chooseCanvas(this.#model.canvas));
    at['canvas-close'].addEventListener('click', () => actions.closeCanvas(this.#model.canvas));
    at['canvas-again'].addEventListener('click', () => this.#load());
  }

  render(model) {
    const before = this.#model?.canvas ?? '';
    this.#model = model;
    const at = this.#at;
    at.canvases.hidden = model.canvases.length === 0;
    this.#list.show(model.canvases, (c) => c.channel);
    at.canvas.hidden = model.canvas === '';
    at.app.classList.toggle('with-canvas', model.canvas !== '');
    this.#follow(model);
    const state = model.canvasState;
    const ref = model.canvases.find((c) => c.channel === model.canvas);
    const stale = isStale(state ?? ref);
    setText(at['canvas-title'], titleOf(state ?? ref));
    setText(at['canvas-badge'], stale ? 'stale' : text(state?.availability));
    at['canvas-badge'].dataset.tone = stale ? 'wait' : 'ok';
    setText(at['canvas-status'], [text(state?.status), this.#shown.name === 'shown' && this.#shown.why].filter(Boolean).join(' · '));
    at['canvas-stale'].hidden = !state || !stale;
    at['canvas-close'].disabled = !model.live;
    at['canvas-close'].hidden = model.readOnly || ref?.registered === true;
    this.#renderNote(model);
    if (model.canvas && model.canvas !== before) at['canvas-title'].focus({ preventScroll: true });
  }

  #renderNote({ canvasState, canvasNote, live }) {
    const { name, why } = this.#shown;
    let note = '';
    if (canvasNote) note = `This canvas cannot be shown: ${canvasNote}`;
    else if (!canvasState) note = live ? 'Opening…' : 'This canvas opens when the host is there.';
    else if (name === 'refused') note = `Not shown. ${why}`;
    else if (name === 'failed') note = `This canvas could not be loaded: ${why}`;
    else if (name === 'loading') note = 'Loading…';
    setText(this.#at['canvas-note'], note);
    this.#at['canvas-note'].hidden = note === '';
    this.#at['canvas-again'].hidden = !(canvasState && name === 'failed' && live);
    this.#at['canvas-frame'].hidden = name !== 'shown' && name !== 'loading';
  }

  /** Keeps the frame in step with the canvas that is to be shown. */
  #follow({ canvas, canvasState: state, live }) {
    const url = text(state?.url) || text(state?.contentUri);
    if (canvas !== this.#channel || !state) {
      this.#frame?.close();
      this.#frame = null;
      this.#channel = canvas;
      this.#shown = { name: '', why: '' };
    }
    const back = live && !this.#live;
    this.#live = live;
    if (!state) return;
    const channel = canvas;
    this.#frame ??= new Frame(this.#at['canvas-frame'], text(state.instanceId), {
      read: (uri) => this.#do.readCanvas(channel, uri),
      ticket: (uri) => this.#do.canvasTicket(channel, uri),
      message: (payload) => this.#do.tellCanvas(channel, payload),
      state: (shown) => {
        this.#shown = shown;
        this.render(this.#model);
      },
    });
    if (this.#shown.name === '' || (back && (this.#shown.name === 'failed' || this.#frame.ticketed))) this.#load(url);
    // Who has gone takes its address along; what is shown may stay.
    else if (url !== this.#url && !(isStale(state) && url === '')) this.#load(url);
  }

  #load(url = this.#url) {
    this.#url = url;
    this.#frame.load(url);
  }

  deliver(channel, payload) {
    if (channel === this.#channel) this.#frame?.deliver(payload);
  }

  #updateChip(node, canvas) {
    const { button, name, badge } = node.parts;
    setText(name, titleOf(canvas));
    badge.hidden = !isStale(canvas);
    button.setAttribute('aria-pressed', String(canvas.channel === this.#model.canvas));
  }
}

/** Whether the provider is away. Since AHP 0.10 such a canvas has no address. */
function isStale(canvas) {
  return canvas?.availability === 'stale' || (canvas?.instanceId !== undefined && canvas.availability === undefined && !text(canvas.url));
}

function titleOf(canvas) {
  return text(canvas?.title) || text(canvas?.displayName) || text(canvas?.canvasId) || 'Canvas';
}

function makeChip(channel, chosen) {
  const name = el('span', {});
  const badge = el('span', { className: 'badge', 'data-tone': 'wait' }, 'stale');
  const button = el('button', { type: 'button', className: 'chip' }, name, badge);
  button.addEventListener('click', chosen);
  return Object.assign(el('li', { 'data-canvas': channel }, button), { parts: { button, name, badge } });
}
