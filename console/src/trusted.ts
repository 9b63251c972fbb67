// The only place that makes addresses of scripts: of our own, which are known
// when the page is built. All else that could run is refused by the page's policy
// (require-trusted-types-for), but for what DOMPurify has cleaned.

declare const HIGHLIGHT_WORKER: string;

const ours: Record<string, string> = { '/sw.js': '/sw.js', [HIGHLIGHT_WORKER]: HIGHLIGHT_WORKER };

interface Policy { createScriptURL(url: string): any }

const policy: Policy = (globalThis as any).trustedTypes?.createPolicy('console', {
  createScriptURL(url: string) {
    if (!Object.hasOwn(ours, url)) throw new TypeError(`not a script of this page: ${url}`);
    return ours[url];
  },
}) ?? { createScriptURL: (url: string) => url };

/** Has the browser keep the page itself, so that it opens without a network. */
export function registerWorker(): void {
  navigator.serviceWorker?.register(policy.createScriptURL('/sw.js')).catch(() => {}); // it is better with, and works without
}

export function highlighter(): Worker {
  return new Worker(policy.createScriptURL(HIGHLIGHT_WORKER));
}
