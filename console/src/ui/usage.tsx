// Tokens, cost and limits of the open session's loaded turns, and on request of the host's other sessions: by
// turn, model, agent, session and day.

import { useEffect, useRef, useState } from 'preact/hooks';
import { links, nav, view } from '../app';
import type { Link } from '../link';
import { array, isObject, text } from '../store';
import type { ChatState, ChatSummary, SessionState, Turn, TurnUsage } from '../ahp';
import { roughly, when } from '../words';
import { Dialog } from './bits';
import { locale, plural, t } from '../language';

interface Used { turn: string; at: number; agent: string; session: string; host: string; limits: Limit[]; day: string; model: string; input: number; output: number; cached: number; cost: number; currency: string; context: number; size: number }

const day = new Intl.DateTimeFormat(locale, { day: 'numeric', month: 'short' });

/**
 * Returns the use of each turn that reports it, the oldest first. Hosts report the total cost of a
 * conversation, so a turn's cost is a difference. If older turns are not loaded, the cost of the first turn
 * is unknown.
 */
export function used(turns: Turn[], whole = true, of = { agent: '', session: '', host: '' }): Used[] {
  let before = whole ? 0 : NaN;
  return turns.filter((t): t is Turn & { usage: TurnUsage } => t?.usage as unknown as boolean).map(({ id, startedAt, usage }) => {
    const n = (v: unknown) => (typeof v === 'number' && v >= 0 ? v : 0);
    const at = new Date(startedAt ?? NaN);
    const more: NonNullable<TurnUsage['_meta']> = usage._meta ?? {};
    const cost = n(more.cost) > before ? n(more.cost) - before : 0;
    before = Math.max(n(more.cost), before || 0);
    return {
      ...of, turn: String(id), at: at.getTime() || 0, limits: limitsOf(more.quotaSnapshots), day: Number.isNaN(at.getTime()) ? '' : day.format(at), model: text(usage.model), input: n(usage.inputTokens), output: n(usage.outputTokens), cached: n(usage.cacheReadTokens),
      cost, currency: /^[A-Z]{3}$/.test(more.currency as string) ? more.currency as string : '', context: n(more.contextUsed), size: n(more.contextSize),
    };
  });
}

const mostLimits = 16;

/** A limit of the person's plan. left is a percentage; total is 0 if it is not reported. */
export interface Limit { name: string; left: number; total: number; spent: number; resets: string; unlimited: boolean }

/** Reads the limits that VS Code's host, and our own host in the same form, report with a turn's use. */
export function limitsOf(quotas: unknown): Limit[] {
  if (!isObject(quotas)) return [];
  return Object.entries(quotas).slice(0, mostLimits).flatMap(([name, q]) => {
    if (!isObject(q)) return [];
    const n = (v: unknown) => (typeof v === 'number' && v >= 0 ? v : 0);
    const [total, spent, unlimited] = [n(q.entitlementRequests), n(q.usedRequests), q.isUnlimitedEntitlement === true];
    const left = typeof q.remainingPercentage === 'number' ? q.remainingPercentage : total ? 100 - (100 * spent) / total : NaN;
    if (Number.isNaN(left) && !unlimited) return [];
    return [{ name: name.replaceAll('_', ' '), left: Math.min(100, Math.max(0, left || 0)), total, spent, resets: text(q.resetDate), unlimited }];
  });
}

/** Formats an amount of money; '' if it is 0 or the currency is unknown. */
export function money(amount: number, currency: string): string {
  return amount > 0 && currency ? new Intl.NumberFormat(locale, { style: 'currency', currency, maximumFractionDigits: 4 }).format(amount) : '';
}

/** Sums the use by name, in the order in which the names appear. */
export function sums(all: Used[], name: (u: Used) => string): [name: string, turns: number, input: number, output: number, cost: number][] {
  const by = new Map<string, [string, number, number, number, number]>();
  for (const u of all) {
    const had = by.get(name(u)) ?? [name(u), 0, 0, 0, 0];
    by.set(name(u), [had[0], had[1] + 1, had[2] + u.input, had[3] + u.output, had[4] + u.cost]);
  }
  return [...by.values()];
}

