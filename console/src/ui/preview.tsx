// Opens ports of the host's machine in the browser.

import { useEffect, useRef, useState } from 'preact/hooks';
import { nav, requests, view } from '../app';
import { elsewhere } from '../canvas';
import { array, text } from '../store';
import type { Result } from '../ahp';
import { Dialog } from './bits';
import { when } from '../words';
import { t } from '../language';

export function Previews() {
  const [open, setOpen] = useState<NonNullable<Result<'relay/previews'>['previews']>>([]);
  const [said, setSaid] = useState('');
  const port = useRef<HTMLInputElement>(null);
  const channel = view.session;
  const act = async (work: () => Promise<void>) => {
    try {
      await work();
      setOpen(array((await requests.request('relay/previews', { channel })).previews));
      setSaid('');
    } catch (err) {
      setSaid((err as { code?: number }).code === -32601 ? t`This relay has no domain for the host’s pages (--canvas-domain).` : (err as Error).message);
    }
  };
  useEffect(() => { act(async () => {}); }, [channel]);
  // Open the tab at once: browsers allow it only during a click.
  const show = (number: number) => {
    const tab = window.open('', '_blank');
    act(async () => {
      try {
        const url = elsewhere((await requests.request('relay/preview', { channel, port: number })).url, location.origin);
        if (!url) throw new Error(t`The relay sent no address.`);
        if (!tab) throw new Error(t`The browser blocked the new tab: allow pop-ups for this page.`);
        tab.opener = null;
        tab.location.replace(url);
      } catch (err) {
        tab?.close();
        throw err;
      }
    });
  };
  const submit = (e: Event) => {
    e.preventDefault();
    show(port.current!.valueAsNumber);
  };
  return (
    <Dialog title={t`Host’s ports`} id="previews" onClose={() => nav.open(null)}>
      <form class="fields" onSubmit={submit}>
        <p class="dim">{t`Opens a server on the host’s machine, such as a development server, in this browser.`}</p>
        <label for="preview-port">{t`Port`}</label>
        <input id="preview-port" ref={port} type="number" inputMode="numeric" min={1} max={65535} required data-focus />
        <p class="error" role="status">{said}</p>
        <div class="row start"><button class="primary" type="submit">{t`Open`}</button></div>
        {open.map((p) => (
          <div key={p.id} class="row" data-preview={p.port}>
            <span class="grow">{p.port} <span class="dim">{t`since ${when(p.since)}`}</span></span>
            <button type="button" onClick={() => show(p.port)}>{t`Open`}</button>
            <button type="button" class="danger" onClick={() => act(async () => { await requests.request('relay/previewClose', { channel, id: text(p.id) }); })}>{t`Close`}</button>
          </div>
        ))}
      </form>
    </Dialog>
  );
}
