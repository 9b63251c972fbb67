// The types of AHP data read by the page. They add no code to the page.
// Hosts are not trusted. Each member that a host may omit is optional, so the compiler demands a check;
// text(), array() and isObject() in store.ts read values of any type. Members of unknown type are unknown.
// Store.snapshot() gives every turn a list of parts.

/** An object whose members have not been checked. */
export type JsonObject = Record<string, unknown>;

/** A host's text: plain, or in Markdown. text() reads it. */
export type Words = string | { markdown?: string };

// ---- messages

/** An action as a client sends it. */
export type Action = { type: string } & JsonObject;

export interface Origin { clientId: string; clientSeq: number }

/** An action as the host publishes it. */
export interface Envelope {
  channel: string;
  serverSeq: number;
  action: Action;
  origin?: Origin;
  rejectionReason?: Words;
}

/** A channel's state after all actions up to fromSeq. */
export interface Snapshot { resource: string; state: State; fromSeq: number }

/** The outcome of a handshake: see Connection. */
export interface Sync { fresh: boolean; snapshots: Snapshot[]; actions: Envelope[]; missing: string[] }

/** An error object of JSON-RPC. */
export interface ErrorObject { code: number; message: string; data?: { supportedVersions?: unknown; [name: string]: unknown } }

/** The id of a JSON-RPC request. */
export type Id = string | number;

/** A JSON-RPC message. mcp:// messages name their channel at the top level. */
export interface Message { jsonrpc?: '2.0'; id?: Id; method?: string; params?: Params; channel?: string; result?: unknown; error?: ErrorObject }

/** A host's error inside a state. */
export interface Fault { message?: Words; [name: string]: unknown }

/** The parameters of a notification or a request, whose members have not been checked. */
export interface Params {
  channel?: string;
  session?: string;
  summary?: Summary;
  changes?: Partial<Summary>;
  [name: string]: unknown;
}

/** The results of methods of the host and of its host-agent. */
export interface Results {
  initialize: { serverSeq?: unknown; snapshots?: unknown; protocolVersion?: string; serverInfo?: { name?: string; version?: string }; defaultDirectory?: Words; _meta?: JsonObject };
  reconnect: Recovered;
  subscribe: { snapshot?: Snapshot };
  listSessions: { items?: Summary[]; nextCursor?: string };
  resourceRead: Read;
  resourceList: { entries?: Entry[] };
  resolveSessionConfig: Config;
  sessionConfigCompletions: { items?: { value?: unknown; label?: Words }[] };
  invokeChangesetOperation: { message?: Words; followUp?: { content?: { uri?: string } } } | undefined;
  canvasReadResource: ResourceContents;
  'relay/answers': { answers?: Given[] };
  'relay/canvasTicket': { url?: string; expires?: string };
  'relay/preview': { url?: string };
  'relay/previews': { previews?: { id?: string; port: number; since?: string }[] };
  'relay/private': { sessions?: string[] };
  'relay/rememberKeys': { tenant: string; keyId: string; verifier: string; key?: string; records?: Record<string, string>; blind?: boolean; ids?: Record<string, string> };
  'relay/signIn': { id?: string; code?: string; where?: string; whole?: string; url?: string; redirect?: string };
  'relay/waitingKeys': { tenant?: string; subject?: string; host?: unknown; devices?: unknown[]; blind?: unknown };
  'tools/list': { tools?: Tool[]; nextCursor?: unknown };
  'resources/read': ResourceContents;
}

/** The result of a method. */
export type Result<M extends string> = M extends keyof Results ? Results[M] : JsonObject;

/** The result of reconnect, in all versions of AHP. */
export interface Recovered {
  type?: string;
  snapshots?: Snapshot[];
  actions?: Envelope[];
  missing?: string[];
  channels?: { kind?: string; channel: string; snapshot: Snapshot; actions?: Envelope[] }[];
}

/** The person who gave an answer: see hostagent/given.go. */
export interface Given { type?: string; id?: string; subject?: string; device?: string }

/** The content of a file. */
export interface Read { data?: unknown; encoding?: unknown; contentType?: string }

/** An entry of a folder. */
export interface Entry { name: string; type?: string }

// ---- the root

/** An agent's model. */
export interface Model { id: string; name?: Words; policyState?: string; maxContextWindow?: number; _meta?: JsonObject }

/** A resource for which an agent or a server needs a token. */
export interface Resource {
  resource?: string; resource_name?: Words; required?: boolean; authorization_servers?: unknown; scopes_supported?: unknown;
  oauthClient?: OAuthClient;
}

