// Signs in to a service for an agent or an MCP server: in a new window, by device
// code, or with a pasted token.

import { useEffect, useRef, useState } from 'preact/hooks';
import { safeUrl } from '../answers';
import { app } from '../app';
import type { Link } from '../link';
import { discover, siteOf, signInAtHost, typed, visit, wantedOf, type Granted, type HostSignIn, type Server, type Typed, type Wanted } from '../oauth';
import { ask } from '../outside';
import { ROOT } from '../rpc';
import { array, text } from '../store';
import type { AuthRequired, JsonObject, Resource } from '../ahp';
import { Copy, Dialog, isTouch } from './bits';
import { rich, t } from '../language';

const close = () => app.open(null);
const pause = (ms: number) => new Promise<void>((resolve) => { setTimeout(resolve, ms); });

/**
 * Dialogs for several resources, one after the other. who needs the tokens; more is the AuthRequired state of
 * an MCP server.
 */
export function SignIn({ link, who, resources, more }: { link: Link; who: string; resources: Resource[]; more?: AuthRequired }) {
  const [which, setWhich] = useState(0);
  const resource = resources[which] ?? {};
  const taken = () => {
    app.draw();
    if (which + 1 < resources.length) setWhich(which + 1);
    else close();
  };
  const name = text(resource.resource_name) || text(resource.resource);
  return (
    <Dialog title={t`Sign in to ${name}`} id="sign-in" onClose={close}>
      <p>{name === text(resource.resource) ? t`${who} on ${link.host} asks for a token.` : t`${who} on ${link.host} asks for a token of ${text(resource.resource)}.`}</p>
      {text(more?.description) && <p class="text">{text(more!.description)}</p>}
      {link.sealed(more ? 'mcp-auth-token' : 'auth-token') ? <Sealed host={link.host} /> : <Ways key={text(resource.resource)} link={link} resource={resource} more={more} taken={taken} />}
    </Dialog>
  );
}

/** A notice for hosts that accept only tokens which this page cannot make. */
function Sealed({ host }: { host: string }) {
  return (
    <div class="fields" id="sign-in-sealed">
      <p><b>{t`You cannot sign in to this host from the console.`}</b></p>
      <p>{rich`${host} takes tokens only sealed with its own key (${<code>copilot.encryptionRequired</code>}) and with an answer to its challenge (${<code>copilot.authChallenge</code>}). The console cannot make either, and the host would refuse any other token.`}</p>
      <p>{rich`GitHub Copilot’s own clients can, such as ${<code>copilot --experimental --ahp</code>}. Without a sign-in, the host answers requests for sessions, files and terminals with “authentication required”.`}</p>
      <div class="row start"><button type="button" class="primary" data-focus onClick={close}>{t`Close`}</button></div>
    </div>
  );
}

type Doing = { name: 'looking' } | { name: 'choose' } | { name: 'away'; url: string; blocked: boolean } | { name: 'code'; code: Pick<Typed, 'where' | 'whole' | 'code'>; atHost?: boolean } | { name: 'back'; by: Sent } | { name: 'sending' };

type Sent = Extract<HostSignIn, { url: string }>;

