// Highlights code in a worker, started for the first code block.

import { highlighter } from './trusted';

let worker: Worker | undefined;
let ids = 0;
const waiting = new Map<number, HTMLElement>();

/** Colours the text of an element, some time later. */
export function highlight(code: HTMLElement, lang: string): void {
  const text = code.textContent ?? '';
  if (!lang || !text) return;
  if (!worker) {
    worker = highlighter();
    worker.onmessage = ({ data }) => {
      const at = waiting.get(data.id);
      waiting.delete(data.id);
      if (at?.isConnected && data.pieces.length > 0) colour(at, data.pieces);
    };
  }
  waiting.set(++ids, code);
  worker.postMessage({ id: ids, code: text, lang: lang.toLowerCase() });
}

const kinds = new Set(['keyword', 'string', 'number', 'comment', 'title', 'built_in', 'literal', 'type', 'attr', 'addition', 'deletion', 'meta', 'name', 'variable', 'section', 'property']);

function colour(at: HTMLElement, pieces: [string, string][]): void {
  at.replaceChildren(...pieces.map(([kind, text]) => {
    const name = kind.split('.')[0];
    if (!kinds.has(name)) return document.createTextNode(text);
    const span = document.createElement('span');
    span.className = `hl-${name}`;
    span.textContent = text;
    return span;
  }));
}