export interface OAuthClient { clientId?: string; clientSecret?: string }

export interface Agent {
  provider: string;
  displayName?: Words;
  description?: Words;
  models?: Model[];
  protectedResources?: Resource[];
  capabilities?: { multipleChats?: { fork?: boolean } };
}

/** A terminal in the root's list. */
export interface TerminalRef { resource: string; title?: Words; claim?: Claim }

/** The owner of a terminal. */
export interface Claim { kind?: string; session?: string; clientId?: string }

export interface RootState { agents?: Agent[]; activeSessions?: number; terminals?: TerminalRef[]; config?: Config }

// ---- sessions

/** A property of a session's options, as a JSON schema. */
export interface Option {
  type?: string; title?: Words; description?: Words; category?: string; default?: unknown; readOnly?: boolean; sessionMutable?: boolean;
  enum?: unknown[]; enumLabels?: Words[]; enumDescriptions?: Words[]; enumDynamic?: boolean; bypass?: unknown[];
}

/** A session's options and their values. */
export interface Config { schema?: { properties?: Record<string, Option> }; values?: JsonObject }

/** A session in a list. */
export interface Summary {
  resource: string;
  provider?: string;
  title?: Words;
  status: number; // bits
  activity?: Words;
  modifiedAt?: string;
  project?: { displayName?: Words };
  workingDirectories?: string[];
  workingDirectory?: string; // before AHP 0.9
  changes?: { files?: number; additions?: number; deletions?: number };
}

/** A set of changes in a session's or a chat's catalogue. */
export interface ChangesetRef { uriTemplate: string; label?: Words; capabilities?: { review?: unknown } }

/** A chat in a session's list. */
export interface ChatSummary {
  resource: string; title?: Words; status: number; interactivity?: string; parentChat?: string; origin?: { kind?: string; chat?: string };
}

/** A canvas in a session's or a chat's list. */
export interface CanvasRef {
  channel: string; resource?: string; registered?: boolean; title?: Words; displayName?: Words; canvasId?: string; instanceId?: string; availability?: string; url?: string;
}

/** A decision on the use of a plugin or server. */
export interface Enablement { kind?: string; enabled?: boolean }

/** A plugin, or an MCP server. */
export interface Customization extends McpServer { type?: string; children?: Customization[]; uri?: string; enabled?: boolean; enablement?: Enablement[]; icons?: Icon[] }

/** An icon of an MCP server. */
export interface Icon { src?: unknown; theme?: string }

/** A request of a session that waits for a person. */
export interface InputNeeded { id: string; kind?: string }

/** A client that takes part in a session. */
export interface ActiveClient { clientId: string }

export interface SessionState extends Omit<Summary, 'resource'> {
  lifecycle?: string;
  creationError?: Fault;
  config?: Config;
  chats?: ChatSummary[];
  defaultChat?: string;
  changesets?: ChangesetRef[];
  customizations?: Customization[];
  inputNeeded?: InputNeeded[];
  activeClients?: ActiveClient[];
  activeClient?: ActiveClient;
  artifacts?: { uri: string }[];
  serverTools?: unknown;
  canvases?: unknown; // since AHP 0.10, of the session's clients
  openCanvases?: CanvasRef[];
  _meta?: { git?: { branchName?: Words; baseBranchName?: Words } } & JsonObject;
}

// ---- chats

/** A file or bytes that go with a message. */
export interface MessageAttachment { type?: string; label?: Words; data?: string; contentType?: string; uri?: string }

/** A person's or an agent's message. */
export interface ChatMessage {
  text?: Words;
  origin?: { kind?: string };
  model?: { id?: string; name?: Words };
  attachments?: MessageAttachment[];
}

/** The tokens that a turn has used. */
export interface TurnUsage { model?: Words; inputTokens?: number; outputTokens?: number; cacheReadTokens?: number; _meta?: { cost?: unknown; currency?: unknown; contextUsed?: unknown; contextSize?: unknown; quotaSnapshots?: unknown } }

/** A turn. Its parts are a list even if the host has sent none. */
export interface Turn {
  id: string;
  startedAt: string;
  message?: ChatMessage;
  responseParts: Part[];
  usage?: TurnUsage;
  state?: string; // of a turn that has ended
  duration?: number; // ms
  error?: Fault;
}

/** A part of an answer. */
export interface Part {
  kind?: string;
  id?: string;
  content?: Words; // of text
  toolCall?: ToolCall;
  request?: Request; // a question
  response?: string; // its answer
  error?: Fault;
  resumable?: boolean;
  uri?: string;
}

