// Notification settings: this device, other targets, quiet times and the history.

import { useEffect, useRef, useState } from 'preact/hooks';
import { accountPart, accountParts, accounts } from '../accounts';
import { app, links, nav } from '../app';
import { wayHere } from '../look';
import * as notify from '../notify';
import * as push from '../push';
import { setDetails } from '../tell';
import * as told from '../told';
import { array, text } from '../store';
import type { Delivery, MuteOf, Quiet, Settings, Way as Target } from '../told';
import { fromRelay, sentence, when } from '../words';
import { Badge, Copy, Dialog, Icon, Twice } from './bits';
import { Select } from './select';
import { listed, rich, t } from '../language';

const lookEvery = 10_000; // ms between loads of the history

const close = () => nav.open(null);

/** Tracks a running request, and its outcome. */
function useWork(): { busy: boolean; said: string; failed: boolean; act: (what: () => Promise<string | void>) => Promise<void> } {
  const [{ busy, said, failed }, set] = useState({ busy: false, said: '', failed: false });
  const act = async (what: () => Promise<string | void>) => {
    set({ busy: true, said: '', failed: false });
    try {
      set({ busy: false, said: (await what()) || '', failed: false });
    } catch (err) {
      set({ busy: false, said: sentence((err as Error).message.replace(/\.$/, '')), failed: true });
    }
  };
  return { busy, said, failed, act };
}

function Said({ of, id }: { of: { said: string; failed: boolean }; id?: string }) {
  return <p id={id} class={of.failed ? 'said error' : 'said dim'} role="status">{of.said}</p>;
}

export function Told({ now }: { now: number }) {
  const [why, setWhy] = useState('');
  const [at, setAt] = useState(''); // the account
  const known = told.known(at);
  useEffect(() => {
    const look = () => notify.load(at).then(() => setWhy(''), (err) => setWhy((err as Error).message));
    look();
    const timer = setInterval(() => { if (!document.hidden) look(); }, lookEvery);
    return () => clearInterval(timer);
  }, [app.token, at]);
  const ways = array(known?.ways).filter((w) => w?.id !== wayHere(at));
  const all = accounts().map((a): [string, string] => [`@${a.name}`, a.name]);
  return (
    <Dialog title={t`Notifications`} id="told" onClose={close}>
      <p class="dim">{t`Get a notification when an agent waits for you, is done or has failed, even while this page is closed.`}</p>
      {all.length > 0 && <Select id="told-account" label={t`Account`} value={at} options={[['', t`This page’s own`], ...all]} onChange={(next) => { setWhy(''); setAt(next); }} />}
      {why && <p class="error" role="status">{why}</p>}
      {known === undefined && !why && <p class="dim" role="status">{t`Asking the relay…`}</p>}
      {known === null && <p role="status">{t`Notifications are not configured on this relay.`}</p>}
      {known && <>
        <ThisDevice key={`here ${at}`} at={at} known={known} />
        <Ways key={`ways ${at}`} at={at} ways={ways} mail={known.mail === true} url={text(known.url)} />
        <Times key={`times ${at}`} at={at} quiet={known.quiet} mutes={array(known.mutes)} now={now} />
        <Deliveries at={at} all={array(known.deliveries)} ways={array(known.ways)} now={now} />
      </>}
    </Dialog>
  );
}

/** An account's name within a sentence. */
const nameOf = (at: string) => at.slice(1) || t`this page’s own account`;

/** Turns on notifications for these accounts. The result names those that have failed, and why. */
async function turnOnAll(all: string[], details: boolean): Promise<string> {
  await push.permit();
  const said = [t`This device gets notifications now.`];
  for (const at of all) {
    try {
      await push.turnOn(at, details);
    } catch (err) {
      if (all.length === 1) throw err;
      said.push(t`Not for ${nameOf(at)}: ${(err as Error).message}`);
    }
  }
  if (said.length > all.length) throw new Error(said.slice(1).join('\n'));
  return said.join('\n');
}

