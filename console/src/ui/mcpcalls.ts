// Connects MCP tool calls with their extras: see mcp.ts.

import { app } from '../app';
import { McpCalls } from '../mcp';
import type { Json } from '../reduce';

const calls = new McpCalls({
  draw: () => app.draw(),
  send: (words: string) => app.send(words),
  mcp: (channel: string, method: string, params: unknown) => app.mcp(channel, method, params),
  mcpNotify: (channel: string, method: string, params: unknown) => app.mcpNotify(channel, method, params),
  context: (from: object, label: string, words: string) => app.addContext(from, label, words),
  host: () => app.host,
  signIn: (who: string, wants: unknown) => app.signIn(who, wants),
});

app.mcpSaid = (channel, method, params) => calls.serverSaid(channel, method, params);

/** The tools that the server at a channel lists. */
export function toolsOf(channel: string): Promise<Json[]> {
  return calls.toolsOf(channel);
}

export function showMcp(node: HTMLElement, call: unknown): void {
  calls.show(node, call);
}

/** Brings them in step, after the page was drawn. */
export function settled(): void {
  calls.render({
    live: Boolean(app.link?.live),
    readOnly: app.readOnly,
    mcpServer: (id: string) => app.link?.store.mcpServer(app.session, id),
  });
}
