// Answers from notifications, which the service worker sends while no page is open.

import { base, call, stored } from '../../gateway/api/people/pages/keys.js';
import { texts, type Texts } from './language/worker';
import { sealAnswer, type SealedAnswer, type SealedOffer } from './sealed/note';

/** An answer that a push message offers. */
export interface Offered { label: string; path: string; text: boolean }

/** A notification's action, as in the Notifications API. Browsers that support replies have type. */
export interface Action { action: string; title: string; type?: 'text' }

/**
 * Reads the answers that a push message offers. They can be sent only to the account's relay, so only the
 * path of their address is used.
 */
export function offeredBy(message: Record<string, unknown>): Offered[] {
  if (!Array.isArray(message.answers)) return [];
  return message.answers.flatMap((a: Record<string, unknown> | null): Offered[] => {
    if (typeof a?.label !== 'string' || typeof a.url !== 'string') return [];
    const { pathname } = new URL(a.url, location.href);
    return pathname.startsWith('/api/answers/') ? [{ label: a.label, path: pathname.slice(1), text: a.text === true }] : [];
  });
}

/** Returns the buttons for answers, as many as fit. A reply needs a browser with a text field for it. */
export function actionsOf(offered: { label: string; text: boolean }[], most: number, replies: boolean, { labels } = texts.en): Action[] {
  return offered
    .map((o, i): Action => ({ action: String(i), title: labels[o.label] ?? o.label, ...(o.text ? { type: 'text' } : {}) }))
    .filter((a) => !a.type || replies)
    .slice(0, most);
}

const patience = 60_000; // ms for the relay's answer, as in pages/keys.js
const again = [1_000, 3_000, 8_000]; // ms before each retry

/** Sends an answer, and retries while the relay or the host is unreachable. Returns why it failed, or ''. */
export function give(path: string, text?: string, pauses = again, words = texts.en): Promise<string> {
  return persist(() => attempt(path, words, text === undefined ? undefined : { text }), pauses);
}

/** Sends a sealed host an answer that the relay cannot read. */
export async function giveSealed(offer: SealedOffer, text: string, pauses = again, words = texts.en): Promise<string> {
  const answer = await sealAnswer(offer, text).catch(() => undefined); // sealed once, because the host accepts a repeated answer only in the same form
  if (!answer) return words.unproved;
  return persist(() => attemptSealed(answer, words), pauses);
}

/** An attempt: why it failed, '' after a success. own: the person has answered before, perhaps by an attempt whose success was not known. */
interface Attempt { text: string; again: boolean; own?: boolean }

async function attemptSealed({ url, body, proves }: SealedAnswer, words: Texts): Promise<Attempt> {
  try {
    const said = await fetch(url, { method: 'POST', cache: 'no-store', credentials: 'omit', signal: AbortSignal.timeout(patience), body, headers: { 'Content-Type': 'application/json' } });
    const { result, proof, error } = await said.json().catch(() => ({}));
    if (said.ok) return await proves(result, proof) && result === 'given' ? { text: '', again: false } : { text: words.unproved, again: false };
    return { text: typeof error === 'string' ? error : words.answered(said.status), again: said.status >= 500 || said.status === 429 };
  } catch {
    return { text: words.unreachable, again: true };
  }
}

async function persist(once: () => Promise<Attempt>, pauses: number[]): Promise<string> {
  for (let tries = 0; ; tries++) {
    const why = await once();
    if (why.own && tries > 0) return '';
    if (!why.again || tries === pauses.length) return why.text;
    await new Promise((resolve) => { setTimeout(resolve, pauses[tries]); });
  }
}

async function attempt(path: string, words: Texts, body?: { text: string }): Promise<Attempt> {
  let self;
  try {
    self = await stored();
    if (self) await call('POST', path, body); // authenticated by the device's key
    else await plain(path, body);
    return { text: '', again: false };
  } catch (err) {
    const { status, message } = err as Error & { status?: number };
    return status === undefined
      ? { text: words.unreachable, again: true }
      : { text: message || words.answered(status), again: status >= 500 || status === 429, own: status === 409 && message === `already answered by ${self?.subject}` };
  }
}

async function plain(path: string, body?: { text: string }): Promise<void> {
  const answer = await fetch(new URL(path, base), {
    method: 'POST', cache: 'no-store', credentials: 'omit', signal: AbortSignal.timeout(patience), ...(body ? { body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } } : {}),
  });
  if (answer.ok) return;
  const { error } = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(typeof error === 'string' ? error : ''), { status: answer.status });
}
