// A sheet with the state of the hosts and of this page's connection.

import { app, links, rights } from '../app';
import { text } from '../store';
import type { HostInfo } from '../relay';
import { hostWord, when } from '../words';
import { Badge, Dialog, Icon } from './bits';
import { later } from './later';
import { Select } from './select';
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

/** Describes the age of the data about an absent host: "As of 14:02, host asleep". */
export function asOf(host: string, at: number, now: number, clock?: number): string {
  const stale = app.hosts.staleAt(host);
  const state = stale || app.hosts.offline ? '' : app.hosts.all.find((h) => h.host === host)?.state ?? '';
  const away = app.hosts.offline ? t`, no network` : stale ? t`, relay unreachable` : state && state !== 'online' ? t`, host ${hostWord(state)}` : '';
  return t`As of ${when(at, now)}${away}${clock ? ` (${t`${when(clock, now)} by the host’s clock`})` : ''}`;
}

/** The button that wakes a host, and its result. */
export function Wake({ host }: { host: string }) {
  const said = app.hosts.waking.get(host);
  if (said) return <span class="wake" role="status">{said}</span>;
  return app.hosts.mayWake(host) ? <button type="button" class="small wake" onClick={() => app.hosts.wake(host)}>{t`Wake`}</button> : null;
}

/** Describes what keeps a host's machine awake: "kept awake by 2 sessions and 1 person". */
function keptAwake({ sessions, people }: { sessions: number; people: number }): string {
  const by = [sessions > 0 && plural(sessions, '{0} session', '{0} sessions'), people > 0 && plural(people, '{0} person', '{0} people')];
  return t`kept awake by ${listed(by.filter(Boolean) as string[])}`;
}

/** The sealed hosts with which this browser is not paired. */
export const unpaired = () => app.hosts.all.filter((h) => links.get(h.host)?.unpaired(h));

/** Hosts to pair with, and agents that require a sign-in before they work. */
export function SignInNotes() {
  const sealed = unpaired().map((h) => (
    <button key={`sealed ${h.host}`} type="button" class="primary to-pair" data-pair={h.host} onClick={() => app.open({ kind: 'pair', host: h.host })}>
      <Icon name="key" /><span>{t`${h.host} is sealed: pair this device`}</span>
    </button>
  ));
  const wanted = [];
  for (const link of links.values()) {
    if (!link.live || !rights.operatesAll(link.host)) continue;
    for (const agent of link.store.agents) {
      const needs = link.unsigned(agent);
      if (needs.length > 0) wanted.push({ link, agent, needs });
    }
  }
  return (
    <>
      {sealed}
      {wanted.map(({ link, agent, needs }) => (
        <button key={`${link.host} ${agent.provider}`} type="button" class="notice" onClick={() => app.open({ kind: 'sign-in', link, who: text(agent.displayName) || agent.provider, resources: needs })}>
          <Icon name="key" /><span>{t`${text(agent.displayName) || agent.provider} may want you to sign in to ${text(needs[0].resource_name) || needs[0].resource}`}</span>
        </button>
      ))}
    </>
  );
}

function Connection({ now }: { now: number }) {
  const { link } = app;
  const { serverInfo, protocolVersion } = link?.conn?.info ?? {};
  const lines: [string, string][] = [
    [t`Protocol`, protocolVersion ?? t`not agreed yet`],
    ...(serverInfo ? [[t`Host software`, `${serverInfo.name ?? ''} ${serverInfo.version ?? ''}`] as [string, string]] : []),
    [t`Client id`, link?.conn?.clientId ?? t`none`],
    [t`Last serverSeq`, String(link?.conn?.lastSeen ?? t`none`)],
    ...(app.hosts.grant ? [[t`Signed in as`, t`${text(app.hosts.grant.subject) || t`an unnamed user`}, until ${when(app.hosts.grant.expires, now)}`] as [string, string]] : []),
  ];
  return (
    <section class="part about" aria-labelledby="about-title">
      <h3 id="about-title">{t`This connection`}</h3>
      <dl id="about">{lines.map(([term, value]) => [<dt>{term}</dt>, <dd>{value}</dd>])}</dl>
      {link && link.store.unknownCount > 0 && <Unknown />}
      {!app.byDevice && <label class="check"><input type="checkbox" checked={app.kept} onChange={(e) => app.keep(e.currentTarget.checked)} /> {t`Keep the token on this device`}</label>}
      <Select id="language" label={t`Language`} value={chosen()} options={[['', t`The browser’s language`], ...Object.entries(languages)]} onChange={(tag) => { choose(tag).then(() => location.reload()); }} />
      <div class="row start wrap">
        <button type="button" onClick={() => app.open({ kind: 'help' })}>{t`Check`}</button>
        {app.byDevice ? <a class="button" href="/device">{t`Devices, sign out`}</a> : <button id="forget" type="button" onClick={() => app.forget()}>{t`Forget the token`}</button>}
      </div>
    </section>
  );
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
