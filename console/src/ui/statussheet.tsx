// A sheet with the state of the hosts and of this page's connections.

import { app, links } from '../app';
import type { Link } from '../link';
import { text } from '../store';
import type { HostInfo } from '../relay';
import { describe, hostWord, when } from '../words';
import { Badge, Dialog } from './bits';
import { later } from './later';
import { Select } from './select';
import { SignInNotes } from './status';
import { choose, chosen, listed, plural, t } from '../language';
import { languages } from '../language/choice';

const AccountList = later<{ now: number }>(() => import('./accounts').then((m) => m.AccountList));

/** The sheet: hosts, which also filter the list; agents to sign in; the connection. */
export function Status({ now }: { now: number }) {
  const many = app.hosts.all.length > 1;
  return (
    <Dialog title={t`Status`} id="status-sheet" onClose={() => app.open(null)}>
      <ul id="hosts" class="cards" aria-label={many ? t`Hosts. Choose one to list only its sessions.` : t`Host`}>
        {app.hosts.all.map((h) => <Host key={h.host} info={h} now={now} />)}
      </ul>
      <SignInNotes />
      <AccountList now={now} />
      <Connection now={now} />
    </Dialog>
  );
}

function Host({ info, now }: { info: HostInfo; now: number }) {
  const hostsStale = app.hosts.staleAt(info.host);
  const silent = info.state === 'online' && info.notAnsweringSince;
  const link = links.get(info.host);
  const tone = hostsStale ? '' : silent ? 'wait' : info.state === 'online' ? 'ok' : 'bad';
  const detail = hostsStale ? t`last known: ${hostWord(info.state)} since ${when(info.since, now)}` : hostDetail(info, now);
  return (
    <li data-host={info.host}>
      <button type="button" class="item" aria-current={info.host === app.host ? 'true' : undefined} aria-pressed={app.hosts.all.length > 1 ? info.host === app.onlyHost : undefined}
        title={detail} onClick={() => { app.dialog = null; app.chooseHost(info.host); }}>
        <span class="row"><span class="name">{info.host}</span><Badge tone={tone}>{hostsStale ? t`unknown` : silent ? t`not answering` : hostWord(info.state)}</Badge></span>
        <span class="dim">{detail}</span>
        {info.state === 'online' && link?.conn && <span class="dim" data-connection>{t`This connection`}: {connectionOf(link, info, now)}</span>}
      </button>
      {link?.seal && <button type="button" class="quiet small" data-do="sealed" onClick={() => app.open({ kind: 'sealed', link })}>{t`Sealed: keys and devices`}</button>}
    </li>
  );
}

/** Keeps the direction of a foreign text inside a line written from right to left. */
function apart(foreign: string): string {
  return document.dir === 'rtl' ? `\u2068${foreign}\u2069` : foreign;
}

function hostDetail(info: HostInfo, now: number): string {
  const parts = [t`since ${when(info.notAnsweringSince ?? info.since, now)}`];
  if (info.state !== 'online' && info.reason) parts.push(apart(info.reason));
  if (info.state === 'online') parts.push(plural(info.clients, '{0} client', '{0} clients'));
  if (info.keptAwake) parts.push(keptAwake(info.keptAwake));
  if (info.hostVersion) parts.push(t`host ${apart(info.hostVersion)}`);
  if (info.agentVersion) parts.push(t`agent ${apart(info.agentVersion)}`);
  return parts.join(' · ');
}

/** Describes what keeps a host's machine awake: "kept awake by 2 sessions and 1 person". */
function keptAwake({ sessions, people }: { sessions: number; people: number }): string {
  const by = [sessions > 0 && plural(sessions, '{0} session', '{0} sessions'), people > 0 && plural(people, '{0} person', '{0} people')];
  return t`kept awake by ${listed(by.filter(Boolean) as string[])}`;
}

/** Describes the page's connection to a host that is online: "Live since 14:02". */
function connectionOf(link: Link, host: HostInfo, now: number): string {
  const { state } = link.conn!;
  const said = describe(state, { away: link.away, host, asOf: link.seal?.asOf, now });
  return state.name === 'live' && said.tone === 'ok' ? `${said.text} ${t`since ${when(state.since, now)}`}` : said.text;
}

function Connection({ now }: { now: number }) {
  const { link, hosts: { grant } } = app;
  return (
    <section class="part about" aria-labelledby="about-title">
      <h3 id="about-title">{t`This connection`}</h3>
      {grant && <dl><dt>{t`Signed in as`}</dt><dd>{t`${text(grant.subject) || t`an unnamed user`}, until ${when(grant.expires, now)}`}</dd></dl>}
      {!app.byDevice && <label class="check"><input type="checkbox" checked={app.kept} onChange={(e) => app.keep(e.currentTarget.checked)} /> {t`Keep the token on this device`}</label>}
      <Select id="language" label={t`Language`} value={chosen()} options={[['', t`The browser’s language`], ...Object.entries(languages)]} onChange={(tag) => { choose(tag).then(() => location.reload()); }} />
      <div class="row start wrap">
        <button type="button" onClick={() => app.open({ kind: 'help' })}>{t`Check`}</button>
        {app.byDevice ? <a class="button" href="/device">{t`Devices, sign out`}</a> : <button id="forget" type="button" onClick={() => app.forget()}>{t`Forget the token`}</button>}
      </div>
      {link && <About link={link} />}
      {link && link.store.unknownCount > 0 && <Unknown />}
    </section>
  );
}

/** Protocol, versions and ids of the connection in view, for reports of faults. */
function About({ link: { conn } }: { link: Link }) {
  const { serverInfo, protocolVersion } = conn?.info ?? {};
  const lines = [
    [t`Protocol`, protocolVersion ?? t`not agreed yet`],
    ...(serverInfo ? [[t`Host software`, `${serverInfo.name ?? ''} ${serverInfo.version ?? ''}`]] : []),
    [t`Client id`, conn?.clientId ?? t`none`],
    [t`Last serverSeq`, String(conn?.lastSeen ?? t`none`)],
  ];
  return <dl id="about">{lines.map(([term, value]) => [<dt>{term}</dt>, <dd>{value}</dd>])}</dl>;
}

/** The host's updates of unknown types. */
function Unknown() {
  const { store } = app.link!;
  return (
    <details>
      <summary>{t`Updates not understood: ${store.unknownCount}`}</summary>
      {[...store.unknown].map(([type, { count, latest }]) => (
        <details key={type}><summary><code>{type}</code> ({count})</summary><pre>{latest.map((a) => JSON.stringify(a, null, 1)).join('\n')}</pre></details>
      ))}
    </details>
  );
}
