// The items for absent hosts at the relay: their states, and changes to them.

import { useState } from 'preact/hooks';
import { absent, hosts, links, nav, rights } from '../app';
import { Conflict, lives, type Left } from '../left';
import { text } from '../store';
import { fromRelay, toInput, toRelay, when } from '../words';
import { Badge } from './bits';
import { Select } from './select';
import { plural, t } from '../language';

/** The field for the time at which the relay wakes a host. */
export function WakeAt({ id, value, set, disabled }: { id: string; value: string; set: (value: string) => void; disabled?: boolean }) {
  return (
    <p class="wake-at"><label for={id}>{t`Wake the host at`}</label>
      <input id={id} type="datetime-local" value={value} disabled={disabled} onInput={(e) => set(e.currentTarget.value)} /></p>
  );
}

/** The items for a session. */
export function LeftHere({ host, session, now }: { host: string; session: string; now: number }) {
  return <Items all={absent.at(host)?.of(host, session) ?? []} now={now} />;
}

/** The items for all sessions, above their list. */
export function LeftAll({ now }: { now: number }) {
  const all = absent.all();
  if (all.length === 0) return null;
  const open = all.filter((l) => !l.result && !l.expired).length;
  return (
    <details id="left-all" class="left-all">
      <summary>{open > 0 ? plural(open, '{0} item waits for a host', '{0} items wait for a host') : t`Nothing waits for a host any more`}</summary>
      <Items all={all} now={now} titles />
    </details>
  );
}

function Items({ all, now, titles }: { all: Left[]; now: number; titles?: boolean }) {
  if (all.length === 0) return null;
  return <ul class="cards left" aria-label={t`Left for later`}>{all.map((l) => <Item key={`${l.host} ${l.item.id}`} l={l} now={now} title={titles} />)}</ul>;
}

function Item({ l, now, title }: { l: Left; now: number; title?: boolean }) {
  const [edits, setEdits] = useState(false);
  const [busy, setBusy] = useState(false);
  const [why, setWhy] = useState('');
  const act = async (change: () => Promise<void> | undefined) => {
    setBusy(true);
    setWhy('');
    await change()?.catch((err) => setWhy(sentenceOf(err)));
    setBusy(false);
  };
  const { tone, word, more } = stateOf(l, now);
  const over = Boolean(l.result) || l.expired;
  const { content } = l;
  const session = content?.session ?? '';
  return (
    <li class="item-card" data-left={l.item.id} data-state={l.result?.state ?? (l.expired ? 'expired' : l.item.cancelled ? 'cancelling' : 'waiting')}>
      {title && content && <button type="button" class="quiet small where" onClick={() => nav.openSession(l.host, session)}>{[text(links.get(l.host)?.store.sessions.get(session)?.title) || t`New session`, l.host].join(' · ')}</button>}
      {edits && content ? <Edit l={l} close={() => setEdits(false)} /> : <p class="text" dir="auto">{content ? wordsOf(l) : t`This device cannot read it. It was left on ${l.by || t`a different device`}.`}</p>}
      <p class="state" role="status"><Badge tone={tone}>{word}</Badge> <span class="dim">{more}</span></p>
      {why && <p class="error" role="alert">{why}</p>}
      {!edits && rights.mayAnswer(l.host, false) && (
        <div class="row start">
          {!over && !l.item.cancelled && isEditable(l) && <button type="button" class="small" data-do="edit" disabled={busy} onClick={() => { setWhy(''); setEdits(true); }}>{t`Edit`}</button>}
          {!over && !l.item.cancelled && content && <button type="button" class="small" data-do="cancel" disabled={busy} onClick={() => act(() => absent.at(l.host)?.cancel(l))}>{t`Do not deliver`}</button>}
          {over && <button type="button" class="small" data-do="remove" disabled={busy} onClick={() => act(() => absent.at(l.host)?.remove(l))}>{t`Remove`}</button>}
        </div>
      )}
    </li>
  );
}

/**
 * The form for a new version of an item. If another device has changed the item, that change is shown before
 * it is replaced.
 */
