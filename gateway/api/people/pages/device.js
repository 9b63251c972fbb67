import { begin, begun, call, forget, newKeys, send, signIn, stored, whenApproved } from './keys.js';
import { deviceName, hostWords, levelChoice, levelWords, linkToSend, make, qrCode, say } from './words.js';

const at = (id) => document.getElementById(id);
const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
const time = (text) => new Date(text).toLocaleString();

const titles = {
  out: 'Sign in', asking: 'Sign in with another device', add: 'Connect a host', 'add-device': 'Add a device', in: 'Devices and hosts',
};
let step = '';

/** Shows one step, and hides all others. */
function show(name, title = titles[name]) {
  const moved = step !== '' && step !== name;
  step = name;
  for (const part of document.querySelectorAll('[data-step]')) part.hidden = part.id !== name;
  at('back').hidden = ['in', 'out'].includes(name) || (name === 'add' && known.me.hosts?.length === 0) || name === 'waiting';
  at('title').textContent = title;
  if (moved) at('title').focus();
}

/** Whether a person may connect hosts. */
const owns = (me) => me.level === 'own';

/** Returns to the first step of a device that is signed in: its first host, or the overview. */
function home() {
  at('lookup').reset();
  at('lookup-device').reset();
  show(known.me.hosts.length === 0 && owns(known.me) ? 'add' : 'in');
}

/** Asks before something that cannot be undone, and returns the chosen answer; '' for none. */
function choose(question, answers) {
  const dialog = at('sure');
  at('sure-text').textContent = question;
  dialog.returnValue = '';
  at('sure-answers').replaceChildren(...[['', 'Cancel'], ...answers].map(([value, label]) => {
    const button = make('button', label, { type: 'button', ...(value && { class: 'bad' }) });
    button.addEventListener('click', () => dialog.close(value));
    return button;
  }));
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener('close', () => resolve(dialog.returnValue), { once: true }));
}

/** Has a button do something, and says what went wrong. */
function on(id, event, act) {
  at(id).addEventListener(event, async (e) => {
    e.preventDefault();
    say('');
    try {
      await act(e);
    } catch (error) {
      say(error.message, true);
    }
  });
}

/** Comes back from an identity provider: what it says is in the address, and goes from there. */
async function comeBack() {
  const said = new URLSearchParams(location.search);
  history.replaceState(null, '', new URL('../device', import.meta.url));
  if (said.has('error')) throw new Error(`The identity provider refuses: ${said.get('error_description') || said.get('error')}`);
  const { keys, issuer } = (await begun()) ?? {};
  if (!keys) throw new Error('This sign-in was not begun in this browser. Begin it here.');
  await signIn(keys, await send(keys, 'POST', 'auth/code', { json: { issuer, state: said.get('state'), code: said.get('code'), iss: said.get('iss') ?? '', name: deviceName() } }));
}

/** Shows where one can sign in. */
async function showProviders() {
  const { providers } = await (await fetch(new URL('../auth/providers', import.meta.url))).json();
  at('providers').replaceChildren(...providers.map(({ issuer, name }) => {
    const go = make('button', `Sign in with ${name}`, { type: 'submit' });
    go.addEventListener('click', () => goToProvider(issuer));
    return go;
  }));
  at('ask').type = providers.length ? 'button' : 'submit'; // the first button is the most common choice
}

async function goToProvider(issuer) {
  try {
    const keys = (await stored())?.keys ?? (await newKeys());
    const { url } = await send(keys, 'POST', 'auth/signin', { json: { issuer } });
    await begin({ keys, issuer });
    location.assign(url);
  } catch (e) {
    say(e.message, true);
  }
}

