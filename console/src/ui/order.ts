// Sorts sessions: first those that need the user, then those that work, then the others.

import { draw, links, sessions, view } from '../app';
import type { Link } from '../link';
import { array, text } from '../store';
import { baseName } from '../words';
import type { SessionState, Summary } from '../ahp';
import { t } from '../language';

export interface Row { link: Link; session: Summary }
export interface Group { name: string; title: string; rows: Row[]; keys: string[] }

const titles: [string, string][] = [['needs', t`Needs you`], ['works', t`Working`], ['rests', t`Done`], ['archived', t`Archived`]];

function groupOf(status: number): string {
  if (status & 16) return 'needs';
  if (status & 64) return 'archived';
  return status & 8 ? 'works' : 'rests';
}

function fits({ link, session }: Row, words: string[]): boolean {
  const all = [text(session.title), link.host, session.provider, ...array(session.workingDirectories), session.project?.displayName].join(' ').toLowerCase();
  return words.every((w) => all.includes(w));
}

let made: { of: unknown[]; groups: Group[] } = { of: [], groups: [] };

const aimTime = 1000; // ms after a pointer move in which rows keep their places, so a click hits its row

let pressed = false; // a row is being pressed
let aimed: ReturnType<typeof setTimeout> | undefined; // runs after a move of the pointer

/** Keeps all rows in place while a row is pressed. */
export function hold(): void {
  pressed = true;
}

/** Keeps all rows in place for a moment, because the pointer moves over the list. */
export function aim(): void {
  clearTimeout(aimed);
  aimed = setTimeout(() => {
    aimed = undefined;
    move();
  }, aimTime);
}

/** Called when the pointer is released. */
export function letGo(): void {
  if (!pressed) return;
  pressed = false;
  move();
}

/** Moves rows to their sorted places, unless they must stay. */
function move(): void {
  if (held()) return;
  made.of = [];
  draw();
}

/** Whether all rows must keep their places. */
export function held(): boolean {
  return pressed || aimed !== undefined;
}

/** The listed sessions in groups. The result is the same object until a session changes. */
export function groups(): Group[] {
  const of = [view.search, view.onlyHost, sessions.deleted, ...[...links.values()].flatMap((l) => [l.store, l.store.listRevision])];
  const asked = of.slice(0, 2).some((x, i) => x !== made.of[i]); // another choice of sessions
  if (of.length !== made.of.length || of.some((x, i) => x !== made.of[i])) made = { of, groups: held() && !asked ? inPlace(made.groups) : sorted() };
  return made.groups;
}

/** Returns the same rows in the same places, with current data. New rows are left out for now. */
function inPlace(all: Group[]): Group[] {
  const now = new Map(sessions.all().map((r) => [keyOf(r), r]));
  return all.map((g) => {
    const keys = g.keys.filter((k) => now.has(k));
    return { ...g, keys, rows: keys.map((k) => now.get(k)!) };
  }).filter((g) => g.rows.length > 0);
}

function keyOf({ link, session }: Row): string {
  return `${link.host} ${session.resource}`;
}

function sorted(): Group[] {
  const words = view.search.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = sessions.all().filter((r) => fits(r, words));
  const at = (r: Row) => String(r.session.modifiedAt ?? '');
  rows.sort((a, b) => (at(a) < at(b) ? 1 : at(a) > at(b) ? -1 : 0)); // RFC 3339, in UTC
  const by = new Map<string, Row[]>();
  for (const r of rows) {
    const name = groupOf(r.session.status);
    const had = by.get(name);
    if (had) had.push(r);
    else by.set(name, [r]);
  }
  return titles.filter(([name]) => by.has(name)).map(([name, title]) => {
    const rows = by.get(name)!;
    return { name, title, rows, keys: rows.map(keyOf) };
  });
}

/** Returns the number of sessions that need the user. */
export function needing(): number {
  let n = 0;
  for (const { session } of sessions.all()) if (session.status & 16) n++;
  return n;
}

/** Returns the next session that needs the user, after the open session. */
export function nextNeeding(): Row | undefined {
  const rows = groups().find((g) => g.name === 'needs')?.rows ?? [];
  const at = rows.findIndex((r) => r.session.resource === view.session);
  return rows[(at + 1) % rows.length];
}

export function folderOf(session: Partial<SessionState> | undefined): string {
  return text(session?.project?.displayName) || baseName(array(session?.workingDirectories)[0] ?? session?.workingDirectory);
}
