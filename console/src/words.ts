// Describes states in words. Nothing here uses the page.

import type { Icon, TerminalPiece, ToolCall } from './ahp';
import type { HostInfo } from './relay';
import type { ConnectionState } from './rpc';
import { locale, rounded, t } from './language';

/** The page's name, which is also in frames/manifest.webmanifest for the home screen. */
export const NAME = 'Agents';

const clock = new Intl.DateTimeFormat(locale, { hour: '2-digit', minute: '2-digit' });
const day = new Intl.DateTimeFormat(locale, { day: 'numeric', month: 'short' });

/** Formats a point in time: today's as a time, others as a day. '' if it is invalid. */
export function when(iso: string | number | undefined, now = Date.now()): string {
  const date = new Date(iso ?? NaN);
  if (Number.isNaN(date.getTime())) return '';
  if (date.toDateString() !== new Date(now).toDateString()) return `${day.format(date)}, ${clock.format(date)}`;
  return clock.format(date);
}

const maxIcon = 64 << 10; // characters of an icon's address

/**
 * Returns the address of the first icon that the page may show: a data URL for the page's theme. An icon at a
 * web address would reveal to its server who views the page.
 */
export function iconOf(icons: Icon[] | undefined, dark: boolean): string {
  const mine = (Array.isArray(icons) ? icons : []).find((i): i is Icon & { src: string } =>
    typeof i?.src === 'string' && i.src.length <= maxIcon && /^data:image\/(png|jpeg|gif|webp|svg\+xml);base64,[A-Za-z0-9+/]+=*$/.test(i.src)
    && (!i.theme || i.theme === (dark ? 'dark' : 'light')));
  return mine?.src ?? '';
}

let ahead = 0; // ms that the relay's clock is ahead of this device's

/** Makes ages follow the relay's clock, because a device's clock may be wrong. */
export function setClock(now: string): void {
  const at = Date.parse(now);
  ahead = Number.isNaN(at) ? 0 : at - Date.now();
}

/** Converts a time by the relay's clock to ms by this device's clock; 0 if it is invalid. */
export function fromRelay(iso: string): number {
  return (Date.parse(iso) || ahead) - ahead;
}

/** The present time by the relay's clock, in ms. */
export function relayNow(): number {
  return Date.now() + ahead;
}

/** Converts the local time in a datetime-local input to the relay's clock; 0 if it is empty. */
export function toRelay(local: string): number {
  const at = local ? new Date(local).getTime() : NaN;
  return Number.isNaN(at) ? 0 : at + ahead;
}