function Edit({ l, close }: { l: Left; close: () => void }) {
  const [value, setValue] = useState(l.content!.text ?? '');
  const [seen, setSeen] = useState(l.item.version);
  const [life, setLife] = useState('');
  const [wake, setWake] = useState(l.item.wake ? toInput(l.item.wake) : '');
  const [busy, setBusy] = useState(false);
  const [why, setWhy] = useState('');
  const id = `left-${l.item.id}`;
  const save = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setWhy('');
    try {
      await absent.at(l.host)?.change(l, seen, { ...l.content!, text: value }, life ? Number(life) : undefined, wakeOf(l, wake));
      close();
      return;
    } catch (err) {
      const now = absent.at(l.host)?.all.find((o) => o.host === l.host && o.item.id === l.item.id);
      setWhy(sentenceOf(err as Error));
      if (err instanceof Conflict && now) setSeen(now.item.version);
    }
    setBusy(false);
  };
  const other = why && l.item.version === seen && l.content?.text !== undefined && l.content.text !== value;
  return (
    <form class="fields" onSubmit={save}>
      <label class="unseen" for={id}>{t`Message to the agent`}</label>
      <textarea id={id} rows={3} value={value} disabled={busy} onInput={(e) => setValue(e.currentTarget.value)} />
      <Select id={`${id}-life`} label={t`Waits`} value={life} options={[['', t`until ${when(fromRelay(new Date(l.item.expires).toISOString()))}`], ...lives.map((h): [string, string] => [String(h), h < 48 ? plural(h, 'for {0} hour', 'for {0} hours') : plural(h / 24, 'for {0} day', 'for {0} days')])]} onChange={setLife} />
      {(l.item.wake !== undefined || hosts.mayWake(l.host)) && <WakeAt id={`${id}-wake`} value={wake} set={setWake} disabled={busy} />}
      {why && <p class="error" role="alert">{why}</p>}
      {other && <blockquote class="text other" dir="auto">{l.content!.text}</blockquote>}
      <div class="row start">
        <button type="submit" class="primary" disabled={busy || value.trim() === '' || l.expired || Boolean(l.result)}>{other ? t`Replace it` : t`Save`}</button>
        <button type="button" disabled={busy} onClick={close}>{t`Cancel`}</button>
      </div>
    </form>
  );
}

function sentenceOf(err: Error): string {
  return err instanceof Conflict ? t`Not changed: ${err.message}. This is its present state.` : t`Not changed: ${err.message}.`;
}

/** Whether an item's text can be edited. Answers are changed at their question. */
function isEditable({ content }: Left): boolean {
  return content?.kind === 'message' || (content?.kind === 'session' && content.text !== undefined);
}

/** The wake time of an edited item: unchanged unless the user has changed the field. */
function wakeOf({ item }: Left, field: string): number | undefined {
  return item.wake && field === toInput(item.wake) ? item.wake : toRelay(field);
}

/** Describes an item in words. */
function wordsOf({ content }: Left): string {
  const c = content!;
  const title = text(c.title);
  switch (c.kind) {
    case 'session': return [t`New session: ${title}`, text(c.text)].filter(Boolean).join('\n');
    case 'approve': return title || (c.approved ? t`Allow` : t`Deny`);
    case 'answer': return title || t`Answer`;
    case 'stop': return title ? t`Stop the agent: ${title}` : t`Stop the agent`;
  }
  return text(c.text);
}

/** Describes an item's state. Only the host's report makes it certain. */
function stateOf(l: Left, now: number): { tone: string; word: string; more: string } {
  const why = text(l.result?.why);
  switch (l.result?.state) {
    case 'done': return { tone: 'ok', word: t`done`, more: t`The host has it.` };
    case 'refused': return { tone: 'bad', word: t`refused`, more: t`Not delivered: ${why}.` };
    case 'late': return { tone: 'bad', word: t`too late`, more: t`Not delivered: ${why}.` };
    case 'unknown': return { tone: 'wait', word: t`may have been delivered`, more: `${why}.` };
    case 'cancelled': return { tone: '', word: t`cancelled`, more: t`The host has confirmed that it does not deliver it.` };
  }
  const until = when(fromRelay(new Date(l.item.expires).toISOString()), now);
  if (l.expired) return { tone: 'bad', word: t`too late`, more: t`The host was away until ${until}.` };
  if (l.item.cancelled) return { tone: 'wait', word: t`cancelled at the relay`, more: t`It is certain when the host has confirmed it.` };
  const waits = t`Waits for ${l.host} until ${until}.`;
  const wake = l.item.wake ? when(fromRelay(new Date(l.item.wake).toISOString()), now) : '';
  const wakes = !wake ? '' : l.woken ? t`The relay has begun to wake it at ${wake}.` : t`It is woken at ${wake}.`;
  return { tone: 'wait', word: t`left at the relay`, more: [waits, wakes].filter(Boolean).join(' ') };
}

