// The parts of a tool call: its input and output.

import { useLayoutEffect, useState } from 'preact/hooks';
import { nav, requests } from '../app';
import { contentId, textOfRead, type State } from '../approval';
import { array, isObject, text } from '../store';
import type { FileEdit, ToolCall } from '../ahp';
import { baseName, commandOf, plain, pretty } from '../words';
import { Icon, Raw, isPicture } from './bits';
import { FileEdits, type Reading } from './edits';
import { t } from '../language';

/** The properties of a tool call's components. */
export interface Props { turnId: string; call: ToolCall; readOnly: boolean; connected: boolean; leaves: boolean; answer?: string } // leaves: the host is absent and accepts items

/** Shows a tool call's input and output. */
export function Inside({ call, kind, reading }: { call: ToolCall; kind: string; reading?: Reading }) {
  const content = array(call.content).filter(isObject);
  const failure = text(call.error?.message);
  return (
    <>
      <Input value={call.toolInput ?? call.partialInput} kind={kind} />
      {content.map((c, i) => <Content key={i} content={c} reading={reading} />)}
      {failure && <pre class="error" tabIndex={0} aria-label={t`Error`}>{failure}</pre>}
      {call.selectedOption && <p class="dim">{t`Answered: ${text(call.selectedOption.label)}`}</p>}
    </>
  );
}

function Content({ content, reading }: { content: FileEdit; reading?: Reading }) {
  const open = (show: () => void) => {
    reading?.report(contentId(content), 'shown');
    show();
  };
  switch (content.type) {
    case 'text':
      return <Output value={text(content.text)} />;
    case 'fileEdit':
      return <FileEdits edits={[content]} reading={reading} />;
    case 'terminal':
      return (
        <div class="terminal-ref">
          {text(content.result?.preview) && <Output value={text(content.result!.preview)} />}
          <button type="button" class="chip" onClick={() => open(() => nav.showPane({ kind: 'terminal', channel: text(content.resource), title: text(content.title) }))}><Icon name="command" /><span>{text(content.title) || t`Terminal`}</span></button>
          {content.result?.exitCode !== undefined && <span class="dim">{t`exit ${content.result.exitCode}`}</span>}
        </div>
      );
    case 'subagent':
      return (
        <button type="button" class="chip" onClick={() => open(() => nav.chooseChat(text(content.resource)))}><Icon name="agent" /><span>{text(content.title) || t`Subagent`}</span>{text(content.description) && <span class="dim">{text(content.description)}</span>}</button>
      );
    case 'embeddedResource':
    case 'image':
      if (isPicture({ contentType: content.contentType ?? content.mimeType, data: content.data })) {
        return <img class="picture" src={`data:${content.contentType ?? content.mimeType};base64,${content.data}`} alt={text(content.label) || t`Picture`} />;
      }
      break;
    case 'resource':
      if (text(content.uri)) return <button type="button" class="chip" onClick={() => open(() => nav.showPane({ kind: 'file', channel: text(content.uri) }))}><Icon name="file" /><span>{baseName(content.uri)}</span></button>;
  }
  return <Raw what={text(content.type) || t`something`} value={content} />;
}

const mostOutput = 20_000; // characters shown at first

/** Shows a tool's output. Of a long one, it shows the end first, and on request all, from the start. */
function Output({ value }: { value: string }) {
  const [all, setAll] = useState(false);
  const clean = plain(value);
  const long = clean.length > mostOutput;
  const cut = long && !all;
  return (
    <>
      {long && <button type="button" class="small" onClick={() => setAll(cut)}>{cut ? t`Show all ${Math.round(clean.length / 1000)} KB` : t`Show the end`}</button>}
      <pre key={String(cut)} class={cut ? 'cut' : ''} tabIndex={0} aria-label={t`Output`}>{cut ? clean.slice(-mostOutput) : clean}</pre>
    </>
  );
}

/** Shows a tool's input. If the input is a reference, it is read from the host. */
function Input({ value, kind }: { value: ToolCall['toolInput']; kind: string }) {
  const { text: whole, state } = useInput(value);
  if (state !== 'shown') return <p class="dim">{state === 'loading' ? t`Reading…` : state.why}</p>;
  if (!whole) return null;
  const command = kind === 'command' ? commandOf(whole) : '';
  return <pre tabIndex={0} class={command ? 'command' : ''} aria-label={t`Input`}>{command || pretty(whole)}</pre>;
}

/** Returns the text of an input, which may be a reference, and whether it is loaded. */
export function useInput(value: ToolCall['toolInput'], round = 0, connected = true): { text: string; state: State } {
  const [read, setRead] = useState<{ key: string; text: string; state: State }>({ key: '', text: '', state: 'loading' });
  const uri = isObject(value) ? text(value.uri) : '';
  const key = `${round} ${uri}`;
  useLayoutEffect(() => {
    if (!uri || read.key === key && read.state === 'shown') return;
    let gone = false;
    const done = (now: string, state: State) => { if (!gone) setRead({ key, text: now, state }); };
    (async () => {
      const now = textOfRead(await requests.read(uri));
      if (!now.trim()) throw new Error(t`It is empty.`);
      done(now, 'shown');
    })().catch((err) => done('', { why: t`The input could not be read: ${err.message}`, press: t`Try again` }));
    return () => { gone = true; };
  }, [key, connected]);
  if (!uri) return { text: text(value), state: 'shown' };
  return read.key === key ? read : { text: '', state: 'loading' };
}

export function atobText(data: string): string {
  return new TextDecoder().decode(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
}
