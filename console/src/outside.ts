// Sends requests to servers on the web through a frame, because the page's own policy allows only the relay.
// The frame sends no cookies and shows nothing.

import type { Ask } from './oauth';

let port: Promise<MessagePort> | undefined;
let asked = 0;
const waiting = new Map<number, { resolve: (v: Awaited<ReturnType<Ask>>) => void; reject: (e: Error) => void }>();

function open(): Promise<MessagePort> {
  port ??= new Promise((resolve, reject) => {
    const frame = document.createElement('iframe');
    frame.src = '/outside.html';
    frame.hidden = true;
    frame.title = 'Asks other servers';
    frame.addEventListener('load', () => {
      const channel = new MessageChannel();
      channel.port1.onmessage = ({ data }) => {
        const call = waiting.get(data.id);
        waiting.delete(data.id);
        if (data.why === undefined) call?.resolve({ status: data.status, body: data.body });
        else call?.reject(new Error(data.why));
      };
      frame.contentWindow!.postMessage('begin', location.origin, [channel.port2]);
      resolve(channel.port1);
    }, { once: true });
    frame.addEventListener('error', () => {
      port = undefined; // allows a retry
      frame.remove();
      reject(new Error('The relay is unreachable.'));
    }, { once: true });
    document.body.append(frame);
  });
  return port;
}

export const ask: Ask = async (url, post) => {
  const to = await open();
  return new Promise((resolve, reject) => {
    const id = ++asked;
    waiting.set(id, { resolve, reject });
    to.postMessage({ id, url, post });
  });
};
