// The form for a new session.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { absent, conversation, hosts, links, nav, sessions, view } from '../app';
import type { Link } from '../link';
import { isRegistered } from '../registered';
import { ROOT, RpcError } from '../rpc';
import { keep } from '../storage';
import { array, isObject, text } from '../store';
import { keepDraft, keptDraft } from '../unsent';
import type { Agent, JsonObject, Option, Result, Words } from '../ahp';
import { pathOf, placeOf, randomId, toRelay, uriOf } from '../words';
import { Dialog } from './bits';
import { skips } from './bypass';
import { WakeAt } from './left';
import { Completed, Select } from './select';
import { t } from '../language';

const exists = -32003; // the host's error for a session that it has

const key = (host: string) => `new-session ${host}`;

/** The choices that a user made last at a host. */
interface Last { provider?: string; model?: string; folder?: string; config?: JsonObject }

/** Returns the choices that were made last at a host. */
function lastChoice(host: string): Last {
  try {
    return JSON.parse(localStorage.getItem(key(host)) ?? '{}');
  } catch {
    return {};
  }
}

export function NewSession() {
  const ready = [...links.values()].filter((l) => sessions.mayBegin(l));
  const [host, setHost] = useState(ready.some((l) => l.host === view.host) ? view.host : ready[0]?.host ?? '');
  const link = links.get(host);
  return (
    <Dialog title={t`New session`} id="new" onClose={() => nav.open(null)}>
      {ready.length > 1 && (
        <div class="fields"><Select id="new-host" label={t`Host`} value={host} options={ready.map((l) => [l.host, l.live ? '' : t`away`])} onChange={setHost} /></div>
      )}
      {link ? <Form key={host} link={link} /> : <p>{t`No host is online.`}</p>}
    </Dialog>
  );
}

/** The choices for a new session. */
interface Created { provider: string; directory: string; model?: { id: string }; config?: JsonObject }

/**
 * Creates a session and opens it. Rejects if the host refuses. tried has the sessions, by the user's choices, that the host may have
 * created although no answer came: they are not created a second time. The host's own options may differ between two tries.
 */
async function create(link: Link, { provider, directory, model, config }: Created, chosen: JsonObject, tried: Map<string, string>): Promise<void> {
  const key = JSON.stringify([provider, directory, model, chosen]);
  const channel = tried.get(key) ?? `${provider}:/${randomId()}`;
  tried.set(key, channel);
  try {
    if (!link.store.sessions.has(channel)) {
      await link.conn!.request('createSession', {
        channel, provider,
        ...(directory ? { workingDirectories: [directory] } : {}),
        ...(model ? { model } : {}),
        ...(config && Object.keys(config).length ? { config } : {}),
      });
    }
  } catch (err) {
    if (!(err instanceof RpcError)) throw err;
    tried.delete(key);
    if (err.code !== exists) throw err;
  }
  if (model) conversation.models.set(placeOf(link.host, channel), model);
  nav.openSession(link.host, channel);
  nav.open(null);
}

