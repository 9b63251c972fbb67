// Diagrams in an agent's text, rendered in a sandbox: see diagram-frame.ts. The page shows them as pictures,
// which cannot run code or load anything.

import { Sandbox } from './sandbox';
import { t } from './language';

const longest = 20_000; // characters of a diagram

const sandbox = new Sandbox('/diagram.html', t`Diagrams`);

const address = (svg: string) => `data:image/svg+xml,${encodeURIComponent(svg)}`;

/** Shows a Mermaid block as a diagram, with its source below. An invalid block stays unchanged. */
export async function showDiagram(pre: HTMLElement): Promise<void> {
  const text = pre.querySelector('code')?.textContent ?? '';
  if (text.length > longest) return;
  const light = await sandbox.make({ text, dark: false });
  const dark = light && await sandbox.make({ text, dark: true });
  if (!dark || !pre.isConnected) return;
  const inDark = document.createElement('source');
  inDark.media = '(prefers-color-scheme: dark)';
  inDark.srcset = address(dark);
  const picture = document.createElement('img');
  picture.alt = t`Diagram`;
  picture.src = address(light);
  const both = document.createElement('picture');
  both.append(inDark, picture);
  const drawing = document.createElement('div');
  drawing.className = 'drawing';
  drawing.tabIndex = 0; // a wide diagram scrolls by itself
  drawing.setAttribute('role', 'group');
  drawing.setAttribute('aria-label', t`Diagram`);
  drawing.append(both);
  const summary = document.createElement('summary');
  summary.textContent = t`Source`;
  const source = document.createElement('details');
  const around = document.createElement('div');
  around.className = 'diagram';
  pre.replaceWith(around);
  source.append(summary, pre);
  around.append(drawing, source);
}
