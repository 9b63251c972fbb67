// Further accounts: their list, and the sheet that adds one.

import { useEffect, useRef, useState } from 'preact/hooks';
import { accounts, add, admit, begunKey, keepPage, nameFor, originOf, type Account, type Known } from '../accounts';
import { nav, person } from '../app';
import * as device from '../device';
import { leave } from '../leave';
import { elsewhere, further, relay } from '../pins';
import { mostAccounts } from '../registered';
import { tokenForm } from '../relay';
import { text } from '../store';
import { deviceName, when } from '../words';
import { Badge, Dialog } from './bits';
import { Code } from './share';
import { rich, t } from '../language';

const siteOf = (origin: string) => origin.replace(/^https?:\/\//, '');

/** Describes an account's user and when its token expires. With a key of this browser, tokens are renewed. */
function whose(account: Account, known: Known, now: number): string {
  const who = known.subject || t`an unnamed user`;
  const site = siteOf(account.relay);
  return account.token === undefined ? t`${who} at ${site}` : t`${who} at ${site}, until ${when(known.grant?.expires, now)}`;
}

/** The further accounts, with their states. */
export function AccountList({ now }: { now: number }) {
  return (
    <section class="part" aria-labelledby="accounts-title">
      <h3 id="accounts-title">{t`Further accounts`}</h3>
      <ul id="accounts" class="cards" aria-labelledby="accounts-title">
        {accounts().map((a) => {
          const known = person.accounts.of(a);
          return (
            <li key={a.name} data-account={a.name} class="row item-card">
              <span class="grow"><span class="row start"><b>{a.name}</b>{known && <Badge tone={known.why ? 'bad' : 'ok'}>{known.why ? t`not connected` : t`signed in`}</Badge>}</span>
                <span class="dim">{known?.why || (known ? whose(a, known, now) : siteOf(a.relay))}</span></span>
              <button type="button" class="danger small" onClick={() => nav.open({ kind: 'confirm', title: t`Remove this account?`, says: t`The hosts of ${a.name} leave this page.`, yes: t`Remove`, act: () => leave(a) })}>{t`Remove`}</button>
            </li>
          );
        })}
      </ul>
      {accounts().length < mostAccounts && <div class="row start"><button id="add-account" type="button" onClick={() => nav.open({ kind: 'account' })}>{t`Add an account`}</button></div>}
    </section>
  );
}

type Doing = { name: 'form' } | { name: 'working' } | { name: 'code'; asked: device.Asked };

/** The sheet that adds an account, either with a device that is already signed in there or with a token. */
export function AddAccount({ first }: { first?: Account }) {
  const [doing, setDoing] = useState<Doing>(first ? { name: 'working' } : { name: 'form' });
  const [said, setSaid] = useState('');
  const address = useRef<HTMLInputElement>(null);
  const name = useRef<HTMLInputElement>(null);
  const token = useRef<HTMLInputElement>(null);
  const gone = useRef(new AbortController());
  useEffect(() => {
    if (first) finish(first);
    return () => gone.current.abort();
  }, []);
  const close = () => nav.open(null);

  const finish = async (account: Account) => {
    setDoing({ name: 'working' });
    setSaid('');
    try {
      if (account.token === undefined) await device.signIn(account, deviceName(), (asked) => setDoing({ name: 'code', asked }), gone.current.signal);
      add(account);
      const why = await person.accounts.ask(account);
      if (why) {
        await leave(account); // with its key
        throw new Error(why);
      }
      person.accountsChanged();
      nav.open({ kind: 'status' });
    } catch (err) {
      if (gone.current.signal.aborted) return;
      setDoing({ name: 'form' });
      const { message } = err as Error;
      setSaid(account.relay === relay() ? message : t`${message} A relay admits this page with --console-origin ${location.origin}.`);
    }
  };

  const submit = (e: Event) => {
    e.preventDefault();
    const typed = address.current!.value.trim();
    const given = new URLSearchParams(typed.slice(typed.indexOf('#') + 1)).get('token') ?? token.current!.value.trim();
    token.current!.value = '';
    const origin = typed === '' ? relay() : originOf(typed);
    if (!origin) return setSaid(t`That is not the address of a relay: https://relay.example.com is one.`);
    const known = [relay(), ...further()];
    if (elsewhere() && !known.includes(origin)) return setSaid(t`This site is made for ${known.map(siteOf).join(', ')} only.`);
    if (given && !tokenForm.test(given)) return setSaid(t`That does not look like a token.`);
    const account: Account = { name: nameFor(name.current!.value.trim() || new URL(origin).hostname), relay: origin, ...(given ? { token: given } : {}) };
    if (!admit(origin)) return finish(account);
    // The policy of this load does not admit the relay, so the page is loaded once more.
    sessionStorage.setItem(begunKey, JSON.stringify(account));
    setDoing({ name: 'working' });
    keepPage().finally(() => location.reload());
  };

  return (
    <Dialog title={t`Add an account`} id="account" onClose={close}>
      {doing.name === 'code' && <Approve asked={doing.asked} />}
      {doing.name === 'working' && <p class="dim" role="status">{t`Asking the relay…`}</p>}
      <form class="fields" onSubmit={submit} autocomplete="off" hidden={doing.name !== 'form'}>
        <p class="dim">{t`Its hosts and questions appear in the same list. This page comes from ${location.host}, which could use each account that you add here.`}</p>
        <label for="account-relay">{t`Address of the relay`}</label>
        <input id="account-relay" ref={address} type="text" inputMode="url" autocapitalize="off" spellcheck={false} placeholder={relay()} defaultValue={first?.relay} data-focus aria-describedby="account-help" />
        <p id="account-help" class="dim">{t`Empty: a different account at this relay.`}</p>
        <label for="account-name">{t`Name in the list`}</label>
        <input id="account-name" ref={name} type="text" autocapitalize="off" spellcheck={false} maxLength={40} placeholder={siteOf(relay()).split(':')[0]} defaultValue={first?.name} />
        <details class="paste">
          <summary>{t`Use a token`}</summary>
          <div class="fields"><label for="account-token">{t`Client token`}</label>
            <input id="account-token" ref={token} type="password" autocomplete="off" autocapitalize="off" spellcheck={false} aria-describedby="account-token-help" />
            <p id="account-token-help" class="dim">{t`This browser keeps it until you remove the account. Without a token, a device that is signed in there admits this browser.`}</p></div>
        </details>
        <p id="account-why" class="error" role="alert">{said}</p>
        <div class="row start"><button class="primary" type="submit">{t`Continue`}</button></div>
      </form>
    </Dialog>
  );
}

/** The request that a person approves on a device that is signed in at that relay. */
function Approve({ asked }: { asked: device.Asked }) {
  return (
    <div class="fields" id="account-code">
      <p>{rich`On a device that is signed in there, scan this, or open ${<b>{siteOf(text(asked.verification_uri))}</b>} and type the code.`}</p>
      <Code rows={asked.qr ?? []} label={t`QR code of the request`} />
      <p class="row start user-code"><code>{asked.user_code}</code></p>
      <p class="dim">{rich`That device must show the fingerprint ${<b>{asked.fingerprint}</b>}.`}</p>
      <p class="dim" role="status">{t`This page waits for the approval.`}</p>
    </div>
  );
}
