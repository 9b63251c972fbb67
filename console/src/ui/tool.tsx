// A tool call: its purpose, input, result and pending question.

import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { app } from '../app';
import { contentId, textOfRead, type State } from '../approval';
import { array, isObject, text } from '../store';
import type { Json } from '../ahp';
import { baseName, commandOf, plain, toolTone, toolWord } from '../words';
import { Approval, ResultApproval } from './approval';
import { Badge, Icon } from './bits';
import { FileEdits, type Reading } from './edits';
import { showMcp } from './mcpcalls';
import { Raw, isPicture } from './turn';

export interface Props { turnId: string; call: Json; readOnly: boolean; connected: boolean; answer?: string }

/** What a call is, as far as can be told. */
function kindOf(call: Json): string {
  const content = array(call.content);
  const name = `${call.toolName ?? ''} ${call.displayName ?? ''}`.toLowerCase();
  if (content.some((c) => c?.type === 'terminal') || /\b(bash|shell|terminal|powershell|run|exec)/.test(name)) return 'command';
  if (call.edits || content.some((c) => c?.type === 'fileEdit') || /edit|write|patch|create_file|replace/.test(name)) return 'edit';
  if (content.some((c) => c?.type === 'subagent') || /agent|task/.test(name)) return 'agent';
  if (/web|fetch|http|browse|url/.test(name)) return 'web';
  if (/search|grep|glob|find/.test(name)) return 'search';
  if (/read|view|open|list|ls/.test(name)) return 'read';
  return call.contributor?.kind === 'mcp' ? 'app' : 'tool';
}

export function waits(call: Json): boolean {
  return ['pending-confirmation', 'pending-result-confirmation', 'auth-required'].includes(call.status);
}

/**
 * A tool call keeps its node, also through a new snapshot: an app in it would
 * have to begin anew.
 */
export function Tool({ turnId, call, readOnly, connected, answer }: Props) {
  const at = useRef<HTMLElement>(null);
  const extra = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    showMcp(Object.assign(at.current!, { parts: { extra: extra.current! } }), call);
  }, [call]);
  const state = toolWord(call);
  const pending = call.status === 'pending-confirmation';
  const result = call.status === 'pending-result-confirmation';
  const said = sayOf(call);
  const asked = text(call.confirmationTitle);
  const open = waits(call) || call.status === 'running' || call.success === false;
  const kind = kindOf(call);
  return (
    <section class="tool" data-call={text(call.toolCallId)} data-kind={kind} data-status={text(call.status)} ref={at}>
      <div class="tool-body">
        <details open={open}>
          <summary class="row">
            <Icon name={kind} /><span class="name">{text(call.displayName) || text(call.toolName) || 'Tool'}</span>
            {said && said !== asked && !pending && <span class="says">{said}</span>}
            <Badge tone={toolTone(state)}>{state}</Badge>
          </summary>
          {!pending && !result && <Inside call={call} kind={kind} />}
        </details>
        {pending && <Approval turnId={turnId} call={call} kind={kind} readOnly={readOnly} connected={connected} answer={answer} />}
        {result && <ResultApproval turnId={turnId} call={call} kind={kind} readOnly={readOnly} connected={connected} answer={answer} />}
        {call.status === 'cancelled' && text(call.reasonMessage) && <p class="text dim">{text(call.reasonMessage)}</p>}
      </div>
      <div class="tool-extra" ref={extra} />
    </section>
  );
}

