// Package view reads a host's messages to its clients, once for all gates. It covers
// AHP 0.8 to 1.1, and recognizes forms by their members, not by the version. It makes
// no decisions, changes no messages and does no I/O.
//
// # Parts
//
// A [Conn] receives each message on one connection, in order. It reads these parts,
// wherever a host may put them:
//
//	part      form                                                 place
//	snapshot  {resource, state, fromSeq}                           results: .snapshot, .snapshots[], .channels[].snapshot
//	                                                               channel/snapshot: .snapshot
//	action    {channel, action, serverSeq, origin?,                action, as its params
//	           rejectionReason?}                                   results: .actions[], .channels[].actions[]
//	summary   {resource, …} of a session                           listSessions: .items[]; root/sessionAdded: .summary;
//	                                                               root/sessionSummaryChanged: .changes
//
// Results are responses to initialize, reconnect and subscribe. The result of reconnect
// has one of three forms: (1) actions and missing, or snapshots; (2) the same, and windows,
// which lists the channels that come in frames; (3) channels, with an entry for each. A
// channel/frame has a piece of a notification's text. The pieces on a channel are joined
// up to the one with final, at most 64 MiB, and then read as that notification if it is on
// the same channel.
//
// # The host's own statements
//
// An action is the host's own statement if it has no origin and no rejectionReason.
// Hosts repeat clients' actions with an origin; a rejected action also has a reason. A
// rejected action states nothing. An accepted client action can only enable or disable
// a customization, start or stop an MCP server, or take a terminal from its owners. Channels
// and addresses in it become known by nothing else. Snapshots are the host's own statements.
//
// # Facts
//
// A [Fact] is a part's meaning. A member has the same meaning in states and in
// actions:
//
//	member                                            fact
//	chats[] (URI, .resource); with all in states      Has or Lists, Chat
//	chat, defaultChat, summary.resource,
//	  inputNeeded[].chat, request.chat                Has, Chat
//	session/chatRemoved: chat                         HasNot, Chat
//	chats[] of root/sessionSummaryChanged             Lists, Chat
//	session in the response to moveChat               Has, Chat; HasNot for all other sessions
//	openCanvases[].channel                            Lists, CanvasRef
//	canvases[].resource of a chat; absent: none       Lists, CanvasRef
//	canvases[].resource of a session                  Has, CanvasRef
//	changesets[].uriTemplate                          Has, Changeset
//	annotations.resource                              Has, Channel
//	customizations[].channel, .children[].channel,
//	  customization, channel: with the scheme mcp     Has, Server
//	claim, terminals[].claim                          Claims, Terminal
//	claim of a client's terminal/claimed              Keeps, Terminal
//	content[] of tools with type terminal: .resource,
//	  backgroundWork[].terminal, work.terminal        Has, Hint
//	toolInput.uri, content[].result.fullOutput.uri    Has, Content; only from the host's own tools
//	edits.items[] and content[] of tools with type
//	  fileEdit, files[].edit, file.edit:
//	  .before.content.uri, .after.content.uri         Has, FileText; only from the host's own tools
//	options[].id of a tool call, by its toolCallId    Offers
//	instanceId of a canvas                            Has, Content: ahp-canvas-content:/<instanceId>
//	workingDirectories[], workingDirectory, and these
//	  of summary; in states and summaries only        Has, Folder
//
// A Content URI is readable if the host serves it. It never counts as a channel, because a
// tool's output may name any URI.
//
// The member content comes from tools, which may be a client's. A terminal in it is only a
// hint: the terminal's own claim shows the owner. Further facts describe canvas content and MCP
// servers; they point at the describing part in the message: see [Kind]. Canvases are
// read in all three forms hosts have used: the state of the canvas's channel with
// provider (the first proposal) or with extensionId (since 0.10), and the response to
// resolveCanvasSource.
//
// An ambiguous part, such as a duplicate member, has no facts and sets [Reading.Lost].
//
// # Asks
//
// After a replay, a client continues with channels whose state the host does not
// repeat ([Reading.Unstated]). If a gate needs the state, it asks for it
// ([Reading.Ask]): the host-agent sends a subscribe for the channel on the client's
// connection. The client is subscribed already, so this changes nothing. The response,
// which stays with the host-agent, has the state.
//
// # State
//
// A [Conn] remembers the open requests of both sides, the subscriptions the host has
// granted, the client's identity and capabilities, and the host's serverSeq.
//
// A [Host] remembers, for all connections to one host process, URIs' owners, canvases,
// clients' declarations, and gates' values for returning clients ([Conn.Keep]).
// Connections receive facts at different times: the fact with the highest serverSeq
// counts, on whatever connection it arrives first. So a chat that moves to a different
// session leaves the first session for all clients, and the facts about a client that
// resumes still hold. A process has ended if the caller reports it ([Host.Ended]), or
// if the response to initialize has a serverSeq below the value at the request's time.
//
// # Bounds
//
//	1,000    open requests in each direction of a connection
//	4,096    subscriptions of a connection
//	64 MiB   of unfinished messages, on 64 channels of a connection
//	16,384   URIs with owners, at most 8 for each; as many lists; as many URIs named by tools
//	4,096    templates of URIs
//	1,024    canvases; remembered clients
//	16,384   the weight of the values kept for clients
//	4 KiB    of a URI or a clientId
//	16 KiB   of a client's capabilities
//
// In a Host, the least recently used entry makes room. On a connection, entries beyond
// a bound are unknown; among the host's requests, the oldest make room.
//
// # Concurrency
//
// A Host is safe for concurrent use. A Conn is not: its owner carries a connection's
// messages in one order, and has a lock for that.
package view
