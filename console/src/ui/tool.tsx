// A tool call: what it does, what it was given, what came of it, and what it waits for.

import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { sortOptions } from '../answers';
import { app } from '../app';
import { array, isObject, text } from '../store';
import type { Json } from '../reduce';
import { baseName, commandOf, plain, toolTone, toolWord } from '../words';
import { Badge, Copy, Icon } from './bits';
import { FileEdits } from './edits';
import { Markdown } from './markdown';
import { showMcp } from './mcpcalls';
import { Raw, isPicture } from './turn';

interface Props { turnId: string; call: Json; readOnly: boolean; connected: boolean; answer?: string }

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
    Object.assign(at.current!, { parts: { extra: extra.current } });
    showMcp(at.current!, call);
  }, [call]);
  const state = toolWord(call);
  const pending = call.status === 'pending-confirmation';
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
          {!pending && <Inside call={call} kind={kind} />}
        </details>
        {pending && <Approval turnId={turnId} call={call} kind={kind} readOnly={readOnly} connected={connected} answer={answer} />}
        {call.status === 'pending-result-confirmation' && <ResultApproval turnId={turnId} call={call} readOnly={readOnly} connected={connected} answer={answer} />}
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
function Inside({ call, kind }: { call: Json; kind: string }) {
  const content = array(call.content).filter(isObject);
  const failure = text(call.error?.message);
  return (
    <>
      <Input value={call.toolInput ?? call.partialInput} kind={kind} />
      {content.map((c, i) => <Content key={i} content={c} />)}
      {failure && <pre class="error" tabIndex={0} aria-label="Error">{failure}</pre>}
      {call.selectedOption && <p class="dim">Answered: {text(call.selectedOption.label)}</p>}
    </>
  );
}

