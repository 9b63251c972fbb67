// Draws the page before the browser next paints it, whenever something has changed.

import './style.css';
import { render } from 'preact';
import { look } from './push';
import { app } from './app';
import { Shell } from './ui/shell';
import { settled } from './ui/mcpcalls';
import { shared } from './ui/drafts';
import { registerWorker } from './trusted';

let due = false;

app.draw = () => {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    render(<Shell now={Date.now()} />, document.getElementById('root')!);
    settled();
  });
};

shared();
app.start();
registerWorker();
look();
