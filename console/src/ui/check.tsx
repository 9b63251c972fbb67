// The check of each step of the connection to a host.

import { accountOf } from '../accounts';
import { hosts, nav, person, rights, view } from '../app';
import { text } from '../store';
import { hostWord, mayDo, when } from '../words';
import { Copy, Dialog } from './bits';
import { t } from '../language';

interface Check { what: string; ok: boolean | null; says: string }

const connectionWords: Record<string, string> = {
  none: t`not there`, connecting: t`being opened`, greeting: t`waiting for the host`, live: t`live`, retrying: t`lost, and tried again`, ended: t`ended`,
};

/** Checks each step of the connection to the host. */
function checks(now: number): Check[] {
  const { link, host } = view;
  const hostInfo = hosts.get(host);
  const account = accountOf(host);
  const grant = rights.grantAt(host);
  const stale = hosts.staleAt(host);
  const state = link?.conn?.state;
  const info = link?.conn?.info ?? {};
  return [
    { what: t`Network`, ok: navigator.onLine, says: navigator.onLine ? t`This device is online.` : t`This device is offline.` },
    { what: t`Relay`, ok: !stale, says: stale ? person.accounts.of(account)?.why ?? hosts.note : t`${account?.relay.replace(/^https?:\/\//, '') ?? location.host} answers.` },
    { what: t`Token`, ok: grant !== null, says: grant ? t`${text(grant.subject) || t`An unnamed user`} may ${mayDo(grant)}, until ${when(grant.expires, now)}.` : t`Not known.` },
    { what: t`Host-agent`, ok: hostInfo ? hostInfo.state === 'online' : null, says: hostInfo ? t`${hostInfo.host} is ${hostWord(hostInfo.state)} since ${when(hostInfo.since, now)}${hostInfo.reason ? `: ${hostInfo.reason}` : ''}.` : t`No host is chosen.` },
    { what: t`Host`, ok: link ? link.live && !hostInfo?.notAnsweringSince : null, says: link ? (hostInfo?.notAnsweringSince ? t`It has not answered since ${when(hostInfo.notAnsweringSince, now)}.` : t`The connection is ${connectionWords[state?.name ?? 'none'] ?? ''}${state && 'reason' in state && state.reason ? `: ${state.reason}` : ''}.`) : t`No host is chosen.` },
    { what: t`Versions`, ok: link ? Boolean(info.protocolVersion) : null, says: t`AHP ${info.protocolVersion ?? t`not agreed`}; host ${[info.serverInfo?.name, info.serverInfo?.version ?? hostInfo?.hostVersion].filter(Boolean).join(' ') || t`unknown`}; agent ${hostInfo?.agentVersion ?? t`unknown`}.` },
    { what: t`Updates`, ok: !link?.store.unknownCount, says: link?.store.unknownCount ? t`Unknown updates: ${[...link.store.unknown.keys()].join(', ')} (${link.store.unknownCount}).` : t`This page understands all updates.` },
  ];
}

export function Help({ now }: { now: number }) {
  const all = checks(now);
  return (
    <Dialog title={t`Check`} id="help" onClose={() => nav.open(null)}>
      <ul class="checks">{all.map((c) => <li key={c.what}><span class="badge" data-tone={c.ok === null ? '' : c.ok ? 'ok' : 'bad'}>{c.ok === null ? '–' : c.ok ? t`good` : t`bad`}</span><span class="name">{c.what}</span><span>{c.says}</span></li>)}</ul>
      <div class="row start"><button type="button" class="primary" onClick={() => nav.retry()}>{t`Look again`}</button><Copy text={() => all.map((c) => `${c.ok === null ? '-' : c.ok ? t`good` : t`bad`}  ${c.what}: ${c.says}`).join('\n')} label={t`Copy all`} /></div>
    </Dialog>
  );
}
