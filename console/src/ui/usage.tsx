// The use of tokens, and the cost, in the open session's loaded turns, by turn, model and day.

import { app } from '../app';
import { array, text } from '../store';
import type { ChatState, Turn, TurnUsage } from '../ahp';
import { roughly } from '../words';
import { Dialog } from './bits';
import { locale, plural, t } from '../language';

interface Used { turn: string; day: string; model: string; input: number; output: number; cached: number; cost: number; currency: string; context: number; size: number }

const day = new Intl.DateTimeFormat(locale, { day: 'numeric', month: 'short' });

/**
 * Reads the use of each turn that reports it, the oldest first. Hosts report the cost of the
 * conversation so far, so a turn's own is the difference. Without the oldest turns, the first
 * turn's own cost is unknown.
 */
export function used(turns: Turn[], whole = true): Used[] {
  let before = whole ? 0 : NaN;
  return turns.filter((t): t is Turn & { usage: TurnUsage } => t?.usage as unknown as boolean).map(({ id, startedAt, usage }) => {
    const n = (v: unknown) => (typeof v === 'number' && v >= 0 ? v : 0);
    const at = new Date(startedAt ?? NaN);
    const more: NonNullable<TurnUsage['_meta']> = usage._meta ?? {};
    const cost = n(more.cost) > before ? n(more.cost) - before : 0;
    before = Math.max(n(more.cost), before || 0);
    return {
      turn: String(id), day: Number.isNaN(at.getTime()) ? '' : day.format(at), model: text(usage.model), input: n(usage.inputTokens), output: n(usage.outputTokens), cached: n(usage.cacheReadTokens),
      cost, currency: /^[A-Z]{3}$/.test(more.currency as string) ? more.currency as string : '', context: n(more.contextUsed), size: n(more.contextSize),
    };
  });
}

/** An amount of money; '' for none, and for an unknown currency. */
export function money(amount: number, currency: string): string {
  return amount > 0 && currency ? new Intl.NumberFormat(locale, { style: 'currency', currency, maximumFractionDigits: 4 }).format(amount) : '';
}

/** Sums the use by a name, in order of appearance. */
export function sums(all: Used[], name: (u: Used) => string): [name: string, turns: number, input: number, output: number, cost: number][] {
  const by = new Map<string, [string, number, number, number, number]>();
  for (const u of all) {
    const had = by.get(name(u)) ?? [name(u), 0, 0, 0, 0];
    by.set(name(u), [had[0], had[1] + 1, had[2] + u.input, had[3] + u.output, had[4] + u.cost]);
  }
  return [...by.values()];
}

const mostBars = 60;

export function Usage() {
  const { link, session, chatUri } = app;
  const state = link?.store.get(session);
  const chat = link?.store.get<ChatState>(chatUri);
  const all = used([...array(chat?.turns), ...(chat?.activeTurn ? [chat.activeTurn] : [])], !chat?.turnsNextCursor);
  const [total] = sums(all, () => t`All`);
  const last = all.at(-1);
  const agent = link?.store.agents.find((a) => a?.provider === state?.provider);
  const model = array(agent?.models).find((m) => m?.id === last?.model) ?? array(agent?.models)[0];
  const window_ = last?.size || Number(model?.maxContextWindow ?? model?._meta?.maxContextWindow) || 0;
  const context = last?.context || last?.input || 0;
  const currency = all.find((u) => u.currency)?.currency ?? '';
  const costs = Boolean(total && money(total[4], currency));
  const bars = all.slice(-mostBars);
  const most = Math.max(1, ...bars.map((u) => u.input + u.output));
  const rows = [...(total ? [total] : []), ...sums(all, (u) => u.model || t`Unnamed model`), ...sums(all, (u) => u.day || t`Unknown day`)];
  return (
    <Dialog title={t`Usage`} id="usage" onClose={() => app.open(null)}>
      {all.length === 0 && <p class="empty">{t`The host reports no use of tokens here.`}</p>}
      {all.length > 0 && <>
        <svg class="bars" viewBox={`0 0 ${mostBars * 10} 100`} preserveAspectRatio="none" role="img" aria-label={plural(bars.length, 'Tokens of the last turn', 'Tokens of the last {0} turns')}>
          {bars.map((u, i) => {
            const [x, high, low] = [(mostBars - bars.length + i) * 10, (100 * u.input) / most, (100 * u.output) / most];
            return <g key={u.turn}><title>{`${roughly(u.input)} → ${roughly(u.output)}`}</title><rect x={x} width="8" y={100 - high} height={high} /><rect class="out" x={x} width="8" y={100 - high - low} height={low} /></g>;
          })}
        </svg>
        {window_ > 0 && last && <p class="dim">{t`Context: ${roughly(context)} of ${roughly(window_)} tokens (${Math.round((100 * context) / window_)} %).`}</p>}
        <div class="wide md" tabIndex={0}><table>
          <thead><tr><th>{t`Of`}</th><th>{t`Turns`}</th><th>{t`Input`}</th><th>{t`Output`}</th>{costs && <th>{t`Cost`}</th>}</tr></thead>
          <tbody>{rows.map(([name, n, input, output, cost], i) => <tr key={i}><th scope="row">{name}</th><td>{n}</td><td>{roughly(input)}</td><td>{roughly(output)}</td>{costs && <td>{money(cost, currency) || '–'}</td>}</tr>)}</tbody>
        </table></div>
        {chat?.turnsNextCursor && <p class="dim">{t`Older turns are not loaded, and not counted.`}</p>}
      </>}
    </Dialog>
  );
}
