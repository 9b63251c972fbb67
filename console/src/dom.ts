// Small helpers to build and change the page.

import type { JsonObject } from './ahp';

/** Makes an element. Undefined properties are omitted. */
export function el<K extends keyof HTMLElementTagNameMap>(tag: K, props: JsonObject = {}, ...children: (Node | string)[]): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined) continue;
    if (name.startsWith('data-') || name.startsWith('aria-') || name === 'role') node.setAttribute(name, value as string);
    else Object.assign(node, { [name]: value });
  }
  node.append(...children);
  return node;
}

const asked = new Map<string, MediaQueryList>();

/** Whether a media query matches. Each query object is made once, because browsers keep them for a while. */
export function media(query: string): boolean {
  let list = asked.get(query);
  if (!list) asked.set(query, list = matchMedia(query));
  return list.matches;
}

/** Sets a text only if it differs, so screen readers do not repeat it. */
export function setText(node: Node, value: string): void {
  if (node.textContent !== value) node.textContent = value;
}