/** A message that waits for the end of a turn. */
export interface Queued { id: string; message?: ChatMessage }

export interface ChatState {
  resource?: string;
  title?: Words;
  status: number;
  activity?: Words;
  interactivity?: string;
  turns: Turn[];
  activeTurn?: Turn;
  turnsNextCursor?: string;
  modifiedAt?: string;
  steeringMessage?: Queued;
  queuedMessages?: Queued[];
  draft?: unknown;
  config?: Config;
  workingDirectories?: string[];
  changesets?: ChangesetRef[];
  canvases?: { resource: string }[];
  backgroundWork?: { id: string }[];
  movable?: unknown;
}

// ---- tool calls

/** A content block of MCP, or a part of a tool's result. */
export interface Block {
  type?: string; text?: string; uri?: string; resource?: string; title?: Words; label?: Words; description?: Words;
  contentType?: string; mimeType?: string; data?: string;
  result?: { preview?: Words; exitCode?: number };
}

/** An answer that a host offers to a request. */
export interface Choice { id?: string; label?: Words; kind?: string }

/** A side of a change to a file. */
export interface Side { uri?: string; content?: { uri?: string } }

/** A change to a file. */
export interface FileEdit extends Block { before?: Side; after?: Side; diff?: { added?: number; removed?: number } }

/** A tool call in a turn. */
export interface ToolCall {
  toolCallId: string;
  toolName?: Words;
  displayName?: Words;
  intention?: Words;
  status: string;
  invocationMessage?: Words;
  pastTenseMessage?: Words;
  toolInput?: string | { uri?: string };
  partialInput?: string;
  content?: FileEdit[];
  structuredContent?: unknown;
  success?: boolean;
  reason?: string;
  reasonMessage?: Words;
  userSuggestion?: unknown;
  error?: { message?: string };
  auth?: AuthRequired;
  contributor?: Contributor;
  confirmed?: string;
  selectedOption?: Choice;
  confirmationTitle?: Words;
  riskAssessment?: { status?: string; safety?: number; reason?: Words };
  edits?: { items?: FileEdit[] };
  editable?: boolean;
  options?: Choice[];
  _meta?: JsonObject & { ui?: JsonObject };
}

/** The program that provides a tool. */
export interface Contributor { kind: string; customizationId?: string; clientId?: string }

// ---- questions

/** A choice in a question. */
export interface QuestionOption { id: string; label?: Words; description?: Words; recommended?: boolean; default?: boolean }

export interface QuestionItem {
  id: string; kind?: string; title?: Words; message?: Words; options?: QuestionOption[]; defaultValue?: unknown; required?: boolean;
  allowFreeformInput?: boolean; format?: string; min?: number; max?: number;
}

/** An answer to a question, or its draft. */
export interface QuestionAnswer { state?: string; value?: { kind?: string; value?: unknown; freeformValues?: string[] } }

/** A plan for which the agent wants a decision. */
export interface PlanReview { title?: Words; content?: Words; planUri?: string; answerQuestionId?: string; canProvideFeedback?: boolean; actions?: QuestionOption[] }

/** An agent's request for input. */
export interface Request { id: string; message?: Words; url?: string; questions?: QuestionItem[]; answers?: Record<string, QuestionAnswer>; planReview?: PlanReview }

// ---- changesets, terminals, canvases

/** A changed file. */
export interface ChangedFile { id: string; edit?: FileEdit; reviewed?: boolean }

/** An operation that the host offers for changes. */
export interface Operation {
  id: string; label?: Words; description?: Words; confirmation?: Words; scopes?: string[]; status?: string; error?: Fault; _meta?: JsonObject;
}

export interface ChangesetState { title?: Words; status?: string; files: ChangedFile[]; operations?: Operation[]; error?: Fault }

/** A piece of a terminal's output. */
export interface TerminalPiece { type?: string; value?: string; output?: string; commandId?: string; commandLine?: string; timestamp?: unknown; isComplete?: boolean; exitCode?: number; durationMs?: number }

export interface TerminalState {
  title?: Words; content?: TerminalPiece[]; claim?: Claim; lifecycle?: { status?: string; exitCode?: number }; exitCode?: number;
  cols?: number; rows?: number; cwd?: string; supportsCommandDetection?: boolean;
}

export interface CanvasState {
  title?: Words; status?: Words; url?: string; contentUri?: string; availability?: string; instanceId?: string; canvasId?: string; displayName?: Words;
  provider?: { kind?: string; clientId?: string };
}

