import { count } from './lib/notes.js';
import { receive, send } from './lib/bridge.js';

const at = (id) => document.getElementById(id);

/** Shows what has worked, for people and for tests. */
function check(name, value) {
  const dt = document.createElement('dt');
  const dd = document.createElement('dd');
  dt.textContent = name;
  dd.textContent = value;
  dd.id = `check-${name}`;
  at('checks').append(dt, dd);
}

function show(notes) {
  at('notes').replaceChildren(...notes.map((text) => {
    const li = document.createElement('li');
    li.textContent = text;
    return li;
  }));
  at('state').textContent = count(notes.length);
  at('add').disabled = at('text').disabled = false;
}

async function attempt(name, work) {
  try {
    check(name, await work());
  } catch (err) {
    check(name, `failed: ${err.message}`);
  }
}

receive((said) => {
  if (said?.type === 'notes') show(said.notes);
  else if (said?.type === 'pong') check('pong', said.instanceId);
  else check('message', JSON.stringify(said));
});

at('add').addEventListener('click', () => {
  send({ type: 'add', text: at('text').value || 'a note' });
  at('text').value = '';
});

check('classic', String(window.classicRan));
await attempt('fetch', async () => (await (await fetch('data/notes.json')).json()).title);
await attempt('missing', async () => String((await fetch('data/none.json')).status));
await attempt('xhr', () => new Promise((resolve, reject) => {
  const request = new XMLHttpRequest();
  request.open('GET', 'data/notes.json');
  request.responseType = 'json';
  request.onload = () => resolve(request.response.title);
  request.onerror = () => reject(new Error('no answer'));
  request.send();
}));
await attempt('import', async () => (await import('./lib/late.js')).late);
await attempt('image', () => new Promise((resolve, reject) => {
  const image = document.createElement('img');
  image.onload = () => resolve(`${image.naturalWidth} × ${image.naturalHeight}`);
  image.onerror = () => reject(new Error('not loaded'));
  image.src = 'img/logo.png';
  image.id = 'added';
  document.body.append(image);
}));
// Since AHP 0.10 nobody passes messages between canvases and providers.
setTimeout(() => {
  if (at('state').textContent !== 'loading…') return;
  at('state').textContent = 'to look at';
  at('add').disabled = at('text').disabled = true;
}, 2000);
send({ type: 'ping', at: 1 });
send({ type: 'list' });
