// The service worker. It caches the page but no data, so the page opens at once, and without a network
// can report that. It shows the relay's push messages with the offered answers, sends the answer that the
// user chooses, and removes notifications that were answered.

import { call } from '../../gateway/api/people/pages/keys.js';
import { itsQuestion } from './address';
import { choices, keptChoice, languageOf } from './language/choice';
import { saysIn, texts } from './language/worker';
import { actionsOf, give, giveSealed, offeredBy, type Offered } from './lockscreen';
import { pinsOf } from './pins';
import { renew } from './renewed';
import { fromBase64url } from './sealed/bytes';
import { isSealed, offersOf, openNote, type Pushed, type SealedOffer } from './sealed/note';

declare const SHELL: string[];
declare const LANGUAGES: Record<string, string>; // tag to the file with its texts
declare const self: ServiceWorkerGlobalScope & { Notification: { maxActions?: number }; NotificationEvent: { prototype: object } };

/** A push, or a sealed host's message in it. Its members have not been checked. */
interface Told { id?: unknown; host?: unknown; session?: unknown; chat?: unknown; kind?: string; at?: unknown; title?: unknown; text?: unknown; detail?: unknown; says?: unknown; withdrawn?: unknown; [name: string]: unknown }

/** The data of a shown notification: the question's place, and the answers offered for it. */
interface Data { host?: string; session?: string; chat?: string; asks?: boolean; offered?: Record<string, Offered | SealedOffer> }

/** Notification options that some browsers and the type library lack. */
type Shown = NotificationOptions & { actions?: object[] };

/** The further account whose notifications this worker shows, or '' for the page's own: see registerFor. */
const account = new URL(self.location.href).searchParams.get('account') ?? '';
const accountPart = account && `@${account}`;

const mark = '/favicon.svg'; // in the page's head
const name = `shell ${SHELL.join(' ')}`;

self.addEventListener('install', (event) => {
  event.waitUntil((async () => {
    if (account) return self.skipWaiting(); // another worker serves the page
    const cache = await caches.open(name);
    const page = await fetch('/');
    if (!page.ok || (await page.clone().text()).match(/\/[\w-]+-[A-Z0-9]{8}\.(js|css)/g)?.some((file) => !SHELL.includes(file))) throw new Error('not the page of this version'); // during a rolling update, a different relay may answer
    await cache.addAll([mark, ...SHELL]);
    await cache.put('/', page);
    await cache.add(keys[0]).catch(() => cache.add(keys[1])).catch(() => {}); // a relay without devices has none
    const own = LANGUAGES[await language()];
    if (own) await cache.add(own).catch(() => {}); // without it, the page is in English
    await self.skipWaiting();
  })());
});

self.addEventListener('activate', (event) => {
  if (account) return;
  event.waitUntil((async () => {
    const all = await caches.keys();
    let before = ''; // the cache of the version before: an open page may still need its files
    for (const other of all.filter((o) => o.startsWith('shell ') && o !== name)) {
      if ((await (await caches.open(other)).keys()).length > 0) before = other; // a failed install leaves an empty cache
    }
    for (const other of all) if (![name, before, 'shared', withdrawn, choices].includes(other)) await caches.delete(other);
    await self.clients.claim();
  })());
});

self.addEventListener('message', (event) => {
  if (event.data === 'claim') event.waitUntil(self.clients.claim());
});

self.addEventListener('fetch', (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method === 'POST' && url.origin === self.location.origin && url.pathname === '/share') event.respondWith(share(request));
  if (request.method !== 'GET' || url.origin !== self.location.origin) return;
  if (Object.values(LANGUAGES).includes(url.pathname)) event.respondWith(keptFromNow(request));
  else if (url.pathname === mark || hashed.test(url.pathname)) event.respondWith(kept(request));
  else if (keys.includes(url.pathname)) event.respondWith(latest(request, url.pathname));
  else if (request.mode === 'navigate' && request.destination === 'document' && url.pathname === '/') event.respondWith(page(request));
});

const hashed = /^\/[\w-]+-[A-Z0-9]{8}\.(js|css)$/; // a file of the page, perhaps of the version before

const mostShared = 8; // files

/** Handles content that an app shares: text is added to the address, and files wait for the page. */
async function share(request: Request): Promise<Response> {
  const form = await request.formData();
  const params = new URLSearchParams();
  for (const name of ['title', 'text', 'url']) if (typeof form.get(name) === 'string' && form.get(name)) params.set(name, form.get(name) as string);
  await caches.delete('shared');
  const files = form.getAll('files').filter((f) => typeof f !== 'string').slice(0, mostShared) as File[];
  if (files.length > 0) {
    const waiting = await caches.open('shared');
    for (const [i, f] of files.entries()) await waiting.put(`/shared/${i}`, new Response(f, { headers: { 'Content-Type': f.type, 'X-Name': encodeURIComponent(f.name) } }));
    params.set('files', String(files.length));
  }
  return Response.redirect(`/?${params}`, 303);
}