function Form({ link }: { link: Link }) {
  const last = useMemo(() => lastChoice(link.host), [link]);
  const away = sessions.waits(link); // may change while the user writes
  const agents = away ? absent.at(link.host)?.agentsOf(link.host) ?? [] : link.store.agents;
  const [words, setWords] = useState(() => keptDraft(link.host, 'new')); // the first message of a session for an absent host; if the host returns, a draft
  const [wake, setWake] = useState('');
  const [chosen, setProvider] = useState(last.provider);
  const provider: string = agents.some((a) => a.provider === chosen) ? chosen! : agents[0]?.provider ?? '';
  const agent = agents.find((a) => a.provider === provider) ?? {} as Agent;
  const models = array(agent.models).filter((m) => m?.policyState !== 'disabled');
  const [model, setModel] = useState<string>(last.provider === provider ? last.model ?? '' : '');
  const [folder, setFolder] = useState<string>(last.folder ?? recentFolders(link)[0] ?? pathOf(text(link.conn?.info.defaultDirectory)));
  const [config, setConfig] = useState<JsonObject>(last.provider === provider ? last.config ?? {} : {});
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState('');
  const tried = useRef(new Map<string, string>());
  const directory = folder.trim() ? uriOf(folder.trim()) : '';
  const { schema, latest } = useSchema(link, provider, directory, config);
  const properties = away ? [] : Object.entries<Option>(schema?.schema?.properties ?? {});
  const choices = choosesModel(properties) ? [] : models;
  const wants = away ? [] : link.unsigned(agent);
  /** Goes to a different folder. A choice from the former folder's own values, such as a branch, stays behind. */
  const move = (to: string) => {
    setFolder(to);
    setConfig(Object.fromEntries(Object.entries(config).filter(([name]) => !schema?.schema?.properties?.[name]?.enumDynamic)));
  };

  const submit = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setSaid('');
    try {
      const withModel = choices.some((m) => m.id === model) ? { id: model } : undefined;
      if (away) {
        const title = [text(agent.displayName) || provider, folder.trim()].filter(Boolean).join(', ');
        nav.openSession(link.host, await absent.at(link.host)!.leaveSession(link.host, { provider, directory, model: withModel, text: words, title }, toRelay(wake)));
        nav.open(null);
      } else {
        await create(link, { provider, directory, model: withModel, config: configOf(await latest(), config) }, config, tried.current);
        if (words.trim()) keepDraft(link.host, view.session, words);
      }
      keepDraft(link.host, 'new', '');
      if (isRegistered(link.host)) keep(localStorage, key(link.host), JSON.stringify({ provider, model, folder: folder.trim(), config }));
    } catch (err) {
      const { code, message } = err as Error & { code?: number };
      if (away) setSaid(t`Not left: ${message}.`);
      else setSaid(`${t`No session was made: ${message}`}${code === -32007 ? ` ${t`Sign in first.`}` : ''}`);
    }
    setBusy(false);
  };
  return (
    <form class="fields" onSubmit={submit}>
      {agents.length > 1 ? (
        <Select id="new-agent" label={t`Agent`} value={provider} options={agents.map((a) => [a.provider, text(a.displayName)])} onChange={(v) => { setProvider(v); setConfig({}); setModel(''); }} />
      ) : <p class="dim">{text(agent.displayName) || provider}{text(agent.description) ? `: ${text(agent.description)}` : ''}</p>}
      {wants.length > 0 && <button type="button" class="notice" onClick={() => nav.open({ kind: 'sign-in', link, who: text(agent.displayName) || provider, resources: wants })}>{t`${text(agent.displayName) || provider} may want you to sign in to ${text(wants[0].resource_name) || wants[0].resource}`}</button>}
      <Folder link={link} value={folder} set={move} />
      {choices.length > 0 && (
        <Select id="new-model" label={t`Model`} value={model} options={[['', t`The agent’s choice`], ...choices.map((m): [string, string] => [m.id, text(m.name)])]} onChange={setModel} />
      )}
      {properties.map(([name, p]) => (
        <Property key={name} name={name} p={p} value={config[name] ?? schema?.values?.[name] ?? p?.default} set={(v) => setConfig({ ...config, [name]: v })}
          complete={p?.enumDynamic ? (query) => link.conn!.request('sessionConfigCompletions', { channel: ROOT, provider, ...where(directory), config, property: name, query }) : undefined} />
      ))}
      {(away || words) && (
        <>
          <label for="new-text">{t`First message`}</label>
          <textarea id="new-text" rows={3} value={words} disabled={busy} onInput={(e) => { setWords(e.currentTarget.value); keepDraft(link.host, 'new', e.currentTarget.value); }} />
        </>
      )}
      {away && (
        <>
          {hosts.mayWake(link.host) && <WakeAt id="new-wake" value={wake} set={setWake} />}
          <p class="dim">{t`${link.host} is away. The session waits at the relay, and begins when the host is back.`}</p>
        </>
      )}
      <p id="new-note" class="error" role="status">{said || (!away && !link.live ? t`Not connected.` : '')}</p>
      <div class="row start"><button id="create" class="primary" type="submit" disabled={busy || (!away && !link.live)}>{away ? t`Begin when back` : busy ? t`Beginning…` : t`Begin`}</button></div>
    </form>
  );
}

