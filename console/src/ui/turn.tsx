// A turn: the prompt, the agent's work and the end.

import type { VNode } from 'preact';
import { useState } from 'preact/hooks';
import { absent, conversation, nav, rights, view } from '../app';
import { array, ofTurn, text, type Pending } from '../store';
import type { ChangesetRef, ChatMessage, ChatState, Part as AnswerPart, ToolCall, Turn as AnyTurn } from '../ahp';
import { canSpeak, speak } from '../speech';
import { lasted, lastLine, pathOf, roughly, together, when } from '../words';
import { Copy, Icon, Menu, Raw, isPicture } from './bits';
import { Markdown } from './markdown';
import { memo } from './memo';
import { Question } from './question';
import { Tool } from './tool';
import { waitsForUser } from './waits';
import { plural, t } from '../language';

interface Props {
  turn: AnyTurn; agent: string; channel: string; pending?: Pending; active: boolean; live: boolean; connected: boolean; leaves: boolean; last: boolean; readOnly: boolean;
  day: number; // changes when relative times change
  level: string; // changes with the rights
  answers: number; // counts changes of answers, for the turn that may have questions
  givers?: ReadonlyMap<string, string>;
  changesets?: ChangesetRef[]; // of the session
}

export const Turn = memo(({ turn, agent, channel, pending, active, live, connected, leaves, last, readOnly, level }: Props) => {
  const parts = array(turn.responseParts);
  const doing = parts.some(waitsForUser) ? '' : live ? t`working…` : active ? t`The connection was lost while the agent worked.` : '';
  const who = turn.message?.origin?.kind;
  return (
    <article class={`turn${pending ? ' pending' : ''}${live ? ' live' : ''}`} aria-busy={live} data-turn={turn.id}>
      <div class="prompt">
        <span class="unseen">{who === 'user' || !who ? t`User` : who}: </span>
        <Said text={text(turn.message?.text)} />
        <Attachments of={turn.message} />
        <span class="dim time">{when(turn.startedAt)}</span>
      </div>
      {!pending && (
        <div class="reply">
          <p class="by"><span class="name">{agent}</span>{modelOf(turn) && <span class="dim">{modelOf(turn)}</span>}</p>
          <div class="parts">
            <Parts parts={parts} channel={channel} draw={(part, i) => <Part key={keyOf(part, i)} part={part} turn={turn} channel={channel} live={live && i === parts.length - 1} level={level} readOnly={readOnly} connected={connected} leaves={leaves} answer={answerOf(channel, part, leaves)} by={giverOf(channel, part)} line={part?.toolCall?.status === 'running' ? lastLine(part.toolCall, (c) => view.link?.store.get(c)) : ''} />} />
          </div>
          {doing && <p class={parts.at(-1)?.kind === 'markdown' ? 'progress steady' : 'progress'}>{doing}</p>}
        </div>
      )}
      <div class="outcome">
        <Outcome turn={turn} pending={pending} last={last} connected={connected} />
        {!active && !pending && turn.state && <Foot turn={turn} parts={parts} last={last} may={connected && !readOnly} />}
      </div>
    </article>
  );
});

function modelOf(turn: AnyTurn): string {
  return text(turn.usage?.model) || text(turn.message?.model?.name) || text(turn.message?.model?.id);
}

const longPrompt = 900; // characters, or
const longLines = 12;

/** A prompt. A long prompt is folded. */
function Said({ text: said }: { text: string }) {
  const [open, setOpen] = useState(false);
  const long = said.length > longPrompt || said.split('\n').length > longLines;
  return (
    <>
      <p class={long && !open ? 'text folded' : 'text'} dir="auto">{said}</p>
      {long && <button type="button" class="quiet small" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? t`Show less` : t`Show all`}</button>}
    </>
  );
}

const fewestSteps = 3;

/** Whether a part is a finished tool call that needs no attention. A call with an app does not count. */
function isStep(part: AnswerPart): boolean {
  const call = part?.toolCall;
  return part?.kind === 'toolCall' && call?.status === 'completed' && call.success !== false && call.contributor?.kind !== 'mcp';
}

/**
 * The parts of an answer. Consecutive finished tool calls are folded into one line. Their nodes stay, because
 * an app in a call would be loaded again.
 */
