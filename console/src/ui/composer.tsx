// The message editor.

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { app, absent, conversation, hosts } from '../app';
import { visible } from '../approval';
import type { Attachment } from '../conversation';
import type { ChatState, Turn } from '../ahp';
import { array } from '../store';
import { canDictate, dictate } from '../speech';
import { keepDraft, keptDraft } from '../unsent';
import { Icon, Menu, isNarrow, isPicture, isTouch } from './bits';
import { both, draftOf, handedFiles } from './drafts';
import { later } from './later';
import { useLeaving } from './leaving';
import { waitsForUser } from './waits';
import { placeOf } from '../words';
import { t } from '../language';

const mostFile = 8 << 20; // bytes
const mostFiles = 8;

const WakeAt = later<{ id: string; value: string; set: (value: string) => void }>(() => import('./left').then((m) => m.WakeAt));

/** Returns the turn that had not ended when the host was last seen. */
export function openTurn(chat: ChatState | undefined): Turn | undefined {
  const last = array(chat?.turns).at(-1);
  return chat?.activeTurn ?? (last && last.state === undefined ? last : undefined);
}

export function Composer({ chat }: { chat: ChatState }) {
  const { link, host, session } = app;
  const leaves = absent.takes;
  const chatUri = app.chatUri ?? session;
  const at = useRef<HTMLTextAreaElement>(null);
  const pick = { picture: useRef<HTMLInputElement>(null), camera: useRef<HTMLInputElement>(null), file: useRef<HTMLInputElement>(null) };
  const [value, setValue] = useState(() => draftOf(host, chatUri, app.chat ? '' : session));
  const to = useRef(chatUri); // the chat whose text this is, or the session until its chat is known
  const attached = conversation.attachments.get(placeOf(host, chatUri)) ?? [];
  const [said, setSaid] = useState('');
  const [hears, setHears] = useState<{ stop: () => void }>(); // dictation, while it runs
  useEffect(() => () => hears?.stop(), [hears]);
  const live = Boolean(link?.live && link.store.get(chatUri));
  const works = Boolean(chat.activeTurn) && !leaves;
  const leaving = useLeaving();
  const [wake, setWake] = useState(''); // when to wake the host for the message
  const stoppable = leaves ? openTurn(chat) : undefined;
  const waits = Boolean(link?.store.pending.some((p) => p.channel === chatUri && !p.failed));
  const empty = value.trim() === '' && attached.length === 0;

  const [writes, setWrites] = useState(false); // the user writes although the agent waits for an answer
  const asks = array(chat.activeTurn?.responseParts).some(waitsForUser);
  useEffect(() => { if (!asks) setWrites(false); }, [asks]);

  const write = (text: string) => {
    setValue(text);
    keepDraft(host, to.current, text);
  };
  useLayoutEffect(() => {
    const from = to.current;
    if (from === chatUri || chatUri === session) return;
    to.current = chatUri;
    if (from !== session) { // the session has another first chat
      setValue(draftOf(host, chatUri, ''));
      return;
    }
    keepDraft(host, from, '');
    write(both(keptDraft(host, chatUri), value));
    const files = conversation.attachments.get(placeOf(host, from));
    conversation.attachments.delete(placeOf(host, from));
    if (files) attach(host, chatUri, files);
  }, [chatUri]);
  const send = (how: 'queued' | 'steering' = 'queued') => {
    const text = at.current!.value;
    if (leaving.busy || (text.trim() === '' && attached.length === 0) || !conversation.send(text, attached, how)) return;
    write('');
    setSaid('');
    conversation.attachments.delete(placeOf(host, chatUri));
    (document.querySelector('#log') as HTMLElement).scrollTop = 1e9;
    toPrompt();
  };
  const leave = async () => {
    if (empty || leaving.busy || attached.length > 0) return;
    setSaid('');
    if (!await leaving.leave(() => absent.leaveMessage(value, wake))) return;
    const now = at.current?.value ?? keptDraft(host, to.current);
    write(now.startsWith(value) ? now.slice(value.length).trimStart() : now); // the user may have written more in the meantime
    setWake('');
    toPrompt();
  };
  // The focus would be lost with a pressed button that vanishes, or that is replaced. On touch screens
  // the editor gets no focus, because that would open the keyboard.
  const toPrompt = () => { if (!isTouch()) at.current?.focus({ preventScroll: true }); };
  const add = async (list: Iterable<File>) => {
    setSaid('');
    const added: Attachment[] = [];
    for (const file of list) {
      if (file.size > mostFile) setSaid(t`${file.name} is larger than 8 MB.`);
      else {
        try {
          added.push({ label: file.name || t`picture`, data: await base64(file), contentType: file.type || 'application/octet-stream', displayKind: file.type.startsWith('image/') ? 'image' : 'document' });
        } catch (err) { // a file in a cloud, without a network
          setSaid(`${file.name}: ${t`It could not be read: ${(err as Error).message}`}`);
        }
      }
    }
    attach(host, to.current, added);
  };
  const listen = () => {
    if (hears) hears.stop();
    else setHears(dictate((words) => write([at.current?.value.trim(), words].filter(Boolean).join(' ')), () => setHears(undefined)));
  };
  const chosen = (e: { currentTarget: HTMLInputElement }) => {
    add([...(e.currentTarget.files ?? [])]);
    e.currentTarget.value = '';
  };
  const folders = app.folders;
  useEffect(() => { // text that another app shares
    handedFiles().then((files) => { if (files.length) add(files); });
  }, []);
  useLayoutEffect(() => {
    const node = at.current;
    if (!node) return;
    if (CSS.supports('field-sizing', 'content')) return;
    node.style.height = 'auto';
    node.style.height = `${Math.min(node.scrollHeight + 2, 200)}px`;
  }, [value]);

  if (asks && empty && !writes && isNarrow() && !leaves) {
    return (
      <div class="composer gives-way">
        <button id="write-instead" type="button" class="small" onClick={() => setWrites(true)}>{t`Write a message`}</button>
        <button id="stop" class="small" type="button" disabled={!live} onClick={() => conversation.stop()}>{t`Stop the agent`}</button>
      </div>
    );
  }
  return (
    <form id="composer" class="composer" onSubmit={(e) => { e.preventDefault(); if (leaves) leave(); else send(); }}
      onDragOver={(e) => e.preventDefault()} onDrop={(e) => { e.preventDefault(); add(e.dataTransfer?.files ?? []); }}>
      {attached.length > 0 && (
        <ul class="pictures" aria-label={t`Goes with the message`}>
          {attached.map((a, i) => (
            <li key={a.label + i}>
              {'data' in a && isPicture(a) ? <img src={`data:${a.contentType};base64,${a.data}`} alt={a.label} /> : <span class="chip"><Icon name="file" /><span>{a.label}</span></span>}
              <button type="button" class="round" aria-label={t`Remove ${a.label}`} onClick={() => { conversation.attachments.set(placeOf(host, chatUri), attached.toSpliced(i, 1)); app.draw(); toPrompt(); }}><Icon name="close" /></button>
            </li>
          ))}
        </ul>
      )}
      {conversation.context.map(([from, { label, text }], i) => (
        <div key={i} class="context row">
          <details class="grow"><summary>{t`${label || t`An app`} adds to your next message`}</summary><pre tabIndex={0}>{visible(text)}</pre></details>
          <button type="button" class="quiet round" aria-label={t`Do not add it`} onClick={() => { conversation.addContext(from, '', ''); toPrompt(); }}><Icon name="close" /></button>
        </div>
      ))}
      <div class="composer-row">
        {!leaves && <Menu label={t`Attach`} icon="clip">
          {isTouch() && <button type="button" onClick={() => pick.camera.current!.click()}>{t`Take a photo`}</button>}
          <button type="button" onClick={() => pick.picture.current!.click()}>{t`Picture`}</button>
          <button type="button" onClick={() => pick.file.current!.click()}>{t`File on this device`}</button>
          {folders.length > 0 && <button type="button" onClick={() => app.showPane({ kind: 'files', channel: folders[0] })}>{t`File in the session`}</button>}
        </Menu>}
        <input ref={pick.camera} type="file" accept="image/*" capture="environment" aria-label={t`Photo`} hidden onChange={chosen} />
        <input ref={pick.picture} type="file" accept="image/*" multiple aria-label={t`Pictures`} hidden onChange={chosen} />
        <input ref={pick.file} type="file" multiple aria-label={t`Files`} hidden onChange={chosen} />
        <label class="unseen" for="prompt">{t`Message to the agent`}</label>
        <textarea id="prompt" ref={at} rows={1} value={value} placeholder={works ? t`Next message` : t`Message to the agent`} enterkeyhint="send" aria-describedby="composer-note"
          onInput={(e) => write(e.currentTarget.value)}
          onPaste={(e) => { const list = [...(e.clipboardData?.files ?? [])]; if (list.length) { e.preventDefault(); add(list); } }}
          onKeyDown={(e) => {
            // On a touch keyboard, only Enter can insert a line break.
            if (e.key !== 'Enter' || e.shiftKey || e.isComposing || isTouch()) return;
            e.preventDefault();
            if (leaves) leave();
            else send(e.ctrlKey || e.metaKey ? 'steering' : 'queued');
          }} />
        {canDictate() && <button type="button" id="dictate" class="quiet round" aria-label={hears ? t`Stop dictation` : t`Dictate`} title={t`Dictate`} aria-pressed={hears !== undefined} onClick={listen}><Icon name="mic" /></button>}
        {works && !empty && <button type="button" id="steer" disabled={!live} onClick={() => send('steering')}>{t`Steer`}</button>}
        {leaves && <button id="leave" class="primary" type="submit" disabled={empty || leaving.busy || attached.length > 0}>{t`Send when back`}</button>}
        {!leaves && (!works || !empty) && <button id="send" class="primary round" type="submit" disabled={!live || leaving.busy || (!works && waits)} aria-label={works ? t`Send when it is done` : t`Send`} title={works ? t`Send when it is done` : t`Send`}><Icon name="up" /></button>}
        {stoppable && !absent.left?.waitsFor(String(stoppable.id)) && (
          <button id="leave-stop" class="danger round" type="button" disabled={leaving.busy} aria-label={t`Stop when back`} title={t`Stop when back`} onClick={() => leaving.leave(() => absent.left?.leaveStop(stoppable))}><Icon name="stop" /></button>
        )}
        {works && <button id="stop" class="danger round" type="button" disabled={!live} aria-label={t`Stop`} title={t`Stop`} onClick={() => { conversation.stop(); toPrompt(); }}><Icon name="stop" /></button>}
      </div>
      {leaves && hosts.mayWake(app.host) && <WakeAt id="leave-wake" value={wake} set={setWake} />}
      <p id="composer-note" class="dim" role="status">{said || (leaves ? leaving.why || (attached.length > 0 ? t`Files cannot wait at the relay. Remove them to leave the message.` : t`Your message waits at the relay until the host is back.`) : note(chat, live))}</p>
    </form>
  );
}

/** Has files go with the next message of a chat. */
export function attach(host: string, chat: string, added: Attachment[]): void {
  const place = placeOf(host, chat);
  const all = [...(conversation.attachments.get(place) ?? []), ...added];
  conversation.attachments.set(place, all.slice(0, mostFiles));
  if (all.length > mostFiles) conversation.note = t`A message takes ${mostFiles} files at most.`;
  app.draw();
}

async function base64(file: File): Promise<string> {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let binary = '';
  for (let i = 0; i < bytes.length; i += 0x8000) binary += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(binary);
}

function note(chat: ChatState, live: boolean): string {
  const { link } = app;
  if (live && link?.store.refusal) return link.store.refusal;
  if (!live) return t`Not connected. You can write now and send when the page is live again.`;
  if (conversation.note) return conversation.note;
  if (array(chat?.activeTurn?.responseParts).some(waitsForUser)) return t`The agent waits for your answer.`;
  return '';
}
