// Faults that no correct peer behind an honest relay causes.

import { t } from '../language';

/** Bytes that cannot come from a correct peer behind an honest relay. */
export class Lie extends Error {
  constructor(why: string) {
    super(t`The relay, or something on the way to it, has changed this conversation: ${why}.`);
  }
}
