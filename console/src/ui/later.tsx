// Parts of the page loaded when they are first shown. The service worker caches them, so they appear
// without a network too.

import { h, type FunctionComponent } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { t } from '../language';

/** Returns a component whose module is loaded when it is first drawn. */
export function later<P extends object>(load: () => Promise<FunctionComponent<P>>): FunctionComponent<P> {
  let part: FunctionComponent<P> | undefined;
  return (props: P) => {
    const [why, setWhy] = useState('');
    const [, again] = useState(0);
    useEffect(() => {
      if (part) return;
      load().then((it) => { part = it; again((n) => n + 1); }, (err) => setWhy(err.message));
    }, []);
    if (part) return h(part, props);
    return why ? h('p', { class: 'error', role: 'status' }, t`This part of the page could not be loaded: ${why}`) : null;
  };
}