async function start() {
  if (location.pathname.endsWith('/signin') && location.search) await comeBack().catch((e) => say(e.message, true));
  const self = await stored();
  const said = location.hash.slice(1).split('='); // a request's ID, from a QR code with its code; or ask=TENANT
  if (said[0] !== 'ask' && said[1]) {
    scanned = said;
    history.replaceState(null, '', location.pathname); // the code is a secret
  }
  const [id, more] = scanned || said;
  try {
    if (!self) {
      show('out');
      await showProviders();
      if (id === 'ask') await ask(more);
      return;
    }
    await refresh();
    if (id && id !== 'ask') await consider(id, more);
    else home();
  } catch (e) {
    say(e.message, true);
    if (e.name === 'invalid_grant') { // the device was removed
      await forget();
    }
    if (e.name === 'invalid_grant' || e.name === 'login_required') {
      show('out');
      await showProviders();
    }
  }
}

let scanned = ''; // the request's ID and code, from a QR code

const shown = new Map(); // list to its last content

/** Whether a list is to be made anew. What says the same stays, lest a button goes under a finger. */
function changed(id, all) {
  const said = JSON.stringify(all);
  if (shown.get(id) === said) return false;
  shown.set(id, said);
  return true;
}

/** Lists what there is. */
function list(id, all, none, row) {
  if (changed(id, all)) at(id).replaceChildren(...all.map(row), ...(all.length ? [] : [make('li', none, { class: 'dim' })]));
}

let known = { me: {}, devices: [] };

async function refresh() {
  const me = await call('GET', 'api/me');
  const command = `host-agent up ${new URL('..', import.meta.url).href.replace(/\/$/, '')}`;
  if (changed('next', command)) at('next').replaceChildren(...linkToSend(command, true));
  at('who').textContent = `Signed in as ${me.subject}. You may ${levelWords(me.level)}.`;
  list('hosts', me.hosts.map(({ host, state }) => ({ host, state })), owns(me) ? 'None yet.' : 'None yet. Ask an owner to connect one.', (host) => {
    const open = make('button', 'Open', { type: 'button' });
    open.addEventListener('click', () => openHost(host.host));
    return make('li', [make('b', host.host), ` ${host.state} `, open]);
  });
  at('to-add').hidden = !owns(me);
  const { shares } = await call('GET', 'api/shares');
  list('shares', shares, 'Nothing.', (share) => {
    const end = make('button', 'Take back', { type: 'button' });
    end.addEventListener('click', () => takeBack(share));
    return make('li', [make('b', `${share.host} ${share.session}`), make('div', `may ${levelWords(share.level)}; by ${share.by}, until ${time(share.expires)}; ${share.watching.length} of ${share.people} there now`, { class: 'dim' }), end]);
  });
  const { devices } = await call('GET', 'api/devices');
  known = { me, devices };
  list('devices', devices, 'None.', (device) => {
    const own = device.id === me.device;
    const remove = make('button', own ? 'Sign out' : 'Remove', { type: 'button' });
    remove.addEventListener('click', () => removeDevice(device, own));
    return make('li', [make('b', device.name || device.id), own ? ' (this one)' : '', make('div', `${device.subject}, ${device.level ? `may ${levelWords(device.level)}; ` : ''}last here ${time(device.seen)} from ${device.place}`, { class: 'dim' }), remove]);
  });
  at('team').hidden = !me.owner;
  if (me.owner) await showTeam(me);
}

/** Refreshes the lists. A new host ends the step that waits for it. */
async function refreshed() {
  const had = known.me.hosts.length;
  await refresh();
  if (step === 'add' && known.me.hosts.length > had) home();
}

