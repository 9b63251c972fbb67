// A tool call waiting for the user, with its answers.

import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { sortOptions } from '../answers';
import { absent, conversation, rights } from '../app';
import { assessing, inputId, isWhole, offerOf, piecesOf, requestKey, riskOf, visible, type Offer, type State } from '../approval';
import { array, isObject, text } from '../store';
import type { Choice, ToolCall } from '../ahp';
import { commandIn, pretty } from '../words';
import { Copy, Dialog, Icon } from './bits';
import { FileEdits, type Reading } from './edits';
import { useLeaving } from './leaving';
import { Markdown } from './markdown';
import { useSettled } from './settled';
import { Inside, useInput, type Props } from './toolparts';
import { useWritten } from './written';
import { plural, t } from '../language';

const unread: State = { why: t`Some of it has not loaded.`, press: t`Read it first` };

/** Tracks how much of a request is loaded, and loads the rest. folded: the changed lines that are folded. */
function useReading(call: ToolCall, connected: boolean): { reading: Reading; stateOf: (id: string) => State; folded: number; readFirst: () => void } {
  const [states, setStates] = useState<Record<string, [State, number]>>({});
  const [round, setRound] = useState(0);
  const report = useRef((id: string, state: State, lines = 0) => setStates((had) => (had[id]?.[0] === state && had[id][1] === lines ? had : { ...had, [id]: [state, lines] }))).current;
  const folded = piecesOf(call).reduce((n, { id }) => n + (states[id]?.[1] ?? 0), 0);
  return { reading: { round, connected, report }, stateOf: (id) => states[id]?.[0] ?? unread, folded, readFirst: () => setRound((n) => n + 1) };
}

/** Asks the user whether a tool call may run. */
export function Approval({ turnId, call, kind, readOnly, connected, leaves: away, answer }: Props & { kind: string }) {
  const key = requestKey(call);
  const { reading, stateOf, folded, readFirst } = useReading(call, connected);
  const [goesOn, setGoesOn] = useState(''); // key of the request that the user continues without the host's risk assessment
  const [entered, write] = useWritten(`${turnId} ${call.toolCallId}`, () => ({ key: '', text: '' }));
  const at = useRef<HTMLDivElement>(null);
  const input = useInput(call.toolInput, reading.round, connected);
  const uri = isObject(call.toolInput) ? text(call.toolInput.uri) : '';
  const offer = offerOf(call, (id) => (id === inputId(uri) ? input.state : stateOf(id)), goesOn === key);
  const edited = entered.key === key ? entered.text : undefined;
  const changed = edited === call.toolInput ? undefined : edited;
  const title = visible(text(call.confirmationTitle)) || t`May the agent do this?`;
  const what = visible(text(call.invocationMessage).replaceAll('\r\n', '\n'));
  const leaves = away && isWhole(call);
  const editable = !away && rights.mayOperate && call.editable === true && typeof call.toolInput === 'string' && edited === undefined;
  return (
    <div class="approval" data-risk={riskOf(call).kind} ref={at}>
      {(readOnly || offer.why !== assessing) && <Risk call={call} />}
      {what && what !== title && <div class="what"><Markdown text={what} /></div>}
      {isObject(call.edits) && <FileEdits edits={array(call.edits.items)} reading={reading} />}
      {input.state === 'loading' && <p class="dim">{t`Reading…`}</p>}
      {input.text && edited === undefined && <Asked input={input.text} kind={kind} />}
      {edited !== undefined && <textarea class="command" aria-label={t`Input to approve`} value={edited} onInput={({ currentTarget }) => write(() => ({ key, text: currentTarget.value }))} />}
      {away && !readOnly && (!leaves || changed !== undefined) && <p class="why">{leaves ? t`Your change cannot wait at the relay. You can allow it when the host is back.` : t`A part of this request is only at the host. It can be answered when the host is back.`}</p>}
      {readOnly ? <p class="dim">{t`Waits for a user with the right to answer.`}</p> : (
        <Decision turnId={turnId} call={call} title={title} offer={offer} folded={folded} shown={edited ?? input.text} input={changed} connected={connected} leaves={leaves} answer={answer}
          edit={editable ? () => write(() => ({ key, text: text(call.toolInput) })) : undefined}
          readFirst={() => {
            readFirst();
            if (riskOf(call).kind === 'loading') setGoesOn(key);
            at.current?.querySelector<HTMLElement>('pre, .diff, summary, .what')?.scrollIntoView({ block: 'nearest' });
          }} />
      )}
    </div>
  );
}

