// File changes and their differences.

import type { RefObject } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { requests } from '../app';
import { editId, textOfRead, visible, type State } from '../approval';
import { linesOf, pairs, type Line } from '../differences';
import { isObject, text } from '../store';
import type { FileEdit, Side } from '../ahp';
import { baseName, pathOf } from '../words';
import { Lines } from './bits';
import { useNear } from './near';
import { plural, t } from '../language';

const mostText = 1_000_000; // characters of a side to compare
const mostLines = 400; // lines drawn at first

export function uriOfEdit(edit: FileEdit | undefined): string {
  return text(edit?.after?.uri) || text(edit?.before?.uri);
}

export function kindOfEdit(edit: FileEdit | undefined): string {
  if (!edit?.before) return edit?.after ? t`new` : '';
  if (!edit.after) return t`deleted`;
  return text(edit.before.uri) !== text(edit.after.uri) ? t`from ${baseName(edit.before.uri)}` : '';
}

export function Stat({ edit }: { edit: FileEdit | undefined }) {
  const { added: additions, removed: deletions } = edit?.diff ?? {};
  return additions === undefined && deletions === undefined ? null : <Lines of={{ additions, deletions }} />;
}

/** How the parts of a request report whether they are loaded. */
export interface Reading {
  round: number; // increases when the user asks for the rest; limits then no longer apply
  connected: boolean;
  report: (id: string, state: State, folded?: number) => void; // folded: changed lines that the user must unfold to see
}

const mostRead = 20; // edits of a request read without asking

/** The edits of a tool call. If the call is a request, all are loaded, and the first are open. */
export function FileEdits({ edits, reading }: { edits: FileEdit[]; reading?: Reading }) {
  return (
    <ul class="edits">
      {edits.filter(isObject).map((edit, i) => <Edit key={uriOfEdit(edit) + i} edit={edit} open={reading !== undefined && i < 5} read={i < mostRead || reading?.round !== 0} reading={reading} />)}
    </ul>
  );
}

function Edit({ edit, open, read, reading }: { edit: FileEdit; open: boolean; read: boolean; reading?: Reading }) {
  const [shown, setShown] = useState(open); // now, or earlier
  const kind = kindOfEdit(edit);
  return (
    <li class="edit">
      <details open={open} onToggle={(e) => setShown(shown || e.currentTarget.open)}>
        <summary title={pathOf(uriOfEdit(edit))}><span class="name path">{pathOf(uriOfEdit(edit))}</span>{kind && <span class="badge">{kind}</span>} <Stat edit={edit} /></summary>
        {(shown || reading && read) && <Diff edit={edit} reading={reading} folded={!shown} />}
      </details>
    </li>
  );
}

/** Returns the text on one side of an edit, or ''. */
export async function sideOf(side: Side | undefined): Promise<string> {
  if (!isObject(side)) return '';
  const uri = text(side.content?.uri) || text(side.uri);
  const inline = /^data:([^,]*?)(;base64)?,(.*)$/s.exec(uri);
  if (inline) return textOfRead(inline[2] ? { data: inline[3], encoding: 'base64' } : { data: decodeURIComponent(inline[3]) });
  return textOfRead(await requests.read(uri));
}

class TooLarge extends Error {}

/**
 * Returns an edit's differing lines. A large text is shown only if whole is true. rough: the texts were not
 * compared, because that takes too long.
 */
async function compared(edit: FileEdit, whole: boolean): Promise<{ lines: Line[]; rough: boolean }> {
  const [{ diffLines }, before, after] = await Promise.all([import('diff'), sideOf(edit.before), sideOf(edit.after)]);
  const large = Math.max(before.length, after.length) > mostText;
  if (large && !whole) throw new TooLarge(t`It is too large to compare here.`);
  const changes = large ? undefined : diffLines(before, after, { timeout: 2000 });
  return { lines: linesOf(changes ?? [{ removed: true, value: before }, { added: true, value: after }]), rough: !changes && before !== '' && after !== '' };
}

interface Loaded { key: string; lines?: Line[]; rough?: boolean; why?: string; press?: string }

