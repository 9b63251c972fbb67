// The side pane of a session for changes, terminals and files.

import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { app } from '../app';
import { array, isObject, text } from '../store';
import type { Json } from '../ahp';
import { baseName, pathOf } from '../words';
import { Badge, Icon } from './bits';
import { File, Files } from './files';
import { Diff, Stat, uriOfEdit, whatOfEdit } from './edits';
import { Servers } from './servers';
import { Terminal } from './terminal';

export function SidePane() {
  const { pane, link } = app;
  const title = useRef<HTMLHeadingElement>(null);
  useLayoutEffect(() => { if (pane && pane.kind !== 'canvas') title.current?.focus({ preventScroll: true }); }, [pane?.channel]);
  if (!pane || pane.kind === 'canvas') return null;
  const state = link?.store.get(pane.channel);
  const error = link?.errors.get(pane.channel);
  const name = pane.kind === 'servers' ? 'MCP servers' : pane.kind === 'file' || pane.kind === 'files' ? baseName(pane.channel) || 'Files' : text(state?.title) || pane.title || '';
  return (
    <section id="beside" class="beside" data-kind={pane.kind} aria-labelledby="beside-title">
      <header class="beside-head">
        <div class="row"><h2 id="beside-title" tabIndex={-1} ref={title}>{name}</h2><button id="beside-hide" type="button" onClick={() => app.showPane(null)}>Hide</button></div>
      </header>
      <div class="beside-body">
        {error ? <p class="empty">This cannot be shown: {error}</p>
          : pane.kind === 'servers' ? <Servers />
          : pane.kind === 'file' ? <File key={pane.channel} uri={pane.channel} />
          : pane.kind === 'files' ? <Files key={pane.channel} uri={pane.channel} />
            : !state ? <p class="empty">Opening…</p>
              : pane.kind === 'changes' ? <Changes key={pane.channel} channel={pane.channel} state={state} />
                : <Terminal key={pane.channel} channel={pane.channel} state={state} />}
      </div>
    </section>
  );
}

function Changes({ channel, state }: { channel: string; state: Json }) {
  const [said, setSaid] = useState('');
  const files = array(state.files).filter((f) => isObject(f?.edit));
  const may = app.link?.live && app.mayOperate;
  const catalogue = [...array(app.link?.store.get(app.session)?.changesets), ...array(app.link?.store.get(app.chatUri)?.changesets)].find((c) => c?.uriTemplate === channel);
  const reviewable = may && catalogue?.capabilities?.review !== undefined;
  const invoke = async (op: Json, file?: Json) => {
    setSaid('');
    try {
      const done = await app.request('invokeChangesetOperation', { channel, operationId: op.id, ...(file ? { target: { kind: 'resource', resource: uriOfEdit(file.edit), side: file.edit.after ? 'after' : 'before' } } : {}) });
      setSaid(text(done?.message));
    } catch (err) {
      setSaid((err as Error).message);
    }
  };
  /** Asks first if the host wants that. A host may leave the file's name to the page, as {0}. */
  const press = (op: Json, file?: Json) => {
    const says = text(op.confirmation).replaceAll('{0}', file ? baseName(uriOfEdit(file.edit)) : text(state.title) || 'all changes');
    if (!says) invoke(op, file);
    else app.open({ kind: 'confirm', title: `${text(op.label) || op.id}?`, says, yes: text(op.label) || op.id, act: () => invoke(op, file) });
  };
  const failed = array(state.operations).filter((o) => o?.error?.message);
  const buttons = (scope: string, file?: Json) => array(state.operations).filter((o) => array(o?.scopes).includes(scope)).map((o) => (
    <button key={o.id} type="button" class={o.confirmation ? 'danger small' : 'small'} title={text(o.description)} disabled={!may || o.status === 'running' || o.status === 'disabled'} onClick={() => press(o, file)}>
      {text(o.label) || o.id}{o.status === 'running' ? '…' : ''}
    </button>
  ));
  const wide = matchMedia('(min-width: 90rem)').matches;
  const seen = files.filter((f) => f.reviewed).length;
  return (
    <div class="changes">
      <div class="row wrap">
        <p class="dim" role="status">{state.status === 'computing' ? 'Being computed…' : state.status === 'error' ? text(state.error?.message) || 'This could not be computed.' : `${files.length} ${files.length === 1 ? 'file' : 'files'}${reviewable && files.length ? `, ${seen} looked at` : ''}`}</p>
        <div class="row">{buttons('changeset')}</div>
      </div>
      {said && failed.every((o) => text(o.error.message) !== said) && <p class="dim" role="status">{said}</p>}
      {failed.map((o) => <p key={o.id} class="error">{text(o.label)}: {text(o.error.message)}</p>)}
      <ul class="edits">
        {files.map((f) => (
          <li key={f.id} class="edit">
            <FileChange file={f} open={files.length <= 3 && !f.reviewed} wide={wide}>
              {reviewable && <label class="check small"><input type="checkbox" checked={f.reviewed === true} onChange={(e) => app.conversation.perform(channel, { type: 'changeset/filesReviewChanged', files: [f.id], reviewed: e.currentTarget.checked })} /> Looked at</label>}
              {buttons('resource', f)}
            </FileChange>
          </li>
        ))}
      </ul>
      {files.length === 0 && state.status !== 'computing' && <p class="empty">Nothing has changed.</p>}
    </div>
  );
}

function FileChange({ file, open, wide, children }: { file: Json; open: boolean; wide: boolean; children: any }) {
  const [shown, setShown] = useState(open);
  const what = whatOfEdit(file.edit);
  return (
    <details open={open} onToggle={(e) => setShown(e.currentTarget.open)}>
      <summary title={pathOf(uriOfEdit(file.edit))}><span class="name path">{pathOf(uriOfEdit(file.edit))}</span>{what && <Badge>{what}</Badge>} <Stat edit={file.edit} />{file.reviewed && <Icon name="check" />}</summary>
      <div class="row start wrap">{children}</div>
      {shown && <Diff edit={file.edit} wide={wide} />}
    </details>
  );
}