/** Asks the user whether the agent may use a tool's result. */
export function ResultApproval({ turnId, call, kind, readOnly, connected, answer }: Props & { kind: string }) {
  const { reading, stateOf, folded, readFirst } = useReading(call, connected);
  const at = useRef<HTMLDivElement>(null);
  return (
    <div class="approval" ref={at}>
      <Inside call={call} kind={kind} reading={reading} />
      {readOnly ? <p class="dim">{t`Waits for a user with the right to answer.`}</p> : (
        <Decision turnId={turnId} call={call} title={t`May the agent use this result?`} offer={offerOf(call, stateOf, false)} folded={folded} connected={connected} leaves={false} answer={answer}
          readFirst={() => {
            readFirst();
            at.current?.querySelector<HTMLElement>('.chip')?.click();
          }} />
      )}
    </div>
  );
}

/** Shows a tool's whole input: a command first, and then everything else in the input. */
function Asked({ input, kind }: { input: string; kind: string }) {
  const { command, whole } = kind === 'command' ? commandIn(input) : { command: '', whole: false };
  const shown = visible(command || pretty(input));
  return (
    <>
      <div class="input" dir="ltr"><pre tabIndex={0} class={kind === 'command' ? 'command' : ''} aria-label={t`Input`}>{shown}</pre><Copy text={() => command || pretty(input)} /></div>
      {command && !whole && <details class="more"><summary>{t`Complete input`}</summary><pre tabIndex={0} aria-label={t`Complete input`}>{visible(pretty(input))}</pre></details>}
    </>
  );
}

function Risk({ call }: { call: ToolCall }) {
  const risk = riskOf(call);
  if (risk.kind === 'none' || risk.kind === 'low' && !risk.text) return null;
  const words = { danger: t`The host marks this as dangerous.`, loading: assessing, low: '' }[risk.kind];
  return <div class={`risk ${risk.kind}`} role="note">{risk.kind !== 'low' && <Icon name="alert" />}<span>{words && <strong>{words} </strong>}<bdi>{risk.text}</bdi></span></div>;
}

interface DecisionProps {
  turnId: string; call: ToolCall; title: string; offer: Offer; folded: number; connected: boolean; leaves: boolean; answer?: string;
  shown?: string; // input as shown
  input?: string; // input as edited by the user
  readFirst: () => void; edit?: () => void;
}

/**
 * The answers to a request. If the request or its options change, the buttons are replaced, so a press
 * on an old button has no effect. The focus stays.
 */
function Decision(props: DecisionProps) {
  const at = useRef<HTMLDivElement>(null);
  const key = `${props.offer.allow} ${requestKey(props.call)}`;
  const had = at.current?.contains(document.activeElement) === true && !at.current.querySelector('dialog[open]');
  useLayoutEffect(() => { if (had && !at.current?.contains(document.activeElement)) at.current?.querySelector<HTMLElement>('.name')?.focus(); }, [key]);
  return <div class="question" role="group" aria-label={props.title} data-ask data-offer={props.offer.allow} ref={at}><Answers key={key} {...props} /></div>;
}

