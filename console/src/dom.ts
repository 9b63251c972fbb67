// Small helpers to build and change the page.

/** Makes an element. Properties that are undefined are left out. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined) continue;
    if (name.startsWith('data-') || name.startsWith('aria-') || name === 'role') node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

/** Changes only what is different: less work, and screen readers stay quiet. */
export function setText(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

/**
 * Keeps the children of a node in step with a list. Each item keeps its node,
 * and with it the focus, as long as its key is in the list.
 */
export class Keyed {
  #parent;
  #make;
  #update;
  #nodes = new Map();

  constructor(parent, make, update) {
    this.#parent = parent;
    this.#make = make;
    this.#update = update;
  }

  show(items, keyOf) {
    const keyed = new Map();
    for (const item of items) {
      let key = keyOf(item);
      while (keyed.has(key)) key += '+'; // hosts should not repeat a key, but may
      keyed.set(key, item);
    }
    // Remove nodes first: then no remaining node moves. Moving would reload its
    // frames.
    for (const [key, node] of this.#nodes) if (!keyed.has(key)) node.remove();
    const nodes = new Map();
    let next = this.#parent.firstChild;
    for (const [key, item] of keyed) {
      const node = this.#nodes.get(key) ?? this.#make(item);
      nodes.set(key, node);
      if (node === next) next = node.nextSibling;
      else this.#parent.insertBefore(node, next);
      this.#update(node, item);
    }
    this.#nodes = nodes;
  }
}