const mostBars = 60;
const leastBars = 12; // with fewer turns, the bars are at the left
const mostSessions = 20; // of a host, read on request
const mostChats = 8; // of each session
const mostTurns = 50; // of each chat

/** Reads the use of the latest sessions at all hosts, one after the other, until stopped returns true. */
export async function everywhere(from: Link[], on: (all: Used[], read: number, of: number) => void, stopped: () => boolean): Promise<void> {
  const latest = from.flatMap((link) => [...link.store.sessions.values()].sort((a, b) => String(b.modifiedAt ?? '').localeCompare(String(a.modifiedAt ?? ''))).slice(0, mostSessions).map((summary) => ({ link, summary })));
  const all: Used[] = [];
  const state = async <S,>(link: Link, channel: string): Promise<S | undefined> => {
    const known = link.store.get(channel);
    if (known || !link.live || stopped()) return known as S | undefined;
    try {
      return (await link.conn!.subscribe(channel, { view: { turns: mostTurns } }))?.state as S | undefined;
    } catch {
      return undefined; // deleted in the meantime, or not permitted by this token
    } finally {
      link.tidy(); // only the state was needed
    }
  };
  for (const [i, { link, summary: { resource, provider, title } }] of latest.entries()) {
    on(all.toSorted((a, b) => a.at - b.at), i, latest.length);
    const session = await state<SessionState>(link, resource);
    const agent = text(link.store.agents.find((a) => a?.provider === provider)?.displayName);
    const of = { agent: agent || text(provider), session: text(session?.title) || text(title), host: link.host };
    for (const { resource: channel } of array<ChatSummary>(session?.chats).slice(0, mostChats)) {
      const chat = await state<ChatState>(link, channel);
      all.push(...used([...array(chat?.turns), ...(chat?.activeTurn ? [chat.activeTurn] : [])], !chat?.turnsNextCursor, of));
    }
    if (stopped()) return;
  }
  on(all.toSorted((a, b) => a.at - b.at), latest.length, latest.length);
}

export function Usage() {
  const { link, session, chatUri } = view;
  const state = link?.store.get(session);
  const chat = link?.store.get<ChatState>(chatUri);
  const [wide, setWide] = useState<{ all: Used[]; read: number; of: number } | null>(null);
  const gone = useRef(false);
  useEffect(() => () => { gone.current = true; }, []);
  const all = wide?.all ?? used([...array(chat?.turns), ...(chat?.activeTurn ? [chat.activeTurn] : [])], !chat?.turnsNextCursor);
  const agent = link?.store.agents.find((a) => a?.provider === state?.provider);
  const last = all.at(-1);
  const model = array(agent?.models).find((m) => m?.id === last?.model) ?? array(agent?.models)[0];
  const size = last?.size || Number(model?.maxContextWindow ?? model?._meta?.maxContextWindow) || 0;
  const context = last?.context || last?.input || 0;
  const hosts = [...links.values()].filter((l) => l.live && l.store.sessions.size > 0);
  const readAll = (at: Link[]) => everywhere(at, (found, read, of) => { if (!gone.current) setWide({ all: found, read, of }); }, () => gone.current);
  return (
    <Dialog title={t`Usage`} id="usage" onClose={() => nav.open(null)}>
      {all.length === 0 && (!wide || wide.read === wide.of) && <p class="empty">{t`The host reports no use of tokens here.`}</p>}
      <Limits all={all.findLast((u) => u.limits.length > 0)?.limits ?? []} />
      {all.length > 0 && <Bars all={all.slice(-mostBars)} />}
      {!wide && size > 0 && last && <p class="dim">{t`Context: ${roughly(context)} of ${roughly(size)} tokens (${Math.round((100 * context) / size)} %).`}</p>}
      {all.length > 0 && <Sums all={all} wide={Boolean(wide)} />}
      {!wide && all.length > 0 && chat?.turnsNextCursor && <p class="dim">{t`Older turns are not loaded, and not counted.`}</p>}
      {!wide && link?.live && link.store.sessions.size > 1 && <button id="usage-all" type="button" onClick={() => readAll([link])}>{t`All sessions of this host`}</button>}
      {!wide && hosts.length > 1 && <button id="usage-hosts" type="button" onClick={() => readAll(hosts)}>{t`All sessions of all hosts`}</button>}
      {wide && <p class="dim" role="status">{wide.read < wide.of ? t`Reading session ${wide.read + 1} of ${wide.of}…` : t`The latest ${wide.of} sessions, with at most ${mostTurns} turns of each chat.`}</p>}
    </Dialog>
  );
}

