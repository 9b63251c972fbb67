// Settings and questions for lending this device to an agent: see lend.ts.

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { lender, nav, view } from '../app';
import type { Ask, Instance, Kind } from '../lend';
import { text } from '../store';
import { Dialog } from './bits';
import { plural, rich, t } from '../language';

const kinds: { kind: Kind; name: string; what: string }[] = [
  { kind: 'browser', name: t`Show web pages`, what: t`Beside the session, in a sandbox. You are asked for each site; the agent does not see the page.` },
  { kind: 'camera', name: t`Ask for camera pictures`, what: t`You see the camera’s picture and choose when to send it.` },
];

/** The form for lending to the open session. */
export function Lend() {
  const { link, session } = view;
  const [chosen, setChosen] = useState<Kind[]>(link ? lender.lent(link, session) : []);
  const submit = (e: Event) => {
    e.preventDefault();
    if (link) lender.lend(link, session, chosen);
    nav.open(null);
  };
  const choose = (kind: Kind, on: boolean) => setChosen(kinds.map((k) => k.kind).filter((k) => (k === kind ? on : chosen.includes(k))));
  return (
    <Dialog title={t`Lend this device`} id="lend" onClose={() => nav.open(null)}>
      <form class="fields" onSubmit={submit}>
        <p class="dim">{t`The agent of this session may then ask this page, for as long as it is open:`}</p>
        {kinds.map(({ kind, name, what }) => (
          <div key={kind}>
            <label class="check"><input id={`lend-${kind}`} type="checkbox" checked={chosen.includes(kind)} onChange={(e) => choose(kind, e.currentTarget.checked)} /> {name}</label>
            <p class="dim">{what}</p>
          </div>
        ))}
        <div class="row start"><button class="primary" type="submit" data-focus>{t`Save`}</button></div>
      </form>
    </Dialog>
  );
}

/**
 * The agents' questions, one at a time, above everything else. When a host withdraws a question, the next one
 * must not appear under a finger that is about to press.
 */
export function Asks() {
  const [ask, ...more] = lender.asks;
  return <section id="lend-asks" class="toast asks" role="alert" aria-label={t`The agent asks for something of this device`} hidden={!ask}>{ask && <Question key={ask.key} ask={ask} more={more.length} />}</section>;
}

const rest = 600; // ms in which a press may be meant for something else
const longestTitle = 80; // characters

function Question({ ask, more }: { ask: Ask; more: number }) {
  const { link, session, what, site } = ask;
  const [ready, setReady] = useState(false);
  useEffect(() => {
    const timer = setTimeout(setReady, rest, true);
    return () => clearTimeout(timer);
  }, []);
  const title = (text(link.store.get(session)?.title) || text(link.store.sessions.get(session)?.title) || t`a session`).slice(0, longestTitle);
  const who = <>{rich`The agent of “${<bdi>{title}</bdi>}” on ${link.host}`}</>; // quotes mark the untrusted title
  const off = what === 'picture' && !lender.camera.on;
  return (
    <div class="ask-lend" data-lend={what}>
      <p>{{
        page: <>{rich`${who} wants to show you ${<b>{site}</b>}.`}</>,
        camera: <>{rich`${who} wants to look through the camera. Nothing is sent until you send a picture.`}</>,
        picture: <>{rich`${who} asks for a picture.`}{off && ` ${t`The camera is off.`}`}</>,
      }[what]}</p>
      {more > 0 && <p class="more">{plural(more, 'Another question after this.', '{0} questions after this.')}</p>}
      <div class="row start">
        <button type="button" class="no" onClick={() => ask.answer(false)}>{t`No`}</button>
        <button type="button" class="yes" disabled={!ready || off} onClick={() => ask.answer(true)}>{{ page: t`Show it`, camera: t`Open the camera`, picture: t`Send a picture` }[what]}</button>
      </div>
    </div>
  );
}

/** The camera's picture. The camera is on only while the picture and the page are visible. */
export function CameraView({ instance }: { instance: Instance }) {
  const { camera } = lender;
  const at = useRef<HTMLVideoElement>(null);
  useEffect(() => {
    camera.start();
    const hidden = () => { if (document.hidden) camera.stop(); };
    document.addEventListener('visibilitychange', hidden);
    return () => {
      document.removeEventListener('visibilitychange', hidden);
      camera.stop();
    };
  }, [instance]);
  useLayoutEffect(() => { if (at.current && at.current.srcObject !== camera.stream) at.current.srcObject = camera.stream; });
  return (
    <div class="camera" id="camera" data-on={camera.on}>
      <video ref={at} autoplay playsInline muted aria-label={t`Camera picture`} />
      <p class="dim" role="status">{camera.on ? t`Only you see this.` : camera.why ? t`The camera cannot be used: ${camera.why}` : t`The camera is off.`}</p>
      <div class="row start">
        {camera.on ? <button id="camera-off" type="button" onClick={() => camera.stop()}>{t`Turn off`}</button> : <button id="camera-on" type="button" onClick={() => camera.start()}>{t`Turn on`}</button>}
        <button type="button" onClick={() => camera.turnAround()}>{t`Other camera`}</button>
      </div>
    </div>
  );
}
