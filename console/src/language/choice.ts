// The chosen language, for the page and for its service worker.

/** Language tags and the names of the languages in themselves. */
export const languages: Record<string, string> = { en: 'English', de: 'Deutsch', ja: '日本語', ar: 'العربية' };

/**
 * Returns a page's language and its tag for Intl. If one of the browser's tags has that language, its region
 * is kept.
 */
export function languageOf(wanted: string, theirs: readonly string[]): { language: string; locale: string } {
  const primary = (tag: string) => tag.toLowerCase().split('-')[0];
  const language = wanted || theirs.map(primary).find((l) => Object.hasOwn(languages, l)) || 'en';
  const locale = theirs.find((tag) => primary(tag) === language) ?? language;
  return { language, locale: language === 'ar' ? `${locale}-u-nu-latn` : locale }; // digits as in code, diffs and addresses
}

/** The cache that stores the choice, because a service worker has no localStorage. */
export const choices = 'language';

const at = '/language';

export async function keepChoice(tag: string): Promise<void> {
  const cache = await caches.open(choices);
  if (tag) await cache.put(at, new Response(tag));
  else await cache.delete(at);
}

export async function keptChoice(): Promise<string> {
  const kept = await (await (await caches.open(choices)).match(at))?.text() ?? '';
  return Object.hasOwn(languages, kept) ? kept : '';
}
