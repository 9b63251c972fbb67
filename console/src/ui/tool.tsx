// A tool call: its purpose, input, result and pending question.

import { useLayoutEffect, useRef } from 'preact/hooks';
import { view } from '../app';
import { array, text } from '../store';
import type { ToolCall } from '../ahp';
import { toolTone, toolWord, unmarked } from '../words';
import { Approval, ResultApproval } from './approval';
import { Badge, Icon, ServerIcon } from './bits';
import { showMcp } from './mcpcalls';
import { Inside, type Props } from './toolparts';
import { rich, t } from '../language';

/** Guesses a call's kind. */
function kindOf(call: ToolCall): string {
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

export function waits(call: ToolCall): boolean {
  return ['pending-confirmation', 'pending-result-confirmation', 'auth-required'].includes(call.status);
}

/** A tool call. It keeps its node after a new snapshot, because an app in it would be loaded again. */
export function Tool({ turnId, call, readOnly, connected, leaves, answer, by, line }: Props & { by: string; line: string }) {
  const at = useRef<HTMLElement>(null);
  const extra = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    showMcp(Object.assign(at.current!, { parts: { extra: extra.current! } }), call);
  }, [call]);
  const state = toolWord(call);
  const pending = call.status === 'pending-confirmation';
  const result = call.status === 'pending-result-confirmation';
  const said = line || sayOf(call);
  const asked = text(call.confirmationTitle);
  const open = waits(call) || call.status === 'running' || call.success === false;
  const kind = kindOf(call);
  return (
    <section class="tool" data-call={text(call.toolCallId)} data-kind={kind} data-status={text(call.status)} ref={at}>
      <div class="tool-body">
        <details open={open}>
          <summary class="row">
            <ServerIcon server={view.link?.store.mcpServer(view.session, text(call.contributor?.customizationId))} instead={<Icon name={kind} />} /><span class="name">{text(call.displayName) || text(call.toolName) || t`Tool`}</span>
            {said && said !== asked && !pending && <span class="says">{said}</span>}
            <Badge tone={toolTone(call)}>{state}</Badge>
          </summary>
          {!pending && !result && <Inside call={call} kind={kind} />}
        </details>
        {pending && <Approval turnId={turnId} call={call} kind={kind} readOnly={readOnly} connected={connected} leaves={leaves} answer={answer} />}
        {result && <ResultApproval turnId={turnId} call={call} kind={kind} readOnly={readOnly} connected={connected} leaves={false} answer={answer} />}
        {by && !pending && <p class="given dim">{call.reason === 'denied' || call.reason === 'result-denied' ? rich`Denied by ${<bdi>{by}</bdi>}` : rich`Allowed by ${<bdi>{by}</bdi>}`}</p>}
        {call.status === 'cancelled' && text(call.reasonMessage) && <p class="text dim">{text(call.reasonMessage)}</p>}
      </div>
      <div class="tool-extra" ref={extra} />
    </section>
  );
}

function sayOf(call: ToolCall): string {
  return unmarked(text(call.pastTenseMessage) || text(call.invocationMessage) || text(call.intention));
}
