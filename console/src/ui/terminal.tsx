// A terminal, in a frame with its own origin, because its output is untrusted and this page does not permit
// its styles.

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { conversation, rights, view } from '../app';
import { ansi } from './colours';
import { array } from '../store';
import type { TerminalState } from '../ahp';
import { t } from '../language';

/** Returns everything that a terminal has printed. */
function printed(state: TerminalState): string {
  return array(state.content).map((p) => (p?.type === 'command' ? p.output : p?.value) ?? '').join('');
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const scheme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  return { scheme, ...ansi[scheme], background: colour('--sunk'), foreground: colour('--ink'), cursor: colour('--accent') };
}

export function Terminal({ channel, state }: { channel: string; state: TerminalState }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const port = useRef<MessagePort | null>(null);
  const shown = useRef('');
  const [ctrl, setCtrl] = useState(false); // the next key is pressed with Ctrl
  const ctrlNow = useRef(ctrl);
  ctrlNow.current = ctrl;
  const type = (input: string) => {
    const held = ctrlNow.current && /^[a-z@[\\\]^_]$/i.test(input);
    if (held) setCtrl(false);
    conversation.perform(channel, { type: 'terminal/input', data: held ? String.fromCharCode(input.toUpperCase().charCodeAt(0) & 31) : input });
  };
  const paste = () => { navigator.clipboard?.readText().then((words) => { if (words) type(words); }, () => {}); };
  const may = Boolean(view.link?.live) && rights.mayOperate && state.lifecycle?.status !== 'exited' && state.exitCode === undefined;
  const mayNow = useRef(may);
  mayNow.current = may;

  const print = () => {
    if (!port.current) return;
    const all = printed(state);
    if (all.startsWith(shown.current)) {
      if (all.length > shown.current.length) port.current.postMessage({ write: all.slice(shown.current.length) });
    } else port.current.postMessage({ reset: true, write: all });
    shown.current = all;
  };
  const begin = () => {
    const { port1, port2 } = new MessageChannel();
    port.current = port1;
    shown.current = '';
    port1.onmessage = ({ data }) => heard(data);
    frame.current!.contentWindow!.postMessage({ theme: theme(), readOnly: !may }, '*', [port2]);
    print();
  };
  // Messages from the frame can only type into this terminal and report its size, as the user could.
  const heard = (data: { input?: unknown; cols: number; rows: number } | null) => {
    if (!mayNow.current || data === null || typeof data !== 'object') return;
    if (typeof data.input === 'string' && data.input.length < 65_536) type(data.input);
    else if (Number.isInteger(data.cols) && Number.isInteger(data.rows) && data.cols > 1 && data.cols < 1000 && data.rows > 1 && data.rows < 1000) {
      if (conversation.ownTerminals.has(channel) || (state.claim?.kind === 'client' && state.claim.clientId === view.link?.conn?.clientId)) conversation.perform(channel, { type: 'terminal/resized', cols: data.cols, rows: data.rows });
    }
  };
  useLayoutEffect(print);
  useEffect(() => { port.current?.postMessage({ readOnly: !may }); }, [may]);
  useEffect(() => {
    const dark = matchMedia('(prefers-color-scheme: dark)');
    const dress = () => port.current?.postMessage({ theme: theme() });
    dark.addEventListener('change', dress);
    return () => {
      dark.removeEventListener('change', dress);
      port.current?.close();
    };
  }, []);
  const ended = state.lifecycle?.exitCode ?? state.exitCode;
  return (
    <div class="terminal">
      <iframe ref={frame} title={t`Terminal`} sandbox="allow-scripts" src="/terminal.html" onLoad={begin} />
      {ended !== undefined && <p class="dim" role="status">{t`It has ended with ${ended}.`}</p>}
      {may && (
        <div class="keys" role="group" aria-label={t`Keys`}>
          <button type="button" class="small" aria-pressed={ctrl} onClick={() => setCtrl(!ctrl)}>Ctrl</button>
          {[['Esc', '\x1b'], ['Tab', '\t'], ['Ctrl C', '\x03'], ['↑', '\x1b[A'], ['↓', '\x1b[B'], ['←', '\x1b[D'], ['→', '\x1b[C'], ['/', '/'], ['|', '|'], ['-', '-'], ['~', '~'], ['⏎', '\r']].map(([label, input]) => (
            <button key={label} type="button" class="small" onClick={() => type(input)}>{label}</button>
          ))}
          <button type="button" class="small" onClick={paste}>{t`Paste`}</button>
        </div>
      )}
    </div>
  );
}
