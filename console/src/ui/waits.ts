// Finds the parts of an answer waiting for the user.

import { view } from '../app';
import type { Part } from '../ahp';

export function waitsForUser(part: Part): boolean {
  if (part.kind === 'inputRequest') return part.response === undefined;
  const call = part.toolCall;
  if (call?.status === 'running' && call.contributor?.kind === 'mcp') {
    return view.link?.store.mcpServer(view.session, call.contributor.customizationId!)?.state?.kind === 'authRequired';
  }
  return call?.status === 'auth-required' || String(call?.status).startsWith('pending-');
}
