// Choices from a list: a button that opens it, and a text field with suggestions. The lists are popovers, so
// that dialogs do not cut them off.

import type { RefObject } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Icon } from './bits';

export type Option = [value: string, label: string];

interface List { open: boolean; at: number; setAt: (at: number) => void; show: (at?: number) => void; hide: () => void; list: RefObject<HTMLUListElement> }

const room = 8; // px between a list and the screen's edge
const mostTall = 320; // px

/** The state of the list below a control. The list closes when the page scrolls or changes its size. */
function useList(control: RefObject<HTMLElement>): List {
  const state = useRef({ open: false, at: -1 }).current; // a key may arrive before the last one was drawn
  const [, again] = useState(0);
  const list = useRef<HTMLUListElement>(null);
  const set = (to: Partial<typeof state>) => {
    Object.assign(state, to);
    again((n) => n + 1);
  };
  const hide = () => { if (state.open) set({ open: false }); };
  const { open, at } = state;
  useLayoutEffect(() => {
    const node = list.current;
    if (!open || !node) return;
    const box = control.current!.getBoundingClientRect();
    const below = innerHeight - box.bottom - room;
    const up = below < Math.min(mostTall, 160) && box.top > below;
    const { style } = node;
    style.left = `${box.left}px`;
    style.width = `${box.width}px`;
    style.maxHeight = `${Math.min(mostTall, (up ? box.top : below) - room)}px`;
    style.top = up ? 'auto' : `${box.bottom + 2}px`;
    style.bottom = up ? `${innerHeight - box.top + 2}px` : 'auto';
    if (!node.matches(':popover-open')) node.showPopover();
  });
  useLayoutEffect(() => { if (open) list.current?.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest' }); }, [open, at]);
  useEffect(() => {
    if (!open) return;
    const away = (e: Event) => { if (!list.current?.contains(e.target as Node) && !control.current!.contains(e.target as Node)) hide(); };
    const kinds = ['pointerdown', 'scroll'];
    for (const kind of kinds) addEventListener(kind, away, true);
    addEventListener('resize', hide);
    return () => {
      for (const kind of kinds) removeEventListener(kind, away, true);
      removeEventListener('resize', hide);
    };
  }, [open]);
  return { get open() { return state.open; }, get at() { return state.at; }, setAt: (to) => set({ at: to }), show: (first = -1) => set({ open: true, at: first }), hide, list };
}

function Options({ id, list, options, choose }: { id: string; list: List; options: Option[]; choose: (o: Option) => void }) {
  if (!list.open || options.length === 0) return null;
  return (
    <ul id={`${id}-list`} ref={list.list} class="options-list" role="listbox" aria-labelledby={`${id}-label`} popover="manual">
      {options.map((o, i) => (
        <li key={o[0]} id={`${id}-${i}`} role="option" aria-selected={i === list.at} data-value={o[0]} dir="auto"
          onPointerMove={() => { if (i !== list.at) list.setAt(i); }} onMouseDown={(e) => e.preventDefault()} onClick={() => choose(o)}>{o[1] || o[0]}</li>
      ))}
    </ul>
  );
}

/** Handles a key in an open list. Returns whether it was used. */
function moves(e: KeyboardEvent, list: List, count: number): boolean {
  const to: Record<string, number> = { ArrowDown: Math.min(list.at + 1, count - 1), ArrowUp: Math.max(list.at - 1, 0), Home: 0, End: count - 1, PageDown: Math.min(list.at + 8, count - 1), PageUp: Math.max(list.at - 8, 0) };
  if (!(e.key in to)) return false;
  list.setAt(to[e.key]);
  return true;
}

interface SelectProps { id: string; label: string; value?: string; name?: string; options: Option[]; title?: string; focus?: boolean; onChange?: (value: string) => void }

/**
 * A choice of one value. Without the prop value, it keeps its own state; with a name, it is part of a form.
 */
export function Select({ id, label, value, name, options, title, focus, onChange }: SelectProps) {
  const control = useRef<HTMLButtonElement>(null);
  const list = useList(control);
  const [own, setOwn] = useState(options[0]?.[0] ?? '');
  const typed = useRef({ text: '', at: 0 });
  const held = useRef(false); // a key that was used is down: some browsers and tools also click for it
  const now = value ?? own;
  const chosen = options.findIndex(([v]) => v === now);
  const choose = ([v]: Option) => {
    list.hide();
    control.current?.focus();
    setOwn(v);
    if (v !== now) onChange?.(v);
  };
  /** Finds an option by its first characters. */
  const seek = (key: string) => {
    const { text, at } = typed.current;
    const words = (e: number) => (e - at < 700 ? text : '') + key.toLowerCase();
    typed.current = { text: words(performance.now()), at: performance.now() };
    const i = options.findIndex(([v, l]) => (l || v).toLowerCase().startsWith(typed.current.text));
    if (i >= 0) list.open ? list.setAt(i) : choose(options[i]);
  };
  const key = (e: KeyboardEvent) => {
    if (e.ctrlKey || e.metaKey || e.altKey && !list.open) return;
    if (!list.open && ['ArrowDown', 'ArrowUp', 'Enter', ' '].includes(e.key)) list.show(Math.max(0, chosen));
    else if (list.open && ['Enter', ' '].includes(e.key) && options[list.at]) choose(options[list.at]);
    else if (list.open && e.key === 'Escape') list.hide();
    else if (list.open && moves(e, list, options.length)) { /* it has moved */ }
    else if (e.key.length === 1 && e.key !== ' ') seek(e.key);
    else return;
    held.current = true;
    e.preventDefault();
    e.stopPropagation();
  };
  const keyUp = (e: KeyboardEvent) => {
    if (held.current) e.preventDefault();
    held.current = false;
  };
  const blur = () => {
    held.current = false; // the key is released elsewhere
    list.hide();
  };
  const press = () => {
    if (held.current) return;
    if (list.open) list.hide();
    else list.show(Math.max(0, chosen));
  };
  return (
    <>
      <label id={`${id}-label`} for={id}>{label}</label>
      <button id={id} ref={control} type="button" class="select" role="combobox" aria-haspopup="listbox" aria-expanded={list.open} aria-controls={list.open ? `${id}-list` : undefined} data-value={now} data-focus={focus ? '' : undefined}
        aria-activedescendant={list.open && list.at >= 0 ? `${id}-${list.at}` : undefined} aria-labelledby={`${id}-label ${id}`} title={title}
        onClick={press} onKeyDown={key} onKeyUp={keyUp} onBlur={blur}>
        <span class="grow" dir="auto">{options[chosen]?.[1] || options[chosen]?.[0] || now}</span><Icon name="down" />
      </button>
      {name && <input type="hidden" name={name} value={now} />}
      <Options id={id} list={list} options={options} choose={choose} />
    </>
  );
}

interface FieldProps { id: string; label: string; value: string; options: Option[]; placeholder?: string; title?: string; onInput: (value: string) => void }

const mostOffered = 50;

/** A text field with suggestions. */
export function Completed({ id, label, value, options, placeholder, title, onInput }: FieldProps) {
  const control = useRef<HTMLInputElement>(null);
  const list = useList(control);
  const words = value.toLowerCase();
  const offered = options.filter(([v, l]) => v !== value && (v.toLowerCase().includes(words) || l.toLowerCase().includes(words))).slice(0, mostOffered);
  const open = list.open && offered.length > 0;
  const choose = ([v]: Option) => {
    list.hide();
    onInput(v);
    control.current?.focus();
  };
  const key = (e: KeyboardEvent) => {
    if (open && e.key === 'Enter' && offered[list.at]) choose(offered[list.at]);
    else if (open && e.key === 'Escape') list.hide();
    else if (open && (e.key === 'ArrowDown' || e.key === 'ArrowUp')) moves(e, list, offered.length);
    else if (!open && e.key === 'ArrowDown') list.show(0);
    else return;
    e.preventDefault();
    e.stopPropagation();
  };
  return (
    <>
      <label id={`${id}-label`} for={id}>{label}</label>
      <input id={id} ref={control} value={value} placeholder={placeholder} title={title} role="combobox" aria-autocomplete="list" dir="auto" aria-expanded={open} aria-controls={open ? `${id}-list` : undefined}
        aria-activedescendant={open && list.at >= 0 ? `${id}-${list.at}` : undefined} autocomplete="off" autocapitalize="off" autocorrect="off" spellcheck={false}
        onInput={(e) => { onInput(e.currentTarget.value); list.show(); }} onKeyDown={key} onBlur={list.hide} />
      <Options id={id} list={list} options={offered} choose={choose} />
    </>
  );
}