/** The state of a channel. Callers of Store.get() name the kind of the channel. */
export type State = Partial<RootState | SessionState | ChatState | ChangesetState | TerminalState | CanvasState>;

// ---- MCP

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
  resource?: Resource;
  requiredScopes?: unknown;
  description?: Words;
  oauthClient?: OAuthClient;
}

/** The state of an MCP server. */
export interface ServerState extends Omit<AuthRequired, 'kind'> { kind: string; error?: Fault; blocking?: boolean }

/** An MCP server in a session's state. */
export interface McpServer {
  id: string;
  name?: Words;
  channel?: string;
  state?: ServerState;
  mcpApp?: { capabilities?: McpCapabilities };
}

/** A tool as its MCP server lists it. */
export interface Tool { name?: string; title?: Words; description?: Words; _meta?: { ui?: { visibility?: unknown; resourceUri?: unknown } } & JsonObject }

/** The result of resources/read and canvasReadResource. */
export interface ResourceContents { contents?: { uri?: string; mimeType?: string; text?: string; blob?: string; _meta?: JsonObject }[] }

// ---- the members of each family's actions, as reduce.ts reads them

export interface RootAction { agents?: Agent[]; activeSessions?: number; terminals?: TerminalRef[] }

/** A change of options. */
export interface ConfigAction { replace?: boolean; config?: JsonObject }

export interface SessionAction extends ConfigAction {
  error?: Fault; title?: Words; isRead: boolean; isArchived: boolean; activity?: Words; _meta?: JsonObject; changesets?: ChangesetRef[]; tools?: unknown;
  summary: ChatSummary; chat: string; changes: Partial<ChatSummary>; chats?: string[]; defaultChat?: string;
  activeClient: ActiveClient; clientId: string; directory: string; replacement: string;
  request: InputNeeded; id: string; artifact: { uri: string }; uri?: string;
  customizations?: Customization[]; customization?: Customization; enablement?: Enablement[]; enabled?: boolean; state?: ServerState; channel?: string;
  canvases?: unknown; openCanvases?: CanvasRef[];
}

export interface ChatAction extends ConfigAction {
  turnId: string; startedAt: string; message?: ChatMessage; queuedMessageId?: string; part?: Part; partId?: string; content?: unknown; usage?: TurnUsage; activity?: Words;
  turns?: Turn[]; turnsNextCursor?: string; duration?: number; error?: Fault;
  toolCallId: string; toolName?: Words; displayName?: Words; intention?: Words; contributor?: Contributor; _meta?: JsonObject; invocationMessage?: Words; toolInput?: ToolCall['toolInput'];
  confirmed?: string; options?: Choice[]; confirmationTitle?: Words; riskAssessment?: ToolCall['riskAssessment']; edits?: ToolCall['edits']; editable?: boolean;
  selectedOptionId?: string; approved?: boolean; reason?: string; reasonMessage?: Words; userSuggestion?: unknown; editedToolInput?: string;
  result?: Partial<ToolCall>; requiresResultConfirmation?: boolean; auth?: AuthRequired;
  request?: Request; requestId: string; questionId: string; answer?: QuestionAnswer; answers?: Record<string, QuestionAnswer>; response?: string;
  id: string; kind?: string; order?: string[]; draft?: unknown; directory: string;
  work?: { id: string }; backgroundWork?: { id: string }; movable?: unknown; changesets?: ChangesetRef[]; canvases?: { resource: string }[]; isRead: boolean; isArchived: boolean;
}

export interface ChangesetAction {
  status?: string; error?: Fault; file: ChangedFile; fileId: string; files: ChangedFile[] & string[]; reviewed?: boolean; operations?: Operation[]; operationId: string;
}

/** A comment on a place in a file. The page does not show it. */
export interface Annotation { id: string; entries?: { id: string }[]; [name: string]: unknown }

export interface AnnotationAction { annotation: Annotation; annotationId: string; entry: { id: string }; entryId: string; [name: string]: unknown }

export interface TerminalAction {
  data?: string; cols?: number; rows?: number; claim?: Claim; title?: Words; cwd?: string; exitCode?: number; commandId?: string; commandLine?: string; timestamp?: unknown; durationMs?: number;
}

export interface CanvasAction { canvas?: CanvasState; [name: string]: unknown }

export interface AutomationAction { automation: { resource: string }; resource: string }

export interface AutomationRunAction { lifecycle?: unknown; session: string; primarySession?: string }
