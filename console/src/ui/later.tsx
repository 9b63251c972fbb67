// Parts of the page loaded when they are first shown. The service worker caches them, so they appear
// without a network too.

import { h, type FunctionComponent } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { t } from '../language';

const again = 3_000; // ms before a failed load is repeated

/** Returns a component whose module is loaded when it is first drawn. */
export function later<P extends object>(load: () => Promise<FunctionComponent<P>>): FunctionComponent<P> {
  let part: FunctionComponent<P> | undefined;
  return (props: P) => {
    const [why, setWhy] = useState('');
    const [tries, next] = useState(0);
    useEffect(() => {
      if (part) return;
      const timer = setTimeout(() => load().then((it) => { part = it; }, (err) => setWhy(err.message)).then(() => next((n) => n + 1)), tries && again);
      return () => clearTimeout(timer);
    }, [tries]);
    if (part) return h(part, props);
    return why ? h('p', { class: 'error', role: 'status' }, t`This part of the page could not be loaded: ${why}`) : null;
  };
}
