// An agent's question: text, numbers, choices, or a page to visit.

import { answerFor, safeUrl, type Input } from '../answers';
import { absent, conversation, nav, view } from '../app';
import { array, isObject, text } from '../store';
import type { Part, PlanReview, QuestionAnswer, QuestionItem, Request } from '../ahp';
import { Icon } from './bits';
import { addToDraft } from './drafts';
import { useLeaving } from './leaving';
import { useSettled } from './settled';
import { Markdown } from './markdown';
import { useWritten } from './written';
import { rich, t } from '../language';

interface Props { part: Part; readOnly: boolean; connected: boolean; leaves: boolean; ended: boolean; answer?: string; by: string } // leaves: the host is absent and accepts items

/** The user's input by question id. */
type Entered = Record<string, Input>;

export function Question({ part, readOnly, connected, leaves, ended, answer, by }: Props) {
  const request = part.request ?? {} as Request;
  const questions = array(request.questions).filter(isObject);
  if (part.response !== undefined || ended) return <Answered part={part} questions={questions} by={by} />;
  const key = keyOf(request);
  return (
    <section class="ask" data-request={text(request.id)}>
      {text(request.message) && <Markdown text={text(request.message)} />}
      {isObject(request.planReview) && <Plan plan={request.planReview} />}
      {readOnly ? <p class="dim">{t`Waits for a user with the right to answer.`}</p>
        : isPlan(request) ? <PlanAnswer key={key} request={request} connected={connected} leaves={leaves} answer={answer} />
          : <Form key={key} request={request} questions={questions} connected={connected} leaves={leaves} answer={answer} />}
    </section>
  );
}

/** A changed question has new buttons, and no answers yet. */
const keyOf = (request: Request) => JSON.stringify({ ...request, answers: undefined });

interface AnswerProps { request: Request; connected: boolean; leaves: boolean; answer?: string }

/**
 * Returns functions that answer: to the host, or for an absent host as an item at the relay. Words are the
 * answer as people read it. forget forgets what the user has written, once the relay has it. For a host it stays: a lost
 * connection may take the answer with it, and the host asks an answered question no more.
 */
function useReply({ request, connected, leaves, answer }: AnswerProps, forget: () => void) {
  const leaving = useLeaving();
  const reply = (response: 'accept' | 'decline', answers?: Record<string, QuestionAnswer | undefined>, words = '') => {
    if (leaves) leaving.leave(() => absent.left?.leaveReply(request, response, answers, words)).then((left) => { if (left) forget(); });
    else conversation.reply(request, response, answers);
  };
  const sends = leaves ? leaving.busy : answer !== undefined;
  return { reply, sends, busy: sends || !leaves && !connected, why: leaving.why }; // without a connection, the user can go on writing
}

function Sent({ leaves, answer, why }: { leaves: boolean; answer?: string; why: string }) {
  return <>{answer && <span class="dim" role="status">{leaves ? t`left at the relay: ${answer}` : t`sent…`}</span>}{why && <p class="error" role="alert">{why}</p>}</>;
}

function Form(props: AnswerProps & { questions: QuestionItem[] }) {
  const { request, questions, leaves, answer } = props;
  const [entered, write, forget] = useWritten<Entered>(keyOf(request), () => Object.fromEntries(questions.map((q) => [q.id, begin(q, request.answers?.[q.id])])));
  const { reply, sends, busy, why } = useReply(props, forget);
  const settled = useSettled();
  const set = (id: string, change: Input) => write((had) => ({ ...had, [id]: { ...had[id], ...change } }));
  const url = safeUrl(request.url);
  const missing = questions.find((q) => q.required && !answerFor(q, entered[q.id] ?? {}));
  const single = questions.length === 1 && questions[0].kind === 'single-select' && !questions[0].allowFreeformInput;
  const accept = (with_: Entered) => {
    const answers: Record<string, QuestionAnswer | undefined> = {};
    for (const q of questions) answers[q.id] = answerFor(q, with_[q.id] ?? {}) ?? { state: 'skipped' };
    reply('accept', questions.length ? answers : undefined, questions.map((q) => shown(q, answers[q.id])).join(', '));
  };
  return (
    <form class="question" data-ask onSubmit={(e) => { e.preventDefault(); accept(entered); }}>
      {url && <p><a class="button" href={url} target="_blank" rel="noopener noreferrer">{t`Open ${new URL(url).host}`}</a> <span class="dim">{url}</span></p>}
      {text(request.url) && !url && <p class="dim">{t`It wants to show an address that is not opened here: ${text(request.url)}`}</p>}
      {questions.map((q) => <Field key={q.id} q={q} entered={entered[q.id] ?? {}} set={(c) => set(q.id, c)} busy={single ? busy : sends} settled={settled}
        choose={single ? (id) => accept({ [q.id]: { value: id } }) : undefined} />)}
      <div class="answers">
        {!single && <button type="submit" class="primary" disabled={busy || !settled || missing !== undefined}>{questions.length ? t`Answer` : url ? t`Done` : t`Yes`}</button>}
        <button type="button" disabled={busy} onClick={() => reply('decline')}>{questions.length ? t`Skip` : t`No`}</button>
      </div>
      {missing && !single && <p class="dim">{rich`${<bdi>{text(missing.title) || text(missing.message)}</bdi>} is still needed.`}</p>}
      <Sent leaves={leaves} answer={answer} why={why} />
    </form>
  );
}

