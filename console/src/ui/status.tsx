// The state of absent hosts, and the hosts and agents that this person must pair or sign in.

import { app, links, rights } from '../app';
import { text } from '../store';
import { hostWord, when } from '../words';
import { Icon } from './bits';
import { t } from '../language';

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
