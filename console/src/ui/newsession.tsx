// The form for a new session.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { app } from '../app';
import type { Link } from '../link';
import { ROOT } from '../rpc';
import { array, isObject, text } from '../store';
import type { Json } from '../ahp';
import { pathOf, uriOf } from '../words';
import { Dialog } from './bits';

const key = (host: string) => `new-session ${host}`;

/** The last choice that was made at a host. */
function lastChoice(host: string): Json {
  try {
    return JSON.parse(localStorage.getItem(key(host)) ?? '{}');
  } catch {
    return {};
  }
}

export function NewSession() {
  const links = [...app.links.values()].filter((l) => l.live && l.store.agents.length > 0);
  const [host, setHost] = useState(links.some((l) => l.host === app.host) ? app.host : links[0]?.host ?? '');
  const link = app.links.get(host);
  return (
    <Dialog title="New session" id="new" onClose={() => app.open(null)}>
      {links.length > 1 && (
        <div class="fields"><label for="new-host">Host</label>
          <select id="new-host" value={host} onChange={(e) => setHost(e.currentTarget.value)}>{links.map((l) => <option key={l.host}>{l.host}</option>)}</select></div>
      )}
      {link ? <Form key={host} link={link} /> : <p>No host is online.</p>}
    </Dialog>
  );
}

function Form({ link }: { link: Link }) {
  const last = useMemo(() => lastChoice(link.host), [link]);
  const { agents } = link.store;
  const [provider, setProvider] = useState<string>(agents.some((a) => a.provider === last.provider) ? last.provider : agents[0]?.provider ?? '');
  const agent = agents.find((a) => a.provider === provider) ?? {};
  const models = array(agent.models).filter((m) => m?.policyState !== 'disabled');
  const [model, setModel] = useState<string>(last.provider === provider ? last.model ?? '' : '');
  const [folder, setFolder] = useState<string>(last.folder ?? recentFolders(link)[0] ?? pathOf(text(link.conn?.info.defaultDirectory)));
  const [config, setConfig] = useState<Json>(last.provider === provider ? last.config ?? {} : {});
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState('');
  const directory = folder.trim() ? uriOf(folder.trim()) : '';
  const schema = useSchema(link, provider, directory, config);
  const wants = link.unsigned(agent);

  const submit = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setSaid('');
    try {
      const chosen = models.some((m) => m.id === model) ? { id: model } : undefined;
      await app.sessions.create(link, { provider, directory, model: chosen, config: { ...schema?.values, ...config } });
      localStorage.setItem(key(link.host), JSON.stringify({ provider, model, folder: folder.trim(), config }));
    } catch (err) {
      const { code, message } = err as Error & { code?: number };
      setSaid(`No session was made: ${message}${code === -32007 ? ' Sign in first.' : ''}`);
    }
    setBusy(false);
  };
  return (
    <form class="fields" onSubmit={submit}>
      {agents.length > 1 ? (
        <><label for="new-agent">Agent</label>
          <select id="new-agent" value={provider} onChange={(e) => { setProvider(e.currentTarget.value); setConfig({}); setModel(''); }}>{agents.map((a) => <option key={a.provider} value={a.provider}>{text(a.displayName) || a.provider}</option>)}</select></>
      ) : <p class="dim">{text(agent.displayName) || provider}{text(agent.description) ? `: ${text(agent.description)}` : ''}</p>}
      {wants.length > 0 && <button type="button" class="notice" onClick={() => app.open({ kind: 'sign-in', link, who: text(agent.displayName) || provider, resources: wants })}>{text(agent.displayName) || provider} may want you to sign in to {text(wants[0].resource_name) || wants[0].resource}</button>}
      <Folder link={link} value={folder} set={setFolder} />
      {models.length > 0 && (
        <><label for="new-model">Model</label>
          <select id="new-model" value={model} onChange={(e) => setModel(e.currentTarget.value)}><option value="">The agent's choice</option>{models.map((m) => <option key={m.id} value={m.id}>{text(m.name) || m.id}</option>)}</select></>
      )}
      {Object.entries<Json>(schema?.schema?.properties ?? {}).map(([name, p]) => (
        <Property key={name} name={name} p={p} value={config[name] ?? schema?.values?.[name] ?? p?.default} set={(v) => setConfig({ ...config, [name]: v })}
          complete={p?.enumDynamic ? (query) => link.conn!.request('sessionConfigCompletions', { channel: ROOT, provider, ...where(directory), config, property: name, query }) : undefined} />
      ))}
      <p id="new-note" class="error" role="status">{said}</p>
      <div class="row start"><button id="create" class="primary" type="submit" disabled={busy || !link.live}>{busy ? 'Beginning…' : 'Begin'}</button></div>
    </form>
  );
}

