// Package refhost is an AHP host without a model behind it: a scripted agent,
// terminals, files. It behaves on the wire as VS Code's agent host was seen to
// do, so that a relay in front of it can be tested, and shown, without one.
//
// # Wire
//
// One message is one JSON-RPC 2.0 object: in one WebSocket frame, text or
// binary ([Host.ServeHTTP]), or on one line ([Host.ServeStdio]). JSON that is
// no object, a batch too, gets no answer; what is no JSON gets -32700 with the
// id null. An id is whatever JSON the client likes. Keys match exactly.
//
// The first request is initialize or reconnect; before, only ping is served,
// and all else is -32601, as is a second initialize later.
//
// # Versions and capabilities
//
// [Config.Protocol] says what the host speaks. Of what a client offers, the
// highest version counts that the host accepts, and the answer says it back:
//
//	0.8   0.8.0
//	0.9   0.9.0, 0.8.0
//	0.10  0.10.0
//	1.0   1.0.0 and later below 2, and 0.9
//	1.1   the same, with windows and with cursors for each channel
//
// Otherwise the error is -32005 with data.supportedVersions; hosts of 1.0 and
// 1.1 close the connection then, and refuse an offer with an entry that is no
// version. A host of 0.8 says by exitCode that a terminal has exited, and has no
// lifecycle of it. A client of 0.8 is not sent chat/usage. Since 0.10 clients see
// canvases as they are registered; before, with capabilities.canvas, in the
// seed's form. Since 1.0 summaries of sessions have chats and defaultChat, and
// moveChat is served. With capabilities.mcpApps, MCP servers in state have
// mcpApp and channel. Versions and capabilities are a connection's own;
// reconnect goes on with those of the client's latest initialize.
//
// # Channels
//
// The channels are ahp-root://, the sessions demo:/…, their chats
// ahp-chat://default/<base64url of the session>, terminals
// agenthost-terminal:…, resource watches ahp-resource-watch://r/…, open
// canvases ahp-canvas:/<id>, and ahp-otlp://logs/<level> without state.
//
// State changes are published as the notification action, numbered by one
// serverSeq for the whole host. An envelope is encoded once: all subscribers
// get the same bytes, in the same order, with these exceptions, which
// subscribe asks for:
//
//   - delivery.maxLatencyMs: consecutive chat/delta of one part come as one,
//     with the content of all and the serverSeq of the last. Whatever else the
//     connection is sent comes after it, so serverSeq keeps its order.
//   - flowControl.receive, from clients of 1.0 on at hosts of 1.1: the answer
//     has flowControl and no snapshot, and the channel comes in windows; see
//     there.
//   - view.turns: the snapshot has so many completed turns at most, and
//     turnsNextCursor for fetchTurns. It shapes nothing but the snapshot.
//
// root/sessionAdded, root/sessionSummaryChanged and root/sessionRemoved go to
// every initialized client, subscribed or not, without serverSeq.
//
// # Windows
//
// On a windowed channel the text of each notification comes in pieces, as
// channel/frame {channel, data, final?}: first channel/snapshot {channel,
// snapshot}, where there is state, then the control channel/ready, then what is
// said. A frame has at most maximumFrameBytes; a message begins only while fewer
// than windowBytes are sent and not consumed. The client says with
// channel/credit {channel, consumedBytes} how far it has come: in bytes of UTF-16
// of the messages' text, cumulative, at the end of a message. It may send
// dispatchAction in frames, and is credited. channel/reset, from either side,
// ends the subscription: for a message over maximumMessageBytes, a credit that
// fits no message, a frame that cannot be read.
//
// # Clients
//
// Connections with the same clientId stay open side by side. Answers go where
// the question came from; notifications, and the host's own requests, go to
// the newest connection only, by its own subscriptions. When that closes, the
// one before goes on, without what it missed.
//
// reconnect {clientId, lastSeenServerSeq, subscriptions} is answered before
// any live action. The last 1000 envelopes of all channels are kept: where
// lastSeenServerSeq is among them, the answer is {type: "replay", actions,
// missing}, with the params of the original notifications; else {type:
// "snapshot", snapshots}. A clientId that the host does not remember is
// -32008.
//
// The host's requests count 1, 2, 3… over all clients. resourceRead of
// vscode-agent-client://<clientId>/file/-/path asks that client resourceRead
// {uri}, then resourceResolve, and returns what it said.
// vscode/devContainers/connect asks the same client
// vscode/requestWorkspaceTrust {workspace}.
//
// # Actions of clients
//
// A dispatched action comes back to all subscribers with its origin. A
// malformed one gets no answer: a chat/turnStarted without turnId, startedAt
// or message, a chat/turnCancelled of the active turn without duration. Those
// that mean nothing here come back all the same, but for families of types
// that AHP does not have, and chat/… on what is no chat.
// chat/workingDirectorySet and chat/workingDirectoryRemoved come back with a
// rejectionReason, as does all that concerns a deleted session.
//
// # The agent
//
// The text of chat/turnStarted says what the agent does:
//
//	hello             says "Hello, world!"
//	stream N MS SIZE  N deltas of SIZE bytes (8), MS milliseconds apart
//	tool              uses a tool
//	permission        asks before it uses one: the first answer counts
//	terminal          uses a tool with a terminal, which stays
//	error             fails
//	show everything   says parts of all kinds, one that nobody knows too
//	edit, danger      asks before it changes two files, which the session's changeset has then; before a command that a judge warns of
//	approve JSON      asks before it does what the members of a chat/toolCallReady say; the same, as a message that steers, changes them
//	ask               asks the user; also ask choice, ask url, plan
//	subagent          has another chat of the session do something
//	hostile           says what a host that means harm would
//	history N         puts N turns before those that there are
//	sessions N        adds N sessions
//	talk N            says N words, 5 ms apart, with all that Markdown has
//	canvas ID         opens a canvas
//	canvas VERB …     does something with the latest: see Canvases
//	mcp VERB …        does something with an MCP server: see MCP servers
//	show me an app    is mcp app, in any such words
//	anything else     says it again, word by word
//
// A turn ends with chat/usage and chat/turnComplete or chat/error.
// A turn that starts while another is active takes its place. Messages that are
// queued begin a turn when there is none; one that steers is said to be read at
// once.
//
// # Canvases
//
// The host's own provider declares what [Config.Canvases] says, in every
// session; a client declares canvases as canvasProviders in
// session/activeClientChanged or session/activeClientSet, as long as it is
// connected. With capabilities.canvas, sessions have canvases (all that is
// declared) and openCanvases, kept up to date by session/canvasesChanged and
// session/openCanvasesChanged, and ahp-canvas:/<id> is the channel of an open
// instance; others are sent nothing of this.
//
// The agent does what prompts and the methods of [Host] say:
//
//	canvas update {…}            canvas/updated with title, status, url,
//	                             availability; null clears
//	canvas update                the provider changes the content's address
//	canvas stale, canvas ready   the provider goes, and comes back
//	canvas message JSON          a message to the views
//	canvas invoke ACTION JSON    an action of the provider's
//	canvas close                 closes the canvas
//	sign-in                      says how often tokens were taken for [Config.Resources]
//	sign-in REASON               the same, and tells all clients that they are
//	                             wanted again: auth/required
//
// Whose canvas is a client's, that client's newest connection is asked
// canvasOpen, canvasInvokeAction and canvasClose, and nobody else; its errors
// go to the agent, and are -32012 with data {code, message} where it is not
// there. When the client has no connection, its canvases are stale; when it
// has come back with reconnect, or declares them again, each is opened again,
// and ready.
//
// canvas/message and canvas/closeRequested come back to all subscribers with
// their origin. From a client that does not subscribe to the open canvas they
// are rejected, as is all else that clients dispatch there, with an envelope
// that goes to this client only; a closeRequested where nothing is open is
// ignored. A client that asks canvasOpen and the like gets -32009, or
// -32601 without the capability.
//
// Content is addressed by its [Canvas.Mode]. canvasReadResource is served for
// [CanvasChannel]: to connections that subscribe to the open canvas, else
// -32009, as for another instance's content; -32008 where nothing is open, or
// no such file; -32602 for what is no address of content, or leaves its root.
// Paths are decoded once. For [CanvasLoopback], and without any canvas, it is
// -32601.
//
// Clients of 0.10 and later are told of a canvas in its session's default chat:
// state.canvases [{resource}], replaced by chat/canvasesChanged; its state has
// neither provider nor availability, and canvas/stateChanged {canvas} replaces
// it. Its url is on the web, and absent while the canvas is stale: what has
// another address in the seed's form is served on loopback too. Such clients
// neither provide canvases nor send anything to them.
//
// # MCP servers
//
// [Config.MCP] are real MCP servers, of the official Go SDK, which the host
// talks to by a pipe in memory or a process's stdio. They are started with
// the first connection and serve all sessions. Each session's state has them
// in customizations, by themselves or as a plugin's child: {type: "mcpServer",
// id: "mcp-<name>", uri, name, enabled, state}, and for clients with
// capabilities.mcpApps also mcpApp.capabilities, and a channel while the state
// is ready: mcp://refhost/…. Such clients get other bytes than the rest, under
// the same serverSeq, of session/customizationsChanged, …Updated and
// session/mcpServerStateChanged (a channel that is absent is no more), live
// and in replays; session/customizationRemoved {id} is the same for all.
// session/customizationToggled {id, enabled, enablement} and
// session/mcpServerStartRequested and …StopRequested {id} are a client's to
// dispatch, the others are rejected.
//
// A message on a server's channel names it at its top level or in params;
// answers and notifications have it at the top level. What mcpApp promises is
// passed to the server and back as it is, but for params.channel and the
// token for progress: tools/list and tools/call; resources/list,
// resources/templates/list and resources/read; logging/setLevel and the
// notification notifications/message. sampling/createMessage is answered by
// the host. notifications/progress goes to who has asked; who has asked can
// send notifications/cancelled, and is answered all the same. list_changed
// goes to all who subscribe to the session, where it is promised. Everything
// else is -32601, as is everything for clients without mcpApps; a channel
// that is not there, or no more, is -32008.
//
// A server in state authRequired has no channel, and says which resource wants
// a token with which scopes, and why. authenticate {resource, token} answers
// {} and makes it ready, or is -32007 with data.resources; the token is
// compared with [MCPServer.Tokens], and not kept. A tool call of the agent's
// that lacks a scope stays running meanwhile: the status of session and chat
// is InputNeeded, and session/inputNeededSet has a request of the kind
// toolAuthentication. A tools/call of a client's is -32007 then.
//
// The reference server keeps a list of tasks, and has tools (add_task,
// list_tasks, count, fail, grow, read_log for apps only, secret for the model
// only, publish, which wants the scope tasks.publish, and show_board), the
// resources tasks://about, tasks://dot and ui://tasks/board, an MCP App, and
// the template tasks://task/{number}. Prompts steer it:
//
//	mcp tool [SERVER/]TOOL {…}   the agent uses a tool
//	mcp app                      the same for show_board
//	mcp auth REASON [SERVER]     required, expired or insufficientScope
//	mcp restart [SERVER]         another address of the channel
//	mcp hide, mcp show           nothing is promised any more, and again
//	mcp remove, mcp add          the session has it no more, and again
//
// A tool call has contributor {kind: "mcp", customizationId}, and _meta.ui as
// the tool has it; its content, structuredContent and success are the
// server's. Progress is its content while it runs.
//
// # Files
//
// file: URIs reach below [Config.Root] or into [Config.Files], all else is
// -32009. demo-blob:/<n> is made-up text of n bytes. Watches tell of changes
// that clients made through this host.
//
// # What is different from VS Code's host
//
// Sessions have no changesets, no customizations but MCP servers, and there is
// no automation. createChat, disposeChat and moveChat are served; chats have no
// hierarchy. view, delivery and flowControl are served. A malformed action
// changes nothing. A turn whose place another takes is silent from then on.
// Missing params are -32602. Data that is no UTF-8 is read as base64. The
// agent's error is a part, not a field, of chat/error.
//
// # Limits
//
// A client that does not read is cut when more than [Config.SendQueue] waits
// for it (1013); it never holds up the host. A frame over [Config.MaxFrame]
// ends the connection that it came on (1009).
package refhost
