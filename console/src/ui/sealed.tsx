// Sealed hosts: pairing, the host's devices, and the page for a host whose key has changed.

import { useEffect, useRef, useState } from 'preact/hooks';
import type { ComponentChildren } from 'preact';
import { relayOf, tokenOf } from '../accounts';
import { app } from '../app';
import type { Link } from '../link';
import { elsewhere, nameIn, pinOf, relay, type Pin } from '../pins';
import { dial } from '../relay';
import * as seal from '../sealed/open';
import { codeLength, type Name } from '../sealed/bytes';
import { array, text } from '../store';
import { deviceName, when } from '../words';
import { Copy, Dialog, Twice } from './bits';
import { Select, type Option } from './select';
import { rich, t } from '../language';

const close = () => app.open(null);

const levels: Option[] = [['read', t`look`], ['talk', t`talk to the agent`], ['approve', t`approve the agent’s actions`], ['write', t`operate the host`], ['admin', t`own the host: it may admit and remove devices`]];
const order = levels.map(([l]) => l);

/** What a level permits, in words. */
function allows(level: string): string {
  return level === 'admin' ? t`own the host` : levels.find(([l]) => l === level)?.[1] ?? level;
}

const lengths: Option[] = [['30', t`30 days`], ['7', t`a week`], ['1', t`a day`]];

/** Explains what sealing protects against, which depends on who serves this page. */
function Served({ host }: { host: string }) {
  const from = location.host;
  return <p class="dim" id="served-by">{elsewhere()
    ? t`This page does not come from the relay: the relay can neither read nor change your sessions here.`
    : relayOf(host) !== relay() ? t`This page comes from ${from}, which could change it. This host’s own relay can neither read nor change your sessions here.`
    : t`This page comes from the relay. Sealing protects you from everything but a relay that changes this page; a console from elsewhere protects you from that, too.`}</p>;
}

function Words({ of, id, children }: { of: string; id: string; children: ComponentChildren }) {
  return <p class="fields"><span class="dim">{children}</span><strong id={id} class="words">{of || '…'}</strong></p>;
}

const named = (host: string, at: string) => app.named(host, at);

/**
 * Reads a code or link that the user has typed. host is '' if this page has no account at the link's relay.
 */
function pasted(typed: string, host: string): seal.Invitation | undefined {
  const to = seal.readInvitation(typed, host);
  return to && typed.includes('#') ? { ...to, host: named(to.host, to.relay ?? relay()) } : to;
}

/** Reconnects to a host after its pin has changed. */
function again(host: string): void {
  const link = app.linkTo(host);
  link.stop();
  app.open(null);
  app.chooseHost(host);
  if (!link.conn) link.connect();
}