function ThisDevice({ at, known }: { at: string; known: Settings }) {
  const [details, setDetailed] = useState(true);
  const work = useWork();
  const way = array(known.ways).find((w) => w?.id && w.id === wayHere(at));
  const all = accountParts();
  const off = all.filter((a) => (a === at ? !way : !wayHere(a)));
  const forgotten = wayHere(at) !== '' && !way;
  return (
    <section class="part" aria-labelledby="told-here">
      <div class="row"><h3 id="told-here">{t`This device`}</h3><Badge tone={way ? way.paused ? 'wait' : 'ok' : ''}>{way ? way.paused ? t`paused` : t`on` : t`off`}</Badge></div>
      {!push.possible() && <p>{t`This browser has no notifications. On an iPhone, add the page to the home screen first, and open it there.`}</p>}
      {off.length > 0 && off.length < all.length && <p class="dim" id="told-which">{t`On for ${listed(all.filter((a) => !off.includes(a)).map(nameOf))}. Off for ${listed(off.map(nameOf))}.`}</p>}
      {forgotten && <p class="wait">{t`This device no longer gets notifications: its subscription or token has expired. Turn them on again.`}</p>}
      {!way && push.possible() && <label class="check"><input type="checkbox" checked={details} onChange={(e) => setDetailed(e.currentTarget.checked)} /> {t`Show questions on the locked screen`}</label>}
      <div class="row start wrap">
        {!way && off.length > 1 && <button id="told-on-all" type="button" class="primary" disabled={work.busy || !push.possible()} onClick={() => work.act(() => turnOnAll(off, details))}>{t`Turn on for all accounts`}</button>}
        {!way && <button id="told-on" type="button" class={off.length > 1 ? '' : 'primary'} disabled={work.busy || !push.possible()} onClick={() => work.act(() => turnOnAll([at], details))}>{off.length > 1 ? t`Only for this one` : t`Turn on`}</button>}
        {way && <button id="told-try" type="button" disabled={work.busy} onClick={() => work.act(() => notify.tryWay(at, way.id!))}>{t`Send a test`}</button>}
        {way && <button type="button" disabled={work.busy} onClick={() => work.act(() => setDetails(at, asSet(way), !way.details))}>{way.details ? t`Hide questions` : t`Show questions`}</button>}
        {way && <button id="told-off" type="button" disabled={work.busy} onClick={() => work.act(async () => { await push.turnOff(at); return t`This device gets no notifications now.`; })}>{t`Turn off`}</button>}
      </div>
      <Said of={work} id="told-note" />
    </section>
  );
}

/** Returns a target as it is sent to the relay. Secrets are left out: they stay at the relay. */
function asSet({ id, kind, name, kinds, details, paused, to, url }: Target): Target {
  return { id, kind, name, kinds, details, paused, ...(kind === 'mail' ? { to } : kind === 'ntfy' ? { url } : {}) };
}

// ---- targets

interface WayKind { name: string; url?: string; hint?: string; example?: string }

const wayKinds: Record<string, WayKind> = {
  ntfy: { name: 'ntfy', url: t`Topic`, example: 'https://ntfy.sh/my-topic', hint: t`Anyone with the topic’s name can read it: choose a name that is hard to guess.` },
  slack: { name: 'Slack', url: t`Incoming webhook`, example: 'https://hooks.slack.com/services/…' },
  webhook: { name: t`Webhook`, url: t`Address`, example: 'https://example.com/agents', hint: t`Messages are signed according to Standard Webhooks.` },
  mail: { name: t`E-mail` },
  webpush: { name: t`Browser` },
};

/** Kinds of events that people choose together: as a choice, and as words within a line. */
const kindGroups: [string, string[], string][] = [
  [t`An agent needs me`, ['approval', 'question', 'signIn', 'input'], t`an agent needs me`], [t`It is done`, ['done'], t`it is done`], [t`It has failed`, ['failed'], t`it has failed`],
  [t`A host is away`, ['offline'], t`a host is away`], [t`A person joins my shared session`, ['joined'], t`a person joins my shared session`],
  [t`A host did not take what I left for it`, ['undelivered'], t`a host did not take what I left for it`],
];
const allKinds = kindGroups.flatMap(([, kinds]) => kinds);

function kindName(way: Target | undefined): string {
  return wayKinds[way?.kind!]?.name ?? String(way?.kind ?? '');
}

function wayName(way: Target | undefined): string {
  return text(way?.name) || text(way?.to) || text(way?.url) || kindName(way);
}

