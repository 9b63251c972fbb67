// Computes the differing lines of two texts.

import { plural } from './language';

const context = 3; // unchanged lines around each change

/** A line of a difference. kind is '+', '-' or ' ', or '@' for omitted lines. */
export interface Line { kind: string; text: string; old?: number; now?: number }

interface Change { added?: boolean; removed?: boolean; value: string }

/** Returns the lines of a difference, with some unchanged lines around each change. */
export function linesOf(changes: Change[]): Line[] {
  const all: Line[] = [];
  let old = 1;
  let now = 1;
  for (const c of changes) {
    const lines = c.value.split('\n');
    if (lines.at(-1) === '') lines.pop();
    for (const t of lines) {
      if (c.added) all.push({ kind: '+', text: t, now: now++ });
      else if (c.removed) all.push({ kind: '-', text: t, old: old++ });
      else all.push({ kind: ' ', text: t, old: old++, now: now++ });
    }
  }
  const near = new Uint8Array(all.length);
  all.forEach((l, i) => { if (l.kind !== ' ') near.fill(1, Math.max(0, i - context), i + context + 1); });
  const out: Line[] = [];
  let skipped = 0;
  all.forEach((l, i) => {
    if (near[i]) {
      if (skipped > 0) out.push({ kind: '@', text: plural(skipped, '{0} line', '{0} lines') });
      skipped = 0;
      out.push(l);
    } else skipped++;
  });
  if (skipped > 0 && out.length > 0) out.push({ kind: '@', text: plural(skipped, '{0} line', '{0} lines') });
  return out;
}

/** Pairs old lines with new lines, to show them side by side. */
export function pairs(lines: Line[]): [Line | null, Line | null][] {
  const out: [Line | null, Line | null][] = [];
  let gone: Line[] = [];
  let come: Line[] = [];
  const flush = () => {
    for (let i = 0; i < Math.max(gone.length, come.length); i++) out.push([gone[i] ?? null, come[i] ?? null]);
    gone = [];
    come = [];
  };
  for (const l of lines) {
    if (l.kind === '-') gone.push(l);
    else if (l.kind === '+') come.push(l);
    else {
      flush();
      out.push([l, l]);
    }
  }
  flush();
  return out;
}
