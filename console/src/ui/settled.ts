// New buttons do not take a press at once, because it may be the second tap of a double tap, or meant for what was
// there before.

import { useEffect, useState } from 'preact/hooks';

export const settleTime = 500; // ms

/** Whether the component has been shown for settleTime. */
export function useSettled(): boolean {
  const [settled, setSettled] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(true), settleTime);
    return () => clearTimeout(timer);
  }, []);
  return settled;
}
