import { newKeys, send, signIn } from './keys.js';
import { deviceName, say } from './words.js';

const invite = location.hash.slice(1);
history.replaceState(null, '', location.pathname); // it is a secret

const name = document.getElementById('name');
name.value = deviceName();
if (!invite) say('This address lacks its last part. Open the whole link.', true);

let keys; // the same for each attempt: an attempt that fails at the relay may have bound the invitation to them

document.getElementById('form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const button = event.target.querySelector('button');
  button.disabled = true;
  try {
    keys ??= await newKeys();
    await signIn(keys, await send(keys, 'POST', 'auth/setup', { json: { invite, name: name.value } }));
    location.assign(new URL('../device', import.meta.url));
  } catch (e) {
    say(e.message, true);
    button.disabled = false;
  }
});
