// Small components shared by many parts of the page.

import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { Customization, MessageAttachment } from '../ahp';
import { media } from '../dom';
import { text } from '../store';
import { iconOf } from '../words';
import { t } from '../language';

const paths: Record<string, string> = {
  back: 'M15 5l-7 7 7 7', more: 'M5 12h.01M12 12h.01M19 12h.01', plus: 'M12 5v14M5 12h14', close: 'M6 6l12 12M18 6L6 18',
  command: 'M5 7l5 5-5 5M12 17h7', edit: 'M4 20l1-4L16 5l3 3L8 19zM14 7l3 3', search: 'M11 4a7 7 0 100 14 7 7 0 000-14zM16 16l4 4',
  web: 'M12 3a9 9 0 100 18 9 9 0 000-18zM3 12h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18', agent: 'M8 8h8v8H8zM12 4v4M4 12h4M16 12h4M12 16v4',
  tool: 'M14 6a4 4 0 105 5l-8 8-3-3 8-8', app: 'M4 5h16v14H4zM4 9h16', read: 'M6 3h9l4 4v14H6zM14 3v5h5', canvas: 'M4 4h16v12H4zM8 20h8',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1', up: 'M12 19V5M6 11l6-6 6 6', stop: 'M7 7h10v10H7z', clip: 'M8 12l6-6a3 3 0 014 4l-8 8a5 5 0 01-7-7l8-8',
  check: 'M5 13l4 4L19 7', alert: 'M12 8v5M12 16.5v.01M12 3l10 18H2z', down: 'M6 9l6 6 6-6', file: 'M6 3h9l4 4v14H6z', bell: 'M6 17V11a6 6 0 0112 0v6l2 2H4zM10 21h4',
  mic: 'M12 4a3 3 0 00-3 3v4a3 3 0 006 0V7a3 3 0 00-3-3zM6 11a6 6 0 0012 0M12 17v3', filter: 'M4 6h16M7 12h10M10 18h4', key: 'M8 15a4 4 0 110-8 4 4 0 010 8zM12 11h9M18 11v4', folder: 'M3 6h6l2 2h10v11H3z', diff: 'M12 4v8M8 8h8M8 19h8', branch: 'M7 5v14M17 5v3a4 4 0 01-4 4H7M7 3.5v.01M17 3.5v.01', list: 'M8 6h12M8 12h12M8 18h12M4 6h.01M4 12h.01M4 18h.01',
};

export function Icon({ name }: { name: string }) {
  return <svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d={paths[name] ?? paths.tool} /></svg>;
}

/** An MCP server's icon, or nothing. */
export function ServerIcon({ server, instead }: { server: Customization | undefined; instead?: ComponentChildren }) {
  const src = iconOf(server?.icons, media('(prefers-color-scheme: dark)'));
  return src ? <img class="icon" src={src} alt="" /> : <>{instead}</>;
}

export function Badge({ tone, children }: { tone?: string; children: ComponentChildren }) {
  return <span class="badge" data-tone={tone ?? ''}>{children}</span>;
}

/** A dialog above the page. Its button, Escape and a press outside close it. */
export function Dialog({ title, id, onClose, children }: { title: string; id?: string; onClose: () => void; children: ComponentChildren }) {
  const at = useRef<HTMLDialogElement>(null);
  const gone = useRef(false);
  useLayoutEffect(() => {
    const node = at.current!;
    if (!node.open) node.showModal();
    node.querySelector<HTMLElement>('[data-focus]')?.focus();
    return () => {
      gone.current = true; // the event comes later, when another dialog may be open
      node.close();
    };
  }, []);
  const escaped = (e: Event) => { // a file chooser inside has such an event, too
    if (e.target !== at.current) return;
    gone.current = true;
    onClose();
  };
  return (
    <dialog ref={at} id={id} class="sheet" aria-label={title} onCancel={escaped} onClose={() => { if (!gone.current) onClose(); }} onMouseDown={(e) => { if (e.target === at.current) onClose(); }}>
      <div class="sheet-body">
        <header class="row"><h2>{title}</h2><button type="button" class="quiet round" aria-label={t`Close`} onClick={onClose}><Icon name="close" /></button></header>
        {children}
      </div>
    </dialog>
  );
}

