// Formulas in an agent's text. A frame without a network reads them: see math-frame.ts. It
// is loaded with the first formula.

import DOMPurify from 'dompurify';
import { t } from './language';

const longest = 4000; // characters of a formula
const patience = 5000; // ms

let frame: Promise<MessagePort> | undefined;
let next = 0;
const waiting = new Map<number, (mathml: string) => void>();

function open(): Promise<MessagePort> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    const node = document.createElement('iframe');
    Object.assign(node, { src: '/math.html', hidden: true, title: t`Formulas` });
    node.setAttribute('sandbox', 'allow-scripts');
    node.addEventListener('load', () => {
      port1.onmessage = ({ data }) => {
        waiting.get(data.id)?.(String(data.mathml));
        waiting.delete(data.id);
      };
      node.contentWindow!.postMessage(null, '*', [port2]);
      resolve(port1);
    });
    document.body.append(node);
  });
}

/** Shows an element's TeX as a formula. A formula that cannot be read stays as it is. */
export async function showFormula(node: HTMLElement): Promise<void> {
  const tex = node.textContent ?? '';
  if (tex.length > longest) return;
  const port = await (frame ??= open());
  const id = next++;
  const mathml = await new Promise<string>((resolve) => {
    waiting.set(id, resolve);
    setTimeout(() => { if (waiting.delete(id)) resolve(''); }, patience);
    port.postMessage({ id, tex, display: node.dataset.math === 'block' });
  });
  if (!mathml || !node.isConnected) return;
  const formula = DOMPurify.sanitize(mathml, { USE_PROFILES: { mathMl: true }, RETURN_DOM_FRAGMENT: true });
  const around = document.createElement('span');
  around.className = `formula ${node.dataset.math}`;
  around.title = tex;
  around.dir = 'ltr';
  if (node.dataset.math === 'block') around.tabIndex = 0; // a wide formula scrolls by itself
  around.append(formula);
  node.replaceWith(around);
}
