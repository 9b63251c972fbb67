// The page's language. A text's key is its English form in the source; src/language has the other languages.
// Each is loaded only by pages that use it.

import type { VNode } from 'preact';
import { keepChoice, languageOf, languages } from './language/choice';

/**
 * Texts by their English form, in which {0} stands for the first value. A plural has one text for each
 * category of Intl.PluralRules.
 */
export type Catalogue = Record<string, string | Partial<Record<Intl.LDMLPluralRule, string>>>;

const loaders: Record<string, () => Promise<{ default: Catalogue }>> = {
  de: () => import('./language/de'),
  ja: () => import('./language/ja'),
  ar: () => import('./language/ar'),
};

const choice = 'language'; // in localStorage

/** The language that the person has chosen; '' means the browser's language. */
export function chosen(): string {
  try {
    const tag = localStorage.getItem(choice) ?? '';
    return Object.hasOwn(languages, tag) ? tag : '';
  } catch {
    return ''; // a page without storage
  }
}

/**
 * Sets the language that the page and its service worker use from their next start. '' means the browser's
 * language.
 */
export async function choose(tag: string): Promise<void> {
  if (tag) localStorage.setItem(choice, tag);
  else localStorage.removeItem(choice);
  await keepChoice(tag).catch(() => {}); // a page without a service worker
}

export const { language, locale } = languageOf(chosen(), globalThis.navigator?.languages ?? []);

// If the catalogue cannot be loaded, the page is in English. The page waits for it here, so no text
// changes later.
const catalogue: Catalogue = (await loaders[language]?.().catch(() => undefined))?.default ?? {};

if (globalThis.document?.documentElement) {
  document.documentElement.lang = language;
  document.documentElement.dir = language === 'ar' ? 'rtl' : 'ltr';
}

const numbers = new Intl.NumberFormat(locale);
const plurals = new Intl.PluralRules(locale);
const compact = new Intl.NumberFormat(locale, { notation: 'compact', maximumFractionDigits: 1 });

const put = (value: unknown) => (typeof value === 'number' ? numbers.format(value) : String(value ?? ''));

function keyOf(texts: TemplateStringsArray): string {
  return texts.reduce((key, text, i) => `${key}{${i - 1}}${text}`);
}

function find(key: string, n?: number): string {
  const found = Object.hasOwn(catalogue, key) ? catalogue[key] : key;
  return typeof found === 'string' ? found : found[plurals.select(n ?? 0)] ?? found.other ?? key;
}

/** A text in the page's language: t`Shared with ${name}`. */
export function t(texts: TemplateStringsArray, ...values: unknown[]): string {
  const found = find(values.length ? keyOf(texts) : texts[0]);
  return values.length ? found.replace(/\{(\d)\}/g, (_, i) => put(values[i])) : found;
}

/** A text with elements in it: rich`Open ${<a href={at}>{at}</a>}`. */
export function rich(texts: TemplateStringsArray, ...values: (VNode | string | number | false | undefined)[]): (VNode | string)[] {
  return find(keyOf(texts)).split(/\{(\d)\}/).map((piece, i) => {
    if (i % 2 === 0) return piece;
    const value = values[Number(piece)];
    return typeof value === 'object' ? value : value === false ? '' : put(value);
  });
}

/** A text with a number: plural(n, '{0} host', '{0} hosts'). {1} stands for the first of values. */
export function plural(n: number, one: string, other: string, ...values: unknown[]): string {
  const found = Object.hasOwn(catalogue, other) ? find(other, n) : n === 1 ? one : other;
  return found.replace(/\{(\d)\}/g, (_, i) => put([n, ...values][Number(i)]));
}

/** Parts of an enumeration: "a, b and c". */
export function listed(parts: string[]): string {
  return new Intl.ListFormat(locale).format(parts);
}

/** A number, rounded for people: 1.2K. */
export function rounded(n: number): string {
  return compact.format(n);
}