function Parts({ parts, channel, draw }: { parts: AnswerPart[]; channel: string; draw: (part: AnswerPart, i: number) => VNode }) {
  const [open, setOpen] = useState<string[]>([]); // first keys of the runs that are unfolded
  const all: VNode[] = [];
  for (let i = 0; i < parts.length;) {
    let end = i;
    while (end < parts.length && isStep(parts[end])) end++;
    const folds = end - i >= fewestSteps;
    const first = keyOf(parts[i], i);
    const shown = open.includes(first);
    if (folds) {
      const names = [...new Set(parts.slice(i, end).map((p) => text(p.toolCall!.displayName) || text(p.toolCall!.toolName)))].filter(Boolean);
      const took = lasted(together(parts.slice(i, end).map((p) => view.link?.store.ranFor(channel, p.toolCall!))));
      all.push(<button key={`steps ${first}`} type="button" class="steps quiet small" aria-expanded={shown} onClick={() => setOpen(shown ? open.filter((k) => k !== first) : [...open, first])}>
        <Icon name="down" /><span class="name">{[plural(end - i, '{0} step', '{0} steps'), took].filter(Boolean).join(' · ')}</span><span class="dim says">{names.join(', ')}</span></button>);
    }
    for (end = Math.max(end, i + 1); i < end; i++) {
      const part = draw(parts[i], i);
      all.push(parts[i]?.kind === 'toolCall' ? <div key={keyOf(parts[i], i)} hidden={folds && !shown}>{part}</div> : part);
    }
  }
  return <>{all}</>;
}

function keyOf(part: AnswerPart, i: number): string {
  return part.kind === 'toolCall' ? `call ${part.toolCall?.toolCallId}` : `${part.kind} ${i}`;
}

/**
 * Returns the user's answer until the host confirms it. For an absent host, it is the answer in the item at
 * the relay.
 */
function answerOf(channel: string, part: AnswerPart, leaves: boolean): string | undefined {
  const id = part.toolCall?.toolCallId ?? part.request?.id;
  if (leaves) return absent.left?.waitsFor(text(id))?.content?.title;
  return id === undefined ? undefined : view.link?.store.answerOf(channel, id);
}

/** Returns the person who gave a part's answer, or ''. */
function giverOf(channel: string, part: AnswerPart): string {
  const call = part.toolCall;
  const type = call ? call.reason === 'result-denied' ? 'chat/toolCallResultConfirmed' : 'chat/toolCallConfirmed' : 'chat/inputCompleted';
  return view.link?.store.giverOf(channel, type, (call?.toolCallId ?? part.request?.id)!) ?? '';
}

interface PartProps { part: AnswerPart; turn: AnyTurn; channel: string; live: boolean; level: string; readOnly: boolean; connected: boolean; leaves: boolean; answer?: string; by: string; line: string }

const Part = memo(({ part, turn, live, readOnly, connected, leaves, answer, by, line }: PartProps) => {
  switch (part.kind) {
    case 'markdown':
      return <Markdown text={text(part.content)} live={live} />;
    case 'reasoning':
      return <details class="thinking"><summary>{t`Thinking`}</summary><Markdown text={text(part.content)} live={live} /></details>;
    case 'toolCall':
      return <Tool turnId={turn.id} call={part.toolCall ?? {} as ToolCall} readOnly={readOnly || !rights.mayApprove} connected={connected} leaves={leaves} answer={answer} by={by} line={line} />;
    case 'inputRequest':
      return <Question part={part} readOnly={readOnly} connected={connected} leaves={leaves} ended={turn.state !== undefined} answer={answer} by={by} />;
    case 'error':
      return <p class="text error">{text(part.error?.message) || t`Something failed.`}</p>;
    case 'systemNotification':
      return <div class="system dim">{typeof part.content === 'string' ? <p class="text">{part.content}</p> : <Markdown text={text(part.content)} />}</div>;
    case 'contentRef':
      return <button type="button" class="chip" onClick={() => nav.showPane({ kind: 'file', channel: text(part.uri) })}><Icon name="file" /><span>{pathOf(text(part.uri))}</span></button>;
  }
  return <Raw what={text(part.kind) || t`something`} value={part} />;
});

function Attachments({ of }: { of: ChatMessage | undefined }) {
  const all = array(of?.attachments);
  if (all.length === 0) return null;
  return (
    <ul class="pictures">
      {all.map((a, i) => (
        <li key={i}>{isPicture(a) ? <img src={`data:${a.contentType};base64,${a.data}`} alt={text(a.label)} /> : <span class="chip"><Icon name="file" />{text(a.label) || text(a.type)}</span>}</li>
      ))}
    </ul>
  );
}

