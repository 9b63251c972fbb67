// Keeps the page itself, and nothing of what it shows: so it opens at once, and
// without a network, to say that there is none.

export {};

declare const SHELL: string[];
declare const self: any;

const name = `shell ${SHELL.join(' ')}`;

self.addEventListener('install', (event: any) => {
  event.waitUntil((async () => {
    const cache = await caches.open(name);
    await cache.addAll(['/', ...SHELL]);
    await self.skipWaiting();
  })());
});

self.addEventListener('activate', (event: any) => {
  event.waitUntil((async () => {
    for (const other of await caches.keys()) if (other !== name) await caches.delete(other);
    await self.clients.claim();
  })());
});

self.addEventListener('fetch', (event: any) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== 'GET' || url.origin !== self.location.origin) return;
  if (SHELL.includes(url.pathname)) event.respondWith(kept(request));
  else if (request.mode === 'navigate' && request.destination === 'document' && url.pathname === '/') event.respondWith(page(request));
});

async function kept(request: Request): Promise<Response> {
  return (await caches.match(request)) ?? fetch(request);
}

/** The relay's page, which may be newer; ours where it cannot be had soon. */
async function page(request: Request): Promise<Response> {
  const ours = await caches.match('/');
  if (!ours) return fetch(request);
  const late = new Promise<Response>((resolve) => { setTimeout(() => resolve(ours), 2500); });
  return Promise.race([fetch(request).catch(() => ours), late]);
}