function sayOf(call: Json): string {
  return (text(call.pastTenseMessage) || text(call.invocationMessage) || text(call.intention)).replace(/\s+/g, ' ').replace(/\[([^\]]*)\]\([^)]*\)/g, (_, name) => name || '').replace(/[`*]{1,2}/g, '');
}

/** Input and output. */
export function Inside({ call, kind, reading }: { call: Json; kind: string; reading?: Reading }) {
  const content = array(call.content).filter(isObject);
  const failure = text(call.error?.message);
  return (
    <>
      <Input value={call.toolInput ?? call.partialInput} kind={kind} />
      {content.map((c, i) => <Content key={i} content={c} reading={reading} />)}
      {failure && <pre class="error" tabIndex={0} aria-label="Error">{failure}</pre>}
      {call.selectedOption && <p class="dim">Answered: {text(call.selectedOption.label)}</p>}
    </>
  );
}

function Content({ content, reading }: { content: Json; reading?: Reading }) {
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
          {text(content.result?.preview) && <Output value={text(content.result.preview)} />}
          <button type="button" class="chip" onClick={() => open(() => app.showPane({ kind: 'terminal', channel: text(content.resource), title: text(content.title) }))}><Icon name="command" /><span>{text(content.title) || 'Terminal'}</span></button>
          {content.result?.exitCode !== undefined && <span class="dim">exit {content.result.exitCode}</span>}
        </div>
      );
    case 'subagent':
      return (
        <button type="button" class="chip" onClick={() => open(() => app.chooseChat(text(content.resource)))}><Icon name="agent" /><span>{text(content.title) || 'Subagent'}</span>{text(content.description) && <span class="dim">{text(content.description)}</span>}</button>
      );
    case 'embeddedResource':
    case 'image':
      if (isPicture({ contentType: content.contentType ?? content.mimeType, data: content.data })) {
        return <img class="picture" src={`data:${content.contentType ?? content.mimeType};base64,${content.data}`} alt={text(content.label) || 'Picture'} />;
      }
      break;
    case 'resource':
      if (text(content.uri)) return <button type="button" class="chip" onClick={() => open(() => app.showPane({ kind: 'file', channel: text(content.uri) }))}><Icon name="file" /><span>{baseName(content.uri)}</span></button>;
  }
  return <Raw what={text(content.type) || 'something'} value={content} />;
}

const mostOutput = 20_000; // characters that are shown at first

function Output({ value }: { value: string }) {
  const [all, setAll] = useState(false);
  const clean = plain(value);
  const cut = !all && clean.length > mostOutput;
  return (
    <>
      {cut && <button type="button" class="small" onClick={() => setAll(true)}>Show all {Math.round(clean.length / 1000)} KB</button>}
      <pre tabIndex={0} aria-label="Output">{cut ? clean.slice(-mostOutput) : clean}</pre>
    </>
  );
}

/** What a tool was given: read from the host where it is kept elsewhere. */
function Input({ value, kind }: { value: Json; kind: string }) {
  const { text: whole, state } = useInput(value);
  if (state !== 'shown') return <p class="dim">{state === 'loading' ? 'Reading…' : state.why}</p>;
  if (!whole) return null;
  const command = kind === 'command' ? commandOf(whole) : '';
  return <pre tabIndex={0} class={command ? 'command' : ''} aria-label="Input">{command || pretty(whole)}</pre>;
}

/** The text of an input that may be a reference, and how far it has been read. */
export function useInput(value: Json, round = 0, connected = true): { text: string; state: State } {
  const [read, setRead] = useState<{ key: string; text: string; state: State }>({ key: '', text: '', state: 'loading' });
  const uri = isObject(value) ? text(value.uri) : '';
  const key = `${round} ${uri}`;
  useLayoutEffect(() => {
    if (!uri || read.key === key && read.state === 'shown') return;
    let gone = false;
    const done = (now: string, state: State) => { if (!gone) setRead({ key, text: now, state }); };
    (async () => {
      const now = textOfRead(await app.read(uri));
      if (!now.trim()) throw new Error('It is empty.');
      done(now, 'shown');
    })().catch((err) => done('', { why: `The input could not be read: ${err.message}` }));
    return () => { gone = true; };
  }, [key, connected]);
  if (!uri) return { text: text(value), state: 'shown' };
  return read.key === key ? read : { text: '', state: 'loading' };
}

export function atobText(data: string): string {
  return new TextDecoder().decode(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
}

export function pretty(input: string): string {
  try {
    const parsed = JSON.parse(input);
    return isObject(parsed) ? JSON.stringify(parsed, null, 2) : input;
  } catch {
    return input;
  }
}
