// Links that share a session, and who uses them now.

import { useEffect, useRef, useState } from 'preact/hooks';
import { bare } from '../accounts';
import { nav, requests, view } from '../app';
import { array, text } from '../store';
import { Copy, Dialog } from './bits';
import { Select } from './select';
import { when } from '../words';
import { t } from '../language';

const lookEvery = 5_000; // ms between requests for the current viewers

const levels: [string, string][] = [['look', t`look`], ['talk', t`talk to the agent`], ['approve', t`approve the agent’s actions`], ['operate', t`operate the host: terminals, files`]];
const times: [number, string][] = [[3600, t`an hour`], [8 * 3600, t`8 hours`], [24 * 3600, t`a day`], [7 * 24 * 3600, t`a week`]];

/** A link that shares a session. */
interface Link { id: string; host: string; session: string; level: string; expires: string; people: number; by?: string; watching?: { address?: string }[] }

/** The relay's answer when a link is made. */
interface Made { link?: string; expires?: string; qr?: string[] }

async function ask<T = object>(method: string, path: string, json?: object): Promise<T> {
  const { status, body } = await requests.askAt<T>(view.host, method, path, json);
  if (status !== 200) throw new Error(text(body?.error) || `HTTP ${status}`);
  return body;
}

export function Share() {
  const { host, session } = view;
  const [made, setMade] = useState<Made | null>(null);
  const [links, setLinks] = useState<Link[]>([]);
  const [own, setOwn] = useState('');
  const [said, setSaid] = useState('');
  const [busy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const look = async () => {
    const { shares } = await ask<{ shares?: Link[] }>('GET', 'api/shares');
    setLinks(array(shares).filter((s) => s.host === bare(host) && s.session === session));
  };
  const act = async (work: () => Promise<void>) => {
    setBusy(true);
    try {
      await work();
      await look();
      setSaid('');
    } catch (err) {
      setSaid((err as Error).message);
    }
    setBusy(false);
  };
  useEffect(() => {
    act(async () => setOwn(text((await ask<{ level?: string }>('GET', 'api/me')).level)));
    const timer = setInterval(() => look().catch(() => {}), lookEvery);
    return () => clearInterval(timer);
  }, [host, session]);
  const submit = (e: Event) => {
    e.preventDefault();
    const values = new FormData(form.current!);
    act(async () => setMade(await ask<Made>('POST', 'api/shares', {
      host: bare(host), session, level: values.get('level'), seconds: Number(values.get('seconds')), people: Number(values.get('people')), files: values.has('files'),
    })));
  };
  const takeBack = (path: string) => act(async () => {
    await ask('DELETE', path);
    setMade(null);
  });
  return (
    <Dialog title={t`Share this session`} id="share" onClose={() => nav.open(null)}>
      {made ? (
        <div class="fields" id="share-made">
          <Code rows={array(made.qr)} />
          <div class="row"><code class="grow share-link">{text(made.link)}</code><Copy text={() => text(made.link)} label={t`Copy the link`} /></div>
          <p class="dim">{t`Good until ${when(made.expires)}. Who has it sees this session, and nothing else of the host.`}</p>
          <div class="row start"><button type="button" onClick={() => setMade(null)}>{t`Another link`}</button></div>
        </div>
      ) : own !== '' && own !== 'own' ? (
        <p class="dim">{t`Only who owns a host shares its sessions. This device may: ${own}.`}</p>
      ) : (
        <form class="fields" ref={form} onSubmit={submit}>
          <Select id="share-level" label={t`The link allows to`} name="level" options={levels} />
          <Select id="share-time" label={t`for`} name="seconds" options={times.map(([seconds, name]) => [String(seconds), name])} />
          <label for="share-people">{t`People at a time`}</label>
          <input id="share-people" name="people" type="number" inputMode="numeric" min={1} max={10000} defaultValue="64" required />
          <label class="check"><input type="checkbox" name="files" /> {t`The files in its folders, too`}</label>
          <p class="dim">{t`The host owner’s limits apply: no link allows more.`}</p>
          <div class="row start"><button class="primary" type="submit" disabled={busy}>{t`Make a link`}</button></div>
        </form>
      )}
      <p class="error" role="status">{said}</p>
      {links.length > 0 && (
        <div class="fields" id="share-links">
          <h3>{t`Shared now`}</h3>
          {links.map((l) => (
            <div key={l.id} class="row" data-link={l.id}>
              <span class="grow">{t`${levels.find(([level]) => level === l.level)?.[1] ?? text(l.level)}, until ${when(l.expires)}`} <span class="dim" title={array(l.watching).map((v) => text(v.address)).join(', ')}>{t`${array(l.watching).length} of ${l.people} there now`}{text(l.by) && `, ${t`by ${text(l.by)}`}`}</span></span>
              <button type="button" class="danger" disabled={busy} onClick={() => takeBack(`api/shares/${encodeURIComponent(text(l.id))}`)}>{t`Take back`}</button>
            </div>
          ))}
          {links.length > 1 && <div class="row start"><button type="button" class="danger" disabled={busy} onClick={() => act(async () => { for (const l of links) await ask('DELETE', `api/shares/${encodeURIComponent(text(l.id))}`); setMade(null); })}>{t`Take all back`}</button></div>}
        </div>
      )}
    </Dialog>
  );
}

/** Draws a QR code from rows of 0 and 1. */
export function Code({ rows, label = t`QR code of the link` }: { rows: string[]; label?: string }) {
  if (rows.length === 0) return null;
  const size = rows.length + 8;
  const path = rows.flatMap((row, y) => [...row].map((c, x) => (c === '1' ? `M${x + 4} ${y + 4}h1v1h-1z` : ''))).join('');
  return <svg class="qr" viewBox={`0 0 ${size} ${size}`} role="img" aria-label={label}><path d={path} /></svg>;
}
