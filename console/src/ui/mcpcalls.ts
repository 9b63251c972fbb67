// Connects MCP tool calls with their extras: see mcp.ts.

import { app, conversation, rights } from '../app';
import { McpCalls, type McpNode } from '../mcp';
import type { Tool, ToolCall } from '../ahp';

const calls = new McpCalls({
  draw: () => app.draw(),
  send: (words) => conversation.send(words),
  mcp: (channel, method, params) => app.mcp(channel, method, params),
  mcpNotify: (channel, method, params) => app.mcpNotify(channel, method, params),
  context: (from, label, words) => conversation.addContext(from, label, words),
  host: () => app.host,
  signIn: (name, wants) => app.signIn(name, wants),
});

app.mcpSaid = (channel, method, params) => calls.serverSaid(channel, method, params);

/** Lists the tools of the server at a channel. */
export function toolsOf(channel: string): Promise<Tool[]> {
  return calls.toolsOf(channel);
}

export function showMcp(node: McpNode, call: ToolCall): void {
  calls.show(node, call);
}

/** Updates the MCP tool calls after the page was drawn. */
export function settled(): void {
  calls.render({
    live: Boolean(app.link?.live),
    readOnly: rights.readOnly,
    mcpServer: (id: string) => app.link?.store.mcpServer(app.session, id),
  });
}
