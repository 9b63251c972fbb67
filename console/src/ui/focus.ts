// Keeps the place of the keyboard and of screen readers: when the focused element leaves the page, as an answered
// question does, the nearest part around it gets the focus.

let around: Element[] = []; // the element that had the focus last, and its ancestors

/** Follows the focus until the page is closed. */
export function followFocus(): void {
  document.addEventListener('focusin', (e) => {
    around = [];
    for (let at = e.target as Element | null; at; at = at.parentElement) around.push(at);
  });
}

/** Gives the focus of a removed element to the nearest part around it. The page calls it after each draw. */
export function keepFocus(): void {
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
