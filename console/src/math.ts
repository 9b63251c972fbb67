// Formulas in an agent's text, converted in a sandbox: see math-frame.ts.

import DOMPurify from 'dompurify';
import { Sandbox } from './sandbox';
import { t } from './language';

const longest = 4000; // characters of a formula

const sandbox = new Sandbox('/math.html', t`Formulas`);

/** Shows an element's TeX as a formula. Invalid TeX stays unchanged. */
export async function showFormula(node: HTMLElement): Promise<void> {
  const tex = node.textContent ?? '';
  if (tex.length > longest) return;
  const mathml = await sandbox.make({ tex, display: node.dataset.math === 'block' });
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
