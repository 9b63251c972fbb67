import { newKeys, send, signIn, stored } from './keys.js';
import { deviceName, say } from './words.js';

const invite = location.hash.slice(1);
history.replaceState(null, '', location.pathname); // it is a secret

const name = document.getElementById('name');
name.value = deviceName();
const form = document.getElementById('form');
if (!invite) {
  form.hidden = true;
  refused('This address lacks its last part. Open the whole link.');
}

/** Says why the link does not work, and shows how to go on without it. */
async function refused(why) {
  say(why, true);
  const on = document.getElementById('on');
  const leads = (href, textContent) => Object.assign(on.firstChild, { href, textContent });
  if (on.hidden) leads('device', 'Sign in with another device'); // the database may answer late
  on.hidden = false;
  if (await stored().catch(() => undefined)) leads('./', 'This browser is signed in already. Go to your sessions');
}

let keys; // the same for each attempt: an attempt that fails at the relay may have bound the invitation to them

form.addEventListener('submit', async (event) => {
  event.preventDefault();
  const button = event.target.querySelector('button');
  button.disabled = true;
  try {
    keys ??= await newKeys();
    await signIn(keys, await send(keys, 'POST', 'auth/setup', { json: { invite, name: name.value } }));
    location.assign(new URL('../device', import.meta.url));
  } catch (e) {
    button.disabled = false;
    await refused(e.message);
  }
});
