// Package mcpgate stands between a client and the MCP servers of a host: on
// each connection it lets pass what the host has said that it serves, and
// watches that the host asks of a client only what that can do.
//
// # Channels
//
// A host that runs MCP servers lists them in the state of a session: each is a
// customization of type "mcpServer", at the top level of
// SessionState.customizations or among the children of a container. It may
// name a channel, an opaque URI with the scheme mcp, on which clients send MCP
// messages. What is served there is the union of the capability sets of all
// customizations that name it and are ready:
//
//	mcpApp.capabilities   requests                                             notifications of the client
//	serverTools           tools/list, tools/call
//	serverResources       resources/list, resources/templates/list, resources/read
//	logging               logging/setLevel                                     notifications/message
//	sampling              sampling/createMessage
//
// notifications/progress and notifications/cancelled belong to requests: they
// pass where anything is served, or once was that this client has used. A
// customization is ready if it names a channel, its state is ready (or it has
// none), and neither it nor its container is disabled: by the first of its
// enablement, or, where it has none, by enabled, which hosts had to AHP 0.8.
//
// # What becomes of a message of the client's
//
//	the channel on this connection                      a request         a notification
//	serves the method                                   passes            passes
//	serves other methods, or none                       error -32601      ends here
//	was named, and is not ready any more, or not yet    error -32008      ends here
//	was never named, nor any other by the host          passes            passes
//	was never named                                     error -32008      ends here
//
// Until a host process has named some channel to some client, it may use the scheme in
// its own way; in strict mode it may not. notifications/progress and
// notifications/cancelled pass on channels that were never named.
//
// initialize and notifications/initialized are never served. Responses pass:
// they answer requests that have passed. What is answered here carries the
// channel at its top level, as all messages on such a channel do.
//
// Of what the host sends on a channel, notifications/…/list_changed pass only
// where the capability says "listChanged": true. Everything else passes.
//
// # Unknown capabilities
//
// Later versions may add capabilities. Where mcpApp.capabilities has one that is
// not in the table, methods that are in no row pass; where a customization has
// another member that is an object with capabilities in it, all methods pass,
// but the handshake. Each such message is counted. In strict mode only the
// table counts.
//
// # What a gate knows
//
// Only what the host has said on that very connection counts, in whatever
// message and form, as package [ahprelay/view] reads it. Of an action with an
// origin, which is a client's, only what clients may dispatch counts: that a
// server is turned on or off, or is to start or stop. One that was rejected says
// nothing.
//
// A client that comes back with reconnect, and gets a replay, goes on with what
// the host has said before, of the sessions that it resumes, on the last
// connection on which the same subject used the same clientId: of 1024 clients,
// as far as those that are away have no more than 16384 servers together, and
// until the host process ends ([view.Host]). Of sessions of which nothing is known, as with
// a new host-agent, the host is asked for the state on this connection ([view.Reading.Ask]);
// the client's messages wait for the answer.
//
// A replay may change a customization of which nothing is known: then its channel
// is known, its capabilities are not, and all methods pass for as long as it is
// ready. What was last said of a session stays in force when the client
// unsubscribes, until the host says otherwise here. When a session is removed, its
// channels are not ready any more.
//
// A gate keeps up to 1024 servers and the last 256 channels that are named no
// more. What is beyond that, or has names of more than 4 KiB, it does not
// know: it serves nothing, and is counted.
//
// # Capabilities of clients
//
// A client declares in initialize what it can do. The host needs that for
//
//	canvasOpen, canvasInvokeAction, canvasInvokeOperation, canvasClose   canvas
//	sampling/createMessage                                               sampling
//	elicitation/create                                                   elicitation
//	roots/list                                                           roots
//	mcpApp in the state of a session                                     mcpApps
//
// What the client has not declared is warned of in soft mode, and passes. In
// strict mode such a request gets error -32601 and does not reach the client.
// State passes in strict mode too, since no message is changed on its way or
// left out of a sequence of actions; but the channels that it names serve that
// client nothing.
//
// A client that comes back with reconnect declares nothing. What it declared
// before holds, on any connection to this host process on which the same subject
// used the same clientId, as far as the last 1024 of these are remembered.
// Otherwise its capabilities are not known, and nothing is refused for them.
//
// # Concurrency
//
// [Gate.FromClient], [Gate.FromHost] and [Gate.Leave] are not called at once. All
// else is safe for concurrent use.
package mcpgate
