// A frame without an origin and without a network, in which libraries parse an agent's text: see
// sandbox-frame.ts. It is loaded when the first such text appears.

const patience = 60_000; // ms without an answer, before a frame counts as dead

export class Sandbox {
  #page: string;
  #title: string;
  #port: Promise<MessagePort> | undefined;
  #next = 0;
  #waiting = new Map<number, (made: string) => void>();
  #frame: HTMLIFrameElement | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(page: string, title: string) {
    this.#page = page;
    this.#title = title;
  }

  #open(): Promise<MessagePort> {
    return new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      const node = this.#frame = document.createElement('iframe');
      Object.assign(node, { src: this.#page, className: 'sandbox', title: this.#title, tabIndex: -1 });
      node.setAttribute('sandbox', 'allow-scripts');
      node.setAttribute('aria-hidden', 'true');
      node.addEventListener('load', () => {
        port1.onmessage = ({ data }) => {
          this.#waiting.get(data.id)?.(String(data.made));
          this.#waiting.delete(data.id);
          this.#watch();
        };
        node.contentWindow!.postMessage(null, '*', [port2]);
        resolve(port1);
      });
      document.body.append(node);
    });
  }

  /** Gives a frame up that leaves requests without an answer for too long. A slow frame keeps all its time while it answers. */
  #watch(): void {
    clearTimeout(this.#timer);
    if (this.#waiting.size === 0) return;
    this.#timer = setTimeout(() => {
      this.#frame?.remove();
      this.#port = undefined;
      for (const failed of this.#waiting.values()) failed('');
      this.#waiting.clear();
    }, patience);
  }

  /** Lets the frame convert something. Returns '' if it fails. */
  async make(from: object): Promise<string> {
    const port = await (this.#port ??= this.#open());
    const id = this.#next++;
    return new Promise((resolve) => {
      this.#waiting.set(id, resolve);
      if (this.#waiting.size === 1) this.#watch();
      port.postMessage({ id, from });
    });
  }
}
