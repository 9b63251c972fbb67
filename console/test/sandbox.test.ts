// Tests the page's side of a sandbox. TestConsolesScriptsPass runs this file.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { Sandbox } from '../src/sandbox';

/** A frame of which a test answers the requests itself. */
class Frame {
  asked: { id: number; from: unknown }[] = [];
  removed = false;
  #port: any;
  contentWindow = {
    postMessage: (_: null, _origin: string, [port]: any[]) => {
      this.#port = port;
      port.onmessage = ({ data }: any) => this.asked.push(data);
      port.start?.();
    },
  };
  setAttribute() {}
  remove() { this.removed = true; }
  addEventListener(_: string, loaded: () => void) { queueMicrotask(loaded); }
  answers(made: string) { this.#port.postMessage({ id: this.asked.shift()!.id, made }); }
}

/** A port whose messages arrive at once. */
class Port {
  other!: Port;
  onmessage: ((m: any) => void) | undefined;
  postMessage(data: any) { this.other.onmessage?.({ data }); }
}

test('a slow frame keeps its time while it answers, and a dead frame is replaced', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  const frames: Frame[] = [];
  Object.assign(globalThis, {
    document: { createElement: () => { const f = new Frame(); frames.push(f); return f; }, body: { append() {} } },
    MessageChannel: class { port1 = new Port(); port2 = new Port(); constructor() { this.port1.other = this.port2; this.port2.other = this.port1; } },
  });
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  const sandbox = new Sandbox('/page.html', 'Pages');
  const made = ['a', 'b', 'c'].map((from) => sandbox.make({ from }));
  await settle();
  for (const answer of ['A', 'B', 'C']) { // 150 s for three answers
    mock.timers.tick(50_000);
    frames[0]!.answers(answer);
  }
  assert.deepEqual(await Promise.all(made), ['A', 'B', 'C']);

  const lost = [sandbox.make({ from: 'd' }), sandbox.make({ from: 'e' })];
  await settle();
  mock.timers.tick(59_999);
  assert.equal(frames[0]!.removed, false);
  mock.timers.tick(1);
  assert.deepEqual(await Promise.all(lost), ['', '']);
  assert.equal(frames[0]!.removed, true);

  const next = sandbox.make({ from: 'f' });
  await settle();
  frames[1]!.answers('F');
  assert.equal(await next, 'F');
});
