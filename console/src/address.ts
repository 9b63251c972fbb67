// Reads and writes the page's address: #host=NAME&session=URI. chat=URI selects another chat than the
// session's first, side=KIND and of=CHANNEL the side pane, and turn=ID a turn, or the open question
// (turn=asks). So back, forward and shared links work. A link may come from an attacker, so App.route checks
// it before use.

/** The side pane. */
export interface Pane { kind: 'canvas' | 'changes' | 'terminal' | 'file' | 'files' | 'servers'; channel: string; title?: string }

const paneKinds = ['canvas', 'changes', 'terminal', 'file', 'files', 'servers'];

/** Stands for the turn with the open question in place of a turn's id. */
export const itsQuestion = 'asks';

export interface Place { host: string; session: string; chat: string; pane: Pane | null; turn: string }

export function params(): URLSearchParams {
  return new URLSearchParams(location.hash.slice(1));
}

export function place(): Place {
  const said = params();
  const get = (name: string) => said.get(name) ?? '';
  const known = get('session') !== '' && paneKinds.includes(get('side')) && get('of') !== '';
  return { host: get('host'), session: get('session'), chat: get('chat'), turn: get('turn'), pane: known ? { kind: get('side') as Pane['kind'], channel: get('of') } : null };
}

/** The part of an address after #. */
export function fragment({ host, session, chat, pane, turn }: Partial<Place>): string {
  const said = new URLSearchParams();
  const all: [string, string | undefined][] = [['host', host], ['session', session], ['chat', chat], ['side', pane?.kind], ['of', pane?.channel], ['turn', turn]];
  for (const [name, value] of all) if (value) said.set(name, value);
  return `#${said}`;
}

// at numbers the history entries that this page has visited or created.
let at = 0;

/** Reports whether this page created the history entry; otherwise it is a link. */
export function isOurs(): boolean {
  return history.state?.ours === true;
}

export function setAddress(to: Partial<Place>, how: 'replaceState' | 'pushState' = 'replaceState'): void {
  if (how === 'pushState') at++;
  history[how]({ ours: true, at }, '', fragment(to));
}

/**
 * Records that the user has moved back or forward to a history entry of this page. Returns true if the move
 * was back to a pane that has been closed.
 */
export function wentBack(): boolean {
  const before = at;
  at = history.state?.at ?? 0;
  return at < before;
}