/** A limit's name: a period in words, and all others as the host writes them. */
const named = (name: string) => name.replace(/^five hour/, t`5 hours`).replace(/^seven day/, t`7 days`);

function Limits({ all }: { all: Limit[] }) {
  if (all.length === 0) return null;
  return (
    <ul class="limits" aria-label={t`Limits`}>
      {all.map((l) => (
        <li key={l.name}>
          <p class="row"><span class="grow name" dir="auto">{named(l.name)}</span><span>{l.unlimited ? t`unlimited` : t`${Math.round(100 - l.left)} % used`}</span></p>
          {!l.unlimited && <div class="meter" role="meter" aria-label={named(l.name)} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(100 - l.left)} data-tone={l.left < 10 ? 'bad' : l.left < 25 ? 'wait' : ''}><i style={{ width: `${100 - l.left}%` }} /></div>}
          <p class="dim">{[l.total > 0 && !l.unlimited ? t`${l.spent} of ${l.total} used` : '', when(l.resets) ? t`starts again: ${when(l.resets)}` : ''].filter(Boolean).join(' · ')}</p>
        </li>
      ))}
    </ul>
  );
}

function Bars({ all }: { all: Used[] }) {
  const most = Math.max(1, ...all.map((u) => u.input + u.output));
  const room = Math.max(leastBars, all.length);
  return (
    <figure><svg class="bars" viewBox={`0 0 ${room * 10} 100`} preserveAspectRatio="none" role="img" aria-label={plural(all.length, 'Tokens of the last turn', 'Tokens of the last {0} turns')}>
      {all.map((u, i) => {
        const [x, high, low] = [i * 10, (100 * u.input) / most, (100 * u.output) / most];
        return <g key={`${i} ${u.turn}`}><title>{`${roughly(u.input)} → ${roughly(u.output)}`}</title><rect x={x} width="8" y={100 - high} height={high} /><rect class="out" x={x} width="8" y={100 - high - low} height={low} /></g>;
      })}
    </svg><figcaption class="dim" aria-hidden="true">{plural(all.length, 'Tokens of the last turn', 'Tokens of the last {0} turns')} <span><i class="in" />{t`Input`}</span> <span><i class="out" />{t`Output`}</span></figcaption></figure>
  );
}

/** Shows the sums, each kind in a part of the table. */
function Sums({ all, wide }: { all: Used[]; wide: boolean }) {
  const currency = all.find((u) => u.currency)?.currency ?? '';
  const costs = all.some((u) => money(u.cost, currency));
  const parts: [string, (u: Used) => string][] = [
    ['', () => t`All`],
    ...(new Set(all.map((u) => u.host)).size > 1 ? [[t`Hosts`, (u) => u.host]] as [string, (u: Used) => string][] : []),
    ...(wide ? [[t`Agents`, (u) => u.agent || t`Agent`], [t`Sessions`, (u) => u.session || t`New session`]] as [string, (u: Used) => string][] : []),
    [t`Models`, (u) => u.model || t`Unnamed model`], [t`Days`, (u) => u.day || t`Unknown day`],
  ];
  return (
    <div class="wide md" tabIndex={0}><table>
      <thead><tr><td /><th>{t`Turns`}</th><th>{t`Input`}</th><th>{t`Output`}</th>{costs && <th>{t`Cost`}</th>}</tr></thead>
      {parts.map(([title, name]) => (
        <tbody key={title}>
          {title && <tr><th class="dim" scope="rowgroup" colSpan={costs ? 5 : 4}>{title}</th></tr>}
          {sums(all, name).map(([of, n, input, output, cost], i) => <tr key={i}><th scope="row" dir="auto">{of}</th><td>{n}</td><td>{roughly(input)}</td><td>{roughly(output)}</td>{costs && <td>{money(cost, currency) || '–'}</td>}</tr>)}
        </tbody>
      ))}
    </table></div>
  );
}
