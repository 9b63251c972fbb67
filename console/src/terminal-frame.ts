// Runs in a terminal's frame: shows output that the page sends, and sends keyboard input to the page. The
// frame has no origin and no network, so escape sequences in the output can reach nothing.

import '../npm/@xterm/xterm/css/xterm.css';
import { FitAddon } from '@xterm/addon-fit';
import { Terminal, type ITheme } from '@xterm/xterm';

/** Colours, and the scheme of the scroll bar. */
type Theme = ITheme & { background: string; scheme: string };

function begin({ theme, readOnly }: { theme: Theme; readOnly: boolean }, port: MessagePort): void {
  const terminal = new Terminal({
    theme, convertEol: true, disableStdin: readOnly, fontSize: 13, scrollback: 10_000, screenReaderMode: false,
    fontFamily: 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace',
    linkHandler: { activate: () => {} }, // links in output do nothing
  });
  const dress = (now: Theme) => {
    terminal.options.theme = now;
    document.body.style.background = now.background;
    document.documentElement.style.colorScheme = now.scheme; // colours the scroll bar
  };
  dress(theme);
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(document.body);
  const size = () => {
    fit.fit();
    port.postMessage({ cols: terminal.cols, rows: terminal.rows });
  };
  new ResizeObserver(size).observe(document.documentElement);
  size();
  terminal.onData((input) => port.postMessage({ input }));
  port.onmessage = ({ data }) => {
    if (data.reset) terminal.reset();
    if (data.theme) dress(data.theme);
    if (typeof data.write === 'string') terminal.write(data.write, () => { document.body.dataset.printed = String(Number(document.body.dataset.printed ?? 0) + data.write.length); });
    if (typeof data.readOnly === 'boolean') terminal.options.disableStdin = data.readOnly;
  };
  port.start();
}

addEventListener('message', function first({ source, data, ports }: MessageEvent) {
  if (source !== parent || ports.length !== 1) return;
  removeEventListener('message', first);
  begin(data, ports[0]);
});
