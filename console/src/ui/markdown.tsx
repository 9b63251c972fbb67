import { memo } from './memo';
import { useLayoutEffect, useRef } from 'preact/hooks';
import { nav, view } from '../app';
import { highlight } from '../highlight';
import { Blocks, open } from '../blocks';
import { Growing, nodesOf } from '../markdown';
import { fileOf } from '../words';
import { t } from '../language';

const mostLive = 20_000; // characters; above it, a growing block is shown as plain text

/** Shows an agent's text. While it grows, only its end is drawn again. */
export function Markdown({ text, live = false }: { text: string; live?: boolean }) {
  const blocks = useRef<Blocks>();
  if (live) blocks.current ??= new Blocks();
  const runs = blocks.current ? blocks.current.of(text) : [[text]]; // finished text is drawn as one run
  const lives = openIn(runs, live ? open : 0);
  return <div class="md">{runs.map((raws, i) => <Run key={i} raws={raws} live={lives[i]} />)}</div>;
}

/** Returns how many of the last blocks, given as left, are in each run. */
function openIn(runs: string[][], left: number): number[] {
  const counts = runs.map(() => 0);
  for (let i = runs.length - 1; left > 0 && i >= 0; i--) {
    counts[i] = Math.min(left, runs[i].length);
    left -= counts[i];
  }
  return counts;
}

/** The blocks of a run; the last live blocks may still change. */
const Run = memo(({ raws, live }: { raws: string[]; live: number }) => {
  const grew = useRef(false);
  grew.current ||= live > 0;
  return <div class={grew.current && live === 0 ? 'run said' : 'run'}>{raws.map((raw, i) => <Block key={i} raw={raw} live={i >= raws.length - live} />)}</div>;
});

const Block = memo(({ raw, live }: { raw: string; live: boolean }) => {
  const at = useRef<HTMLDivElement>(null);
  const growing = useRef<Growing>();
  const plain = live && raw.length > mostLive;
  useLayoutEffect(() => {
    const node = at.current!;
    if (live && !plain) { // buttons would be in the way of growing text
      growing.current ??= new Growing();
      growing.current.show(node, raw);
      node.hidden = !node.firstChild;
      return;
    }
    const there = growing.current?.shows(raw);
    growing.current?.stop();
    growing.current = undefined; // it holds the text once more
    if (plain) {
      // Text only grows.
      if (!(node.firstChild instanceof Text)) node.replaceChildren('');
      const shown = node.firstChild as Text;
      if (shown.length <= raw.length) shown.appendData(raw.slice(shown.length));
      else shown.data = raw;
      return;
    }
    if (!there) node.replaceChildren(nodesOf(raw));
    node.hidden = !node.firstChild;
    for (const a of node.querySelectorAll<HTMLElement>('a[data-path]')) a.replaceWith(pathButton(a));
    for (const tex of node.querySelectorAll<HTMLElement>('[data-math]')) import('../math').then((m) => m.showFormula(tex), () => {}); // if it fails, the source stays
    for (const pre of node.querySelectorAll<HTMLElement>('pre.code')) {
      const code = pre.querySelector('code')!;
      highlight(code, pre.dataset.lang ?? '');
      pre.tabIndex = 0;
      pre.append(copyButton(() => code.textContent ?? ''), wrapButton(pre));
      if (pre.dataset.lang === 'mermaid') import('../diagram').then((m) => m.showDiagram(pre), () => {}); // if it fails, the source stays
    }
  }, [raw, plain, live]);
  return <div ref={at} class={plain ? 'text' : ''} dir="auto" />;
});

/** A button for a file in the session's folder, in place of a link. */
function pathButton(a: HTMLElement): HTMLElement {
  const button = document.createElement('button');
  const path = a.dataset.path!;
  button.type = 'button';
  button.className = 'link';
  button.title = path;
  button.append(...a.childNodes);
  button.addEventListener('click', () => { if (view.folders[0]) nav.showPane({ kind: 'file', channel: fileOf(path, view.folders[0]) }); });
  return button;
}

/** A switch that wraps a block's long lines. */
function wrapButton(pre: HTMLElement): HTMLElement {
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'copy-code wrap-code';
  button.setAttribute('aria-label', t`Wrap long lines`);
  button.setAttribute('aria-pressed', 'false');
  button.addEventListener('click', () => button.setAttribute('aria-pressed', String(pre.classList.toggle('wraps'))));
  return button;
}

function copyButton(text: () => string): HTMLElement {
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'copy-code';
  button.setAttribute('aria-label', t`Copy the code`);
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.classList.add('done');
      setTimeout(() => button.classList.remove('done'), 1500);
    } catch {
      // If the browser refuses, the user can still select the text.
    }
  });
  return button;
}
