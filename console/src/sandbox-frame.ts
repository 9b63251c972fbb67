// Runs in a frame without an origin and without a network: see sandbox.ts.

/** Converts what the page sends, one item after the other. The result is '' after a failure. */
export function serve<T>(make: (from: T) => string | Promise<string>): void {
  let last: Promise<void> = Promise.resolve();
  addEventListener('message', function first({ source, ports: [port] }: MessageEvent) {
    if (source !== parent || !port) return;
    removeEventListener('message', first);
    const answer = async ({ id, from }: { id: number; from: T }) => port.postMessage({ id, made: await Promise.resolve(from).then(make).catch(() => '') });
    port.onmessage = ({ data }) => { last = last.then(() => answer(data)); };
    port.start();
  });
}