/** Converts a time by the relay's clock to the form of a datetime-local input. */
export function toInput(ms: number): string {
  const at = new Date(ms - ahead);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** Describes roughly how long ago iso was: "now", "5 min". '' if it is invalid. */
export function ago(iso: string | undefined, now = Date.now() + ahead): string {
  const date = new Date(iso ?? NaN);
  if (Number.isNaN(date.getTime())) return '';
  const minutes = Math.floor((now - date.getTime()) / 60_000);
  if (minutes < 1) return t`now`;
  if (minutes < 60) return t`${minutes} min`;
  if (minutes < 24 * 60) return t`${Math.floor(minutes / 60)} h`;
  return day.format(date);
}

/** A state in words. tone determines its colour; more is the part that changes each second. */
export interface Described { tone: 'ok' | 'wait' | 'bad'; text: string; more: string }

/**
 * Describes a connection's state. away means that the host is not online; host is its entry in the relay's
 * list, if any. A host that does not answer still counts as online. asOf is the time of the last record on a
 * sealed connection whose heartbeat is late.
 */
export function describe(state: ConnectionState | undefined, { away, host, asOf, now = Date.now() }: { away?: boolean; host?: HostInfo; asOf?: number; now?: number }): Described {
  const offline = host && host.state !== 'online'
    ? t`Host ${hostWord(host.state)} since ${when(host.since, now)}`
    : t`Host offline`;
  const silent = host?.state === 'online' && host.notAnsweringSince
    ? t`Host has not answered since ${when(host.notAnsweringSince, now)}`
    : '';
  switch (state?.name) {
    case 'live':
      if (asOf) return { tone: 'wait', text: t`As of ${clock.format(asOf)}`, more: '' };
      return silent ? { tone: 'wait', text: silent, more: '' } : { tone: 'ok', text: t`Live`, more: '' };
    case 'connecting':
      return { tone: 'wait', text: away ? t`${offline} – reconnecting` : t`Connecting`, more: '…' };
    case 'greeting':
      if (away) return { tone: 'bad', text: t`${offline} – waiting for the host`, more: '' };
      if (silent) return { tone: 'wait', text: t`${silent} – waiting for it`, more: '' };
      return { tone: 'wait', text: state.resuming ? t`Catching up` : t`Connecting`, more: '…' };
    case 'retrying': {
      const seconds = Math.max(1, Math.ceil((state.at - now) / 1000));
      const why = away ? offline : `${t`Connection lost`}${reasonOf(state)}`;
      return { tone: 'bad', text: t`${why} – reconnecting`, more: t`in ${seconds} s` };
    }
    case 'ended':
      return { tone: 'bad', text: t`Not connected: ${state.reason || t`closed with code ${state.code}`}`, more: '' };
  }
  return { tone: 'wait', text: t`No host chosen`, more: '' };
}

// Code 1006 only means that no close frame arrived, which does not help the user.
function reasonOf({ code, reason }: { code: number; reason: string }): string {
  if (reason) return ` (${reason})`;
  return code && code !== 1006 ? ` (${t`code ${code}`})` : '';
}

// Status bits of a session.
const failed = 2;
const working = 8;
const needsInput = 16;
const archived = 64;

/** Returns a session's status in words, '' if idle. */
export function statusWord(status: number): string {
  if (status & needsInput) return t`needs you`;
  if (status & working) return t`working`;
  if (status & failed) return t`failed`;
  return status & archived ? t`archived` : '';
}

const toolWords: Record<string, string> = {
  'streaming': t`preparing`,
  'pending-confirmation': t`waits for you`,
  'running': t`running`,
  'auth-required': t`waits for you`,
  'pending-result-confirmation': t`result waits for you`,
  'completed': t`done`,
  'cancelled': t`not run`,
};

/** Describes the state of a tool call in words. */
export function toolWord(call: ToolCall): string {
  if (call.status === 'completed' && call.success === false) return t`failed`;
  if (call.status === 'cancelled' && call.reason === 'denied') return t`denied`;
  return Object.hasOwn(toolWords, call.status) ? toolWords[call.status] : String(call.status ?? '');
}

/** The tone of a tool call's word. */
export function toolTone({ status, success, reason }: ToolCall): string {
  if (['pending-confirmation', 'pending-result-confirmation', 'auth-required'].includes(status)) return 'wait';
  if (status === 'completed') return success === false ? 'bad' : 'ok';
  return status === 'cancelled' && reason === 'denied' ? 'bad' : '';
}

const hostWords: Record<string, string> = { online: t`online`, offline: t`offline`, asleep: t`asleep`, incompatible: t`incompatible` };

/** A host's state, in words. */
export function hostWord(state: string): string {
  return Object.hasOwn(hostWords, state) ? hostWords[state] : String(state ?? '');
}

/** The last part of a path or file URI. */
export function baseName(uri: unknown): string {
  const path = String(uri ?? '').replace(/\/+$/, '');
  try {
    return decodeURIComponent(path.slice(path.lastIndexOf('/') + 1));
  } catch {
    return path;
  }
}

/** A line of Markdown without its markup. */
export function unmarked(line: string): string {
  return line.replace(/\s+/g, ' ').replace(/\[([^\]]*)\]\([^)]*\)/g, '$1').replace(/[`*]{1,2}/g, '');
}

/** A random UUID. crypto.randomUUID exists only on https and localhost. */
export function randomId(): string {
  const b = crypto.getRandomValues(new Uint8Array(16));
  b[6] = (b[6] & 0x0f) | 0x40;
  b[8] = (b[8] & 0x3f) | 0x80;
  return [...b].map((x, i) => ([4, 6, 8, 10].includes(i) ? '-' : '') + x.toString(16).padStart(2, '0')).join('');
}

/** Turns a phrase into a sentence: with a capital, and a full stop. */
export function sentence(s: string): string {
  return s ? `${s[0].toUpperCase()}${s.slice(1)}.` : '';
}

/** Returns a file URI as a path; other URIs stay unchanged. */
export function pathOf(uri: string): string {
  if (!uri?.startsWith('file://')) return String(uri ?? '');
  try {
    return decodeURIComponent(uri.slice('file://'.length));
  } catch {
    return uri;
  }
}

/** Returns a file's path: relative to one of the session's folders, or else the whole path. */
export function shortPathOf(uri: string, folders: string[]): string {
  const path = pathOf(uri);
  const around = folders.map((f) => `${pathOf(f).replace(/\/+$/, '')}/`).find((f) => path.startsWith(f) && path !== f);
  return around ? path.slice(around.length) : path;
}

/**
 * Whether a link leads to a file at the host: it has no scheme and no server. "a.go:3" includes a line
 * number.
 */
export function isPath(href: string): boolean {
  return /^[\w-]*\.[\w.-]*:\d/.test(href) || href !== '' && !/^([a-z][a-z0-9+.-]*:|[#?]|[\\/]{2})/i.test(href);
}

/** The URI of a linked file: relative to folder, unless its path is absolute. A line number is dropped. */
export function fileOf(path: string, folder: string): string {
  const name = path.replace(/(#.*|:\d+(-\d+)?(:\d+)?)$/, '');
  return name.startsWith('/') ? uriOf(name) : new URL(name, `${folder.replace(/\/?$/, '')}/`).href;
}

export function uriOf(path: string): string {
  return path.startsWith('/') ? `file://${path.split('/').map(encodeURIComponent).join('/')}` : path;
}

/** Returns the URI of an entry in a folder. */
export function below(folder: string, name: string): string {
  return `${folder}${folder.endsWith('/') ? '' : '/'}${encodeURIComponent(name)}`;
}

/** The URI of the folder that contains a file, or ''. */
export function parentOf(uri: string): string {
  const at = uri.replace(/\/+$/, '').lastIndexOf('/');
  const parent = uri.slice(0, at);
  return at < 0 || /^[a-z+.-]+:\/?$/i.test(parent) ? '' : /^[a-z+.-]+:\/\/[^/]*$/i.test(parent) ? `${parent}/` : parent;
}

/** The key of a host's session or chat in the page's maps: two hosts may have equal URIs. */
export const placeOf = (host: string, uri: string) => `${host} ${uri}`;

/** Returns a URI for a new chat. VS Code's host requires the same session name as in the first chat's URI. */
export function chatBeside(first: string, id: string): string {
  const session = /^ahp-chat:\/\/[^/]+\/(.+)$/.exec(first)?.[1];
  return session ? `ahp-chat://${id}/${session}` : `ahp-chat:/${id}`;
}

/** Formats a number of tokens or bytes roughly. */
export function roughly(n: number): string {
  return Number.isFinite(n) ? rounded(n) : '';
}

/** Returns how many ms several intervals cover together; 0 if one is unknown. */
export function together(all: ([from: number, to: number] | undefined)[]): number {
  let [sum, end] = [0, -Infinity];
  for (const run of all.toSorted((a, b) => (a?.[0] ?? 0) - (b?.[0] ?? 0))) {
    if (!run) return 0;
    sum += Math.max(0, run[1] - Math.max(run[0], end));
    end = Math.max(end, run[1]);
  }
  return sum;
}

/** Formats a duration in ms roughly. */
export function lasted(ms: number): string {
  const s = Math.round(ms / 1000);
  if (!(s >= 1)) return '';
  return s < 60 ? t`${s} s` : t`${Math.floor(s / 60)} min ${s % 60} s`;
}

// Escape sequences in terminal output.
const escapes = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b\x0c\x0e-\x1f]/g;

