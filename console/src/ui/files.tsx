// A session's files, and the file view.

import { useEffect, useRef, useState } from 'preact/hooks';
import { nav, requests, rights, view } from '../app';
import { highlight } from '../highlight';
import { ROOT } from '../rpc';
import { array, text } from '../store';
import type { Entry } from '../ahp';
import { baseName, below, parentOf, pathOf } from '../words';
import { Copy, Icon } from './bits';
import { attach } from './composer';
import { atobText } from './toolparts';
import { plural, t } from '../language';

const mostEntries = 1000; // entries listed for a folder
const mostShown = 500_000; // characters of a file shown at first

/** A folder's entries. */
export function Files({ uri }: { uri: string }) {
  const [read, setRead] = useState<{ entries?: Entry[]; why?: string }>({});
  useEffect(() => {
    let gone = false;
    requests.request('resourceList', { channel: ROOT, uri }).then(
      (r) => { if (!gone) setRead({ entries: array(r?.entries).filter((e) => text(e?.name)).sort(foldersFirst) }); },
      (err) => { if (!gone) setRead({ why: err.message }); });
    return () => { gone = true; };
  }, [uri]);
  const roots = view.folders;
  const up = roots.includes(uri) ? '' : parentOf(uri);
  const go = (name: string, folder: boolean) => nav.showPane({ kind: folder ? 'files' : 'file', channel: below(uri, name) });
  return (
    <>
      {roots.length > 1 && <ul class="chips" aria-label={t`Folders`}>{roots.map((r) => <li key={r}><button type="button" class="chip" aria-pressed={r === uri} disabled={r === uri} onClick={() => nav.showPane({ kind: 'files', channel: r })}><Icon name="folder" /><span>{baseName(r)}</span></button></li>)}</ul>}
      <p class="dim path">{pathOf(uri)}</p>
      {read.why && <p class="empty">{t`It could not be read: ${read.why}`}</p>}
      {!read.why && !read.entries && <p class="empty">{t`Reading…`}</p>}
      <ul class="list files">
        {up && <li><button type="button" class="item" onClick={() => nav.showPane({ kind: 'files', channel: up })}><span class="row"><Icon name="up" /><span class="name grow">{baseName(up) || '/'}</span></span></button></li>}
        {read.entries?.slice(0, mostEntries).map((e) => (
          <li key={e.name}><button type="button" class="item" onClick={() => go(e.name, e.type === 'directory')}><span class="row"><Icon name={e.type === 'directory' ? 'folder' : 'file'} /><span class="name grow">{e.name}</span></span></button></li>
        ))}
      </ul>
      {read.entries?.length === 0 && <p class="empty">{t`This folder is empty.`}</p>}
      {(read.entries?.length ?? 0) > mostEntries && <p class="dim">{plural(read.entries!.length - mostEntries, 'And {0} more.', 'And {0} more.')}</p>}
    </>
  );
}

function foldersFirst(a: Entry, b: Entry): number {
  return Number(b.type === 'directory') - Number(a.type === 'directory') || a.name.localeCompare(b.name);
}

const pictures: Record<string, string> = { png: 'image/png', jpg: 'image/jpeg', jpeg: 'image/jpeg', gif: 'image/gif', webp: 'image/webp', svg: 'image/svg+xml' };

export function File({ uri }: { uri: string }) {
  const [read, setRead] = useState<{ text?: string; picture?: string; why?: string }>({});
  const [all, setAll] = useState(false);
  const at = useRef<HTMLElement>(null);
  const ending = uri.slice(uri.lastIndexOf('.') + 1).toLowerCase();
  useEffect(() => {
    let gone = false;
    requests.read(uri).then((r) => {
      if (gone) return;
      const type = /^image\/[a-z+]+$/.test(text(r.contentType)) ? r.contentType : pictures[ending];
      if (r.encoding === 'base64' && type && /^[A-Za-z0-9+/=]*$/.test(r.data as string)) setRead({ picture: `data:${type};base64,${r.data}` });
      else setRead({ text: r.encoding === 'base64' ? atobText(r.data as string) : text(r.data) });
    }, (err) => { if (!gone) setRead({ why: err.message }); });
    return () => { gone = true; };
  }, [uri]);
  useEffect(() => { if (read.text && at.current) highlight(at.current, ending); }, [read.text]);
  const folder = view.folders.find((f) => uri.startsWith(f.endsWith('/') ? f : `${f}/`));
  const there = read.text !== undefined || read.picture !== undefined;
  return (
    <>
      <div class="row start wrap">
        {folder && <button type="button" class="small" onClick={() => nav.showPane({ kind: 'files', channel: parentOf(uri) })}><Icon name="folder" /> {baseName(parentOf(uri))}</button>}
        {there && !rights.readOnly && view.chatUri && <button type="button" class="small" onClick={add}>{t`Add to the message`}</button>}
        {read.text !== undefined && <Copy text={() => read.text!} label={t`Copy the file`} />}
      </div>
      <p class="dim path">{pathOf(uri)}</p>
      {read.why ? <p class="empty">{t`It could not be read: ${read.why}`}</p>
        : read.picture ? <img class="picture" src={read.picture} alt={baseName(uri)} />
          : read.text === undefined ? <p class="empty">{t`Reading…`}</p>
            : <pre key={String(all)} class="file" tabIndex={0}><code ref={at}>{all ? read.text : read.text.slice(0, mostShown)}</code></pre>}
      {!all && read.text !== undefined && read.text.length > mostShown && <button type="button" class="small" onClick={() => setAll(true)}>{t`Show all ${Math.round(read.text.length / 1000)} KB`}</button>}
    </>
  );

  function add(): void {
    attach(view.host, view.chatUri!, [{ label: baseName(uri), uri, displayKind: read.picture ? 'image' : 'document' }]);
    nav.showPane(null);
  }
}
