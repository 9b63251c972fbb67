// The side pane of a session for changes, terminals and files.

import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { safeUrl } from '../answers';
import { conversation, nav, requests, rights, view } from '../app';
import { media } from '../dom';
import { array, isObject, text } from '../store';
import type { ChangedFile, ChangesetState, ChatState, FileEdit, Operation, SessionState, TerminalState } from '../ahp';
import { baseName, pathOf, shortPathOf } from '../words';
import { Badge, Icon } from './bits';
import { File, Files } from './files';
import { Diff, Stat, uriOfEdit, kindOfEdit } from './edits';
import { Servers } from './servers';
import { Terminal } from './terminal';
import { SignInAgain } from './turn';
import { plural, t } from '../language';

export function SidePane() {
  const { pane, link } = view;
  const title = useRef<HTMLHeadingElement>(null);
  useLayoutEffect(() => { if (pane && pane.kind !== 'canvas') title.current?.focus({ preventScroll: true }); }, [pane?.channel]);
  if (!pane || pane.kind === 'canvas') return null;
  const state = link?.store.get<ChangesetState & TerminalState>(pane.channel);
  const error = link?.errors.get(pane.channel);
  const name = pane.kind === 'servers' ? t`MCP servers` : pane.kind === 'file' || pane.kind === 'files' ? baseName(pane.channel) || t`Files` : text(state?.title) || pane.title || '';
  return (
    <section id="beside" class="beside" data-kind={pane.kind} aria-labelledby="beside-title">
      <header class="beside-head">
        <div class="row"><h2 id="beside-title" tabIndex={-1} ref={title}>{name}</h2><button id="beside-hide" type="button" onClick={() => nav.showPane(null)}>{t`Hide`}</button></div>
      </header>
      <div class="beside-body">
        {error ? <p class="empty">{t`This cannot be shown: ${error}`}</p>
          : pane.kind === 'servers' ? <Servers />
          : pane.kind === 'file' ? <File key={pane.channel} uri={pane.channel} />
          : pane.kind === 'files' ? <Files key={pane.channel} uri={pane.channel} />
            : !state ? <p class="empty">{t`Opening…`}</p>
              : pane.kind === 'changes' ? <Changes key={pane.channel} channel={pane.channel} state={state} />
                : <Terminal key={pane.channel} channel={pane.channel} state={state} />}
      </div>
    </section>
  );
}

const messageMeta = 'agenthost.message'; // our own host's name for an operation's message

/** A file whose change is known. */
type Changed = ChangedFile & { edit: FileEdit };

function takesMessage(op: Operation): boolean {
  return op?._meta?.[messageMeta] === true;
}

