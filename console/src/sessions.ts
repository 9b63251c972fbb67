// The list of sessions, and changes to it.

import type { Action, Summary } from './ahp';
import type { Conversation } from './conversation';
import type { Link } from './link';
import { status } from './reduce';
import { t } from './language';

const undoTime = 6_000; // ms in which a deletion can be undone

/** A listed session. */
export interface Listed { link: Link; session: Summary }

/** The parts of the page that the session list uses. */
export interface SessionsPage {
  readonly links: Map<string, Link>; // by host
  readonly host: string;
  readonly session: string; // URI of the open session
  readonly onlyHost: string; // list only this host's sessions, '' for all
  readonly rights: { readonly mayOperate: boolean; grantAt(host: string): object | null; operatesAll(host: string): boolean };
  readonly absent: { at(host: string): { takesSession(host: string): boolean } | undefined };
  readonly conversation: Conversation;
  openSession(host: string, session: string): void;
  draw(): void;
}

export class Sessions {
  deleted: { link: Link; session: string; timer: ReturnType<typeof setTimeout> } | null = null;
  #opened = false; // the user has opened a session, and its host has not listed it yet
  #seen?: string; // when the session in view was changed, as far as the user has seen it
  #page: SessionsPage;

  constructor(page: SessionsPage) {
    this.#page = page;
  }

  /** Returns the listed sessions of all hosts. */
  all(): Listed[] {
    const all: Listed[] = [];
    for (const link of this.#page.links.values()) {
      if (this.#page.onlyHost && link.host !== this.#page.onlyHost) continue;
      for (const session of link.store.sessions.values()) {
        if (this.deleted?.link !== link || this.deleted.session !== session.resource) all.push({ link, session });
      }
    }
    return all;
  }

  /** Whether a new session for a host waits at the relay. */
  waits(link: Link): boolean {
    return !link.live && this.#page.absent.at(link.host)?.takesSession(link.host) === true;
  }

  /** Whether a session can be created at a host, now or when it is back. */
  mayBegin(link: Link): boolean {
    return this.#page.rights.operatesAll(link.host) && (link.live ? link.store.agents.length > 0 : this.waits(link));
  }

  #tell(link: Link, channel: string, action: Action, quiet = false): void {
    try {
      const clientSeq = link.conn?.dispatch(channel, action);
      if (quiet && clientSeq !== undefined) link.store.quiet.add(clientSeq);
    } catch {
      this.#page.conversation.note = t`Not connected.`;
    }
    this.#page.draw();
  }

  /** Marks the open session as read because the user opens it. */
  opened(): void {
    this.#opened = true;
    this.tick();
  }

  /** Marks an opened session as read once its host has listed it, and when it goes on before the user's eyes. The page calls it repeatedly. */
  tick(): void {
    const { host, session, rights } = this.#page;
    const link = this.#page.links.get(host);
    const summary = link?.store.sessions.get(session);
    if (!document.hidden && this.#seen !== summary?.modifiedAt) {
      this.#seen = summary?.modifiedAt;
      this.#opened = true;
    }
    if (!this.#opened || !link?.live || !summary || !rights.grantAt(host)) return;
    this.#opened = false;
    if (rights.mayOperate && !(summary.status & status.read)) this.#tell(link, session, { type: 'session/isReadChanged', isRead: true }, true);
  }

  markRead(link: Link, session: string, on: boolean): void {
    this.#tell(link, session, { type: 'session/isReadChanged', isRead: on });
  }

  rename(link: Link, session: string, title: string): void {
    this.#tell(link, session, { type: 'session/titleChanged', title });
  }

  archive(link: Link, session: string, on: boolean): void {
    this.#tell(link, session, { type: 'session/isArchivedChanged', isArchived: on });
  }

  /** Hides a session from all other people, or shows it again. */
  keepPrivate(link: Link, session: string, on: boolean): void {
    link.keepPrivate(session, on).catch((err: Error) => {
      this.#page.conversation.note = err.message;
      this.#page.draw();
    });
  }

  /** Deletes a session after a delay in which the user can undo it. */
  remove(link: Link, session: string): void {
    this.flush();
    this.deleted = { link, session, timer: setTimeout(() => this.flush(), undoTime) };
    if (this.#page.session === session) this.#page.openSession(this.#page.host, '');
    this.#page.draw();
  }

  undo(): void {
    if (this.deleted) clearTimeout(this.deleted.timer);
    this.deleted = null;
    this.#page.draw();
  }

  /** Carries out a pending deletion now. */
  flush(): void {
    const { deleted } = this;
    if (!deleted) return;
    clearTimeout(deleted.timer);
    this.deleted = null;
    deleted.link.request('disposeSession', { channel: deleted.session }).catch((err: Error) => {
      deleted.link.note = t`The session was not deleted: ${err.message}`;
      this.#page.draw();
    });
    this.#page.draw();
  }
}