function Content({ content }: { content: Json }) {
  switch (content.type) {
    case 'text':
      return <Output value={text(content.text)} />;
    case 'fileEdit':
      return <FileEdits edits={[content]} />;
    case 'terminal':
      return (
        <div class="terminal-ref">
          {text(content.result?.preview) && <Output value={text(content.result.preview)} />}
          <button type="button" class="chip" onClick={() => app.showPane({ kind: 'terminal', channel: text(content.resource), title: text(content.title) })}><Icon name="command" /><span>{text(content.title) || 'Terminal'}</span></button>
          {content.result?.exitCode !== undefined && <span class="dim">exit {content.result.exitCode}</span>}
        </div>
      );
    case 'subagent':
      return (
        <button type="button" class="chip" onClick={() => app.chooseChat(text(content.resource))}><Icon name="agent" /><span>{text(content.title) || 'Subagent'}</span>{text(content.description) && <span class="dim">{text(content.description)}</span>}</button>
      );
    case 'embeddedResource':
    case 'image':
      if (isPicture({ contentType: content.contentType ?? content.mimeType, data: content.data })) {
        return <img class="picture" src={`data:${content.contentType ?? content.mimeType};base64,${content.data}`} alt={text(content.label) || 'Picture'} />;
      }
      break;
    case 'resource':
      if (text(content.uri)) return <button type="button" class="chip" onClick={() => app.showPane({ kind: 'file', channel: text(content.uri) })}><Icon name="file" /><span>{baseName(content.uri)}</span></button>;
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
  const whole = useReferred(value);
  if (!whole) return null;
  const command = kind === 'command' ? commandOf(whole) : '';
  return <pre tabIndex={0} class={command ? 'command' : ''} aria-label="Input">{command || pretty(whole)}</pre>;
}

/** The text of an input that may be a reference. */
export function useReferred(value: Json): string {
  const [read, setRead] = useState({ uri: '', text: '' });
  const uri = isObject(value) ? text(value.uri) : '';
  useLayoutEffect(() => {
    if (!uri) return;
    let gone = false;
    app.read(uri).then(
      (r) => { if (!gone) setRead({ uri, text: r.encoding === 'base64' ? atobText(r.data) : text(r.data) }); },
      (err) => { if (!gone) setRead({ uri, text: `It could not be read: ${err.message}` }); });
    return () => { gone = true; };
  }, [uri]);
  if (!uri) return text(value);
  return read.uri === uri ? read.text : 'Reading…';
}

export function atobText(data: string): string {
  return new TextDecoder().decode(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
}

function pretty(input: string): string {
  try {
    const parsed = JSON.parse(input);
    return isObject(parsed) ? JSON.stringify(parsed, null, 2) : input;
  } catch {
    return input;
  }
}

// ---- approving

const dangerous = 0.5; // a safety below this wants a second look

function riskOf(call: Json): { text: string; danger: boolean; loading: boolean } {
  const risk = call.riskAssessment;
  if (!isObject(risk)) return { text: '', danger: false, loading: false };
  if (risk.status === 'loading') return { text: '', danger: false, loading: true };
  return { text: text(risk.reason), danger: typeof risk.safety === 'number' && risk.safety < dangerous, loading: false };
}

function Approval({ turnId, call, kind, readOnly, connected, answer }: Props & { kind: string }) {
  const [armed, setArmed] = useState('');
  const [edited, setEdited] = useState<string | undefined>(undefined);
  const input = useReferred(call.toolInput);
  const risk = riskOf(call);
  const title = text(call.confirmationTitle) || 'May the agent do this?';
  const what = text(call.invocationMessage);
  const options = array(call.options).filter((o) => isObject(o) && text(o.label));
  const { once, deny, wider } = options.length > 0 ? sortOptions(options) : { once: [{ id: '', label: 'Allow', kind: 'approve' }], deny: [{ id: '', label: 'Deny', kind: 'deny' }], wider: [] };
  if (!options.some((o) => o.kind === 'deny') && deny.length === 0) deny.push({ id: '', label: 'Deny', kind: 'deny' });
  const decide = (o: Json) => {
    const approved = o.kind !== 'deny';
    if (approved && risk.danger && armed !== o.label) {
      setArmed(o.label);
      return;
    }
    app.answer({ id: turnId }, call, approved, o.id ? o : undefined, approved ? edited : undefined);
  };
  const button = (o: Json, className: string) => (
    <button key={o.id + o.label} type="button" class={armed === o.label ? 'danger armed' : className} disabled={answer !== undefined || !connected} onClick={() => decide(o)}>
      {armed === o.label ? `Yes, ${text(o.label)}` : text(o.label)}
    </button>
  );
  const shown = kind === 'command' ? commandOf(input) : pretty(input);
  return (
    <div class="approval">
      {what && what !== title && <div class="what"><Markdown text={what} /></div>}
      {call.edits && <FileEdits edits={array(call.edits.items)} open />}
      {shown && edited === undefined && <div class="input"><pre tabIndex={0} class={kind === 'command' ? 'command' : ''} aria-label="Input">{shown}</pre><Copy text={() => shown} /></div>}
      {edited !== undefined && <textarea class="command" aria-label="Input to approve" value={edited} onInput={(e) => setEdited(e.currentTarget.value)} />}
      {(risk.text || risk.loading) && (
        <p class={`risk${risk.danger ? ' danger' : risk.loading ? '' : ' low'}`} role="note"><Icon name="alert" /><span>{risk.loading ? 'The risk is being looked at…' : risk.text}</span></p>
      )}
      {readOnly ? <p class="dim">Waits for somebody who may answer.</p> : (
        <div class="question" role="group" aria-label={title} data-ask>
          <p class="name">{armed ? 'The host marks this as dangerous. Look again.' : title}</p>
          <div class="answers">
            {once.map((o, i) => button(o, i === 0 ? 'primary' : ''))}
            {deny.map((o) => button(o, ''))}
          </div>
          {(wider.length > 0 || call.editable) && (
            <div class="answers wider">
              {wider.map((o) => button(o, 'quiet'))}
              {call.editable && edited === undefined && typeof call.toolInput === 'string' && <button type="button" class="quiet" onClick={() => setEdited(text(call.toolInput))}>Edit first</button>}
            </div>
          )}
          {answer && <span class="dim" role="status">sent: {answer}…</span>}
        </div>
      )}
    </div>
  );
}

function ResultApproval({ turnId, call, readOnly, connected, answer }: Props) {
  const title = 'May the agent use this result?';
  if (readOnly) return <p class="dim">Waits for somebody who may answer.</p>;
  const button = (label: string, approved: boolean, className: string) => (
    <button type="button" class={className} disabled={answer !== undefined || !connected} onClick={() => app.answer({ id: turnId }, call, approved)}>{label}</button>
  );
  return (
    <div class="question" role="group" aria-label={title} data-ask>
      <p class="name">{title}</p>
      <div class="answers">{button('Allow', true, 'primary')}{button('Deny', false, '')}</div>
      {answer && <span class="dim" role="status">sent…</span>}
    </div>
  );
}
