// Selects which rows of a long list are drawn: those near the visible part. A gap of their measured or
// estimated height stands for the others.

import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { RefObject } from 'preact';

const around = 800; // px above and below the visible part
const step = 8; // rows; granularity of scrolling
const firstGuess = 60; // px of an unmeasured row

/** A row to draw, or a gap in px. */
export type Piece = { row: number } | { gap: number; before: number };

/** Returns the rows of a range and the focused row, with gaps between them. */
export function pieces(count: number, from: number, to: number, kept: number, height: (row: number) => number): Piece[] {
  const rows = [];
  for (let row = from; row < to; row++) rows.push(row);
  if (kept >= 0 && kept < count && (kept < from || kept >= to)) rows.push(kept);
  rows.sort((a, b) => a - b);
  const all: Piece[] = [];
  let next = 0;
  for (const row of [...rows, count]) {
    let gap = 0;
    for (; next < row; next++) gap += height(next);
    if (gap > 0) all.push({ gap, before: row });
    if (row < count) all.push({ row });
    next = row + 1;
  }
  return all;
}

/** Returns the rows between two heights, rounded to steps, so small moves do not change the range. */
export function rangeOf(count: number, top: number, bottom: number, height: (row: number) => number): [number, number] {
  let y = 0;
  let from = -1;
  let to = 0;
  for (let row = 0; row < count && y < bottom; row++) {
    const end = y + height(row);
    if (end > top && from < 0) from = row;
    to = row + 1;
    y = end;
  }
  if (from < 0) return [0, 0];
  return [from - (from % step), Math.min(count, Math.ceil(to / step) * step)];
}

/**
 * Returns the pieces of a list with these row keys. list contains the rows, elements with
 * data-row; scroller scrolls it. had is the key of the row that had the focus before any list
 * was drawn: a row that moves to this list may already have left the document.
 */
export function useNear(keys: string[], list: RefObject<HTMLElement>, scroller: RefObject<HTMLElement>, had: string | undefined): Piece[] {
  const heights = useRef(new Map<string, number>());
  const guess = useRef(0); // px; it must not change, because each row above would then move the visible ones
  const [[from, to], setRange] = useState<[number, number]>([0, step * 3]);
  const height = (row: number) => heights.current.get(keys[row]) ?? (guess.current || firstGuess);
  const look = () => {
    const [at, by] = [list.current, scroller.current];
    if (!at || !by) return;
    const top = by.getBoundingClientRect().top - at.getBoundingClientRect().top;
    const next = rangeOf(keys.length, top - around, top + by.clientHeight + around, height);
    setRange((had) => (had[0] === next[0] && had[1] === next[1] ? had : next));
  };
  const latest = useRef(look);
  latest.current = look;
  useLayoutEffect(() => { // measures drawn rows
    let [n, sum] = [0, 0];
    for (const e of list.current?.querySelectorAll<HTMLElement>('[data-row]') ?? []) {
      const h = e.offsetHeight;
      if (h === 0) return; // hidden
      heights.current.set(keys[Number(e.dataset.row)], h);
      n++;
      sum += h;
    }
    if (n > 0) guess.current ||= sum / n;
    look();
  }, [keys.join('\n'), from, to]);
  useLayoutEffect(() => {
    const by = scroller.current!;
    const now = () => latest.current();
    by.addEventListener('scroll', now, { passive: true });
    const resized = new ResizeObserver(now);
    resized.observe(by);
    return () => {
      by.removeEventListener('scroll', now);
      resized.disconnect();
    };
  }, []);
  const focused = document.activeElement?.closest<HTMLElement>('[data-row]')?.dataset.key ?? had; // in any list: a row may move to this one
  return pieces(keys.length, Math.min(from, keys.length), Math.min(to, keys.length), focused === undefined ? -1 : keys.indexOf(focused), height);
}