/** Pairs this device with a host, by a code or with the help of a paired device. */
export function Pair({ link, host }: { link?: string; host?: string }) {
  const [now, setNow] = useState<'typing' | 'waiting' | 'asking'>('typing');
  const [own, setOwn] = useState<Name>();
  const [theirs, setTheirs] = useState<Name>();
  const [said, setSaid] = useState('');
  const [request, setRequest] = useState('');
  const [offered, setOffered] = useState<{ made: Pin; is: Name }>();
  const form = useRef<HTMLFormElement>(null);
  const end = useRef<AbortController>();
  const read = link ? seal.readInvitation(link) : undefined;
  const [marked, setMarked] = useState(false);
  const name = read && app.named(read.host, read.relay ?? relay());
  const invited = read && { ...read, host: name || read.host };
  const opens = invited?.host ?? host ?? app.host;
  const other = invited !== undefined && !name;
  useEffect(() => {
    seal.ownName().then(setOwn, (err) => setSaid(err.message));
    if (link && new URLSearchParams(link.slice(link.indexOf('#') + 1)).has('grants')) seal.readAdmission(link, named).then(setOffered, (err) => setSaid(t`This link does not admit this device: ${err.message}`));
    seal.marked(opens).then(setMarked);
    return () => end.current?.abort();
  }, []);
  const value = (name: string) => String(new FormData(form.current!).get(name) ?? '');
  const submit = (e: Event) => {
    e.preventDefault();
    const typed = value('code').trim();
    if (/[#&]grants=/.test(typed)) {
      seal.readAdmission(typed, named).then(setOffered, (err) => setSaid(t`This link does not admit this device: ${err.message}`));
      return;
    }
    const to = invited ?? pasted(typed, value('host'));
    if (to?.host === '') {
      setSaid(t`This link is for a different relay.`);
      return;
    }
    if (!to) {
      setSaid(t`A code has ${codeLength} letters and digits. Compare it with the host’s screen.`);
      return;
    }
    setNow('waiting');
    setSaid('');
    end.current = new AbortController();
    seal.pair(to, value('name'), dial(tokenOf(to.host, app.token)), setTheirs, end.current.signal).then(() => again(to.host), (err) => {
      setNow('typing');
      setTheirs(undefined);
      setSaid(err.message);
    });
  };
  if (offered) return <Offered {...offered} />;
  return (
    <Dialog title={now === 'waiting' ? t`Compare the words` : t`Pair this device`} id="pair" onClose={close}>
      {now === 'asking' ? (
        <div class="fields" id="pair-asked">
          <p>{rich`Open this link on a device that the host knows, or paste it there under ${<strong>{t`Admit a device`}</strong>}. It answers with a link for this device.`}</p>
          <div class="row"><code class="grow share-link" id="pair-request">{request}</code><Copy text={() => request} label={t`Copy the link`} /></div>
          <Words of={own?.words ?? ''} id="own-words">{t`This device. The other one shows the same words:`}</Words>
          <div class="row start"><button type="button" onClick={() => setNow('typing')}>{t`I have the answer`}</button></div>
        </div>
      ) : (
        <form class="fields" ref={form} autocomplete="off" onSubmit={submit}>
          <div class="fields" hidden={now === 'waiting'}>
            {other && <p class="error" role="alert">{t`This code is for the relay ${invited!.relay}. Open it there, or with that relay’s console.`}</p>}
            <p class="dim">{invited ? t`With ${invited.host}. The host then shows this device’s words, and asks there for a yes.` : t`On the host, “host-agent devices --pair” shows a code. It is good once, for 10 minutes.`}</p>
            {!invited && <><label for="pair-host">{t`Host`}</label><input id="pair-host" name="host" required autocapitalize="off" spellcheck={false} defaultValue={host ?? app.host} /></>}
            {!invited && <><label for="pair-code">{t`Code`}</label>
              <input id="pair-code" name="code" class="code" data-focus="" required autocomplete="off" autocapitalize="characters" spellcheck={false} enterkeyhint="go" placeholder="XXXX-XXXX-…" aria-describedby="pair-help" aria-invalid={said !== ''} />
              <p id="pair-help" class="dim">{t`${codeLength} letters and digits; hyphens and case do not matter. Or paste a link from a device.`}</p></>}
            <p class="error" id="pair-said" role="alert">{said}</p>
            <label for="pair-name">{t`This device’s name`}</label>
            <input id="pair-name" name="name" maxLength={60} defaultValue={deviceName()} />
            <Served host={opens} />
          </div>
          {now === 'waiting' && (
            <div class="fields" id="pair-waiting" role="status">
              <p>{theirs ? t`Compare both rows with the host’s screen.` : t`Connecting…`}</p>
              <Words of={own?.words ?? ''} id="own-words">{t`This device. The host’s screen asks if it shows these words:`}</Words>
              <Words of={theirs?.words ?? ''} id="host-words">{t`The host. Its screen shows these words beside the code:`}</Words>
              {theirs && <p class="dim">{t`If both are equal, answer “y” at the host: this page waits for it. If a word differs, cancel, because something else has answered for the host.`}</p>}
            </div>
          )}
          <div class="row start wrap">
            {now === 'waiting'
              ? <button type="button" onClick={() => { end.current?.abort(); setNow('typing'); }}>{t`Cancel`}</button>
              : <button class="primary" type="submit" disabled={!own || other}>{t`Pair`}</button>}
            {now === 'typing' && !invited && <button type="button" disabled={!own} onClick={() => { seal.requestLink(value('host'), value('name')).then((made) => { setRequest(made); setNow('asking'); }); }}>{t`Ask a paired device`}</button>}
          </div>
          {marked && !invited && now === 'typing' && (
            <details id="pair-marked" class="part"><summary>{t`${opens} is not sealed any more`}</summary>
              <p class="dim">{t`Only the host’s owner can know that. The relay then reads and can change everything between you and ${opens}.`}</p>
              <Twice class="danger" data-do="unmark" yes={t`Yes, open it unsealed`} act={() => { seal.unmark(opens).then(() => again(opens), (err) => setSaid(err.message)); }}>{t`Open it unsealed`}</Twice>
            </details>
          )}
        </form>
      )}
    </Dialog>
  );
}

/** The confirmation that another device admits this one to a host. */
function Offered({ made, is }: { made: Pin; is: Name }) {
  const [said, setSaid] = useState('');
  return (
    <Dialog title={t`Use this host`} id="offered" onClose={close}>
      <p>{rich`The other device admits this one to ${<strong>{nameIn(made)}</strong>}, for ${made.subject}, until ${<span class="whole">{when(new Date(made.end * 1000).toISOString())}</span>}.`}</p>
      <p><span class="dim">{t`It may`}</span> <strong>{allows(made.level)}</strong></p>
      <Words of={is.words} id="host-words">{t`Does the other device show these words for the host?`}</Words>
      <p class="error" role="alert">{said}</p>
      <div class="row start"><button class="primary" type="button" data-do="accept" onClick={() => { seal.pin(made).then(() => again(nameIn(made)), (err) => setSaid(err.message)); }}>{t`Yes, use it`}</button></div>
    </Dialog>
  );
}

/** A device in a sealed host's list. */
interface Listed { fingerprint: string; name?: string; subject?: string; level?: string; words?: string }

/** A sealed host: its key, this device's authority, and its devices. */
export function Sealed({ link, request }: { link: Link; request?: string }) {
  const [pin, setPin] = useState<Pin>();
  const [host, setHost] = useState<Name>();
  const [own, setOwn] = useState<Name>();
  const [devices, setDevices] = useState<Listed[]>([]);
  const [leaving, setLeaving] = useState(''); // the device whose removal waits for confirmation
  const [said, setSaid] = useState('');
  const [asked, setAsked] = useState(Boolean(request)); // the request alone is shown until it is answered
  const owns = link.seal?.level === 'admin';
  const look = async () => { if (owns) setDevices(array((await link.seal!.ask({ do: 'devices' })).devices as Listed[])); };
  useEffect(() => {
    (async () => {
      const is = await pinOf(link.host);
      setPin(is);
      if (is) setHost(await seal.hostName(is));
      setOwn(await seal.ownName());
      await look();
    })().catch((err) => setSaid(err.message));
  }, [link.live]);
  const remove = async (device: string) => {
    setLeaving(device);
    try {
      await link.seal!.ask({ do: 'remove', device });
      await seal.forgetGiven(link.host, device);
      setPin(await pinOf(link.host));
      await look();
    } catch (err) {
      setSaid((err as Error).message);
    }
    setLeaving('');
  };
  const admit = pin && <Admit pin={pin} request={request} done={() => { setAsked(false); pinOf(link.host).then(setPin); }} />;
  return (
    <Dialog title={t`${link.host}, sealed`} id="sealed" onClose={close}>
      {request && admit}
      {!asked && <>
        <Served host={link.host} />
        <Words of={host?.words ?? ''} id="host-words">{t`The host. Its screen shows the same words:`}</Words>
        {!owns && <Words of={own?.words ?? ''} id="own-words">{t`This device`}</Words>}
        {pin && <p class="dim">{`${pin.subject} · ${allows(pin.level)} · ${t`until ${when(new Date(pin.end * 1000).toISOString())}`}`}</p>}
      </>}
      <p class="error" role="alert">{said}</p>
      {!asked && owns && (
        <section class="part" id="devices">
          <h3>{t`Devices`}</h3>
          {[...devices, ...pin?.given ?? []].map((d) => (
            <div key={d.fingerprint} class="row wrap" data-device={text(d.fingerprint)}>
              <span class="grow"><strong dir="auto">{text(d.name) || t`A device`}</strong>{d.fingerprint === own?.fingerprint && ` ${t`(this one)`}`} <span class="dim">{text(d.subject)} · {allows(text(d.level))}</span><br /><span class="words">{text(d.words)}</span></span>
              {d.fingerprint !== own?.fingerprint && <Twice class="danger" disabled={leaving !== '' || !link.live} yes={t`Yes, remove it`} act={() => remove(d.fingerprint)}>{leaving === d.fingerprint ? t`Pending…` : t`Remove`}</Twice>}
            </div>
          ))}
          {leaving && <p class="dim" role="status">{t`Pending: the removal counts when the host has confirmed it.`}</p>}
        </section>
      )}
      {!request && admit}
    </Dialog>
  );
}

/** Admits another device with a grant that this device signs. */
function Admit({ pin, request, done }: { pin: Pin; request?: string; done: () => void }) {
  const [asks, setAsks] = useState<seal.Request>();
  const [level, setLevel] = useState(pin.level === 'admin' ? 'write' : pin.level);
  const [days, setDays] = useState('30');
  const [subject, setSubject] = useState(pin.subject);
  const [made, setMade] = useState('');
  const [said, setSaid] = useState('');
  const read = (link: string) => {
    setMade('');
    setSaid('');
    if (link) seal.readRequest(link).then(setAsks, () => { setAsks(undefined); setSaid(t`This is no request of a device.`); });
  };
  const at = useRef<HTMLParagraphElement>(null);
  useEffect(() => read(request ?? ''), [request]);
  useEffect(() => { at.current?.focus(); }, [asks]);
  const sign = () => seal.admit(asks!, pin, level, Number(days), subject).then((link) => { setMade(link); done(); }, (err) => setSaid(err.message));
  return (
    <section class="part" id="admit">
      <h3>{t`Admit a device`}</h3>
      {!asks && <><label for="admit-request">{t`Its request`}</label>
        <input id="admit-request" autocomplete="off" spellcheck={false} placeholder={t`Paste the new device’s link`} onInput={(e) => read(e.currentTarget.value.trim())} /></>}
      {asks && !made && (
        <>
          <p tabIndex={-1} ref={at}>{rich`${<strong dir="auto">{asks.device || t`A device`}</strong>} asks for ${asks.host}.`}</p>
          <Words of={asks.is.words} id="admit-words">{t`Does that device show these words?`}</Words>
          <Select id="admit-level" label={t`It may`} value={level} options={levels.slice(0, order.indexOf(pin.level) + 1)} onChange={setLevel} />
          <Select id="admit-days" label={t`for`} value={days} options={lengths} onChange={setDays} />
          {pin.level === 'admin' && <><label for="admit-subject">{t`It belongs to`}</label><input id="admit-subject" value={subject} onInput={(e) => setSubject(e.currentTarget.value)} /></>}
          <div class="row start"><button class="primary" type="button" onClick={sign}>{t`Yes, admit it`}</button><button type="button" onClick={() => { setAsks(undefined); done(); }}>{t`No`}</button></div>
        </>
      )}
      {made && <><p>{t`Give this link to the new device:`}</p><div class="row"><code class="grow share-link" id="admit-link">{made}</code><Copy text={() => made} label={t`Copy the link`} /></div></>}
      <p class="error" role="alert">{said}</p>
    </section>
  );
}

/** Shown in place of the page while a host's key differs from the stored one. */
export function Changed({ host }: { host: string }) {
  const [pin, setPin] = useState<Pin>();
  const [known, setKnown] = useState<Name>();
  const [sure, setSure] = useState(false);
  useEffect(() => {
    pinOf(host).then(async (is) => {
      setPin(is);
      if (is) setKnown(await seal.hostName(is));
    });
  }, [host]);
  const forget = async () => {
    await seal.unpin(host);
    again(host);
    app.open({ kind: 'pair', host });
  };
  const keep = async () => {
    await seal.changePin(host, () => ({ changed: undefined }));
    again(host);
  };
  return (
    <main id="changed">
      <section class="card">
        <h2>{t`${host} shows a different key`}</h2>
        <p>{t`This device knows this host by its key, and the key has changed. Either the host was set up again, or another machine stands between you and your host. Nothing is opened.`}</p>
        <Words of={known?.words ?? ''} id="known-words">{t`The host that this device knows`}</Words>
        <Words of={pin?.changed ?? ''} id="new-words">{t`The new key`}</Words>
        <p class="dim">{t`Run “host-agent devices” at the host: it shows the words of the host’s own key. If you know why the key has changed, remove the old key, and pair again with a new code.`}</p>
        <div class="row start wrap">
          <button class="primary" type="button" data-do="keep" onClick={keep}>{t`Keep the known key and try again`}</button>
          <label class="check"><input id="changed-sure" type="checkbox" checked={sure} onChange={(e) => setSure(e.currentTarget.checked)} /> {t`I have compared the words at the host`}</label>
          <button class="danger" type="button" data-do="forget" disabled={!sure} onClick={forget}>{t`Remove the known key`}</button>
        </div>
      </section>
    </main>
  );
}
