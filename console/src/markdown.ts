// Converts an agent's Markdown into nodes. Hosts are not trusted: HTML appears as text, the result is
// sanitized, links open in a new tab, and nothing is loaded.

import DOMPurify from 'dompurify';
import { Marked, type Tokens, type TokenizerAndRendererExtension } from 'marked';
import { mostBlock, syntax } from './blocks';
import { isPath } from './words';
import { t } from './language';

const escape = (s: string) => s.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

/** A formula, which is shown as its source until math.ts has converted it. */
function formula(name: string, level: 'block' | 'inline', from: RegExp, start: RegExp): TokenizerAndRendererExtension {
  return {
    name, level,
    start: (src: string) => { const i = src.search(start); return i < 0 ? undefined : i; },
    tokenizer: (src: string) => {
      const found = from.exec(src);
      const tex = found?.slice(1).find((t) => t !== undefined)?.trim();
      return tex ? { type: name, raw: found![0], text: tex } : undefined;
    },
    renderer: ({ text }: Tokens.Generic) => (level === 'block' ? `<p><code data-math="block">${escape(text)}</code></p>` : `<code data-math="inline">${escape(text)}</code>`),
  };
}

// "$5 and $10" are prices, so a formula between single signs has no space at its ends and no digit after it.
const formulas = [
  formula('mathBlock', 'block', /^ {0,3}(?:\$\$([^]+?)\$\$|\\\[([^]+?)\\\])[ \t]*(?:\n+|$)/, /\$\$|\\\[/),
  formula('mathInline', 'inline', /^(?:\\\(([^\n]+?)\\\)|\$\$([^\n]+?)\$\$|\$((?!\s)(?:\\.|[^\\$\n])*?[^\s\\$]|[^\s\\$])\$(?!\d))/, /\$|\\\(/),
];

const marked = new Marked({
  ...syntax,
  extensions: formulas,
  renderer: {
    html: ({ text }: Tokens.HTML | Tokens.Tag) => (/^<br\s*\/?>$/i.test(text.trim()) ? '<br>' : escape(text)),
    code: ({ text, lang }: Tokens.Code) => lang === 'math' ? `<p><code data-math="block">${escape(text)}</code></p>` : `<pre class="code" data-lang="${escape((lang ?? '').split(/\s/)[0])}"><code>${escape(text)}</code></pre>`,
    link: ({ href, text }: Tokens.Link) => (isPath(href) ? `<a data-path="${escape(href)}">${escape(text)}</a>` : false),
    image: ({ href, text }: Tokens.Image) => `<a href="${escape(href)}">${escape(text || 'picture')}</a>`, // pictures are not loaded
    heading({ tokens, depth }: Tokens.Heading): string { // below the page's own headings
      const name = `h${Math.min(6, depth + 2)}`;
      return `<${name}>${this.parser.parseInline(tokens)}</${name}>`;
    },
    checkbox: ({ checked }: Tokens.Checkbox) => (checked ? '☑ ' : '☐ '),
  },
});

const allowed = {
  ALLOWED_TAGS: ['a', 'blockquote', 'br', 'code', 'del', 'em', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'li', 'ol', 'p', 'pre', 'strong', 'table', 'tbody', 'td', 'th', 'thead', 'tr', 'ul'],
  ALLOWED_ATTR: ['href', 'title', 'start', 'align', 'data-lang', 'data-path', 'data-math', 'class'],
  ADD_URI_SAFE_ATTR: ['start', 'align', 'data-lang', 'data-path', 'data-math'], // not URLs
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true as const,
};

DOMPurify.addHook('afterSanitizeAttributes', (node) => {
  if (node.getAttribute('class') !== 'code') node.removeAttribute('class');
  if (node.tagName !== 'A' || node.hasAttribute('data-path')) return;
  node.setAttribute('target', '_blank');
  node.setAttribute('rel', 'noopener noreferrer');
  const href = node.getAttribute('href');
  if (href) node.setAttribute('title', href); // shows the link's target
});

// Characters with a meaning inside a line, and characters able to turn words into links.
const special = /[\n*_`[\]<~|\\&$]/;
const link = /:\/\/|www\.|@/i;

/** Whether a block is a paragraph of plain words, which need not be parsed. */
function isWords(raw: string): boolean {
  return /^\p{L}/u.test(raw) && !special.test(raw.trimEnd()) && !link.test(raw);
}

/** Returns a plain text as a paragraph. */
function paragraph(text: string): DocumentFragment {
  const all = document.createDocumentFragment();
  all.append(document.createElement('p'));
  all.firstElementChild!.textContent = text;
  return all;
}

/** Returns a block as nodes. */
export function nodesOf(raw: string): DocumentFragment {
  if (raw.length > mostBlock) {
    const plain = paragraph(raw);
    plain.firstElementChild!.className = 'text';
    return plain;
  }
  if (isWords(raw)) return paragraph(raw.trimEnd());
  const html = marked.parse(raw, { async: false }) as string;
  const nodes = DOMPurify.sanitize(html.trim(), allowed) as unknown as DocumentFragment;
  for (const item of nodes.querySelectorAll('li')) if (/^\s*[☑☐]/.test(item.textContent ?? '')) item.className = 'task';
  for (const table of nodes.querySelectorAll('table')) { // wide tables scroll by themselves
    const around = document.createElement('div');
    around.className = 'wide';
    around.tabIndex = 0;
    around.setAttribute('role', 'group');
    around.setAttribute('aria-label', t`Table`);
    table.replaceWith(around);
    around.append(table);
  }
  return nodes;
}

const leastLine = 8; // characters; a longer line cannot start a new construct

const madeEvery = 150; // ms; least time between two parses of a growing block
const share = 1 / 40; // largest share of the time spent on parsing; layout and paint need more

/**
 * Shows a growing block in a node. New plain words, the usual case, are appended without parsing. Text with
 * special characters is appended too, until the next parse.
 */
export class Growing {
  #raw = '';
  #tail: Text | null = null;
  #rough = false; // the appended text may need parsing
  #made = -Infinity;
  #took = 0; // ms
  #due: ReturnType<typeof setTimeout> | undefined;

  /** Shows the block. */
  show(node: HTMLElement, raw: string): void {
    const more = raw.startsWith(this.#raw) ? raw.slice(this.#raw.length) : '';
    const lineLength = this.#raw.length - this.#raw.lastIndexOf('\n') - 1;
    if (this.#tail?.isConnected && more !== '') {
      const plain = inCode(this.#raw) ? !/[`~]/.test(more)
        : /^\s+$/.test(more) || (lineLength >= leastLine && !special.test(more) && !link.test(lastWord(this.#raw) + more));
      const wait = this.#made + Math.max(madeEvery, this.#took / share) - performance.now();
      if (plain || wait > 0) {
        this.#tail.appendData(more);
        this.#raw = raw;
        this.#rough ||= !plain;
        if (!plain) this.#due ??= setTimeout(() => { if (node.isConnected) this.#make(node); }, wait);
        return;
      }
    }
    this.#raw = raw;
    this.#make(node);
  }

  /** Whether parsing again would give the same node. */
  shows(raw: string): boolean {
    return raw === this.#raw && !this.#rough && !inCode(raw) && Boolean(this.#tail?.isConnected);
  }

  /** Stops updating the node. */
  stop(): void {
    clearTimeout(this.#due);
    this.#due = undefined;
  }

  #make(node: HTMLElement): void {
    this.stop();
    const began = performance.now();
    node.replaceChildren(nodesOf(this.#raw));
    this.#made = performance.now();
    this.#took = this.#made - began;
    this.#rough = false;
    this.#tail = lastText(node);
    if (this.#tail && inCode(this.#raw)) {
      this.#tail.data = this.#raw.slice(this.#raw.indexOf('\n') + 1); // including the line's end
      return;
    }
    const end = /[ \t]+$/.exec(this.#raw)?.[0];
    if (end && this.#tail && !this.#tail.data.endsWith(end)) this.#tail.appendData(end);
  }
}

const longestLink = 400; // characters

function lastWord(raw: string): string {
  return /\S*$/.exec(raw.slice(-longestLink))![0];
}

/** Whether a block is code whose closing fence has not arrived. No character in it has a special meaning. */
function inCode(raw: string): boolean {
  return /^(`{3,}|~{3,})[^\n]*\n/.test(raw) && !/\n(`{3,}|~{3,})/.test(raw);
}

/** Returns the text node at the very end of a node, or null if something else is there. */
function lastText(node: Node): Text | null {
  let at: Node | null = node;
  while (at && !(at instanceof Text)) at = at.lastChild;
  return at as Text | null;
}
