// Builds the user's answers to an agent's questions.

import type { Choice, QuestionAnswer, QuestionItem } from './ahp';
import { array, text } from './store';

const onceWords = /\bonce\b/i;
const widerWords = /session|always|workspace|\ball\b|remember|every|user|global|again|trust|forever|permanent|project|folder|similar|\bany\b|auto/i;

/**
 * Sorts a host's options: allow once, refuse, then wider permissions, like notice.Arrange. The host's labels
 * are kept. An option of an unknown kind is not counted as a permission.
 */
export function sortOptions(options: Choice[]): { once: Choice[]; deny: Choice[]; wider: Choice[] } {
  const wordsOf = (o: Choice) => `${o.id} ${text(o.label)}`.replace(/[-_]/g, ' ');
  const approve = options.filter((o) => o.kind === 'approve');
  const named = approve.some((o) => onceWords.test(wordsOf(o)));
  const once = approve.filter((o) => (named ? onceWords.test(wordsOf(o)) : !widerWords.test(wordsOf(o))));
  return { once, deny: options.filter((o) => o.kind !== 'approve'), wider: approve.filter((o) => !once.includes(o)) };
}

/** What a person has entered: a value of the question's kind, and free text. */
export interface Input { value?: unknown; free?: string }

/** The answer in AHP's form, or undefined if the input is empty. */
export function answerFor(q: Partial<QuestionItem>, { value, free }: Input): QuestionAnswer | undefined {
  const submitted = (v: QuestionAnswer['value']) => ({ state: 'submitted', value: v });
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

/** Returns the address if the page may open it, or ''. */
export function safeUrl(url: unknown): string {
  try {
    const parsed = new URL(text(url));
    return ['http:', 'https:'].includes(parsed.protocol) && !parsed.username ? parsed.href : '';
  } catch {
    return '';
  }
}
