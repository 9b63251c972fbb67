// Draws the page before the next paint, if anything has changed.

import './style.css';
import { render } from 'preact';
import { look } from './look';
import { app } from './app';
import { media } from './dom';
import { elsewhere } from './pins';
import { Shell } from './ui/shell';
import { settled } from './ui/mcpcalls';
import { shared } from './ui/drafts';
import { registerWorker } from './trusted';

let due = 0; // 1: growing answers only, 2: everything

function draw(what: number) {
  if (due === 0) requestAnimationFrame(now);
  due = Math.max(due, what);
}

function now() {
  const what = due;
  due = 0;
  if (what === 1 && app.drawLog) {
    app.drawLog();
    return;
  }
  const place = `${app.host} ${app.session}`;
  const moves = place !== last && last !== undefined && 'startViewTransition' in document && media('(max-width: 46rem) and (prefers-reduced-motion: no-preference)');
  last = place;
  if (moves) document.startViewTransition(all); // on a phone, a session slides over the list
  else all();
}

let keepFocus = () => {}; // see ui/focus.ts
let last: string | undefined; // the place in view

function all() {
  render(<Shell now={Date.now()} />, document.getElementById('root')!);
  settled();
  keepFocus();
}

app.draw = () => draw(2);
app.drawGrown = () => draw(1);
app.synced = (link) => { if (link.seal) import('./tell').then((m) => m.tell(link)).catch(() => {}); }; // a host with an older version refuses
addEventListener('resize', () => draw(2)); // wide screens show more panes

if (elsewhere() && top !== self) throw new Error('in a frame'); // a site's server may send no policy against frames
shared();
app.start();
registerWorker();
look();
import('./ui/focus').then((m) => { m.followFocus(); keepFocus = m.keepFocus; }).catch(() => {}); // the focus then falls to the page
