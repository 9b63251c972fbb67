// Which sessions come first: those that need somebody, those that work, the others.

import { app } from '../app';
import type { Link } from '../link';
import { array, text } from '../store';
import { baseName } from '../words';
import type { Json } from '../reduce';

export interface Row { link: Link; session: Json }
export interface Group { name: string; title: string; rows: Row[] }

const titles: [string, string][] = [['needs', 'Needs you'], ['works', 'Working'], ['rests', 'Done'], ['archived', 'Archived']];

function groupOf(status: number): string {
  if (status & 16) return 'needs';
  if (status & 64) return 'archived';
  return status & 8 ? 'works' : 'rests';
}

function fits({ link, session }: Row, words: string[]): boolean {
  const all = [text(session.title), link.host, session.provider, ...array(session.workingDirectories), session.project?.displayName].join(' ').toLowerCase();
  return words.every((w) => all.includes(w));
}

/** The sessions that are listed, in groups. */
export function groups(): Group[] {
  const words = app.search.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = app.sessions().filter((r) => fits(r, words));
  rows.sort((a, b) => String(b.session.modifiedAt).localeCompare(String(a.session.modifiedAt)));
  const by = new Map<string, Row[]>();
  for (const r of rows) {
    const name = groupOf(r.session.status);
    const had = by.get(name);
    if (had) had.push(r);
    else by.set(name, [r]);
  }
  return titles.filter(([name]) => by.has(name)).map(([name, title]) => ({ name, title, rows: by.get(name)! }));
}

/** How many sessions need somebody. */
export function needing(): number {
  let n = 0;
  for (const { session } of app.sessions()) if (session.status & 16) n++;
  return n;
}

/** The session that needs somebody, after the one that is open. */
export function nextNeeding(): Row | undefined {
  const rows = groups().find((g) => g.name === 'needs')?.rows ?? [];
  const at = rows.findIndex((r) => r.session.resource === app.session);
  return rows[(at + 1) % rows.length];
}

export function folderOf(session: Json): string {
  return text(session?.project?.displayName) || baseName(array(session?.workingDirectories)[0] ?? session?.workingDirectory);
}