/** What only who owns all of it sees: people, and what was done. */
async function showTeam(me) {
  const { people } = await call('GET', 'api/people');
  list('people', people, 'Nobody.', (person) => {
    const devices = `${person.devices} device${person.devices === 1 ? '' : 's'}`;
    const about = [`may ${levelWords(person.level)}`, hostWords(person.hosts), devices, person.lastSeen && `last here ${time(person.lastSeen)}`, person.issuer && `by ${person.issuer}`, person.trouble];
    const inside = [make('b', person.name ? `${person.name} (${person.subject})` : person.subject), person.subject === me.subject ? ' (you)' : '', make('div', about.filter(Boolean).join(' · '), { class: 'dim' })];
    if (person.subject !== me.subject) {
      const remove = make('button', 'Remove', { type: 'button' });
      remove.addEventListener('click', () => removePerson(person));
      inside.push(remove);
    }
    return make('li', inside);
  });
  const { invites } = await call('GET', 'api/invites');
  list('invites', invites, 'None.', (invite) => {
    const end = make('button', 'Withdraw', { type: 'button' });
    end.addEventListener('click', () => withdraw(invite));
    return make('li', [make('b', invite.subject), make('div', `may ${levelWords(invite.level)} · ${hostWords(invite.hosts)} · by ${invite.by || 'the operator'}, until ${time(invite.expires)}`, { class: 'dim' }), end]);
  });
  const { since, lines } = await call('GET', 'api/audit');
  if (!changed('audit', lines)) return;
  at('audit-since').textContent = time(since);
  at('audit').tBodies[0].replaceChildren(...lines.map((line) => {
    const more = [line.reason, line.detail, line.count && `${line.count} times`, line.address && `from ${line.address}`].filter(Boolean).join('; ');
    return make('tr', [time(line.at), line.event, line.subject ?? '', line.host ?? '', more].map((text) => make('td', text)));
  }));
}

async function withdraw(invite) {
  try {
    await call('DELETE', `api/invites/${invite.id}`);
    await refresh();
  } catch (e) {
    say(e.message, true);
  }
}

/** Asks about the extent of a removal, and returns its query, or null for nothing. Own: the removed entry admitted this device. */
async function whatEnds(question, verb, derived, own) {
  if (own) return (await choose(`${question} It admitted this device, so only its own tokens and links end.`, [['keep', verb]])) ? '?derived=keep' : null;
  if (!derived.length) return (await choose(question, [['all', verb]])) ? '' : null;
  const names = derived.map((d) => `${d.name || d.id} (${d.subject})`).join(', ');
  const chosen = await choose(`${question} It admitted ${names}. If it was lost or stolen, sign these out too, with all links and hosts that it admitted.`, [['keep', `${verb}, keep these`], ['all', `${verb}, with these`]]);
  return { keep: '?derived=keep', all: '' }[chosen] ?? null;
}

/** Devices whose origins include one that is looked for. */
const derivedFrom = (wanted) => known.devices.filter((d) => (d.origins ?? []).some(wanted));

async function removePerson({ subject }) {
  const derived = derivedFrom((o) => o.sub === subject).filter((d) => d.subject !== subject);
  const query = await whatEnds(`Remove ${subject}? All of their devices, tokens and links end at once.`, 'Remove', derived, derived.some((d) => d.id === known.me.device));
  if (query === null) return;
  try {
    await call('DELETE', `api/people/${encodeURIComponent(subject)}${query}`);
    await refresh();
  } catch (e) {
    say(e.message, true);
  }
}

/** Goes to a host in the console, as this device, whatever token a link has left in this tab. */
function openHost(host) {
  sessionStorage.removeItem('ahp-relay-token');
  location.assign(new URL(`../#${new URLSearchParams({ host })}`, import.meta.url));
}

async function takeBack(share) {
  try {
    await call('DELETE', `api/shares/${share.id}`);
    await refresh();
  } catch (e) {
    say(e.message, true);
  }
}

async function removeDevice(device, own) {
  const derived = own ? [] : derivedFrom((o) => o.id === device.id);
  const query = await whatEnds(own ? 'Sign this device out?' : `Remove ${device.name}? It is signed out at once.`, own ? 'Sign out' : 'Remove', derived, derived.some((d) => d.id === known.me.device));
  if (query === null) return;
  try {
    await call('DELETE', `api/devices/${device.id}${query}`);
    if (own) {
      await forget();
      location.reload();
    } else {
      await refresh();
    }
  } catch (e) {
    say(e.message, true);
  }
}

let waiting; // the request being decided