function Outcome({ turn, pending, last, connected }: { turn: AnyTurn; pending?: Pending; last: boolean; connected: boolean }) {
  if (pending && !pending.failed) return <p class="dim">{t`sending…`}</p>;
  if (pending) {
    return (
      <>
        <p class="error">{pending.failed}</p>
        <div class="row start"><button type="button" disabled={!connected} onClick={() => conversation.sendAgain(pending)}>{t`Send again`}</button><button type="button" onClick={() => conversation.discard(pending)}>{t`Discard`}</button></div>
      </>
    );
  }
  if (turn.state === 'cancelled') return <p class="dim">{t`Stopped.`}</p>;
  if (turn.state !== 'error') return null;
  const end = array(turn.responseParts).at(-1);
  return (
    <>
      {!array(turn.responseParts).some((p) => p.kind === 'error') && <p class="error">{text(turn.error?.message) || t`This turn failed.`}</p>}
      {last && connected && rights.operatesAll() && <SignInAgain />}
      {last && connected && rights.mayOperate && end?.kind === 'error' && end.resumable === true && <button type="button" onClick={() => conversation.resume(turn)}>{t`Try again from here`}</button>}
    </>
  );
}

/** Offers a new sign-in after a failure, because the agent may need a token. */
export function SignInAgain() {
  const { link, session } = view;
  const provider = link?.store.get(session)?.provider;
  const agent = link?.store.agents.find((a) => a?.provider === provider);
  const resources = agent ? link!.unsigned(agent) : [];
  if (resources.length === 0) return null;
  return <button type="button" class="primary" onClick={() => nav.open({ kind: 'sign-in', link: link!, who: text(agent!.displayName) || provider!, resources })}>{t`Sign in to ${text(resources[0].resource_name) || resources[0].resource}`}</button>;
}

/** Returns the changesets of a turn, from session and chat. */
function changesOf(turn: AnyTurn): { channel: string; title: string }[] {
  const { link, session, chatUri } = view;
  return ofTurn([...array(link?.store.get(session)?.changesets), ...array(link?.store.get<ChatState>(chatUri)?.changesets)], turn.id);
}

function Foot({ turn, parts, last, may }: { turn: AnyTurn; parts: AnswerPart[]; last: boolean; may: boolean }) {
  const { inputTokens, outputTokens, model } = turn.usage ?? {};
  const changes = changesOf(turn);
  const said = parts.filter((p) => p.kind === 'markdown').map((p) => text(p.content)).join('\n\n');
  const facts = [text(model), inputTokens !== undefined || outputTokens !== undefined ? t`${roughly(inputTokens ?? 0)} → ${roughly(outputTokens ?? 0)} tokens` : '', lasted(turn.duration!)].filter(Boolean);
  return (
    <div class="foot dim">
      {said && <Copy text={() => said} label={t`Copy the answer`} />}
      {facts.length > 0 && <details class="facts"><summary title={t`About this turn`}>{lasted(turn.duration!) || facts[0]}</summary><span>{facts.join(' · ')}</span></details>}
      {may && (
        <Menu label={t`More about this turn`}>
          {last && <button type="button" onClick={() => conversation.again(turn)}>{t`Send again`}</button>}
          {conversation.mayFork && rights.mayOperate && <button type="button" onClick={() => conversation.fork(turn)}>{t`Continue from here in a new chat`}</button>}
          {changes.map(({ channel, title }) => <button key={channel} type="button" onClick={() => nav.showPane({ kind: 'changes', channel, title })}>{title}</button>)}
          <button type="button" onClick={() => { navigator.clipboard?.writeText(nav.addressOf({ ...view.here, pane: null, turn: turn.id })).catch(() => {}); }}>{t`Copy a link to this`}</button>
          {said && canSpeak() && <button type="button" onClick={() => speak(said)}>{t`Read aloud, or stop`}</button>}
          {!last && rights.mayOperate && <button type="button" class="danger" onClick={() => nav.open({ kind: 'confirm', title: t`Delete later turns?`, says: t`This deletes all turns after this one.`, yes: t`Delete`, act: () => conversation.backTo(turn) })}>{t`Delete later turns`}</button>}
        </Menu>
      )}
    </div>
  );
}
