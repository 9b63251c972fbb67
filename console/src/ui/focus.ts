// Keeps the place of the keyboard and of screen readers: when the focused element leaves the page, as an answered
// question does, the nearest part around it gets the focus. The pane beside a session gives it back to the element
// that had it before.

let around: Element[] = []; // the element that had the focus last, and its ancestors
let opener: HTMLElement | null = null; // the element that had it before it went into a pane

/** Follows the focus until the page is closed. */
export function followFocus(): void {
  document.addEventListener('focusin', (e) => {
    around = [];
    const from = e.relatedTarget as HTMLElement | null;
    if (from && !from.closest('.beside') && (e.target as Element).closest('.beside')) opener = from;
    for (let at = e.target as Element | null; at; at = at.parentElement) around.push(at);
  });
}

/** Gives the focus of a removed element to the nearest part around it, and that of a hidden pane back. The page calls it after each draw. */
export function keepFocus(): void {
  const pane = around.find((e) => e.matches('.beside'));
  if (pane && !pane.checkVisibility()) {
    around = [];
    (opener?.isConnected ? opener : document.querySelector<HTMLElement>('#chat-title'))?.focus({ preventScroll: true });
    return;
  }
  if (around.length === 0 || document.activeElement !== document.body || !document.hasFocus()) return;
  if (around[0].isConnected) {
    if (!around[0].matches(':disabled')) around = []; // the user has left it
    return;
  }
  const near = around.filter((e) => e.isConnected);
  around = [];
  for (const e of near) {
    const to = e.matches('[tabindex]') ? e : e.querySelector(':scope > [tabindex], :scope > summary');
    if (!to) continue;
    (to as HTMLElement).focus({ preventScroll: true });
    return;
  }
}