function Ways({ at, ways, mail, url }: { at: string; ways: Target[]; mail: boolean; url: string }) {
  const [editing, setEditing] = useState<Target | null>(null); // the target in the form, {} for a new target
  const [secret, setSecret] = useState('');
  return (
    <section class="part" aria-labelledby="told-ways">
      <h3 id="told-ways">{t`Other ways`}</h3>
      {secret && <div class="made" id="way-secret"><p>{t`The relay signs with this secret, which it shows only now:`}</p><div class="row"><code class="grow">{secret}</code><Copy text={() => secret} label={t`Copy the secret`} /></div></div>}
      {ways.length === 0 && !editing && <p class="dim">{mail ? t`None. ntfy, Slack, a webhook or e-mail can be told, too.` : t`None. ntfy, Slack or a webhook can be told, too.`}</p>}
      {ways.length > 0 && <ul class="cards">{ways.map((w) => (editing?.id === w.id
        ? <li key={w.id} class="item-card"><WayForm at={at} way={w} mail={mail} done={() => setEditing(null)} /></li>
        : <Way key={w.id} at={at} way={w} change={() => setEditing(w)} />))}</ul>}
      {(ways.length > 0 || editing) && <p class="dim" id="told-links">{url ? rich`Their links lead to ${<bdi>{url}</bdi>}.` : t`They have no links yet: this relay learns its public address when a device of its owner signs in over https.`}</p>}
      {editing && !editing.id ? <div class="item-card"><WayForm at={at} way={{}} mail={mail} done={(made) => { setEditing(null); setSecret(text(made?.secret)); }} /></div>
        : <div class="row start"><button id="way-add" type="button" onClick={() => { setSecret(''); setEditing({}); }}><Icon name="plus" /> {t`Add a way`}</button></div>}
    </section>
  );
}

function tells(way: Target): string {
  const kinds = array(way.kinds);
  const what = kinds.length === 0 ? t`everything` : kindGroups.filter(([, all]) => all.some((k) => kinds.includes(k))).map(([, , name]) => name).join(', ');
  return `${kindName(way)} · ${what} · ${way.details ? t`with questions` : t`without questions`}`;
}

function Way({ at, way, change }: { at: string; way: Target; change: () => void }) {
  const work = useWork();
  return (
    <li class="item-card" data-way={way.kind}>
      <div class="row"><span class="name">{wayName(way)}</span>{way.paused && <Badge tone="wait">{t`paused`}</Badge>}</div>
      <p class="dim">{tells(way)}</p>
      <div class="row start wrap">
        <button type="button" class="small" data-do="test" disabled={work.busy} onClick={() => work.act(() => notify.tryWay(at, way.id!))}>{t`Send a test`}</button>
        <button type="button" class="small" disabled={work.busy} onClick={() => work.act(async () => { await notify.setWay(at, { ...asSet(way), paused: !way.paused }); })}>{way.paused ? t`Go on` : t`Pause`}</button>
        {way.kind !== 'webpush' && <button type="button" class="small" data-do="change" disabled={work.busy} onClick={change}>{t`Change`}</button>}
        <Twice class="small" data-do="remove" disabled={work.busy} yes={t`Yes, remove it`} act={() => work.act(() => notify.removeWay(at, way.id!))}>{t`Remove`}</Twice>
      </div>
      <Said of={work} />
    </li>
  );
}

