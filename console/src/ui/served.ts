// The MCP servers in a session's state.

import { array } from '../store';
import type { Customization, SessionState } from '../ahp';
import { plural, t } from '../language';

/** A server, and the plugin that contains it. */
export interface Served { server: Customization; of: Customization | null }

/** The open session's servers, with their plugins. */
export function serversOf(state: SessionState | undefined): Served[] {
  const servers = (all: Customization[] | undefined, of: Customization | null) => array(all).filter((c) => c?.type === 'mcpServer').map((server) => ({ server, of }));
  return [...servers(state?.customizations, null), ...array(state?.customizations).filter((c) => c?.type !== 'mcpServer').flatMap((c) => servers(c?.children, c))];
}

/** Whether a server is in use, by the nearest decision about it. */
export function inUse(server: Customization): boolean {
  const decided = array(server.enablement);
  const nearest = ['session', 'workspace', 'global'].map((kind) => decided.find((e) => e?.kind === kind)).find(Boolean) ?? decided[0];
  return nearest ? nearest.enabled !== false : server.enabled !== false;
}

/** Returns the servers' most urgent need in a word, for the button. */
export function serversNeed(all: Pick<Served, 'server'>[]): { word: string; tone: string } {
  const count = (kind: string) => all.filter(({ server }) => inUse(server) && server.state?.kind === kind).length;
  if (count('authRequired')) return { word: t`sign in`, tone: 'wait' };
  return count('error') ? { word: plural(count('error'), '{0} failed', '{0} failed'), tone: 'bad' } : { word: '', tone: '' };
}