function Changes({ channel, state }: { channel: string; state: ChangesetState }) {
  const [said, say] = useState({ text: '', wrong: false });
  const [message, setMessage] = useState('');
  const [next, setNext] = useState(''); // address of a page that the host's operation has created
  const files = array(state.files).filter((f): f is Changed => isObject(f?.edit));
  const may = view.link?.live && rights.mayOperate;
  const session = view.link?.store.get(view.session);
  const catalogue = [...array(session?.changesets), ...array(view.link?.store.get<ChatState>(view.chatUri)?.changesets)].find((c) => c?.uriTemplate === channel);
  const { branchName, baseBranchName } = isObject(session?._meta?.git) ? session._meta.git : {} as NonNullable<NonNullable<SessionState['_meta']>['git']>;
  const reviewable = may && catalogue?.capabilities?.review !== undefined;
  const invoke = async (op: Operation, file?: Changed) => {
    say({ text: '', wrong: false });
    setNext('');
    try {
      const written = takesMessage(op) && message.trim() ? { _meta: { [messageMeta]: message.trim() } } : {};
      const done = await requests.request('invokeChangesetOperation', { channel, operationId: op.id, ...written, ...(file ? { target: { kind: 'resource', resource: uriOfEdit(file.edit), side: file.edit.after ? 'after' : 'before' } } : {}) });
      say({ text: text(done?.message), wrong: false });
      setNext(safeUrl(done?.followUp?.content?.uri) ?? '');
      if (takesMessage(op)) setMessage('');
    } catch (err) {
      say({ text: (err as Error).message, wrong: true });
    }
  };
  /**
   * Asks for confirmation if the host requires it. The host may write {0} where the page inserts the file's
   * name.
   */
  const press = (op: Operation, file?: Changed) => {
    const says = text(op.confirmation).replaceAll('{0}', file ? baseName(uriOfEdit(file.edit)) : text(state.title) || t`all changes`);
    if (!says) invoke(op, file);
    else nav.open({ kind: 'confirm', title: `${text(op.label) || op.id}?`, says, yes: text(op.label) || op.id, act: () => invoke(op, file) });
  };
  const failed = array(state.operations).filter((o) => o?.error?.message);
  const buttons = (scope: string, file?: Changed) => array(state.operations).filter((o) => array(o?.scopes).includes(scope) && (files.length > 0 || !takesMessage(o))).map((o) => (
    <button key={o.id} type="button" class={o.confirmation ? 'danger small' : 'small'} title={text(o.description)} disabled={!may || o.status === 'running' || o.status === 'disabled'} onClick={() => press(o, file)}>
      {text(o.label) || o.id}{o.status === 'running' ? '…' : ''}
    </button>
  ));
  const wide = media('(min-width: 90rem)');
  const seen = files.filter((f) => f.reviewed).length;
  return (
    <div class="changes">
      {text(branchName) && <p class="dim branch"><Icon name="branch" /><bdi class="name">{text(branchName)}</bdi>{text(baseBranchName) && <> → <bdi>{text(baseBranchName)}</bdi></>}{view.folders[0] && <span class="path">{pathOf(view.folders[0])}</span>}</p>}
      {may && files.length > 0 && array(state.operations).some(takesMessage) && <label class="dim" for="commit-message">{t`Commit message`}</label>}
      {may && files.length > 0 && array(state.operations).some(takesMessage) && <textarea id="commit-message" rows={2} placeholder={text(session?.title)} value={message} dir="auto" onInput={(e) => setMessage(e.currentTarget.value)} />}
      <div class="row wrap">
        <p class="dim" role="status">{state.status === 'computing' ? t`Being computed…` : state.status === 'error' ? text(state.error?.message) || t`This could not be computed.` : `${plural(files.length, '{0} file', '{0} files')}${reviewable && files.length ? `, ${plural(seen, '{0} looked at', '{0} looked at')}` : ''}`}</p>
        <div class="row">{buttons('changeset')}</div>
      </div>
      {said.text && failed.every((o) => text(o.error!.message) !== said.text) && <p class={said.wrong ? 'error' : 'dim'} role="status">{said.text}</p>}
      {next && <p><a class="button" href={next} target="_blank" rel="noopener noreferrer">{t`Open ${new URL(next).host}`}</a></p>}
      {failed.map((o) => <p key={o.id} class="error">{text(o.label)}: {text(o.error!.message)}</p>)}
      {failed.length > 0 && may && rights.operatesAll() && <div class="row start"><SignInAgain /></div>}
      <ul class="edits">
        {files.map((f) => (
          <li key={f.id} class="edit">
            <FileChange file={f} open={files.length <= 3 && !f.reviewed} wide={wide}>
              {reviewable && <label class="check small"><input type="checkbox" checked={f.reviewed === true} onChange={(e) => conversation.perform(channel, { type: 'changeset/filesReviewChanged', files: [f.id], reviewed: e.currentTarget.checked })} /> {t`Looked at`}</label>}
              {buttons('resource', f)}
            </FileChange>
          </li>
        ))}
      </ul>
      {files.length === 0 && !said.text && state.status !== 'computing' && <p class="empty">{t`Nothing has changed.`}</p>}
    </div>
  );
}

function FileChange({ file, open, wide, children }: { file: Changed; open: boolean; wide: boolean; children: ComponentChildren }) {
  const [shown, setShown] = useState(open);
  const kind = kindOfEdit(file.edit);
  return (
    <details open={open} onToggle={(e) => setShown(e.currentTarget.open)}>
      <summary title={pathOf(uriOfEdit(file.edit))}><span class="name path">{shortPathOf(uriOfEdit(file.edit), view.folders)}</span>{kind && <Badge>{kind}</Badge>} <Stat edit={file.edit} />{file.reviewed && <Icon name="check" />}</summary>
      <div class="row start wrap">{children}</div>
      {shown && <Diff edit={file.edit} wide={wide} />}
    </details>
  );
}