function WayForm({ at, way, mail, done }: { at: string; way: Target; mail: boolean; done: (made?: Target) => void }) {
  const [kind, setKind] = useState<string>(way.kind ?? 'ntfy');
  const [kinds, setKinds] = useState<string[]>(array(way.kinds).length ? array(way.kinds) : allKinds);
  const form = useRef<HTMLFormElement>(null);
  const work = useWork();
  const about: WayKind = wayKinds[kind] ?? { name: kind };
  const hidden = kind === 'slack' || kind === 'webhook'; // the relay does not show these addresses again
  const submit = (e: Event) => {
    e.preventDefault();
    const field = (name: string) => String(new FormData(form.current!).get(name) ?? '').trim();
    const all = allKinds.every((k) => kinds.includes(k));
    const next = {
      ...(way.id ? { id: way.id } : {}), kind, name: field('name'), details: field('details') !== '', paused: way.paused, kinds: all ? [] : kinds,
      ...(kind === 'mail' ? { to: field('to') } : { url: field('url') }),
      ...(kind === 'ntfy' && field('token') ? { token: field('token') } : {}), ...(kind === 'webhook' && field('secret') ? { secret: field('secret') } : {}),
    };
    work.act(async () => { done(await notify.setWay(at, next)); });
  };
  return (
    <form class="fields" id="way-form" ref={form} onSubmit={submit} autocomplete="off">
      {!way.id && <Select id="way-kind" label={t`By`} value={kind} focus options={['ntfy', 'slack', 'webhook', ...(mail ? ['mail'] : [])].map((k) => [k, wayKinds[k].name])} onChange={setKind} />}
      {kind === 'mail' ? <><label for="way-to">{t`Address`}</label><input id="way-to" name="to" type="email" required defaultValue={text(way.to)} placeholder="me@example.com" /></> : (
        <><label for="way-url">{about.url}</label><input id="way-url" name="url" type="url" required={!way.id || !hidden} autocapitalize="off" spellcheck={false} defaultValue={hidden ? '' : text(way.url)} placeholder={way.id && hidden ? t`As it is: ${text(way.url)}` : about.example} /></>
      )}
      {kind === 'ntfy' && <><label for="way-token">{t`Access token`} <span class="dim">{t`if the topic wants one`}</span></label><input id="way-token" name="token" type="password" autocomplete="off" placeholder={way.id ? t`As it is` : ''} /></>}
      {kind === 'webhook' && <><label for="way-own">{t`Secret`} <span class="dim">{t`whsec_…; none: the relay makes one`}</span></label><input id="way-own" name="secret" type="password" autocomplete="off" placeholder={way.id ? t`As it is` : ''} /></>}
      {about.hint && <p class="dim">{about.hint}</p>}
      <label for="way-name">{t`Name`} <span class="dim">{t`if you like`}</span></label><input id="way-name" name="name" maxLength={60} defaultValue={text(way.name)} />
      <fieldset class="checks-of"><legend>{t`Tell when`}</legend>
        {kindGroups.map(([name, of]) => <label key={name} class="check"><input type="checkbox" checked={of.every((k) => kinds.includes(k))} onChange={(e) => setKinds(e.currentTarget.checked ? [...new Set([...kinds, ...of])] : kinds.filter((k) => !of.includes(k)))} /> {name}</label>)}
      </fieldset>
      <label class="check"><input type="checkbox" name="details" defaultChecked={way.details === true} /> {t`Include title, question and command`}</label>
      <Said of={work} id="way-note" />
      <div class="row start"><button class="primary" type="submit" disabled={work.busy || kinds.length === 0}>{way.id ? t`Save` : t`Add`}</button><button type="button" onClick={() => done()}>{t`Cancel`}</button></div>
    </form>
  );
}

// ---- quiet times

/** A session's title; host is the name in this page. */
function titleOf(host: string, session: string): string {
  const title = text(links.get(host)?.store.sessions.get(session)?.title);
  return session ? title || t`A session that is not in the list` : t`Everything`;
}

function Times({ at, quiet, mutes, now }: { at: string; quiet: Quiet | null | undefined; mutes: MuteOf[]; now: number }) {
  const work = useWork();
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';
  const hours = { from: text(quiet?.from) || '22:00', to: text(quiet?.to) || '07:00', zone: here };
  const set = (change: Partial<Quiet>) => work.act(() => notify.setQuiet(at, { ...hours, ...change }));
  const field = (name: 'from' | 'to', label: string) => (
    <label class="row start time-of"><span>{label}</span><input id={`quiet-${name}`} type="time" required value={hours[name]} disabled={!quiet || work.busy} onChange={(e) => { if (e.currentTarget.value) set({ [name]: e.currentTarget.value }); }} /></label>
  );
  return (
    <section class="part" aria-labelledby="told-quiet">
      <h3 id="told-quiet">{t`Quiet times`}</h3>
      <label class="check"><input id="quiet" type="checkbox" checked={Boolean(quiet)} disabled={work.busy} onChange={(e) => (e.currentTarget.checked ? set({}) : work.act(() => notify.setQuiet(at, null)))} /> {t`Quiet hours: questions still open at their end are sent then`}</label>
      {quiet && <div class="row start wrap">{field('from', t`from`)}{field('to', t`to`)}<span class="dim">{text(quiet.zone)}</span></div>}
      {mutes.length > 0 && (
        <ul class="cards" id="mutes" aria-label={t`Muted`}>
          {mutes.map((m) => (
            <li key={`${m.host} ${m.session ?? ''}`} class="row item-card">
              <span class="grow"><span class="name">{titleOf(text(m.host) + at, text(m.session))}</span> <span class="dim">{text(m.host)} · {m.until ? t`until ${when(fromRelay(m.until), now)}` : t`for good`}</span></span>
              <button type="button" class="small" disabled={work.busy} onClick={() => work.act(() => notify.unmute(text(m.host) + at, text(m.session)))}>{t`Unmute`}</button>
            </li>
          ))}
        </ul>
      )}
      <Said of={work} />
    </section>
  );
}

