// Asks servers on the web for the console, whose own policy lets it talk to the
// relay alone. Nothing goes along that the console has not given, and what is
// answered is JSON, or nothing.
'use strict';

const patience = 20_000; // ms
const most = 256 * 1024; // characters of an answer

addEventListener('message', function begin({ source, origin, data, ports }) {
  if (source !== parent || origin !== location.origin || data !== 'begin' || ports.length !== 1) return;
  removeEventListener('message', begin);
  const [port] = ports;
  port.onmessage = async ({ data: { id, url, post } }) => {
    try {
      port.postMessage({ id, ...await ask(url, post) });
    } catch (err) {
      port.postMessage({ id, why: String(err?.message ?? err) });
    }
  };
});

async function ask(url, post) {
  const headers = { Accept: 'application/json' };
  if (post?.json) headers['Content-Type'] = 'application/json';
  const answer = await fetch(url, {
    method: post ? 'POST' : 'GET', headers, body: post?.json ? JSON.stringify(post.json) : post?.form && new URLSearchParams(post.form),
    mode: 'cors', credentials: 'omit', cache: 'no-store', referrerPolicy: 'no-referrer', redirect: post ? 'error' : 'follow', signal: AbortSignal.timeout(patience),
  });
  const text = await answer.text();
  if (text.length > most) throw new Error('the answer is too long');
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // Its status says enough.
  }
  return { status: answer.status, body };
}
