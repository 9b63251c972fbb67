// A session's MCP servers: their states, tools and switches.

import { useEffect, useState } from 'preact/hooks';
import { conversation, nav, rights, view } from '../app';
import { array, text } from '../store';
import type { Action, AuthRequired, Tool } from '../ahp';
import { baseName } from '../words';
import { Badge, ServerIcon } from './bits';
import { toolsOf } from './mcpcalls';
import { inUse, serversOf, type Served } from './served';
import { t } from '../language';

const words: Record<string, [string, string]> = {
  ready: [t`ready`, 'ok'], starting: [t`starting`, ''], stopped: [t`stopped`, ''], error: [t`failed`, 'bad'], authRequired: [t`needs a sign-in`, 'wait'],
};

export function Servers() {
  const { link, session } = view;
  const all = serversOf(link?.store.get(session));
  return (
    <div class="changes">
      {all.length === 0 && <p class="empty">{t`This session has none now.`}</p>}
      {link?.store.refusal && <p class="error" role="status">{link.store.refusal}</p>}
      <ul class="cards">{all.map(({ server, of }) => <Server key={`${session} ${server.id}`} server={server} of={of} />)}</ul>
    </div>
  );
}

function Server({ server, of }: Served) {
  const { link, session } = view;
  const may = Boolean(link?.live) && rights.mayOperate;
  const on = inUse(server);
  const kind = text(server.state?.kind);
  const [word, tone] = on ? words[kind] ?? [kind || t`unknown`, ''] : [t`off`, ''];
  const name = text(server.name) || text(server.id);
  const act = (action: Action) => conversation.perform(session, { ...action, id: server.id });
  // Decisions made elsewhere are kept. A host before AHP 0.8 reads enabled.
  const toggle = (enabled: boolean) => act({ type: 'session/customizationToggled', enabled, enablement: [...array(server.enablement).filter((e) => e?.kind !== 'session'), { kind: 'session', enabled }] });
  const runs = ['ready', 'starting', 'authRequired'].includes(kind);
  return (
    <li class="item-card" data-server={server.id} data-state={on ? kind : 'off'}>
      <div class="row"><ServerIcon server={server} /><span class="name grow">{name}</span><Badge tone={tone}>{word}</Badge></div>
      <p class="dim">{[of && (text(of.name) || text(of.id)), baseName(server.uri)].filter(Boolean).join(' · ')}</p>
      {on && kind === 'error' && <pre class="error" tabIndex={0} aria-label={t`Error of ${name}`}>{text(server.state!.error?.message) || t`It does not say why.`}</pre>}
      {on && kind === 'authRequired' && text(server.state!.description) && <p class="text">{text(server.state!.description)}</p>}
      {may ? (
        <div class="row start wrap">
          <label class="check"><input type="checkbox" role="switch" checked={on} onChange={(e) => toggle(e.currentTarget.checked)} /> {t`In use`}<span class="unseen"> {name}</span></label>
          {on && kind === 'authRequired' && <button type="button" class="primary small" onClick={() => nav.signIn(name, server.state as AuthRequired)}>{t`Sign in`}</button>}
          {on && kind === 'starting' && server.state!.blocking === true && <button type="button" class="small" onClick={() => act({ type: 'session/mcpServerBackgroundRequested' })}>{t`Do not wait for it`}</button>}
          {on && runs && <button type="button" class="small" data-do="stop" onClick={() => act({ type: 'session/mcpServerStopRequested' })}>{t`Stop`}</button>}
          {on && !runs && <button type="button" class="small" data-do="start" onClick={() => act({ type: 'session/mcpServerStartRequested' })}>{kind === 'error' ? t`Try again` : t`Start`}</button>}
        </div>
      ) : null}
      {on && kind === 'ready' && text(server.channel) && <Tools key={server.channel} channel={server.channel!} name={name} />}
    </li>
  );
}

function Tools({ channel, name }: { channel: string; name: string }) {
  const [open, setOpen] = useState(false);
  const [tools, setTools] = useState<Tool[] | undefined>(undefined);
  const [why, setWhy] = useState('');
  useEffect(() => {
    if (!open || tools) return;
    let gone = false;
    toolsOf(channel).then((all) => { if (!gone) setTools(all); }, (err) => { if (!gone) setWhy((err as Error).message); });
    return () => { gone = true; };
  }, [open]);
  return (
    <details class="paste" onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>{t`Tools`}<span class="unseen"> {name}</span>{tools ? ` (${tools.length})` : ''}</summary>
      {why && <p class="dim">{t`They cannot be listed: ${why}`}</p>}
      {!tools && !why && <p class="dim">{t`Asking…`}</p>}
      {tools && <dl class="tools-of">{tools.map((t) => [<dt><code>{text(t?.name)}</code></dt>, <dd class="dim">{text(t?.description) || text(t?.title)}</dd>])}</dl>}
    </details>
  );
}
