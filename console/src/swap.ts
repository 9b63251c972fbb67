// A change of token or place proposed by a link. A link may come from an attacker, so the page shows the
// rights before and after the change, and the user decides.

import type { Place } from './address';
import { lookUp, type Grant } from './relay';

/** A token's rights at a host. */
export interface Side { grant?: Grant; host: string }

/** A proposed change. why is why the relay refuses the new token, or ''. */
export interface Swap { key: object; token: string; to: Place; now: Side | null; then: Side | null; why: string }

/** The parts of the page that a change uses. */
export interface SwapPage {
  readonly token: string;
  readonly host: string;
  take(token: string, to: Place): void;
  draw(): void;
}

export class Swaps {
  open: Swap | null = null; // the change that the user is asked about
  #page: SwapPage;

  constructor(page: SwapPage) {
    this.#page = page;
  }

  /** Asks the user, and shows both tokens' rights. */
  async propose(token: string, to: Place): Promise<void> {
    const page = this.#page;
    const round: Swap = { key: {}, token, to, now: null, then: null, why: '' };
    this.open = round;
    page.draw();
    const [now, then] = await Promise.all([lookUp(page.token), token ? lookUp(token) : null]);
    if (this.open !== round) return;
    const said = then ?? now;
    this.open = { ...round, now: { grant: now.grant, host: page.host }, then: { grant: said.grant, host: to.host || page.host }, why: said.why };
    page.draw();
  }

  keep(): void {
    this.open = null;
    this.#page.draw();
  }

  take(): void {
    const swap = this.open;
    this.open = null;
    if (swap) this.#page.take(swap.token, swap.to);
  }
}