/** Closes a menu. The focus would be lost with the button inside that has it. */
export function shut(menu: HTMLDetailsElement): void {
  if (menu.contains(document.activeElement)) menu.querySelector('summary')!.focus({ preventScroll: true });
  menu.open = false;
}

/** A button that opens a menu. */
export function Menu({ label, icon = 'more', children }: { label: string; icon?: string; children: ComponentChildren }) {
  const at = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (e: Event) => {
      if (at.current?.open && !(e.type === 'pointerdown' && at.current.contains(e.target as Node)) && (e as KeyboardEvent).key !== 'Tab') shut(at.current);
    };
    const key = (e: KeyboardEvent) => {
      if (e.key !== 'Escape' || !at.current?.open) return;
      e.preventDefault(); // only the menu closes
      close(e);
    };
    addEventListener('pointerdown', close);
    addEventListener('keydown', key);
    return () => {
      removeEventListener('pointerdown', close);
      removeEventListener('keydown', key);
    };
  }, []);
  return (
    <details class="menu" ref={at} onToggle={() => fit(at.current!)} onClick={(e) => { if ((e.target as Element).closest('.menu-items button')) shut(at.current!); }}>
      <summary aria-label={label} title={label}><Icon name={icon} /></summary>
      <div class="menu-items">{children}</div>
    </details>
  );
}

/** Opens a menu downward if it would otherwise begin above the scrolling part of the page. */
function fit(menu: HTMLDetailsElement): void {
  const items = menu.querySelector<HTMLElement>('.menu-items')!;
  items.classList.remove('down');
  const by = menu.closest('.log, .beside-body, .page')!.getBoundingClientRect();
  if (menu.open && items.getBoundingClientRect().top < by.top) items.classList.add('down');
}

const longPress = 500; // ms

/** Handles a long press or the secondary mouse button. Some phones do not report a long press. */
export function pressed(act: (e: Event) => void) {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let long = false;
  const let_ = () => clearTimeout(timer);
  return {
    onContextMenu: (e: Event) => { let_(); if (!long) act(e); else e.preventDefault(); },
    onPointerDown: (e: PointerEvent) => {
      long = false;
      let_();
      if (e.pointerType === 'touch') timer = setTimeout(() => { long = true; act(e); }, longPress);
    },
    onPointerUp: let_, onPointerCancel: let_, onPointerLeave: let_,
    onClickCapture: (e: Event) => { if (long) { long = false; e.stopImmediatePropagation(); e.preventDefault(); } },
  };
}

export function Copy({ text, label = t`Copy` }: { text: () => string; label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch {
      // If the browser refuses, the user can still select the text.
    }
  };
  return <button type="button" class="quiet small" aria-label={label} title={label} onClick={copy}><Icon name={done ? 'check' : 'copy'} /></button>;
}

export function isTouch(): boolean {
  return media('(pointer: coarse)');
}

/** Whether the screen shows only one pane at a time: see style.css. */
export function isNarrow(): boolean {
  return media('(max-width: 46rem)');
}

/** A button that acts only at its second press. yes is its text between the two. */
export function Twice({ yes, act, children, class: looks = '', ...more }: { yes: string; act: () => void; children: ComponentChildren; class?: string; disabled?: boolean; 'data-do'?: string }) {
  const [sure, setSure] = useState(false);
  return <button type="button" {...more} class={sure ? `${looks} armed` : looks} onClick={() => { setSure(!sure); if (sure) act(); }}>{sure ? yes : children}</button>;
}

/** Numbers of lines: "+12 −3". None removed is not shown, because it would look like a loss. */
export function Lines({ of }: { of: { additions?: number; deletions?: number } }) {
  return <span class="stat"><span class="added">+{of.additions ?? 0}</span>{of.deletions! > 0 && <> <span class="removed">−{of.deletions}</span></>}</span>;
}

/** Shows unknown content as JSON. */
export function Raw({ what, value }: { what: string; value: unknown }) {
  return <details class="raw dim"><summary>{t`${what}: not known to this page`}</summary><pre>{JSON.stringify(value, null, 1)}</pre></details>;
}

/** Reports whether an attachment is a picture that the page can show. */
export function isPicture(a: MessageAttachment | undefined): boolean {
  return /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)$/.test(text(a?.contentType)) && /^[A-Za-z0-9+/=\s]*$/.test(text(a?.data)) && text(a?.data) !== '';
}