function Answers({ turnId, call, title, offer, folded, shown, input, connected, leaves, answer, readFirst, edit }: DecisionProps) {
  const settled = useSettled();
  const hint = useId();
  const [asks, setAsks] = useState<Choice>();
  const options = array(call.status === 'pending-confirmation' ? call.options : []).filter((o) => isObject(o) && (text(o.label) || text(o.id)));
  const { once, deny, wider } = options.length > 0 ? sortOptions(options) : { once: [{ label: t`Allow`, kind: 'approve' }], deny: [], wider: [] };
  const no = offer.allow === 'no';
  if (deny.length === 0) deny.push({ label: no ? t`Skip` : t`Deny`, kind: 'deny' });
  const leaving = useLeaving();
  const busy = leaves ? leaving.busy : answer !== undefined || !connected;
  const barred = leaves && input !== undefined; // an item for an absent host has no edited input
  useLayoutEffect(() => { if (barred) setAsks(undefined); }, [barred]);
  const decide = (o: Choice, approved: boolean) => {
    const option = o.id ? o : undefined;
    if (leaves) leaving.leave(() => absent.left?.leaveApproval(turnId, call, approved, option));
    else conversation.answer({ id: turnId }, call, approved, option, approved ? input : undefined);
  };
  const allow = (o: Choice, className: string) => {
    const label = text(o.label) || text(o.id);
    const disabled = busy || !settled || barred;
    return offer.allow === 'hold'
      ? <Hold key={label} label={label} hint={hint} disabled={disabled} act={() => decide(o, true)} ask={() => setAsks(o)} />
      : <button key={label} type="button" class={className} disabled={disabled} onClick={() => decide(o, true)}>{label}</button>;
  };
  return (
    <>
      <p class="name" tabIndex={-1}>{title}</p>
      {no && <p class="why" role="status">{offer.why}</p>}
      {!no && folded > 0 && <p class="why">{plural(folded, '{0} changed line is folded above.', '{0} changed lines are folded above.')}</p>}
      {offer.allow === 'hold' && <p class="dim" id={hint}>{t`Hold for a second to allow.`}<span class="by-keys"> {t`The keyboard opens a dialog to confirm.`}</span></p>}
      <div class="answers">
        {no ? offer.press && <button type="button" disabled={!connected} onClick={readFirst}>{offer.press}</button> : once.map((o, i) => allow(o, i === 0 ? 'primary' : ''))}
        {deny.map((o) => <button key={o.id! + o.label} type="button" disabled={busy} onClick={() => decide(o, false)}>{text(o.label) || text(o.id)}</button>)}
      </div>
      {!no && (wider.length > 0 || edit) && (
        <div class="answers wider">
          {wider.map((o) => allow(o, 'quiet'))}
          {edit && <button type="button" class="quiet" onClick={edit}>{t`Edit first`}</button>}
        </div>
      )}
      {answer && <span class="dim" role="status">{leaves ? t`left at the relay: ${answer}` : t`sent: ${answer}…`}</span>}
      {leaving.why && <p class="error" role="alert">{leaving.why}</p>}
      {asks && <Confirm label={text(asks.label) || text(asks.id)} title={title} call={call} shown={shown} act={() => decide(asks, true)} close={() => setAsks(undefined)} />}
    </>
  );
}

const holdTime = 1000; // ms

interface HoldProps { label: string; hint: string; disabled: boolean; act: () => void; ask: () => void }

/** A button that must be held. With the keyboard or a screen reader, it opens a dialog instead. */
function Hold({ label, hint, disabled, act, ask }: HoldProps) {
  const [held, setHeld] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  const release = () => {
    clearTimeout(timer.current);
    setHeld(false);
  };
  useEffect(() => {
    addEventListener('blur', release);
    return () => {
      removeEventListener('blur', release);
      clearTimeout(timer.current);
    };
  }, []);
  useEffect(() => { if (disabled) release(); }, [disabled]);
  const press = (e: PointerEvent) => {
    const button = e.currentTarget as HTMLElement;
    if (!e.isPrimary || e.button !== 0) return;
    if (button.hasPointerCapture(e.pointerId)) button.releasePointerCapture(e.pointerId); // dragging away from the button cancels
    release();
    setHeld(true);
    timer.current = setTimeout(() => {
      setHeld(false);
      act();
    }, holdTime);
  };
  return (
    <>
      <button type="button" class="danger hold" data-held={held} disabled={disabled} aria-describedby={hint} onPointerDown={press} onPointerUp={release} onPointerLeave={release} onPointerCancel={release}
        onContextMenu={(e) => e.preventDefault()} onClick={(e) => { if (e.detail === 0) ask(); }}>
        <span>{held ? t`Keep holding…` : label}</span>
      </button>
      <button type="button" class="danger till-focus" disabled={disabled} onClick={ask}>{t`${label}: confirm in a dialog`}</button>
    </>
  );
}

function Confirm({ label, title, call, shown, act, close }: { label: string; title: string; call: ToolCall; shown?: string; act: () => void; close: () => void }) {
  const settled = useSettled();
  return (
    <Dialog title={`Dangerous: ${title}`} onClose={close}>
      <p>{riskOf(call).text || t`The host marks this as dangerous.`}</p>
      {shown && <pre tabIndex={0} aria-label={t`Input`}>{visible(shown)}</pre>}
      <div class="answers">
        <button type="button" data-focus onClick={close}>{t`Cancel`}</button>
        <button type="button" class="danger" disabled={!settled} onClick={() => { close(); act(); }}>{t`Yes, ${label}`}</button>
      </div>
    </Dialog>
  );
}
