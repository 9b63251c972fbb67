// The open questions of all hosts, from the relay's event stream (GET /api/events). No session need be opened
// for them.

import { accountPart, accounts, bare } from './accounts';
import { open } from './relay';
import type { Requests } from './requests';
import { array, text } from './store';
import { t } from './language';

/** An agent's open question, with as much of it as fits into a line. */
export interface Asked {
  id: string;
  digest: string; // changes with the question
  host: string;
  kind: string;
  session: string;
  chat: string;
  title: string;
  at: string;
  text: string;
  detail: string; // the command or other input; for a question, its second sentence
  risky: boolean;
  options: Option[]; // the answers that may be given without seeing more
}

export interface Option { id: string; label: string; deny: boolean }

/** An event of the relay's stream: see notice.Event. */
interface Said {
  id?: string; digest?: string; host?: string; kind?: string; session?: string; chat?: string; title?: string; at?: string; text?: string; detail?: string;
  needsYou?: boolean; risky?: boolean; edits?: boolean; answer?: string; options?: Option[];
}

/** The parts of the page that the questions use. */
export interface AskedPage {
  readonly token: string;
  readonly requests: Pick<Requests, 'askAt'>;
  draw(): void;
}

const firstPause = 2_000; // ms before the stream is opened again
const mostPause = 60_000;
const silence = 45_000; // ms without a beat, which the relay sends every 15 s; then the stream has ended unseen

/** An event stream. heard is the time of its last message, or of the request for it; Infinity between streams. */
interface Stream { stop: AbortController; heard: number }

export class Questions {
  #all = new Map<string, Asked>(); // by host and id
  #given = new Map<string, string>(); // question to its answer: '' while it is being sent, or why it failed
  #streams = new Map<string, Stream>(); // by token, or by what identifies an account in place of one
  #page: AskedPage;

  constructor(page: AskedPage) {
    this.#page = page;
  }

  /**
   * Opens the event streams of the page's token and of further accounts, and replaces silent ones. The page calls
   * it repeatedly.
   */
  follow(): void {
    const { token } = this.#page;
    const wanted = token ? [token, ...accounts().map((a) => `@${a.name}`)] : [];
    for (const [of, { stop, heard }] of this.#streams) {
      if (wanted.includes(of) && Date.now() - heard < silence) continue;
      stop.abort();
      this.#streams.delete(of);
      if (!wanted.includes(of)) this.#clear(of);
    }
    for (const of of wanted) {
      if (this.#streams.has(of)) continue;
      const stream = { stop: new AbortController(), heard: Infinity };
      this.#streams.set(of, stream);
      this.#run(of, stream);
    }
  }

  /** Opens the streams at once that wait for their next attempt: the user has returned, or the network has. */
  wake(): void {
    for (const [of, { stop, heard }] of this.#streams) {
      if (heard !== Infinity) continue;
      stop.abort();
      this.#streams.delete(of);
    }
    this.follow();
  }

  /** Removes the questions of all hosts that a token reaches. */
  #clear(token: string): void {
    for (const [key, q] of this.#all) if (accountPart(q.host) === suffixOf(token)) this.#all.delete(key);
  }

  /** A session's questions, the oldest first. */
  of(host: string, session: string): Asked[] {
    return this.all().filter((q) => q.host === host && q.session === session);
  }

  all(): Asked[] {
    return [...this.#all.values()].sort((a, b) => (a.at < b.at ? -1 : 1));
  }

  /** Why the last answer to a question failed; '' while an answer is being sent; undefined before. */
  given(q: Asked): string | undefined {
    return this.#given.get(keyOf(q));
  }

  /** Answers a question in the form in which it was shown. */
  async answer(q: Asked, o: Option): Promise<void> {
    const key = keyOf(q);
    if (this.#given.get(key) === '') return;
    this.#given.set(key, '');
    this.#page.draw();
    const why = await this.#page.requests.askAt(q.host, 'POST', `api/answers/${encodeURIComponent(q.id)}`, { host: bare(q.host), option: o.id, digest: q.digest })
      .then(({ status, body }) => (status === 200 ? undefined : text(body?.error) || t`the relay answered ${status}`), (err: Error) => err.message);
    if (why) this.#given.set(key, why); // after a success, the stream ends the question
    this.#page.draw();
  }

  async #run(token: string, stream: Stream): Promise<void> {
    const { signal } = stream.stop;
    for (let pause = firstPause; !signal.aborted; pause = Math.min(2 * pause, mostPause)) {
      stream.heard = Date.now();
      try {
        const answer = await open(token, 'api/events', signal);
        if (answer.ok && answer.body) {
          pause = firstPause;
          this.#clear(token); // a stream begins with all open questions
          await this.#read(answer.body, suffixOf(token), stream);
        }
      } catch {
        // The stream is opened again.
      }
      stream.heard = Infinity;
      await new Promise((resolve) => { setTimeout(resolve, pause); });
    }
  }

  async #read(body: ReadableStream<Uint8Array>, account: string, stream: Stream): Promise<void> {
    const lines = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await lines.read();
      if (done) return;
      stream.heard = Date.now();
      const events = (rest + value).split('\n\n');
      rest = events.pop()!;
      for (const event of events) this.#apply(event, account);
      if (events.length > 0) this.#page.draw();
    }
  }

  #apply(event: string, account: string): void {
    const fields = new Map(event.split('\n').map((line): [string, string] => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trim()]));
    if (!fields.has('data')) return;
    const said: Said = JSON.parse(fields.get('data')!);
    const q = askedBy(said);
    q.host += account;
    if (fields.get('event') === 'withdrawn') {
      this.#all.delete(`${q.host} ${q.id}`);
      for (const key of this.#given.keys()) if (key.startsWith(`${q.host} ${q.id} `)) this.#given.delete(key);
    } else if (said.needsYou === true) this.#all.set(`${q.host} ${q.id}`, q);
  }
}

/** The suffix of host names for a token: '' for the page's own. */
function suffixOf(token: string): string {
  return token.startsWith('@') ? token : '';
}

function keyOf(q: Asked): string {
  return `${q.host} ${q.id} ${q.digest}`;
}

/**
 * Reads an event. A question that the host calls dangerous, or that is shown only in part, cannot be allowed
 * here.
 */
export function askedBy(said: Said): Asked {
  const risky = said.risky === true;
  const whole = said.edits !== true && !risky;
  const options = said.answer === 'choice' || said.answer === 'text' ? array(said.options) : [];
  return {
    id: text(said.id), digest: text(said.digest), host: text(said.host), kind: text(said.kind), session: text(said.session), chat: text(said.chat),
    title: text(said.title), at: text(said.at), text: text(said.text), detail: text(said.detail), risky,
    options: options.map((o) => ({ id: text(o?.id), label: text(o?.label) || text(o?.id), deny: o?.deny === true })).filter((o) => said.kind !== 'approval' || o.deny || whole),
  };
}