function where(directory: string): Json {
  return directory ? { workingDirectory: directory, workingDirectories: [directory] } : {};
}

/** Loads the host's options for such a session, again after each change. */
function useSchema(link: Link, provider: string, directory: string, config: Json): Json {
  const [schema, setSchema] = useState<Json>(undefined);
  const asked = JSON.stringify([provider, directory, config]);
  useEffect(() => {
    if (!provider || !link.live) return;
    let gone = false;
    const timer = setTimeout(() => {
      link.conn!.request('resolveSessionConfig', { channel: ROOT, provider, ...where(directory), config })
        .then((r) => { if (!gone) setSchema(r); }, () => { if (!gone) setSchema(undefined); }); // not all hosts serve it
    }, 250);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [asked]);
  return schema;
}

export function Property({ name, p, value, set, complete }: { name: string; p: Json; value: Json; set: (v: Json) => void; complete?: (query: string) => Promise<Json> }) {
  const [found, setFound] = useState<Json[]>([]);
  const id = `new-${name}`;
  if (!isObject(p) || p.readOnly || p.type === 'object' || p.type === 'array') return null;
  const label = text(p.title) || name;
  if (Array.isArray(p.enum) && !complete) {
    const labels = array(p.enumLabels);
    const bypass = array(p.bypass); // values that skip permissions
    const about = array(p.enumDescriptions)[p.enum.indexOf(value)];
    return <><label for={id}>{label}</label><select id={id} value={String(value ?? '')} title={text(p.description)} onChange={(e) => set(p.enum.find((v: Json) => String(v) === e.currentTarget.value))}>{value === undefined && <option value="">Host’s default</option>}{p.enum.map((v: Json, i: number) => <option key={String(v)} value={String(v)}>{text(labels[i]) || String(v)}{bypass.includes(v) ? ' ⚠ asks for nothing' : ''}</option>)}</select>{bypass.includes(value) && <p class="error">In this mode the agent asks for no permission.</p>}{text(about) && <p class="dim">{text(about)}</p>}</>;
  }
  if (p.type === 'boolean') return <label class="check"><input type="checkbox" checked={value === true} onChange={(e) => set(e.currentTarget.checked)} /> {label}</label>;
  return (
    <><label for={id}>{label}</label>
      <input id={id} type={p.type === 'number' ? 'number' : 'text'} list={complete ? `${id}-list` : undefined} value={String(value ?? '')} title={text(p.description)}
        onInput={(e) => {
          const v = e.currentTarget.value;
          set(p.type === 'number' ? Number(v) : v);
          complete?.(v).then((r) => setFound(array(r?.items)), () => {});
        }} />
      {complete && <datalist id={`${id}-list`}>{[...found, ...array(p.enum).map((v) => ({ value: v }))].slice(0, 50).map((i) => <option key={i.value} value={i.value}>{text(i.label)}</option>)}</datalist>}</>
  );
}

/** Folders that sessions of the host were in, the latest first. */
function recentFolders(link: Link): string[] {
  const sessions = [...link.store.sessions.values()].sort((a, b) => String(b.modifiedAt).localeCompare(String(a.modifiedAt)));
  return [...new Set(sessions.flatMap((s) => array(s.workingDirectories)).filter((d) => typeof d === 'string').map(pathOf))].slice(0, 12);
}

function Folder({ link, value, set }: { link: Link; value: string; set: (v: string) => void }) {
  const recent = useMemo(() => recentFolders(link), [link]);
  const [below, setBelow] = useState<string[]>([]);
  const asked = useRef('');
  const parent = value.slice(0, value.lastIndexOf('/') + 1);
  useEffect(() => {
    if (!parent.startsWith('/') || asked.current === parent || !link.live) return;
    asked.current = parent;
    link.conn!.request('resourceList', { channel: ROOT, uri: uriOf(parent.length > 1 ? parent.slice(0, -1) : parent) }).then((r) => {
      if (asked.current !== parent) return;
      setBelow(array(r?.entries).filter((e) => e?.type === 'directory' && !text(e.name).startsWith('.')).map((e) => parent + text(e.name)).slice(0, 200));
    }, () => setBelow([]));
  }, [parent]);
  return (
    <><label for="new-folder">Folder</label>
      <input id="new-folder" list="new-folders" value={value} placeholder="/path/to/a/project" autocapitalize="off" autocorrect="off" spellcheck={false} onInput={(e) => set(e.currentTarget.value)} />
      <datalist id="new-folders">{[...new Set([...recent, ...below])].map((f) => <option key={f} value={f} />)}</datalist>
      {recent.length > 1 && <div class="chips">{recent.slice(0, 5).map((f) => <button key={f} type="button" class="chip" aria-pressed={f === value} onClick={() => set(f)}>{f.split('/').at(-1) || f}</button>)}</div>}</>
  );
}
