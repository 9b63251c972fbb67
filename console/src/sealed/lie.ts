// The error for data that no correct peer behind an honest relay sends.

import { t } from '../language';

/** Data that cannot come from a correct peer behind an honest relay. */
export class Lie extends Error {
  constructor(why: string) {
    super(t`The relay, or something on the way to it, has changed this conversation: ${why}.`);
  }
}
