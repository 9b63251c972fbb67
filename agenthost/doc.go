// Package agenthost is an AHP host: sessions, chats, turns, confirmations, terminals,
// files, changes and their storage. Its wire behaviour is modelled on VS Code's agent
// host. The agents behind it implement [Agent]: package acp has agents of the Agent
// Client Protocol, package scripted an agent that follows prompts without a model.
//
// # Agents
//
// A chat is a conversation with an agent. The host opens the conversation when the
// session is created, and again after it has ended ([Agent].Open), and gives it one
// prompt at a time ([Conversation].Prompt). The agent reports to a [Turn]. It may report
// in any order: the host publishes valid histories, and cuts what is too large.
//
//   - A cancel ends the context of Prompt. Clients see the turn's end at once; the host
//     gives up an agent that works on after [CancelGrace].
//   - Permissions and questions take the first answer of any client. If the selected option
//     contradicts the answer (allow or reject), the host uses an option that agrees with the
//     answer: once rather than always.
//   - Queued messages wait for the turn's end, and after an error for the end of a later
//     turn. A steering message goes to a [Steerer] at once. For other agents it waits
//     too, ahead of the queued messages.
//   - Deltas that come faster than one in 2 ms are merged.
//   - A plan is a tool call named todo, since AHP has no plans.
//   - Options are the session's config. Its schema lists the choices and switches that
//     skip permissions as bypass; [Config.NoBypass] leaves them out.
//   - Sign-in methods are offered as a question in the turn that needs them.
//   - Conversations that began elsewhere ([Lister]) are listed as sessions. When a client
//     first subscribes to such a chat, the agent reports its history, which the host
//     publishes as chat/turnsLoaded.
//
// # Storage
//
// With [Config.Storage], sessions survive the host: see package transcript. A turn's action
// is on disk before clients see it. If the host ends during a turn, the turn ends with an
// error of the type interrupted, and messages that wait are given to the agent when the host
// has started again, within a day and unless the session is archived. Turns of chats without
// subscribers are not in memory.
//
// # Repositories
//
// In a git repository, a session has the changeset <session>/changeset/session, with
// all changes since its beginning or its latest commit, and <session>/changeset/turn/<id>
// for each of its latest turns. The operation discard restores a file, unless it has
// changed since. The operation commit commits the changed files, and nothing else that
// is staged. Its _meta {"agenthost.message": true} means that the invocation may have a
// commit message in _meta under the same name; the default is the session's title. The
// session's _meta.git.branchName is the branch. The config isolation "worktree" begins a
// session in a new worktree, which disposeSession removes unless it has uncommitted work.
// Without a repository, the session's changeset has the agent's own diffs, and no
// operations.
//
// # Wire
//
// A message is one JSON-RPC 2.0 object, in one WebSocket frame, text or binary
// ([Host.ServeHTTP]), or on one line ([Host.ServeStdio]). JSON values other than
// objects, including batches, get no answer. Invalid JSON gets -32700 with a null id.
// An id may be any JSON value. Keys match exactly.
//
// The first request must be initialize or reconnect. Before it, only ping is served,
// and all other requests get -32601. So does a second initialize.
//
// # Versions and capabilities
//
// [Config.Protocol] selects the host's protocol. The host picks the highest offered
// version it accepts and returns that version:
//
//	0.8   0.8.0
//	0.9   0.9.0, 0.8.0
//	0.10  0.10.0
//	1.0   1.0.0 and later below 2, and 0.9
//	1.1   the same, with windows and cursors for each channel
//
// Otherwise the error is -32005 with data.supportedVersions. Hosts of 1.0 and 1.1 then
// close the connection; they also refuse offers with a malformed version. A host of
// 0.8 reports a terminal's end with exitCode and has no lifecycle. Clients of 0.8
// never receive chat/usage. Since 0.10 clients see registered canvases; older clients
// with capabilities.canvas see the form before 0.10. Since 1.0 session summaries have chats
// and defaultChat, and moveChat is served. With capabilities.mcpApps, MCP servers in a
// state have mcpApp and channel. Versions and capabilities belong to a connection;
// reconnect restores those from the client's latest initialize.
//
// # Channels
//
// The channels are ahp-root://, sessions <provider>:/…, their default chats
// ahp-chat://default/<base64url of the session>, terminals agenthost-terminal:…,
// resource watches ahp-resource-watch://r/…, open canvases ahp-canvas:/<id>, and
// ahp-otlp://logs/<level> without state.
//
// The action notification publishes state changes. One serverSeq numbers them for the
// whole host. An envelope is encoded once: all subscribers receive the same bytes in
// the same order, except as requested in subscribe:
//
//   - delivery.maxLatencyMs: consecutive chat/delta of one part are merged into one,
//     with all their content and the last serverSeq. All other messages for the
//     connection follow it, so serverSeq keeps its order.
//   - flowControl.receive, for clients since 1.0 at hosts of 1.1: the answer has
//     flowControl and no snapshot, and the channel is delivered in windows (see
//     Windows).
//   - view.turns: the snapshot has at most this many completed turns, and a
//     turnsNextCursor for fetchTurns. Only the snapshot changes.
//
// root/sessionAdded, root/sessionSummaryChanged and root/sessionRemoved go to every
// initialized client, subscribed or not, without serverSeq.
//
// # Windows
//
// On a windowed channel each notification's text arrives in pieces, as channel/frame
// {channel, data, final?}. The order is channel/snapshot {channel, snapshot} if the
// channel has state, then the control channel/ready, then live notifications. A frame
// has at most maximumFrameBytes. A message begins only while fewer than windowBytes
// are sent and not consumed. The client acknowledges with channel/credit {channel,
// consumedBytes}: cumulative UTF-16 bytes of message text, at a message's end. It may
// send dispatchAction in frames and receives credit for them. channel/reset, from
// either side, ends the subscription after a message over maximumMessageBytes, a
// credit inside a message, or an unreadable frame.
//
// # Clients
//
// Connections with the same clientId may be open at the same time. An answer goes to
// the connection with the request. Notifications and the host's own requests go only
// to the newest connection, according to its subscriptions. When the newest closes,
// the previous connection continues, without the messages it missed.
//
// reconnect {clientId, lastSeenServerSeq, subscriptions} is answered before any live
// action. The host keeps the last 1000 envelopes of all channels, at most 8 MiB. If they include
// lastSeenServerSeq, the answer is {type: "replay", actions, missing}, with the params
// of the original notifications; otherwise {type: "snapshot", snapshots}, where a chat has as
// many turns as in its subscription's view. A state that does not fit into the frame is left
// out, and its channel is not subscribed. An unknown clientId gets -32008.
//
// The host numbers its requests 1, 2, 3… over all clients. resourceRead of
// vscode-agent-client://<clientId>/file/-/path asks that client resourceRead {uri},
// then resourceResolve, and returns its result. vscode/devContainers/connect asks the
// requesting client vscode/requestWorkspaceTrust {workspace}.
//
// # Client actions
//
// A dispatched action is echoed to all subscribers with its origin. A malformed action
// gets no answer: a chat/turnStarted without turnId, startedAt or message, or a
// chat/turnCancelled for the active turn without duration. Actions without an effect
// here are echoed too, except unknown type families and chat/… on other channels.
// workingDirectorySet and workingDirectoryRemoved of chats and sessions, and every action on a deleted
// session's default chat are echoed with a rejectionReason.
//
// # Turns
//
// A turn ends with chat/usage and chat/turnComplete or chat/error. A new turn replaces
// an active turn. A turnId that the chat has or had is rejected. A queued message
// begins a turn when none is active; a steering message is removed when the agent gets it.
// chat/usage has in _meta, as far as the agent reports it, cost and currency of the
// conversation so far, contextUsed, contextSize, and quotaSnapshots: the limits of the
// person's plan by name, each with remainingPercentage and resetDate. An agent's tool
// call ends with _meta."agenthost.ran" {startedAt, durationMs}, without the time of a question.
//
// # Canvases
//
// The host's own provider declares [Config.Canvases] in every session. A connected
// client declares canvases as canvasProviders in session/activeClientChanged or
// session/activeClientSet. With capabilities.canvas, sessions have canvases (all
// declarations) and openCanvases, updated by session/canvasesChanged and
// session/openCanvasesChanged, and ahp-canvas:/<id> is an open instance's channel.
// Clients without the capability receive none of this.
//
// Prompts and the methods of [Host] drive the agent:
//
//	canvas update {…}            canvas/updated with title, status, url,
//	                             availability; null clears
//	canvas update                the provider changes the content's address
//	canvas stale, canvas ready   the provider goes, and comes back
//	canvas message JSON          a message to the views
//	canvas invoke ACTION JSON    a provider's action
//	canvas close                 closes the canvas
//	sign-in                      counts the tokens accepted for [Config.Resources]
//	sign-in REASON               the same, and asks all clients for new tokens:
//	                             auth/required
//
// For a client's canvas, the host sends canvasOpen, canvasInvokeAction and canvasClose
// to that client's newest connection only. The client's errors go to the agent; if the
// client is absent, the error is -32012 with data {code, message}. The canvases of a
// client without a connection are stale. After a reconnect, or a new declaration, the
// host opens each again and marks it ready.
//
// canvas/message and canvas/closeRequested are echoed to all subscribers with their
// origin. From a client without a subscription to the open canvas they are rejected,
// like every other action there, with an envelope sent only to that client. A
// closeRequested without an open canvas is ignored. A client's own canvasOpen,
// canvasInvokeAction or canvasClose gets -32009, or -32601 without the capability.
//
// [Canvas.Mode] selects how content is addressed. canvasReadResource is served for
// [CanvasChannel] to connections subscribed to the open canvas. Without a
// subscription, or for a different instance's content, the error is -32009; without an
// open canvas or the file, -32008; for a malformed address, or a path outside the
// root, -32602. Paths are decoded once. For [CanvasLoopback], and without any canvas,
// the error is -32601.
//
// Clients since 0.10 see a canvas in its session's default chat: state.canvases
// [{resource}], replaced by chat/canvasesChanged. A canvas's state has neither
// provider nor availability, and canvas/stateChanged {canvas} replaces it. Its url is
// on the web, and absent while the canvas is stale. The host's own canvases that have a
// different address in the form before 0.10 are served on loopback too. Clients since 0.10
// neither provide canvases nor send them anything.
//
// # MCP servers
//
// [Config.MCP] are real MCP servers, as in package tasks. The host talks to
// them through a pipe in memory or a process's stdio. They start with the first
// connection and serve all sessions. A session's state lists them in customizations,
// on their own or as a plugin's children: {type: "mcpServer", id: "mcp-<name>", uri,
// name, enabled, state}. For clients with capabilities.mcpApps they also have
// mcpApp.capabilities, and a channel while the state is ready: mcp://refhost/…. The
// actions session/customizationsChanged, …Updated and session/mcpServerStateChanged (an
// absent channel has ended) have these members only for clients with mcpApps; the
// serverSeq is the same for all clients, live and in replays.
// session/customizationRemoved {id} has one form. Clients may dispatch
// session/customizationToggled {id, enabled, enablement}, session/mcpServerStartRequested
// and …StopRequested {id}; all other actions on customizations are rejected.
//
// A message on a server's channel names the channel at its top level or in params;
// answers and notifications name it at the top level. The methods promised by mcpApp
// are forwarded both ways unchanged, except params.channel and the progress token:
// tools/list and tools/call; resources/list, resources/templates/list and
// resources/read; logging/setLevel and the notification notifications/message. The
// host answers sampling/createMessage. notifications/progress goes to the requesting
// client. That client can send notifications/cancelled, and still receives an answer.
// list_changed goes to all subscribers of the session if promised. All other methods
// get -32601, and so do all methods for clients without mcpApps. A missing channel
// gets -32008.
//
// A server in state authRequired has no channel; its state gives the resource, the
// scopes and the reason. authenticate {resource, token} returns {} and makes the
// server ready, or fails with -32007 and data.resources. The token is compared with
// [MCPServer.Tokens] and not stored. An agent's tool call without the needed scope
// stays running: session and chat have the status InputNeeded, and
// session/inputNeededSet has a request of kind toolAuthentication. A client's
// tools/call gets -32007 in that case.
//
// The reference server keeps a list of tasks. Its tools are add_task, list_tasks, count,
// fail, grow, show_board, read_log (for apps only), secret (for the model only) and
// publish (needs the scope tasks.publish). Its resources are tasks://about, tasks://dot,
// ui://tasks/board, which is an MCP App, and the template tasks://task/{number}. Prompts
// drive it:
//
//	mcp tool [SERVER/]TOOL {…}   the agent uses a tool
//	mcp app                      the same for show_board
//	mcp auth REASON [SERVER]     required, expired or insufficientScope
//	mcp restart [SERVER]         a new address for the channel
//	mcp hide, mcp show           withdraw and restore the capabilities
//	mcp remove, mcp add          remove the server from the session, and restore it
//
// A tool call has contributor {kind: "mcp", customizationId}, and the tool's _meta.ui.
// Its content, structuredContent and success come from the server. Progress is its
// content while it runs.
//
// # Files
//
// file: URIs reach below [Config.Root] or [Config.Folders], or into [Config.Files]; all
// other file: URIs get -32009.
// demo-blob:/<n> is generated text, n bytes long. Watches report changes made by
// clients through this host.
//
// # Differences from VS Code's host
//
// Sessions have no customizations except MCP servers, and no automation. createChat,
// disposeChat and moveChat are served; chats have no hierarchy. view, delivery and
// flowControl are served. A malformed action changes nothing. A replaced turn
// publishes nothing more. Missing params are -32602. Data with invalid UTF-8 is read
// as base64. The agent's error is a part, not a field, in chat/error.
//
// # Limits
//
// A client that does not read is closed with 1013 when more than [Config.SendQueue]
// waits for it; it never delays the host. A frame over [Config.MaxFrame] closes its
// connection with 1009.
package agenthost
