// Package view reads what a host says to its clients, once, for all that have
// to know: of AHP 0.8 to 1.1, told by the shape of what is said and not by the
// version. It decides nothing and changes nothing. It does no I/O.
//
// # What is read
//
// A [Conn] is shown every message of one connection, in its order. It reads
// these parts, wherever a host may put them:
//
//	part      is                                                   stands in
//	snapshot  {resource, state, fromSeq}                           results: .snapshot, .snapshots[], .channels[].snapshot
//	                                                               channel/snapshot: .snapshot
//	action    {channel, action, serverSeq, origin?,                action, as its params
//	           rejectionReason?}                                   results: .actions[], .channels[].actions[]
//	summary   {resource, …} of a session                           listSessions: .items[]; root/sessionAdded: .summary;
//	                                                               root/sessionSummaryChanged: .changes
//
// Results are those of initialize, reconnect and subscribe. Of reconnect there
// are three forms: actions and missing, or snapshots; the same with windows,
// whose channels come in frames; and channels, with one entry for each. A
// channel/frame carries a piece of the text of another notification: pieces are
// put together by connection and channel until final, up to 64 MiB, and then
// read as that notification if it is of the same channel.
//
// # The host's own word
//
// An action is the host's own word if it has no origin and no rejectionReason.
// Hosts repeat actions of clients with an origin; what they have rejected has a
// reason too. A rejected action says nothing. A client's action that was not
// rejected says only what a client can do: that a customization is enabled
// or disabled, that an MCP server is to start or stop. It names no channel and
// no address that is believed. Snapshots are the host's own.
//
// # What is said
//
// A [Fact] is what a part says. The same members say the same in states and in
// actions:
//
//	member                                            fact
//	chats[] (URI, .resource); with all in states      Has or Lists, Chat
//	chat, defaultChat, summary.resource,
//	  inputNeeded[].chat, request.chat                Has, Chat
//	session/chatRemoved: chat                         HasNot, Chat
//	openCanvases[].channel                            Lists, CanvasRef
//	canvases[].resource of a chat; absent: none       Lists, CanvasRef
//	canvases[].resource of a session                  Has, CanvasRef
//	changesets[].uriTemplate                          Has, Changeset
//	annotations.resource                              Has, Channel
//	customizations[].channel, .children[].channel,
//	  customization, channel: with the scheme mcp     Has, Server
//	claim, terminals[].claim                          Claims, Terminal
//	content[] of tools with type terminal: .resource,
//	  backgroundWork[].terminal, work.terminal        Has, Hint
//	toolInput.uri, content[].result.fullOutput.uri    Has, Content; of the host's own tools only
//	edits.items[] and content[] of tools with type
//	  fileEdit, files[].edit, file.edit:
//	  .before.content.uri, .after.content.uri         Has, FileText; of the host's own tools only
//	options[].id of a tool call, by its toolCallId    Offers
//	instanceId of a canvas                            Has, Content: ahp-canvas-content:/<instanceId>
//	workingDirectories[], workingDirectory, and these
//	  of summary; in states and summaries only        Has, Folder
//
// Content may be read, if the host serves it, and is no channel for that: what a
// tool has made may name anything.
//
// In content, tools speak, which may be a client's: that a terminal stands
// there is a hint, and its claim says whose it is. Further facts are about the
// content of canvases and about MCP servers; they point at the part of the
// message that describes them: see [Kind]. Canvases are read in all three forms
// that hosts have used: the state of the canvas's channel with provider (the
// first proposal) or with extensionId (since 0.10), and the answer to
// resolveCanvasSource.
//
// Of what can be read in two ways, a member that is given twice, nothing is
// said: [Reading.Lost] tells.
//
// # What is asked
//
// A client that resumes with a replay goes on with channels of which the host tells it
// nothing anew ([Reading.Untold]). A gate that needs to know more has the host asked
// ([Reading.Ask]): the host-agent sends a subscribe for the channel on the client's
// connection. The client is subscribed to it, so this changes nothing, and the answer, which
// stays with the host-agent, has the state.
//
// # What is remembered
//
// A [Conn] remembers the requests of both sides that are without an answer, so
// that it can say what an answer answers; the subscriptions that the host has
// granted; who the client is and what it can do; how far the host is.
//
// A [Host] remembers, for all connections to one host process, what belongs to
// what, what canvases are, what clients have declared, and what gates keep for
// clients that come again ([Conn.Keep]). Connections hear of things at different
// times: what the host has said last counts, by serverSeq, whoever hears of it
// first. So a chat that is moved to another session leaves
// the first one for everybody, and a client that resumes and is told nothing
// anew is known as before. A process has ended if who carries the messages
// says so ([Host.Ended]), or if the host answers initialize with a serverSeq
// below one that it had reached before it was asked.
//
// # Bounds
//
//	1,000    requests in each direction of a connection without an answer
//	4,096    subscriptions of a connection
//	64 MiB   of pieces of messages, on 64 channels of a connection
//	16,384   URIs that belong to something, each to 8 at most; as many lists
//	4,096    templates of URIs
//	1,024    canvases; clients that are remembered
//	16,384   the weight of what is kept for them
//	4 KiB    of a URI or a clientId
//	16 KiB   of a client's capabilities
//
// Of a host, what was not used for longest makes room. On a connection, what
// there is no room for is not known; of the host's requests, the oldest make
// room.
//
// # Concurrency
//
// A Host is safe for concurrent use. A Conn is not: its owner carries the
// messages of a connection in one order, and has a lock for that.
package view
