// The way to the canvas's provider: messages to and from whatever shows this.

const waiting = [];

addEventListener('message', ({ source, data }) => {
  if (source !== parent) return;
  for (const take of waiting) take(data);
});

export function send(payload) {
  parent.postMessage(payload, '*'); // who shows this is not known here
}

export function receive(take) {
  waiting.push(take);
}