/** Whether one of the host's options selects the model. */
function choosesModel(properties: [string, Option][]): boolean {
  return properties.some(([, p]) => p?.category === 'model');
}

function where(directory: string): object {
  return directory ? { workingDirectory: directory, workingDirectories: [directory] } : {};
}

type Schema = Result<'resolveSessionConfig'> | undefined;

/** Loads the host's options for such a session, again after each change. latest waits for those of the form as it is. */
function useSchema(link: Link, provider: string, directory: string, config: JsonObject): { schema: Schema; latest: () => Promise<Schema> } {
  const [loaded, setLoaded] = useState<{ asked: string; schema: Schema }>({ asked: '', schema: undefined });
  const asked = JSON.stringify([provider, directory, config]);
  const ask = (): Promise<Schema> => link.conn!.request('resolveSessionConfig', { channel: ROOT, provider, ...where(directory), config }).catch(() => undefined); // not all hosts serve it
  useEffect(() => {
    if (!provider || !link.live) return;
    let gone = false;
    const timer = setTimeout(async () => {
      const schema = await ask();
      if (!gone) setLoaded({ asked, schema });
    }, 250);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [asked, link.live]);
  return { schema: loaded.schema, latest: async () => (loaded.asked === asked ? loaded.schema : ask()) };
}

/** The host's values with the user's choices, except for options that the host does not offer here. */
function configOf(schema: Schema, chosen: JsonObject): JsonObject {
  const offered = schema?.schema?.properties;
  return { ...schema?.values, ...(isObject(offered) ? Object.fromEntries(Object.entries(chosen).filter(([name]) => name in offered)) : chosen) };
}

function Property({ name, p, value, set, complete }: { name: string; p: Option; value: unknown; set: (v: unknown) => void; complete?: (query: string) => Promise<Result<'sessionConfigCompletions'>> }) {
  const [found, setFound] = useState<{ value?: unknown; label?: Words }[]>([]);
  const id = `new-${name}`;
  if (!isObject(p) || p.readOnly || p.type === 'object' || p.type === 'array') return null;
  const label = text(p.title) || name;
  if (Array.isArray(p.enum) && !complete) {
    const labels = array(p.enumLabels);
    const about = array(p.enumDescriptions)[p.enum.indexOf(value)];
    const options: [string, string][] = p.enum.map((v, i) => [String(v), `${text(labels[i]) || String(v)}${skips(name, p, v) ? ` ⚠ ${t`asks for nothing`}` : ''}`]);
    if (value === undefined) options.unshift(['', t`Host’s default`]);
    return <><Select id={id} label={label} value={String(value ?? '')} title={text(p.description)} options={options} onChange={(v) => set(p.enum!.find((one) => String(one) === v))} />{skips(name, p, value) && <p class="error">{t`In this mode the agent asks for no permission.`}</p>}{text(about) && <p class="dim">{text(about)}</p>}</>;
  }
  if (p.type === 'boolean') {
    return (
      <><label class="check"><input type="checkbox" checked={value === true} onChange={(e) => set(e.currentTarget.checked)} /> {label}{skips(name, p, true) && ` ⚠ ${t`asks for nothing`}`}</label>
        {skips(name, p, value) && <p class="error">{t`In this mode the agent asks for no permission.`}</p>}</>
    );
  }
  if (complete) {
    const offered = new Map<string, string>([...found, ...array(p.enum).map((v): typeof found[number] => ({ value: v }))].map((i) => [String(i.value), text(i.label)]));
    return (
      <Completed id={id} label={label} value={String(value ?? '')} title={text(p.description)} options={[...offered]} onInput={(v) => {
        set(p.type === 'number' ? Number(v) : v);
        complete(v).then((r) => setFound(array(r?.items)), () => {});
      }} />
    );
  }
  return (
    <><label for={id}>{label}</label>
      <input id={id} type={p.type === 'number' ? 'number' : 'text'} value={String(value ?? '')} title={text(p.description)} onInput={(e) => set(p.type === 'number' ? Number(e.currentTarget.value) : e.currentTarget.value)} /></>
  );
}

/** Folders of the host's sessions, the latest first. */
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
    <><Completed id="new-folder" label={t`Folder`} value={value} placeholder="/path/to/a/project" options={[...new Set([...recent, ...below])].map((f) => [f, ''])} onInput={set} />
      {recent.length > 1 && <div class="chips">{recent.slice(0, 5).map((f) => <button key={f} type="button" class="chip" aria-pressed={f === value} onClick={() => set(f)}>{f.split('/').at(-1) || f}</button>)}</div>}</>
  );
}