function Ways({ link, resource, more, taken }: { link: Link; resource: Resource; more?: AuthRequired; taken: () => void }) {
  const wanted = wantedOf(resource, more);
  const [found, setFound] = useState<{ server?: Server; why: string }>({ why: '' });
  const [doing, setDoing] = useState<Doing>({ name: 'looking' });
  const [said, setSaid] = useState('');
  const gone = useRef(new AbortController());
  useEffect(() => {
    discover(ask, wanted, location.origin).then(setFound, (err) => setFound({ why: (err as Error).message })).then(() => setDoing((d) => (d.name === 'looking' ? { name: 'choose' } : d)));
    return () => gone.current.abort();
  }, []);
  const stop = () => {
    gone.current.abort();
    gone.current = new AbortController();
    setDoing({ name: 'choose' });
  };
  const give = async (granted: Granted) => {
    setDoing({ name: 'sending' });
    await link.authenticate(wanted.resource, granted.token, granted.renew);
    taken();
  };
  const act = async (work: (signal: AbortSignal) => Promise<Granted | void>) => {
    const { signal } = gone.current;
    setSaid('');
    try {
      const granted = await work(signal);
      if (signal.aborted) return;
      if (granted) await give(granted);
      else taken();
    } catch (err) {
      if (signal.aborted) return;
      setDoing({ name: 'choose' });
      setSaid((err as Error).message);
    }
  };
  const inWindow = () => {
    // Open the window at once: browsers allow it only during a click.
    const popup = window.open('', '_blank', 'popup,width=520,height=720');
    act(async (signal) => {
      try {
        const v = await visit(ask, found.server!, wanted, location.origin);
        const back = backFrom(v.state, signal);
        setDoing({ name: 'away', url: v.url, blocked: !popup });
        if (popup) {
          popup.opener = null;
          popup.location.replace(v.url);
        }
        return v.finish(await back);
      } catch (err) {
        popup?.close(); // it is still blank, so this page's own
        throw err;
      }
    });
  };
  const byCode = () => act(async (signal) => {
    const code = await typed(ask, found.server!, wanted, location.origin, pause);
    setDoing({ name: 'code', code });
    return code.finish(signal);
  });
  const atHost = () => act(async (signal) => {
    const by = await signInAtHost(link, more ? app.session : ROOT, wanted.resource, signal);
    setDoing('url' in by ? { name: 'back', by } : { name: 'code', code: by, atHost: true });
    await by.finish();
  });
  const { server } = found;
  const site = siteOf(server?.issuer ?? wanted.servers[0] ?? '');
  const busy = doing.name === 'sending' || !link.live;
  return (
    <div class="fields" id="sign-in-ways" data-doing={doing.name}>
      {doing.name === 'looking' && <p class="dim" role="status">{t`Looking up the sign-in…`}</p>}
      {doing.name === 'away' && <Away url={doing.url} blocked={doing.blocked} site={server!.site} stop={stop} />}
      {doing.name === 'code' && <Led by={site} to={siteOf(doing.code.where)} />}
      {doing.name === 'code' && <Code code={doing.code} stop={stop} />}
      {doing.name === 'back' && <Led by={site} to={siteOf(doing.by.url)} />}
      {doing.name === 'back' && <Back by={doing.by} stop={stop} />}
      {doing.name !== 'code' && server?.window && <Led by={site} to={server.site} />}
      {(doing.name === 'choose' || doing.name === 'sending') && server && (
        <div class="row start wrap">
          {server.window && <button id="sign-in-window" type="button" class="primary" data-focus disabled={busy} onClick={inWindow}>{t`Sign in at ${server.site}`}</button>}
          {server.code && <button id="sign-in-code" type="button" class={server.window ? '' : 'primary'} disabled={busy} onClick={byCode}>{server.window ? t`On another device` : t`Sign in at ${site} with a code`}</button>}
        </div>
      )}
      {doing.name === 'choose' && !server && wanted.byHost && (
        <div class="row start wrap"><button id="sign-in-host" type="button" class="primary" data-focus disabled={busy} onClick={atHost}>{t`Sign in at ${site} by the host’s machine`}</button></div>
      )}
      {found.why && !wanted.byHost && <p>{t`Sign in with the agent’s own command on the host, or paste a token.`}</p>}
      {said && <p class="error" role="status">{said}</p>}
      {doing.name !== 'looking' && <Paste wanted={wanted} open={!server && !wanted.byHost} busy={busy} give={(token) => act(async () => ({ token }))} />}
      {found.why && <p class="dim" id="sign-in-why">{found.why} {wanted.byHost ? t`The host’s machine can sign in instead, or a token can be pasted.` : t`The host names no client id, so its machine cannot sign in instead.`}</p>}
      <p class="dim">{doing.name === 'back' || (doing.name === 'code' && doing.atHost) ? t`The host’s machine gets the token, and gives it to the host. It passes neither this page nor the relay.` : t`The token goes only to the host. This page keeps it until you close it, and sends it again when the host asks.`}</p>
    </div>
  );
}

/** Waits for the answer of a sign-in window: see signed-in.js. */
function backFrom(state: string, signal: AbortSignal): Promise<JsonObject> {
  return new Promise((resolve, reject) => {
    const channel = new BroadcastChannel(`sign-in ${state}`);
    channel.onmessage = ({ data }) => {
      channel.postMessage('taken');
      channel.close();
      resolve(data ?? {});
    };
    signal.addEventListener('abort', () => {
      channel.close();
      reject(new Error(t`This sign-in is over.`));
    });
  });
}

/** Warns if the sign-in site differs from the authorization server's site. */
function Led({ by, to }: { by: string; to: string }) {
  if (by === to) return null;
  return <p id="sign-in-led">{rich`${<b>{by}</b>} has you sign in at ${<b>{to}</b>}, and gets the rights that you allow there. Go on only if you trust both.`}</p>;
}

