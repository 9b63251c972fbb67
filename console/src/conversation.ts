// The conversation in view: prompts, answers, and the actions on its turns and chats.

import type { Action, ChatMessage, ChatState, Choice, QuestionAnswer, Request, ToolCall, Turn } from './ahp';
import type { Pane } from './address';
import { requestKey } from './approval';
import type { Link } from './link';
import type { Requests } from './requests';
import { array, text, type Pending } from './store';
import { chatBeside, placeOf, randomId } from './words';
import { t } from './language';

/** A message's attachment: bytes, or a file on the host. */
export type Attachment = { label: string; displayKind?: string } & ({ data: string; contentType: string } | { uri: string });

/** An app's context for the agent. */
interface Context { place: string; label: string; text: string } // place is a host's chat

function asAttachment({ label, text }: Context): Attachment {
  const bytes = new TextEncoder().encode(text);
  return { label: t`Context of ${label || t`an app`}`, data: btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join('')), contentType: 'text/plain', displayKind: 'document' };
}

/** The parts of the page that a conversation uses. */
export interface ConversationPage {
  readonly link: Link | undefined;
  readonly host: string;
  readonly session: string; // URI of the open session
  readonly chatUri: string | undefined; // URI of the chat in view
  readonly rights: { readonly readOnly: boolean };
  readonly folders: string[];
  readonly requests: Pick<Requests, 'request'>;
  showPane(pane: Pane | null): void;
  chooseChat(chat: string): void;
  draw(): void;
}

export class Conversation {
  note = ''; // message below the editor
  models = new Map<string, { id: string }>(); // placeOf a session to its chosen model
  ownTerminals = new Set<string>(); // created here, so sized as shown here
  attachments = new Map<string, Attachment[]>(); // placeOf a chat to the next message's attachments
  #contexts = new Map<object, Context>(); // app to its context for the next message
  #page: ConversationPage;

  constructor(page: ConversationPage) {
    this.#page = page;
  }

  /** Dispatches an action. Returns its clientSeq, or undefined if it could not be sent. */
  perform(channel: string | undefined, action: Action): number | undefined {
    const { link } = this.#page;
    this.note = '';
    if (!link?.conn || !channel) return undefined;
    link.store.refusal = '';
    try {
      return link.conn.dispatch(channel, action);
    } catch (err) {
      this.note = (err as Error).message;
      return undefined;
    } finally {
      this.#page.draw();
    }
  }

