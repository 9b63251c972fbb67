// Leaves an item for an absent host, and tracks its success.

import { useState } from 'preact/hooks';
import { t } from '../language';

export interface Leaves {
  busy: boolean;
  why: string; // why the last attempt failed
  leave(act: () => Promise<unknown> | undefined): Promise<boolean>; // after a failure, as long as the item may still have arrived
}

export function useLeaving(): Leaves {
  const [busy, setBusy] = useState(false);
  const [why, setWhy] = useState('');
  const leave = async (act: () => Promise<unknown> | undefined) => {
    setBusy(true);
    setWhy('');
    const left = await Promise.resolve(act()).then(() => true, (err: Error & { arrived?: Promise<boolean> }) => {
      setWhy(t`Not left: ${err.message}.`);
      setBusy(false);
      return err.arrived;
    });
    if (left) setWhy('');
    setBusy(false);
    return !!left;
  };
  return { busy, why, leave };
}