function Away({ url, blocked, site, stop }: { url: string; blocked: boolean; site: string; stop: () => void }) {
  return (
    <>
      <p role="status">{blocked ? t`The browser has opened no window: press the link to sign in at ${site}.` : t`Go on in the window of ${site} that has opened. This page waits for it.`}</p>
      <div class="row start wrap"><a class="button" href={url} target="_blank" rel="noopener noreferrer">{blocked ? t`Sign in at ${site}` : t`Open it again`}</a><button type="button" onClick={stop}>{t`Cancel`}</button></div>
    </>
  );
}

function Code({ code, stop }: { code: Pick<Typed, 'where' | 'whole' | 'code'>; stop: () => void }) {
  return (
    <>
      <p>{rich`On any device, open ${<a href={code.where} target="_blank" rel="noopener noreferrer">{code.where.replace(/^https:\/\//, '')}</a>} and enter`}</p>
      <p class="row start user-code"><code>{code.code}</code><Copy text={() => code.code} label={t`Copy the code`} /></p>
      <p class="dim" role="status">{t`This page waits for you to finish.`}</p>
      <div class="row start wrap"><a class="button primary" href={code.whole || code.where} target="_blank" rel="noopener noreferrer">{t`Open it here`}</a><button type="button" onClick={stop}>{t`Cancel`}</button></div>
    </>
  );
}

/**
 * Shows the server's page, and a field for the address at which a browser elsewhere than on the host's
 * machine ends.
 */
function Back({ by, stop }: { by: Sent; stop: () => void }) {
  const at = useRef<HTMLInputElement>(null);
  const [said, setSaid] = useState('');
  const submit = (e: Event) => {
    e.preventDefault();
    setSaid('');
    by.back(at.current!.value.trim()).catch((err: Error) => setSaid(err.message));
    at.current!.value = '';
  };
  return (
    <form class="fields" id="sign-in-back" onSubmit={submit} autocomplete="off">
      <div class="row start wrap"><a class="button primary" data-focus href={by.url} target="_blank" rel="noopener noreferrer">{t`Sign in at ${siteOf(by.url)}`}</a><button type="button" onClick={stop}>{t`Cancel`}</button></div>
      <p>{rich`A browser on the host’s machine then returns by itself. Elsewhere it ends at an address that begins with ${<code>{by.redirect}</code>} and shows an error. Copy that whole address, and paste it here:`}</p>
      <label for="sign-in-address">{t`Address at which the browser has ended`}</label>
      <input id="sign-in-address" ref={at} type="text" inputMode="url" autocomplete="off" autocapitalize="off" spellcheck={false} required placeholder={`${by.redirect}?code=…`} />
      {said && <p class="error" role="alert">{said}</p>}
      <p class="dim" role="status">{t`This page waits for you to finish.`}</p>
      <div class="row start"><button type="submit">{t`Finish`}</button></div>
    </form>
  );
}

function Paste({ wanted, open, busy, give }: { wanted: Wanted; open: boolean; busy: boolean; give: (token: string) => void }) {
  const at = useRef<HTMLInputElement>(null);
  useEffect(() => { if (open && !isTouch()) at.current!.focus(); }, []); // on a touch screen, the keyboard would cover the text
  const submit = (e: Event) => {
    e.preventDefault();
    const token = at.current!.value.trim();
    at.current!.value = '';
    if (token) give(token);
  };
  const servers = wanted.servers.map(safeUrl).filter(Boolean);
  return (
    <details open={open} class="paste">
      <summary>{t`Paste a token`}</summary>
      <form class="fields" onSubmit={submit} autocomplete="off">
        {servers.length > 0 && <p class="dim">{t`Tokens come from`} {servers.map((s: string) => <a key={s} href={s} target="_blank" rel="noopener noreferrer">{s}</a>)}</p>}
        {array(wanted.scopes).length > 0 && <p class="dim scopes">{t`Needed: ${array(wanted.scopes).join(' ')}`}</p>}
        <label for="resource-token">{t`Access token`}</label>
        <input id="resource-token" ref={at} type="password" autocomplete="off" autocapitalize="off" spellcheck={false} required />
        <div class="row start"><button class={open ? 'primary' : ''} type="submit" disabled={busy}>{t`Give it to the host`}</button></div>
      </form>
    </details>
  );
}
