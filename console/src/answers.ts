// What the user may say to a question, and in what form that is said.

import type { Json } from './reduce';
import { array, text } from './store';

/**
 * The options of a host, narrowest first: to allow once, to refuse, and what
 * reaches further. What a host calls an option is never changed.
 */
export function sortOptions(options: Json[]): { once: Json[]; deny: Json[]; wider: Json[] } {
  const deny = options.filter((o) => o.kind === 'deny');
  const approve = options.filter((o) => o.kind !== 'deny');
  const isOnce = (o: Json) => /\bonce\b/i.test(`${o.id} ${text(o.label)}`.replace(/[-_]/g, ' '));
  const isWide = (o: Json) => /session|always|workspace|all\b|remember|every|user|global/i.test(`${o.id} ${text(o.label)}`.replace(/[-_]/g, ' '));
  let once = approve.filter(isOnce);
  if (once.length === 0) once = approve.filter((o) => !isWide(o));
  return { once, deny, wider: approve.filter((o) => !once.includes(o)) };
}

/** The answer in the protocol's form, undefined if there is none. */
export function answerFor(q: Json, { value, free }: { value?: Json; free?: string }): Json {
  const submitted = (v: Json) => ({ state: 'submitted', value: v });
  const freeform = free?.trim() ? { freeformValues: [free.trim()] } : {};
  switch (q.kind) {
    case 'number':
    case 'integer': {
      const n = typeof value === 'number' ? value : value === undefined || value === '' ? NaN : Number(value);
      return Number.isFinite(n) && (q.kind === 'number' || Number.isInteger(n)) ? submitted({ kind: 'number', value: n }) : undefined;
    }
    case 'boolean':
      return submitted({ kind: 'boolean', value: value === true });
    case 'single-select':
      return value !== undefined || free?.trim() ? submitted({ kind: 'selected', value: value ?? '', ...freeform }) : undefined;
    case 'multi-select': {
      const all = array(value);
      if (all.length < (q.min ?? 0) || (q.max !== undefined && all.length > q.max)) return undefined;
      return all.length || free?.trim() ? submitted({ kind: 'selected-many', value: all, ...freeform }) : undefined;
    }
  }
  return typeof value === 'string' && value !== '' ? submitted({ kind: 'text', value }) : undefined;
}

/** An address that may be opened, '' for others. */
export function safeUrl(url: Json): string {
  try {
    const parsed = new URL(text(url));
    return ['http:', 'https:'].includes(parsed.protocol) && !parsed.username ? parsed.href : '';
  } catch {
    return '';
  }
}
