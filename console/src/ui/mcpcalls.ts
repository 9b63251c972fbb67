// Connects MCP tool calls with mcp.ts, which is loaded with the first such call.

import { conversation, draw, nav, receivers, requests, rights, view } from '../app';
import type { McpCalls, McpNode } from '../mcp';
import type { Tool, ToolCall } from '../ahp';

let calls: McpCalls | undefined;
let loading: Promise<McpCalls> | undefined;
const waiting = new Map<McpNode, ToolCall>(); // shown while the module is loaded

function load(): Promise<McpCalls> {
  loading ??= import('../mcp').then((mcp) => {
    calls = new mcp.McpCalls({
      draw,
      send: (words) => conversation.send(words),
      mcp: (channel, method, params) => requests.mcp(channel, method, params),
      mcpNotify: (channel, method, params) => requests.mcpNotify(channel, method, params),
      context: (from, label, words) => conversation.addContext(from, label, words),
      host: () => view.host,
      signIn: (name, wants) => nav.signIn(name, wants),
    });
    receivers.mcpSaid = (channel, method, params) => calls!.serverSaid(channel, method, params);
    return calls;
  });
  loading.catch(() => { loading = undefined; }); // the next call retries
  return loading;
}

/** Lists the tools of the server at a channel. */
export async function toolsOf(channel: string): Promise<Tool[]> {
  return (await load()).toolsOf(channel);
}

export function showMcp(node: McpNode, call: ToolCall): void {
  if (calls) return calls.show(node, call);
  if (call.contributor?.kind !== 'mcp') return;
  waiting.set(node, call);
  load().then((all) => {
    for (const [at, shown] of waiting) if (at.isConnected) all.show(at, shown);
    waiting.clear();
    settled();
  }).catch(() => waiting.clear()); // the call is shown without its app
}

/** Updates the MCP tool calls after the page was drawn. */
export function settled(): void {
  calls?.render({
    live: Boolean(view.link?.live),
    signsIn: rights.operatesAll(),
    mcpServer: (id: string) => view.link?.store.mcpServer(view.session, id),
  });
}
