// Changes of files, with what is different in them.

import { useEffect, useState } from 'preact/hooks';
import { app } from '../app';
import { linesOf, pairs, type Line } from '../differences';
import { isObject, text } from '../store';
import type { Json } from '../reduce';
import { baseName, pathOf } from '../words';
import { atobText } from './tool';

const mostText = 1_000_000; // characters of a side that are compared
const mostLines = 400; // that are drawn at first

export function uriOfEdit(edit: Json): string {
  return text(edit?.after?.uri) || text(edit?.before?.uri);
}

export function whatOfEdit(edit: Json): string {
  if (!edit?.before) return edit?.after ? 'new' : '';
  if (!edit.after) return 'deleted';
  return text(edit.before.uri) !== text(edit.after.uri) ? `from ${baseName(edit.before.uri)}` : '';
}

export function Stat({ edit }: { edit: Json }) {
  const { added, removed } = edit?.diff ?? {};
  if (added === undefined && removed === undefined) return null;
  return <span class="stat"><span class="added">+{added ?? 0}</span> <span class="removed">−{removed ?? 0}</span></span>;
}

/** Edits of a tool call. Where somebody has to approve them they are open from the beginning. */
export function FileEdits({ edits, open = false }: { edits: Json[]; open?: boolean }) {
  return (
    <ul class="edits">
      {edits.filter(isObject).map((edit, i) => <Edit key={uriOfEdit(edit) + i} edit={edit} open={open && i < 5} />)}
    </ul>
  );
}

function Edit({ edit, open }: { edit: Json; open: boolean }) {
  const [shown, setShown] = useState(open);
  const what = whatOfEdit(edit);
  return (
    <li class="edit">
      <details open={open} onToggle={(e) => setShown(e.currentTarget.open)}>
        <summary title={pathOf(uriOfEdit(edit))}><span class="name path">{pathOf(uriOfEdit(edit))}</span>{what && <span class="badge">{what}</span>} <Stat edit={edit} /></summary>
        {shown && <Diff edit={edit} />}
      </details>
    </li>
  );
}

/** The text of one side of an edit, '' where there is none. */
export async function sideOf(side: Json): Promise<string> {
  if (!isObject(side)) return '';
  const uri = text(side.content?.uri) || text(side.uri);
  const inline = /^data:([^,]*?)(;base64)?,(.*)$/s.exec(uri);
  if (inline) return inline[2] ? atobText(inline[3]) : decodeURIComponent(inline[3]);
  const r = await app.read(uri);
  const content = r.encoding === 'base64' ? atobText(text(r.data)) : text(r.data);
  if (content.length > mostText) throw new Error('It is too large to be compared here.');
  if (content.includes('\0')) throw new Error('It is not text.');
  return content;
}

type Loaded = { lines?: Line[]; why?: string };

export function Diff({ edit, wide = false }: { edit: Json; wide?: boolean }) {
  const [loaded, setLoaded] = useState<Loaded>({});
  const [all, setAll] = useState(false);
  const key = JSON.stringify([edit?.before?.content, edit?.after?.content, edit?.diff]);
  useEffect(() => {
    let gone = false;
    (async () => {
      const [{ diffLines }, before, after] = await Promise.all([import('diff'), sideOf(edit.before), sideOf(edit.after)]);
      return linesOf(diffLines(before, after, { timeout: 2000 }) ?? [{ removed: true, value: before }, { added: true, value: after }]);
    })().then((lines) => { if (!gone) setLoaded({ lines }); }, (err) => { if (!gone) setLoaded({ why: err.message }); });
    return () => { gone = true; };
  }, [key]);
  const { lines, why } = loaded;
  if (why) return <p class="dim">The change cannot be shown: {why}</p>;
  if (!lines) return <p class="dim">Comparing…</p>;
  if (lines.length === 0) return <p class="dim">No line is different.</p>;
  const shown = all ? lines : lines.slice(0, mostLines);
  return (
    <>
      {wide ? <SideBySide lines={shown} /> : <Inline lines={shown} />}
      {shown.length < lines.length && <button type="button" class="small" onClick={() => setAll(true)}>Show {lines.length - shown.length} more lines</button>}
    </>
  );
}

const words: Record<string, string> = { '+': 'added', '-': 'removed', '@': 'gap', ' ': '' };

function Inline({ lines }: { lines: Line[] }) {
  return (
    <div class="diff" role="table" aria-label="Difference" tabIndex={0}>
      {lines.map((l, i) => (
        <div key={i} role="row" class={`line ${words[l.kind]}`}>
          <span role="cell" class="no">{l.now ?? l.old ?? ''}</span><span role="cell" class="sign">{l.kind === '@' ? '⋯' : l.kind}</span><span role="cell" class="code">{l.text}</span>
        </div>
      ))}
    </div>
  );
}

function SideBySide({ lines }: { lines: Line[] }) {
  const cell = (l: Line | null, side: 'old' | 'now') => (
    <><span role="cell" class={`no ${l ? words[l.kind] : ''}`}>{l?.[side] ?? ''}</span><span role="cell" class={`code ${l ? words[l.kind] : 'none'}`}>{l?.kind === '@' ? `⋯ ${l.text}` : l?.text ?? ''}</span></>
  );
  return (
    <div class="diff sides" role="table" aria-label="Difference" tabIndex={0}>
      {pairs(lines).map(([a, b], i) => <div key={i} role="row" class="pair">{cell(a, 'old')}{cell(b, 'now')}</div>)}
    </div>
  );
}
