// The only place that creates script URLs, all known at build time. The page's policy
// (require-trusted-types-for) refuses all other code; DOMPurify cleans HTML.

declare const HIGHLIGHT_WORKER: string;

const ours: Record<string, string> = { '/sw.js': '/sw.js', [HIGHLIGHT_WORKER]: HIGHLIGHT_WORKER };

interface Policy { createScriptURL(url: string): string }

const policy: Policy = (globalThis as { trustedTypes?: { createPolicy(name: string, rules: Policy): Policy } }).trustedTypes?.createPolicy('console', {
  createScriptURL(url: string) {
    if (!Object.hasOwn(ours, url)) throw new TypeError(`not a script of this page: ${url}`);
    return ours[url];
  },
}) ?? { createScriptURL: (url: string) => url };

/** Has the browser keep the page itself, so that it opens without a network. */
export function registerWorker(): void {
  navigator.serviceWorker?.register(policy.createScriptURL('/sw.js')).catch(() => {}); // the page also works without it
}

export function highlighter(): Worker {
  return new Worker(policy.createScriptURL(HIGHLIGHT_WORKER));
}