/** A choice of the user in a running session's settings. */
interface Tried { name: string; from: unknown; to: unknown; clientSeq: number }

/** Explains that a choice was taken back: an agent that refuses one sets the former value again. */
function tookBack({ name, from, to }: Tried, p: Option | undefined, now: unknown) {
  if (now === to || now !== from) return null;
  const label = (v: unknown) => (typeof v === 'boolean' ? (v ? t`on` : t`off`) : text(array(p?.enumLabels)[array(p?.enum).indexOf(v as never)]) || String(v));
  return <p class="error" role="status">{t`${text(p?.title) || name} is ${label(from)} again, because ${label(to)} was not accepted.`}</p>;
}

/** The settings of a running session: the model of the next message, and the host's mutable options. */
export function Settings() {
  const { link, host, session } = view;
  const state = link?.store.get(session);
  const agent = link?.store.agents.find((a) => a?.provider === state?.provider);
  const models = array(agent?.models).filter((m) => m?.policyState !== 'disabled');
  const { schema, values } = state?.config ?? {};
  const mutable = Object.entries<Option>(schema?.properties ?? {}).filter(([, p]) => p?.sessionMutable && !p.readOnly);
  const model = conversation.models.get(placeOf(host, session))?.id ?? '';
  const [tried, setTried] = useState<Tried | null>(null);
  const choose = (name: string, from: unknown, to: unknown) => {
    const clientSeq = conversation.perform(session, { type: 'session/configChanged', config: { [name]: to } });
    setTried(clientSeq === undefined ? null : { name, from, to, clientSeq });
  };
  return (
    <Dialog title={t`Model and settings`} id="settings" onClose={() => nav.open(null)}>
      <div class="fields">
        {models.length > 0 && !choosesModel(mutable) && (
          <Select id="settings-model" label={t`Model for the next message`} value={model} options={[['', t`As it is`], ...models.map((m): [string, string] => [m.id, text(m.name)])]} onChange={(v) => conversation.chooseModel(v)} />
        )}
        {mutable.map(([name, p]) => <Property key={name} name={name} p={p} value={values?.[name] ?? p.default} set={(v) => choose(name, values?.[name] ?? p.default, v)} />)}
        {link && !link.store.refusal && tried && tried.clientSeq <= link.store.confirmed && tookBack(tried, schema?.properties?.[tried.name], values?.[tried.name])}
        {models.length === 0 && mutable.length === 0 && <p class="empty">{t`The host offers no choice here.`}</p>}
        {link?.store.refusal && <p class="error" role="status">{link.store.refusal}</p>}
      </div>
    </Dialog>
  );
}
