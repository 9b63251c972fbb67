// Keyboard shortcuts for the whole page.

import { app, conversation } from '../app';
import { nextNeeding } from './order';

export function nextOne(): void {
  const next = nextNeeding();
  if (next) app.openSession(next.link.host, next.session.resource);
}

/** Scrolls to the first question and focuses its first answer. Returns whether there is a question. */
export function toQuestion(): boolean {
  const ask = document.querySelector('[data-ask]');
  const whole = ask?.closest('.ask') ?? ask;
  whole?.scrollIntoView({ block: whole.clientHeight > (whole.closest('#log')?.clientHeight ?? 0) ? 'start' : 'nearest' });
  ask?.querySelector<HTMLElement>('button:not(:disabled), input, textarea')?.focus({ preventScroll: true });
  return ask !== null;
}

/**
 * If the first question is about changes of files, scrolls to these, and focuses the first. Returns the
 * question, and whether all of them are loaded, or undefined for a question of a different kind.
 */
export function toEdits(): { asked: Element; loaded: boolean } | undefined {
  const asked = document.querySelector('[data-ask]')?.closest('.approval');
  const edits = asked?.querySelector('.edits');
  if (!edits) return undefined;
  asked!.scrollIntoView({ block: 'start' });
  edits.querySelector('summary')?.focus({ preventScroll: true });
  return { asked: asked!, loaded: !edits.querySelector('[aria-busy]') };
}

function typing(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || ['INPUT', 'TEXTAREA', 'SELECT'].includes(target.tagName));
}

/** Whether Escape closes the side pane: nothing above it is open, and the user is not writing. */
function closesPane(e: KeyboardEvent): boolean {
  const writes = typing(e.target) && (e.target as HTMLInputElement).value !== '';
  return app.pane !== null && app.dialog === null && !writes && !e.defaultPrevented && !document.querySelector('.menu[open]');
}

/** Listens for shortcuts until the returned function is called. */
export function keys(): () => void {
  const pressed = (e: KeyboardEvent) => {
    if (app.token === '' || document.querySelector('dialog[open]:not(#palette)')) return;
    const command = e.ctrlKey || e.metaKey;
    if (command && e.key.toLowerCase() === 'k') app.open(app.dialog?.kind === 'palette' ? null : { kind: 'palette' });
    else if (command && !e.shiftKey && e.key.toLowerCase() === 'f' && app.session && app.dialog === null) app.open({ kind: 'find' });
    else if (command && e.key === '.') conversation.stop();
    else if (e.altKey && e.key.toLowerCase() === 'n') nextOne();
    else if (e.altKey && e.key.toLowerCase() === 'a') toQuestion();
    else if (e.key === 'Escape' && closesPane(e)) app.showPane(null);
    else if (e.key === '/' && !typing(e.target) && !command) (document.querySelector('#search') as HTMLElement)?.focus();
    else return;
    e.preventDefault();
  };
  addEventListener('keydown', pressed);
  return () => removeEventListener('keydown', pressed);
}