  /**
   * Sets the text that an app adds to the chat's next message, in place of its previous text; '' removes it.
   */
  addContext(from: object, label: string, words: string): boolean {
    const had = this.#contexts.delete(from);
    const may = Boolean(words && this.#page.chatUri && !this.#page.rights.readOnly);
    if (may) this.#contexts.set(from, { place: this.#place, label, text: words });
    if (had || may) this.#page.draw();
    return may || words === '';
  }

  /** The apps' texts for the next message in the chat in view. */
  get context(): [object, Context][] {
    return [...this.#contexts].filter(([, c]) => c.place === this.#place);
  }

  get #place(): string {
    return placeOf(this.#page.host, this.#page.chatUri ?? '');
  }

  #message(prompt: string, attachments: Attachment[]): ChatMessage {
    const model = this.models.get(placeOf(this.#page.host, this.#page.session));
    return {
      text: prompt,
      origin: { kind: 'user' },
      ...(model ? { model } : {}),
      ...(attachments.length ? { attachments: attachments.map((a) => ({ type: 'uri' in a ? 'resource' : 'embeddedResource', ...a })) } : {}),
    };
  }

  /**
   * Sends a prompt. While the agent works, the prompt waits until the end of the turn ('queued') or is read
   * during the turn ('steering'). Returns false if it cannot be sent now.
   */
  send(prompt: string, attachments: Attachment[] = [], how: 'queued' | 'steering' = 'queued'): boolean {
    const channel = this.#page.chatUri;
    const chat = this.#page.link?.store.get<ChatState>(channel);
    if (!this.#page.link?.live || !chat || !channel) return false;
    const message = this.#message(prompt, [...attachments, ...this.context.map(([, c]) => asAttachment(c))]);
    const done = (sent: boolean) => {
      if (sent) for (const [from] of this.context) this.#contexts.delete(from);
      return sent;
    };
    if (chat.activeTurn) {
      const id = randomId();
      const sent = this.perform(channel, { type: 'chat/pendingMessageSet', kind: how, id, message });
      if (sent !== undefined) this.#page.link.store.sent(channel, sent, { turnId: id, startedAt: new Date().toISOString(), message }, how);
      return done(sent !== undefined);
    }
    if (this.#page.link.store.pending.some((p) => p.channel === channel && !p.failed)) return false;
    const action = { type: 'chat/turnStarted', turnId: randomId(), startedAt: new Date().toISOString(), message };
    const clientSeq = this.perform(channel, action);
    if (clientSeq !== undefined) this.#page.link.store.sent(channel, clientSeq, action);
    done(clientSeq !== undefined);
    this.#page.draw();
    return clientSeq !== undefined;
  }

  sendAgain(pending: Pending): void {
    const { message } = pending.turn;
    if (this.send(message!.text as string, attached(message), pending.how)) this.#page.link?.store.discard(pending);
    this.#page.draw();
  }

  discard(pending: Pending): void {
    this.#page.link?.store.discard(pending);
    this.#page.draw();
  }

  unqueue(kind: 'queued' | 'steering', id: string): void {
    this.perform(this.#page.chatUri, { type: 'chat/pendingMessageRemoved', kind, id });
  }

  stop(): void {
    const turn = this.#page.link?.store.get<ChatState>(this.#page.chatUri)?.activeTurn;
    if (!turn) return;
    const duration = Math.max(0, Date.now() - Date.parse(turn.startedAt)) || 0;
    this.perform(this.#page.chatUri, { type: 'chat/turnCancelled', turnId: turn.id, duration });
  }

  /** Sends a turn's prompt again. */
  again(turn: Turn): void {
    this.send(text(turn.message?.text), attached(turn.message));
  }

  /** Deletes all turns after this turn. */
  backTo(turn: Turn): void {
    this.perform(this.#page.chatUri, { type: 'chat/truncated', turnId: turn.id });
  }

  /** Whether the session's agent supports a new chat that continues from a turn. */
  get mayFork(): boolean {
    const provider = this.#page.link?.store.get(this.#page.session)?.provider;
    return Boolean(this.#page.link?.store.agents.find((a) => a?.provider === provider)?.capabilities?.multipleChats?.fork);
  }

  /** Opens a new chat in the session that continues from a turn. */
  fork(turn: Turn): Promise<void> {
    return this.newChat({ kind: 'fork', chat: this.#page.chatUri, turnId: turn.id });
  }

  chooseModel(id: string): void {
    const place = placeOf(this.#page.host, this.#page.session);
    if (id) this.models.set(place, { id });
    else this.models.delete(place);
    this.#page.draw();
  }

  /** Creates a terminal in the session's folder and shows it. */
  async newTerminal(): Promise<void> {
    const { session } = this.#page;
    const channel = `agenthost-terminal:/${randomId()}`;
    try {
      await this.#page.requests.request('createTerminal', { channel, claim: { kind: 'session', session }, cwd: this.#page.folders[0], cols: 80, rows: 24 });
      this.ownTerminals.add(channel);
      if (this.#page.session === session) this.#page.showPane({ kind: 'terminal', channel, title: t`Terminal` });
    } catch (err) {
      this.note = t`No terminal was made: ${(err as Error).message}`;
    }
    this.#page.draw();
  }

  /** Creates a chat in the session and shows it. */
  async newChat(source?: object): Promise<void> {
    const { session } = this.#page;
    const chat = chatBeside(this.#page.link?.store.chatOf(session) ?? '', randomId());
    try {
      await this.#page.requests.request('createChat', { channel: session, chat, ...(source ? { source } : {}) });
      if (this.#page.session === session) this.#page.chooseChat(chat);
    } catch (err) {
      this.note = t`No other chat was made: ${(err as Error).message}`;
    }
    this.#page.draw();
  }

  /** Closes a chat of the session, and shows the session's first. */
  async closeChat(): Promise<void> {
    const { session, chatUri: chat } = this.#page;
    try {
      await this.#page.requests.request('disposeChat', { channel: chat });
      if (this.#page.session === session) this.#page.chooseChat('');
    } catch (err) {
      this.note = t`The chat was not closed: ${(err as Error).message}`;
    }
    this.#page.draw();
  }

  resume(turn: Turn): void {
    this.perform(this.#page.chatUri, { type: 'chat/turnResume', turnId: turn.id });
  }

  /** Answers a tool call, if the request is still the one that the user saw. */
  answer(turn: Pick<Turn, 'id'>, call: ToolCall, approved: boolean, option?: Choice, editedToolInput?: string): void {
    const { toolCallId, status: now } = call;
    const active = this.#page.link?.store.get<ChatState>(this.#page.chatUri)?.activeTurn;
    const asked = active?.id === turn.id && array(active.responseParts).find((p) => p?.toolCall?.toolCallId === toolCallId)?.toolCall;
    if (!asked || requestKey(asked) !== requestKey(call)) {
      this.#page.draw();
      return;
    }
    const result = now === 'pending-result-confirmation';
    const sent = this.perform(this.#page.chatUri, {
      type: result ? 'chat/toolCallResultConfirmed' : 'chat/toolCallConfirmed',
      turnId: turn.id, toolCallId, approved,
      ...(result ? {} : approved ? { confirmed: 'user-action' } : { reason: 'denied' }),
      ...(option && !result ? { selectedOptionId: option.id } : {}),
      ...(approved && editedToolInput !== undefined ? { editedToolInput } : {}),
    });
    if (sent !== undefined) this.#page.link?.store.answered(this.#page.chatUri!, toolCallId, (option?.label as string | undefined) ?? (approved ? 'allow' : 'deny'));
    navigator.vibrate?.(10);
    this.#page.draw();
  }

  /** Answers the agent's question. */
  reply(request: Request, response: 'accept' | 'decline' | 'cancel', answers?: Record<string, QuestionAnswer | undefined>): void {
    const sent = this.perform(this.#page.chatUri, { type: 'chat/inputCompleted', requestId: request.id, response, ...(answers ? { answers } : {}) });
    if (sent !== undefined) this.#page.link?.store.answered(this.#page.chatUri!, request.id, response);
    this.#page.draw();
  }

  async earlier(): Promise<void> {
    const { chatUri: channel, link } = this.#page;
    const cursor = link?.store.get<ChatState>(channel)?.turnsNextCursor;
    if (!cursor) return;
    const { store } = link!;
    store.loading = channel!;
    store.loaded = [];
    try {
      await link!.conn!.request('fetchTurns', { channel, cursor }); // the turns arrive as an action
      store.load();
    } catch (err) {
      store.loading = '';
      this.note = (err as Error).message;
    }
    this.#page.draw();
  }
}

/** Returns a message's attachments, for a new message. */
function attached(message: ChatMessage | undefined): Attachment[] {
  return array(message?.attachments).filter((a) => (a?.type === 'embeddedResource' && a.data) || (a?.type === 'resource' && a.uri)) as Attachment[];
}