/** Whether a question reviews a plan and names the question for its answer. */
function isPlan(request: Request): boolean {
  return array(request.planReview?.actions).some(isObject) && text(request.planReview!.answerQuestionId) !== '';
}

/** The agent's plan. */
function Plan({ plan }: { plan: PlanReview }) {
  return (
    <div class="plan">
      {text(plan.title) && <h3>{text(plan.title)}</h3>}
      {text(plan.content) && <Markdown text={text(plan.content)} />}
      {text(plan.planUri) && <button type="button" class="chip" onClick={() => nav.showPane({ kind: 'file', channel: text(plan.planUri) })}><Icon name="file" /><span>{t`The whole plan`}</span></button>}
    </div>
  );
}

/** The answers to a plan: the host's options, or a request for changes. */
function PlanAnswer(props: AnswerProps) {
  const { request, leaves, answer } = props;
  const [free, write, forget] = useWritten(keyOf(request), () => '');
  const { reply, sends, busy, why } = useReply(props, forget);
  const settled = useSettled();
  const plan = request.planReview!;
  const actions = array(plan.actions).filter((a) => isObject(a) && text(a.label));
  const say = (value?: string, label?: unknown) => reply('accept', { [text(plan.answerQuestionId)]: answerFor({ kind: 'single-select' }, { value, free }) },
    [text(label), free].filter(Boolean).join(', '));
  const refuse = () => {
    if (free.trim()) addToDraft(view.host, view.chatUri!, free); // hosts take no words with a refusal
    reply('decline');
  };
  return (
    <div class="question" data-ask role="group" aria-label={text(plan.title) || t`Plan`}>
      <div class="options">
        {actions.map((a) => (
          <button key={a.id} type="button" class={a.default ? 'option primary' : 'option'} disabled={busy || !settled} onClick={() => say(a.id, a.label)}>
            <span class="name">{text(a.label)}</span>{text(a.description) && <span class="dim">{text(a.description)}</span>}
          </button>
        ))}
      </div>
      {plan.canProvideFeedback && <textarea aria-label={t`Your change`} placeholder={t`Your change`} rows={2} value={free} disabled={sends} onInput={({ currentTarget }) => write(() => currentTarget.value)} />}
      <div class="answers">
        {plan.canProvideFeedback && <button type="button" disabled={busy || !free.trim()} onClick={() => say()}>{t`Plan again with this`}</button>}
        <button type="button" disabled={busy} onClick={refuse}>{t`Do not go on`}</button>
      </div>
      <Sent leaves={leaves} answer={answer} why={why} />
    </div>
  );
}

function begin(q: QuestionItem, draft: QuestionAnswer | undefined): Input {
  if (isObject(draft?.value)) return { value: draft.value.value, free: draft.value.freeformValues?.[0] };
  if (q.defaultValue !== undefined) return { value: q.defaultValue };
  const best = array(q.options).filter((o) => o?.recommended).map((o) => o.id);
  if (q.kind === 'multi-select') return { value: best };
  return q.kind === 'single-select' && best.length ? { value: best[0] } : {};
}

const inputTypes: Record<string, string> = { email: 'email', uri: 'url', date: 'date', 'date-time': 'datetime-local', password: 'password' };

