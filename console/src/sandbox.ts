// A frame without an origin and without a network, in which libraries parse an agent's text: see
// sandbox-frame.ts. It is loaded when the first such text appears.

const patience = 5000; // ms

export class Sandbox {
  #page: string;
  #title: string;
  #port: Promise<MessagePort> | undefined;
  #next = 0;
  #waiting = new Map<number, (made: string) => void>();

  constructor(page: string, title: string) {
    this.#page = page;
    this.#title = title;
  }

  #open(): Promise<MessagePort> {
    return new Promise((resolve) => {
      const { port1, port2 } = new MessageChannel();
      const node = document.createElement('iframe');
      Object.assign(node, { src: this.#page, className: 'sandbox', title: this.#title, tabIndex: -1 });
      node.setAttribute('sandbox', 'allow-scripts');
      node.setAttribute('aria-hidden', 'true');
      node.addEventListener('load', () => {
        port1.onmessage = ({ data }) => {
          this.#waiting.get(data.id)?.(String(data.made));
          this.#waiting.delete(data.id);
        };
        node.contentWindow!.postMessage(null, '*', [port2]);
        resolve(port1);
      });
      document.body.append(node);
    });
  }

  /** Lets the frame convert something. Returns '' if it fails. */
  async make(from: object): Promise<string> {
    const port = await (this.#port ??= this.#open());
    const id = this.#next++;
    return new Promise((resolve) => {
      this.#waiting.set(id, resolve);
      setTimeout(() => { if (this.#waiting.delete(id)) resolve(''); }, patience);
      port.postMessage({ id, from });
    });
  }
}
