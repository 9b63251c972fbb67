// The error for data never sent by a correct peer behind an honest relay.

import { t } from '../language';

/** Data that cannot come from a correct peer behind an honest relay. */
export class Lie extends Error {
  constructor(why: string) {
    super(t`The relay, or something on the way to it, has changed this conversation: ${why}.`);
  }
}