function Field({ q, entered, set, busy, settled, choose }: { q: QuestionItem; entered: Input; set: (c: Input) => void; busy: boolean; settled: boolean; choose?: (id: string) => void }) {
  const id = `q-${text(q.id)}`;
  const label = <>{text(q.title) && text(q.title) !== text(q.message) && <span class="name">{text(q.title)} </span>}<span>{text(q.message)}</span>{q.required && <span class="dim"> {t`(needed)`}</span>}</>;
  if (q.kind === 'single-select' || q.kind === 'multi-select') {
    const many = q.kind === 'multi-select';
    const chosen = many ? array(entered.value) : [entered.value];
    const toggle = (o: string) => (many ? set({ value: chosen.includes(o) ? chosen.filter((c) => c !== o) : [...chosen, o] }) : set({ value: o, free: '' }));
    return (
      <fieldset class="field" disabled={busy}>
        <legend>{label}</legend>
        <div class="options">
          {array(q.options).filter(isObject).map((o) => (choose
            ? <button key={o.id} type="button" class={o.recommended ? 'option primary' : 'option'} disabled={!settled} onClick={() => choose(o.id)}><span class="name">{text(o.label)}</span>{text(o.description) && <span class="dim">{text(o.description)}</span>}</button>
            : (
              <label key={o.id} class="option">
                <input type={many ? 'checkbox' : 'radio'} name={id} checked={chosen.includes(o.id)} onChange={() => toggle(o.id)} />
                <span><span class="name">{text(o.label)}</span>{o.recommended && <span class="badge">{t`recommended`}</span>}{text(o.description) && <span class="dim block">{text(o.description)}</span>}</span>
              </label>
            )))}
        </div>
        {q.allowFreeformInput && <input type="text" aria-label={many ? t`Something more` : t`Something else`} placeholder={many ? t`Something more` : t`Something else`} value={entered.free ?? ''} onInput={(e) => set(many ? { free: e.currentTarget.value } : { free: e.currentTarget.value, value: undefined })} />}
      </fieldset>
    );
  }
  if (q.kind === 'boolean') {
    return <label class="field check"><input type="checkbox" disabled={busy} checked={entered.value === true} onChange={(e) => set({ value: e.currentTarget.checked })} /> <span>{label}</span></label>;
  }
  const number = q.kind === 'number' || q.kind === 'integer';
  const common = { id, disabled: busy, value: String(entered.value ?? ''), required: Boolean(q.required), onInput: (e: { currentTarget: HTMLInputElement | HTMLTextAreaElement }) => set({ value: e.currentTarget.value }) };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {number ? <input {...common} type="number" min={q.min} max={q.max} step={q.kind === 'integer' ? 1 : 'any'} inputmode={q.kind === 'integer' ? 'numeric' : 'decimal'} />
        : inputTypes[q.format!] ? <input {...common} type={inputTypes[q.format!]} minLength={q.min} maxLength={q.max} />
          : <textarea {...common} rows={2} minLength={q.min} maxLength={q.max} />}
    </div>
  );
}

function Answered({ part, questions, by }: { part: Part; questions: QuestionItem[]; by: string }) {
  const answers = part.request?.answers ?? {};
  const word = { accept: '', decline: t`Skipped.`, cancel: t`Cancelled.` }[text(part.response) as string] ?? t`Not answered.`;
  return (
    <section class="ask answered">
      {text(part.request?.message) && <Markdown text={text(part.request!.message)} />}
      {isObject(part.request?.planReview) && <details><summary>{text(part.request!.planReview.title) || t`Plan`}</summary><Plan plan={{ ...part.request.planReview, title: '' }} /></details>}
      {part.response === 'accept' && questions.map((q) => <p key={q.id}><span class="dim">{text(q.title) || text(q.message)}: </span>{shown(q, answers[q.id])}</p>)}
      {word && <p class="dim">{word}</p>}
      {by && <p class="given dim">{rich`Answered by ${<bdi>{by}</bdi>}`}</p>}
    </section>
  );
}

function shown(q: QuestionItem, answer: QuestionAnswer | undefined): string {
  const v = answer?.value;
  if (!isObject(v)) return '–';
  const name = (id: unknown) => text(array(q.options).find((o) => o?.id === id)?.label) || String(id);
  const free = array(v.freeformValues).map(text);
  if (v.kind === 'selected') return [v.value ? name(v.value) : '', ...free].filter(Boolean).join(', ');
  if (v.kind === 'selected-many') return [...array(v.value).map(name), ...free].join(', ');
  return v.kind === 'boolean' ? (v.value ? t`yes` : t`no`) : String(v.value);
}