async function kept(request: Request): Promise<Response> {
  return (await caches.match(request)) ?? fetch(request);
}

/** Returns a catalogue and caches it: only languages in use are cached. */
async function keptFromNow(request: Request): Promise<Response> {
  const ours = await caches.match(request);
  if (ours) return ours;
  const answer = await fetch(request);
  if (answer.ok) await keep(request, answer);
  return answer;
}

/** Caches an answer, if the browser has room for it. */
async function keep(of: Request | string, answer: Response): Promise<void> {
  await caches.open(name).then((cache) => cache.put(of, answer.clone())).catch(() => {});
}

/** The person's language. */
async function language(): Promise<string> {
  return languageOf(await keptChoice(), self.navigator.languages ?? []).language;
}

const keys = ['/pages/keys.js', '/keys.js']; // the module for the device's key, at a relay and at a static site

/** Returns an answer, or the kept one after 2.5 s, after a failure, and in place of a proxy's error while the relay is away. */
function orKept(answer: Promise<Response>, ours: Response): Promise<Response> {
  const late = new Promise<Response>((resolve) => { setTimeout(() => resolve(ours), 2500); });
  return Promise.race([answer.then((now) => (now.status >= 500 ? ours : now), () => ours), late]);
}

/** The server's file; the last one where it cannot be had soon. All accounts share it, and each finds itself in the request's address. */
async function latest(request: Request, path: string): Promise<Response> {
  const kept = await caches.match(path, { cacheName: name });
  const now = fetch(request).then(async (answer) => {
    if (answer.ok) await keep(path, answer);
    return answer;
  });
  if (!kept) return now;
  return orKept(now, new Response(kept.body, { headers: kept.headers })); // without an address of its own
}

/**
 * Returns the relay's page, which may be newer, or the cached one if the relay does not answer soon. The relay does
 * not get the address's query, which may have a text that an app has shared.
 */
async function page(request: Request): Promise<Response> {
  const anew = () => fetch(new URL(request.url).search ? '/' : request);
  const ours = await caches.match('/', { cacheName: name });
  return ours ? orKept(anew(), ours) : anew();
}

self.addEventListener('push', (event) => {
  let told: Told = {};
  try {
    told = event.data?.json() ?? {};
  } catch {
    // The notification is then shown without details.
  }
  const mine = turn.then(() => show(told));
  turn = mine.catch(() => {});
  event.waitUntil(mine);
});

let turn: Promise<void> = Promise.resolve(); // messages are shown in order, because an event's end must come after the event

const text = (value: unknown) => (typeof value === 'string' ? value : '');

/** The cache of withdrawn events: a push service may deliver a message twice, and late. */
const withdrawn = 'withdrawn';
const mostWithdrawn = 100;

const keyOf = (id: string) => `/withdrawn/${encodeURIComponent(id + accountPart)}`;
const timeOf = (at: unknown) => Date.parse(text(at)) || 0;

async function withdraw(id: string, at: number): Promise<void> {
  const cache = await caches.open(withdrawn);
  await cache.put(keyOf(id), new Response(String(at)));
  const keys = await cache.keys();
  for (const oldest of keys.slice(0, Math.max(0, keys.length - mostWithdrawn))) await cache.delete(oldest);
}

/** Whether an event was withdrawn and has not occurred again since. */
async function isWithdrawn(id: string, at: number): Promise<boolean> {
  const known = await (await caches.open(withdrawn)).match(keyOf(id));
  return known !== undefined && at <= Number(await known.text());
}

/**
 * Reads a push: a message of a sealed host, or of the relay. About a sealed host, a message of the relay has
 * no content.
 */
async function read(told: Told): Promise<{ told: Told; offered: (Offered | SealedOffer)[] }> {
  if (typeof told.sealed === 'string') {
    const opened = await openNote(told as Pushed, account);
    return opened ? { told: opened.note, offered: offersOf(opened.note, opened.from) } : { told: {}, offered: [] };
  }
  if (!text(told.host) || !(await isSealed(account, told.host as string))) return { told, offered: offeredBy(told) };
  const { id, kind, host, at, says, withdrawn: over } = told;
  return { told: { id, host, at, withdrawn: over, ...(['offline', 'joined'].includes(kind!) ? { kind, says } : {}) }, offered: [] };
}

