// Decides whether the page may offer to allow a tool call. broker/notice/offer.go has
// the same rule for notifications; hostagent/watch/testdata/approvals.json tests both.

import type { Block, FileEdit, Read, ToolCall } from './ahp';
import { array, isObject, text } from './store';
import { t } from './language';

/**
 * The state of a piece of a request: the user can see it, it is loading, or the reason why it cannot be
 * shown.
 */
export type State = 'shown' | 'loading' | { why: string; press?: string }; // press: the label of the button that may help

/** A piece of a request. A piece that is a reference has an id, and is visible once it is loaded. */
export interface Piece { id: string; here: boolean; why?: string }

const unknownForm = t`This page does not support its format.`;

function inputPiece(input: ToolCall['toolInput']): Piece {
  if (typeof input === 'string') return { id: 'input', here: true };
  if (isObject(input) && text(input.uri)) return { id: inputId(input.uri!), here: false };
  return { id: 'input', here: true, why: `${t`The input cannot be shown.`} ${unknownForm}` };
}

export function inputId(uri: string): string {
  return `input ${uri}`;
}

/** Returns an id for an edit. The id changes with the edit's content. */
export function editId(edit: FileEdit): string {
  return `edit ${JSON.stringify(edit)}`;
}

function editPiece(edit: FileEdit): Piece {
  const id = editId(edit);
  if (!isObject(edit) || !isObject(edit.before) && !isObject(edit.after)) return { id, here: true, why: `${t`A change cannot be shown.`} ${unknownForm}` };
  if (isObject(edit.after) && !text(edit.after.content?.uri)) return { id, here: true, why: t`The host does not show the new content of a file.` };
  return { id, here: false };
}

export function contentId(content: Block): string {
  return `content ${JSON.stringify(content)}`;
}

function contentPiece(content: FileEdit): Piece {
  if (content?.type === 'fileEdit') return editPiece(content);
  return { id: contentId(content), here: !['resource', 'terminal', 'subagent'].includes(content?.type!) };
}

/** Returns all pieces of a request. */
export function piecesOf(call: ToolCall): Piece[] {
  if (call.status === 'pending-result-confirmation') return array(call.content).map(contentPiece);
  const { toolInput, edits } = call;
  const pieces: Piece[] = [];
  if (toolInput !== undefined && toolInput !== null && toolInput !== '') pieces.push(inputPiece(toolInput));
  if (edits !== undefined && edits !== null) {
    const items = array(edits.items);
    pieces.push(...(items.length ? items.map(editPiece) : [{ id: 'edits', here: true, why: `${t`The changes cannot be shown.`} ${unknownForm}` }]));
  }
  if (pieces.length === 0 && !text(call.invocationMessage).trim()) pieces.push({ id: 'nothing', here: true, why: t`The host does not say what this does.` });
  return pieces;
}

const safeEnough = 0.5; // least safety, between 0 and 1, at which no warning is shown

/** Returns the host's risk assessment. An unreadable assessment counts as dangerous. */
export function riskOf(call: ToolCall): { kind: 'none' | 'low' | 'danger' | 'loading'; text: string } {
  const risk = call.riskAssessment;
  if (risk === undefined || risk === null || call.status === 'pending-result-confirmation') return { kind: 'none', text: '' };
  if (risk.status === 'loading') return { kind: 'loading', text: '' };
  const low = risk.status === 'complete' && typeof risk.safety === 'number' && risk.safety >= safeEnough && risk.safety <= 1;
  return { kind: low ? 'low' : 'danger', text: text(risk.reason) };
}

export const assessing = t`The host is still assessing the risk.`;

export interface Offer {
  allow: 'press' | 'hold' | 'no';
  why: string; // why allowing is not offered
  press?: string; // the label of the button that may help
}

/**
 * Decides whether "Allow" may be offered: only if the whole request is visible, and the host has assessed the
 * risk or the user continues without it (goesOn). For a dangerous action, the button must be held.
 */
export function offerOf(call: ToolCall, stateOf: (id: string) => State, goesOn: boolean): Offer {
  const risk = riskOf(call).kind;
  for (const piece of piecesOf(call)) {
    const state: State = piece.why ? { why: piece.why } : piece.here ? 'shown' : stateOf(piece.id);
    if (state === 'loading') return { allow: 'no', why: t`It is still loading.`, press: t`Try again` };
    if (state !== 'shown') return { allow: 'no', ...state };
  }
  if (risk === 'loading' && !goesOn) return { allow: 'no', why: assessing, press: t`Decide without it` };
  return { allow: risk === 'danger' || risk === 'loading' ? 'hold' : 'press', why: '' };
}

/**
 * Whether a request can be answered while its host is absent. All of it must be in the request itself, so
 * that the host can compare it. hostagent.digestOfCall has the same rule.
 */
export function isWhole(call: ToolCall): boolean {
  const { toolInput, edits } = call;
  return (typeof toolInput === 'string' || toolInput === undefined || toolInput === null) && (edits === undefined || edits === null);
}

const keys = new WeakMap<object, string>();

/**
 * Returns a key for a request: two requests with the same contents have the same key. The order of
 * members does not count, because a state and the actions that make it may differ in it.
 */
export function requestKey(call: ToolCall): string {
  let key = keys.get(call);
  if (key === undefined) keys.set(call, key = JSON.stringify(call, (_, v) => (isObject(v) && !Array.isArray(v) ? Object.fromEntries(Object.entries(v).sort()) : v)));
  return key;
}

/** Returns the text in a host's answer to resourceRead. It throws if there is none. */
export function textOfRead(answer: Read): string {
  const { data, encoding } = isObject(answer) ? answer : {} as Read;
  if (typeof data !== 'string' || ![undefined, null, '', 'utf-8', 'utf8', 'base64'].includes(encoding as string)) throw new Error(t`The host’s answer has an unknown format.`);
  let read = data;
  if (encoding === 'base64') {
    try {
      read = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
    } catch {
      throw new Error(t`It is not text.`);
    }
  }
  if (read.includes('\0')) throw new Error(t`It is not text.`);
  return read;
}

/** Replaces invisible and reordering characters by visible marks. */
export function visible(value: string): string {
  return value.replace(/[\p{Cc}\p{Cf}\u2028\u2029\u3164\u115f\u1160\uffa0]/gu, (c) => ('\n\t'.includes(c) ? c : `⟨U+${c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0')}⟩`));
}