export function Diff({ edit, wide = false, reading, folded = false }: { edit: FileEdit; wide?: boolean; reading?: Reading; folded?: boolean }) {
  const [loaded, setLoaded] = useState<Loaded>({ key: '' });
  const [all, setAll] = useState(false);
  const id = editId(edit);
  const key = `${id} ${reading?.round ?? 0}`;
  const report = reading?.report;
  useEffect(() => {
    let gone = false;
    const done = (now: Loaded) => {
      if (gone) return;
      setLoaded(now);
      if (now.why !== undefined) report?.(id, { why: t`A change cannot be shown: ${now.why}`, press: now.press });
    };
    if (loaded.key === key && loaded.lines) return;
    report?.(id, 'loading');
    compared(edit, (reading?.round ?? 0) > 0).then((it) => done({ key, ...it }), (err) => done({ key, why: err.message, press: err instanceof TooLarge ? t`Show it without comparing` : t`Try again` }));
    return () => { gone = true; };
  }, [key, reading?.connected]);
  const { lines, rough, why } = loaded.key === key ? loaded : {} as Loaded;
  const hidden = lines?.slice(folded ? 0 : all ? lines.length : mostLines).filter((l) => '+-'.includes(l.kind)).length;
  useLayoutEffect(() => { if (hidden !== undefined) report?.(id, 'shown', hidden); }, [lines, hidden]);
  if (why) return <p class="dim">{t`The change cannot be shown: ${why}`}</p>;
  if (!lines) return <p class="dim" aria-busy="true">{t`Comparing…`}</p>;
  if (lines.length === 0) return <p class="dim">{t`No line is different.`}</p>;
  const shown = all ? lines : lines.slice(0, mostLines);
  return (
    <>
      {rough && <p class="why">{t`Too large to compare line by line: all old lines are shown as removed, and all new lines as added.`}</p>}
      <Table key={key} lines={shown} wide={wide} long={lines.length > mostLines} />
      {shown.length < lines.length && <button type="button" class="small" onClick={() => setAll(true)}>{plural(lines.length - shown.length, 'Show {0} more line', 'Show {0} more lines')}</button>}
    </>
  );
}

const words: Record<string, string> = { '+': 'added', '-': 'removed', '@': 'gap', ' ': '' };

/** Returns a line's text without a carriage return. */
function seen(line: Line): string {
  return visible(line.text.replace(/\r$/, ''));
}

type Pair = ReturnType<typeof pairs>[number];

/** The lines of a difference. Of a long one, only those near the visible part are drawn. */
function Table({ lines, wide, long }: { lines: Line[]; wide: boolean; long: boolean }) {
  const at = useRef<HTMLDivElement>(null);
  const rows = useMemo((): (Line | Pair)[] => (wide ? pairs(lines) : lines), [lines, wide]);
  return (
    <div class={wide ? 'diff sides' : 'diff'} role="table" aria-label={t`Difference`} aria-rowcount={rows.length} tabIndex={0} ref={at}>
      {long ? <Near rows={rows} scroller={at} /> : rows.map(rowOf)}
    </div>
  );
}

function Near({ rows, scroller }: { rows: (Line | Pair)[]; scroller: RefObject<HTMLDivElement> }) {
  const list = useRef<HTMLDivElement>(null);
  const keys = useMemo(() => rows.map((_, i) => String(i)), [rows]);
  return (
    <div role="rowgroup" ref={list}>
      {useNear(keys, list, scroller, undefined).map((piece) => ('gap' in piece ? <div key={`before ${piece.before}`} style={{ height: `${piece.gap}px` }} /> : rowOf(rows[piece.row], piece.row)))}
    </div>
  );
}

function rowOf(row: Line | Pair, i: number) {
  if (Array.isArray(row)) return <div key={i} data-row={i} aria-rowindex={i + 1} role="row" class="pair">{cellsOf(row[0], 'old')}{cellsOf(row[1], 'now')}</div>;
  return (
    <div key={i} data-row={i} aria-rowindex={i + 1} role="row" class={`line ${words[row.kind]}`}>
      <span role="cell" class="no">{row.now ?? row.old ?? ''}</span><span role="cell" class="sign">{row.kind === '@' ? '⋯' : row.kind}</span><span role="cell" class="code">{seen(row)}</span>
    </div>
  );
}

function cellsOf(l: Line | null, side: 'old' | 'now') {
  return <><span role="cell" class={`no ${l ? words[l.kind] : ''}`}>{l?.[side] ?? ''}</span><span role="cell" class={`code ${l ? words[l.kind] : 'none'}`}>{l?.kind === '@' ? `⋯ ${l.text}` : l ? seen(l) : ''}</span></>;
}