async function show(pushed: Told): Promise<void> {
  const { told, offered } = await read(pushed);
  const id = text(told.id) || 'event';
  const tag = id + accountPart;
  if (told.withdrawn === true) await withdraw(id, timeOf(told.at));
  else if (await isWithdrawn(id, timeOf(told.at))) return;
  const before = await self.registration.getNotifications({ tag });
  for (const notification of before) notification.close();
  if (told.withdrawn === true) return;
  const tongue = await language();
  const says = saysIn(tongue, told);
  await self.registration.showNotification(text(told.title) || says || texts[tongue].anAgent, {
    ...looks, tag,
    body: [text(told.title) && says, text(told.text), text(told.detail)].filter(Boolean).join('\n'),
    actions: actionsOf(offered, self.Notification.maxActions ?? 0, 'reply' in self.NotificationEvent.prototype, texts[tongue]),
    data: { host: text(told.host) && text(told.host) + accountPart, session: text(told.session), ...(isAsked(told, offered) ? { ...(text(told.chat) && { chat: text(told.chat) }), asks: true } : {}), ...(offered.length > 0 ? { offered } : {}) },
  } as Shown);
}

/**
 * Whether a click opens the question and not only its session. Some questions offer no answers in a
 * notification.
 */
function isAsked({ kind }: Told, offered: unknown[]): boolean {
  return offered.length > 0 || kind === 'approval' || kind === 'question';
}

self.addEventListener('pushsubscriptionchange', (event) => event.waitUntil(renewed(event)));

/**
 * Handles a subscription that the browser has renewed. A signed-in device gives it to its relay at once. Pages
 * do the rest, because only they have connections to sealed hosts; if none is open, a notification asks for
 * one.
 */
async function renewed({ oldSubscription, newSubscription }: PushSubscriptionChangeEvent): Promise<void> {
  const manager = self.registration.pushManager;
  let done = false;
  try {
    const key = async () => oldSubscription?.options?.applicationServerKey ?? fromBase64url((await call<{ pushKey?: string }>('GET', 'api/notify')).pushKey);
    const now = newSubscription ?? await manager.getSubscription() ?? await manager.subscribe({ userVisibleOnly: true, applicationServerKey: await key() });
    await renew(accountPart, now, call);
    done = !(await pinsOf(account)).some((p) => p.push);
  } catch {
    // A page tries again.
  }
  const pages = (await self.clients.matchAll({ type: 'window', includeUncontrolled: true })).filter((c) => new URL(c.url).pathname === '/');
  for (const page of pages) page.postMessage({ renewed: accountPart });
  if (!done && pages.length === 0) await self.registration.showNotification(texts[await language()].renewed, { ...looks, tag: `renewed${accountPart}` });
}

const looks = { icon: '/icon-192.png', badge: '/icon-192.png' };

self.addEventListener('notificationclick', (event) => {
  const { notification, action, reply } = event as NotificationEvent & { reply?: string };
  const data: Data = notification.data ?? {};
  const offered: Offered | SealedOffer | undefined = data.offered?.[action];
  notification.close();
  event.waitUntil(offered ? answer(notification, offered, text(reply)) : open(data));
});

/**
 * Sends an answer. Until the relay has it, a silent notification reports that; it also remains if the browser
 * ends the worker too early.
 */
async function answer({ title, body, tag, data }: Notification, offered: Offered | SealedOffer, reply: string): Promise<void> {
  const show = (now: string, silent: boolean) => self.registration.showNotification(now, {
    ...looks, tag, silent, body: [title, body].filter(Boolean).join('\n'), data: { host: data.host, session: data.session, chat: data.chat, asks: true },
  });
  const words = texts[await language()];
  await show(words.sending(words.labels[offered.label] ?? offered.label), true);
  const why = 'path' in offered ? await give(offered.path, offered.text ? reply : undefined, undefined, words) : await giveSealed(offered, reply, undefined, words);
  if (why) await show(words.notAnswered(why), false);
  else for (const sent of await self.registration.getNotifications({ tag })) sent.close();
}

/**
 * Opens the session in an existing page or a new one. If the session has a question, it opens the question.
 */
async function open({ host, session, chat, asks }: Data): Promise<void> {
  const [page] = (await self.clients.matchAll({ type: 'window', includeUncontrolled: true })).filter((c) => new URL(c.url).pathname === '/');
  if (page) {
    await page.focus();
    page.postMessage({ open: { host, session, chat, asks } });
    return;
  }
  const params = new URLSearchParams();
  if (host) params.set('host', host);
  if (session) params.set('session', session);
  if (session && chat) params.set('chat', chat);
  if (session && asks) params.set('turn', itsQuestion);
  await self.clients.openWindow(`/#${params}`);
}