/** Mutes a session, or its whole host, for a while. */
export function Mute({ host, session, now }: { host: string; session: string; now: number }) {
  const sealed = Boolean(links.get(host)?.pinned); // then only the whole host can be muted
  const [all, setAll] = useState(false);
  const whole = sealed || all;
  const work = useWork();
  useEffect(() => { notify.load(accountPart(host)).catch(() => {}); }, []);
  const had = told.muted(host, session);
  const end = had?.until ? when(fromRelay(had.until), now) : '';
  const until = (hours: number) => work.act(async () => { await notify.mute(host, whole ? '' : session, hours); close(); });
  return (
    <Dialog title={t`Mute`} id="mute" onClose={close}>
      <div class="fields">
        {had ? (
          <>
            <p>{had.session ? (end ? t`Nothing is told of this session until ${end}.` : t`Nothing is told of this session.`) : end ? t`Nothing is told of ${host} until ${end}.` : t`Nothing is told of ${host}.`}</p>
            <div class="row start"><button type="button" class="primary" data-focus disabled={work.busy} onClick={() => work.act(async () => { await notify.unmute(host, text(had.session)); close(); })}>{t`Tell me again`}</button></div>
          </>
        ) : (
          <>
            <p>{rich`No notifications about ${<span class="name">{whole ? host : titleOf(host, session)}</span>}`}</p>
            {!sealed && <label class="check"><input type="checkbox" checked={whole} onChange={(e) => setAll(e.currentTarget.checked)} /> {t`Everything on ${host}`}</label>}
            <div class="answers">{([[1, t`For an hour`], [8, t`For 8 hours`], [0, t`For good`]] as [number, string][]).map(([hours, label], i) => <button key={label} type="button" class={i === 0 ? 'primary' : ''} disabled={work.busy} onClick={() => until(hours)}>{label}</button>)}</div>
          </>
        )}
        <Said of={work} />
      </div>
    </Dialog>
  );
}

// ---- history

const eventNames: Record<string, string> = {
  approval: t`asks for permission`, question: t`asks something`, signIn: t`needs a sign-in`, input: t`needs you`, done: t`is done`, failed: t`has failed`,
  offline: t`is away`, joined: t`somebody joined`, test: t`test`,
};
const outcomes: Record<string, [string, string]> = {
  ok: [t`told`, 'ok'], retry: [t`tried again`, 'wait'], refused: [t`refused`, 'bad'], gone: [t`gone`, 'bad'], expired: [t`given up`, 'bad'],
};

function Deliveries({ at, all, ways, now }: { at: string; all: Delivery[]; ways: Target[]; now: number }) {
  if (all.length === 0) return <section class="part" aria-labelledby="told-last"><h3 id="told-last">{t`Last told`}</h3><p class="dim">{t`Nothing in the last day.`}</p></section>;
  return (
    <section class="part" aria-labelledby="told-last">
      <h3 id="told-last">{t`Last told`}</h3>
      <ul class="told-list" id="deliveries">
        {all.map((d) => {
          const way = ways.find((w) => w?.id === d.way);
          const [word, tone] = outcomes[d.outcome] ?? [String(d.outcome), ''];
          const title = text(links.get(d.host + at)?.store.sessions.get(d.session)?.title);
          return (
            <li key={`${d.id} ${d.at}`}>
              <span class="dim time">{when(d.at, now)}</span>
              <span class="grow"><span class="name">{title || text(d.host)}</span> {eventNames[d.kind] ?? String(d.kind)} <span class="dim">· {way ? wayName(way) : t`a deleted target`}{text(d.why) ? `: ${text(d.why)}` : ''}</span></span>
              <Badge tone={tone}>{word}</Badge>
            </li>
          );
        })}
      </ul>
    </section>
  );
}