/** Shows a request. With its code, from a QR code, a tap decides. */
async function consider(which, code = '', typed = false) {
  waiting = await call('GET', `api/requests/${encodeURIComponent(which)}`);
  const host = waiting.kind === 'host';
  show('waiting', host ? 'A host wants to be reachable here' : 'A device wants to sign in as you');
  at('naming').hidden = !host;
  at('host').required = host;
  at('host').value = host ? (waiting.name || waiting.machine || '').toLowerCase().replace(/[^a-z0-9-]+/g, '-').slice(0, 63) : '';
  at('leveling').hidden = host;
  at('level').replaceChildren(...levelChoice('level', waiting.levels ?? [], '', 'do all that you may on this device'));
  const rows = { Name: waiting.name, Machine: waiting.machine, User: waiting.user, From: waiting.address, Fingerprint: waiting.fingerprint, Asked: time(waiting.made) };
  at('what').replaceChildren(...Object.entries(rows).filter(([, v]) => v).flatMap(([k, v]) => [make('dt', k), make('dd', v)]));
  at('end').value = code;
  at('coding').hidden = code !== '';
  at('approve').textContent = code && !typed ? 'It is the same there: approve' : 'Approve';
  if (!code) at('end').focus();
}

async function decide(approve) {
  await call('POST', `api/requests/${waiting.id}`, { approve, code: at('end').value, ...(waiting.kind === 'host' ? { host: at('host').value, replace: at('replace').checked } : { level: chosen('level') }) });
  scanned = '';
  history.replaceState(null, '', location.pathname);
  say(approve ? 'Approved.' : 'Refused.');
  await refresh();
  home();
  if (approve && waiting.kind === 'host') await goTo(at('host').value);
}

/** Opens a host that was let in, once it is there. */
async function goTo(host) {
  for (const end = Date.now() + 60_000; Date.now() < end; await wait(1)) {
    const { hosts } = await call('GET', 'api/me');
    if (hosts.some((h) => h.host === host && h.state === 'online')) return openHost(host);
    say(`Approved. Waiting for ${host}…`);
  }
  say(`${host} has not come yet. It is listed below when it has.`);
}

// A code that the user types is not from a link.
for (const [form, field] of [['lookup', 'code'], ['lookup-device', 'code-device']]) on(form, 'submit', () => consider(at(field).value, at(field).value, true));
on('back', 'click', home);
on('to-add', 'click', () => show('add'));
on('decide', 'submit', () => decide(true));
on('deny', 'click', () => decide(false));
on('to-add-device', 'click', async () => {
  const { link, qr } = await call('POST', 'api/invites', {});
  at('link').replaceChildren(qrCode(qr), ...linkToSend(link));
  show('add-device');
});
on('invite', 'submit', async () => {
  const hosts = at('invite-hosts').value.split(/[\s,]+/).filter(Boolean);
  const { link, qr, expires } = await call('POST', 'api/invites', { subject: at('invite-name').value.trim(), level: chosen('invite-level'), hosts });
  at('invited').replaceChildren(make('p', `Send ${at('invite-name').value.trim()} this link. Whoever opens it first is in; it is good once, until ${time(expires)}.`), qrCode(qr), ...linkToSend(link));
  at('invited').hidden = false;
});
on('ask', 'click', () => ask());

/** Asks to be let in, and waits for that. With a tenant, its people alone see the request. */
async function ask(tenant = '') {
  const keys = await newKeys();
  const asked = await send(keys, 'POST', 'auth/device', { form: { kind: 'device', name: deviceName(), tenant } });
  show('asking');
  at('ask-code').textContent = asked.user_code;
  at('ask-key').textContent = asked.fingerprint;
  if (asked.qr) at('ask-qr').replaceChildren(qrCode(asked.qr));
  await whenApproved(keys, asked);
  return start();
}

at('invite-level').replaceChildren(...levelChoice('invite-level', undefined, 'talk'));
window.addEventListener('hashchange', start);
await start();
for (;;) { // shows other devices' changes too
  await wait(3);
  if (!document.hidden && ['in', 'add', 'add-device'].includes(step) && (await stored())) await refreshed().catch((e) => say(e.message, true));
}
