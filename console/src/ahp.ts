// The shapes of AHP that the page shares between its parts. Types only.

/** JSON from a host. Hosts are not trusted, so check a value before using it. */
export type Json = any; // eslint-disable-line @typescript-eslint/no-explicit-any

/** A JSON object whose members have not been checked. */
export type JsonObject = Record<string, Json>;

export type Action = { type: string; [name: string]: Json };

export interface Origin { clientId: string; clientSeq: number }

/** An action as the host publishes it. */
export interface Envelope {
  channel: string;
  serverSeq: number;
  action: Action;
  origin?: Origin;
  rejectionReason?: Json;
}

/** A channel's state, including everything up to fromSeq. */
export interface Snapshot { resource: string; state: JsonObject; fromSeq: number }

/** The outcome of a handshake: see Connection. */
export interface Sync { fresh: boolean; snapshots: Snapshot[]; actions: Envelope[]; missing: string[] }

/** An error object of JSON-RPC. */
export interface ErrorObject { code: number; message: string; data?: Json }

/** A JSON-RPC message. mcp:// messages name their channel at the top level. */
export interface Message { jsonrpc?: '2.0'; id?: Json; method?: string; params?: Json; channel?: string; result?: Json; error?: ErrorObject }

/** A content block of MCP. */
export interface Block { type?: string; text?: string; [name: string]: Json }

/** AhpMcpUiHostCapabilities: the methods served on a server's channel. */
export interface McpCapabilities {
  serverTools?: { listChanged?: boolean };
  serverResources?: { listChanged?: boolean };
  logging?: JsonObject;
  sampling?: { tools?: JsonObject };
}

/** The state of an MCP server that needs a token. */
export interface AuthRequired {
  kind: 'authRequired';
  reason?: string;
  resource?: JsonObject;
  requiredScopes?: Json;
  description?: Json;
}

/** An MCP server in a session's state. */
export interface McpServer {
  id: string;
  name?: Json;
  channel?: string;
  state?: { kind: string } & JsonObject;
  mcpApp?: { capabilities?: McpCapabilities };
}

/** A tool as its MCP server lists it. */
export interface Tool { name?: string; _meta?: JsonObject; [name: string]: Json }

/** A tool call in a turn. */
export interface ToolCall {
  toolCallId: string;
  toolName?: Json;
  displayName?: Json;
  status: string;
  toolInput?: string;
  content?: Block[];
  structuredContent?: Json;
  success?: boolean;
  reason?: Json;
  error?: { message?: string };
  auth?: AuthRequired;
  contributor?: { kind: string; customizationId: string };
  _meta?: JsonObject;
}

/** The result of resources/read and canvasReadResource. */
export interface ResourceContents { contents?: { uri?: string; mimeType?: string; text?: string; blob?: string; _meta?: JsonObject }[] }