/** Removes terminal escape sequences from a text. */
export function plain(value: string): string {
  return value.replace(/\r\n/g, '\n').replace(escapes, '');
}

/**
 * Returns the last line that a running tool has printed, also to its terminal. stateOf returns a terminal's
 * state.
 */
export function lastLine(call: ToolCall, stateOf: (channel?: string) => { content?: TerminalPiece[] } | undefined): string {
  const list = <T>(v: T[] | undefined): T[] => (Array.isArray(v) ? v : []);
  const printed = list(call.content).map((c) => {
    const pieces = list(stateOf(c?.resource)?.content);
    const end = pieces.findLast((p) => p?.type === 'command') ?? pieces.at(-1); // after a command, the shell's prompt follows
    return [c?.text, end?.output, end?.value, c?.result?.preview].find((said) => typeof said === 'string' && said) ?? '';
  }).join('\n');
  return plain(printed.slice(-2000)).trim().split(/[\r\n]/).at(-1)!.trim();
}

/**
 * Whether a parsed value has all of its JSON text. JSON.parse drops the first of two members with the same
 * name, and digits of long numbers; the tool may read them.
 */
function isAllOf(parsed: unknown, json: string): boolean {
  return JSON.stringify(parsed) === json.replace(/"[^"\\]*(?:\\.[^"\\]*)*"|\s+|[-+.\deE]+/g, (token) => (token[0] === '"' ? JSON.stringify(JSON.parse(token)) : token.trim().replace(/^(-?\d+)\.0+$/, '$1')));
}

/** Returns a tool's input for reading. */
export function pretty(input: string): string {
  try {
    const parsed = JSON.parse(input);
    return parsed !== null && typeof parsed === 'object' && isAllOf(parsed, input) ? JSON.stringify(parsed, null, 2) : input;
  } catch {
    return input;
  }
}

/** Returns the command in a tool's input, and whether the input contains nothing else. */
export function commandIn(input: string): { command: string; whole: boolean } {
  try {
    const parsed = JSON.parse(input);
    if (!isAllOf(parsed, input)) return { command: '', whole: false };
    const command = parsed?.command ?? parsed?.cmd ?? parsed?.script;
    if (Array.isArray(command)) return { command: command.join(' '), whole: false };
    return typeof command === 'string' ? { command, whole: Object.keys(parsed).length === 1 } : { command: '', whole: false };
  } catch {
    return { command: input, whole: true };
  }
}

/** The command alone. */
export function commandOf(input: string): string {
  return commandIn(input).command;
}

/** Returns a token's access and channels in words. */
export function mayDo({ access, channels }: { access?: unknown; channels?: unknown }): string {
  return [typeof access === 'string' && access ? access : t`all`, ...(Array.isArray(channels) ? channels : [])].join(', ');
}

/** Returns a name for this browser. */
export function deviceName(): string {
  const agent = navigator.userAgent;
  const name = (of: [RegExp, string][]) => of.find(([pattern]) => pattern.test(agent))?.[1];
  const browser = name([[/Edg\//, 'Edge'], [/Firefox\//, 'Firefox'], [/Chrom/, 'Chrome'], [/Safari\//, 'Safari']]) ?? t`Browser`;
  const system = name([[/Android/, 'Android'], [/iPhone/, 'iPhone'], [/iPad/, 'iPad'], [/Windows/, 'Windows'], [/Mac OS/, 'macOS'], [/CrOS/, 'ChromeOS'], [/Linux/, 'Linux']]);
  return system ? t`${browser} on ${system}` : browser;
}
