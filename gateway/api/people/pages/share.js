import { say } from './words.js';

const link = location.hash.slice(1);
history.replaceState(null, '', location.pathname); // it is a secret

try {
  if (!link) throw new Error('This address lacks its last part. Open the whole link.');
  const answer = await fetch(new URL('../auth/share', import.meta.url), { method: 'POST', body: JSON.stringify({ link }), cache: 'no-store', credentials: 'omit' });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error_description || said.error);
  const { token, host, session } = said;
  location.replace(new URL(`../#${new URLSearchParams({ host, session, token })}`, import.meta.url));
} catch (e) {
  say(e.message, true);
}
