// Package mcpgate is the gate between a client and a host's MCP servers. It passes a client's
// message only if the server has announced a capability for it, and checks that the client has
// declared the capabilities for the host's requests.
//
// # Channels
//
// A host that runs MCP servers lists them in a session's state. Each is a customization with the
// type "mcpServer", at the top level in SessionState.customizations or among a container's
// children. It may name a channel, an opaque URI with the scheme mcp, on which clients send MCP
// messages. The channel serves the union of the capabilities of all ready customizations that name
// it:
//
//	mcpApp.capabilities   requests                                             notifications of the client
//	serverTools           tools/list, tools/call
//	serverResources       resources/list, resources/templates/list, resources/read
//	logging               logging/setLevel                                     notifications/message
//	sampling              sampling/createMessage
//
// notifications/progress and notifications/cancelled belong to requests. They pass if the channel
// serves anything, or if this client has used it before. A customization is ready if it names a
// channel, its state is ready or absent, and neither it nor its container is disabled. The first
// entry in enablement decides whether it is disabled. Hosts up to AHP 0.8 have no enablement; then
// the member enabled decides.
//
// # Messages from the client
//
//	the channel on this connection                      a request         a notification
//	serves the method                                   passes            passes
//	serves different methods, or none                   error -32601      dropped
//	was named, and is not ready, or not ready yet       error -32008      dropped
//	was never named, and the host has named none        passes            passes
//	was never named                                     error -32008      dropped
//
// As long as a host process has named no channel to any client, it may use the scheme in its own
// way, except in strict mode. notifications/progress and notifications/cancelled pass on channels
// that were never named.
//
// initialize and notifications/initialized are never served. Responses pass, because the requests
// have passed. The gate's own responses name the channel at the top level, like all messages on
// such a channel.
//
// # Messages from the host
//
// notifications/…/list_changed pass only if the capability has "listChanged": true. All other
// messages on a channel pass.
//
// # Unknown capabilities
//
// Later versions may add capabilities. If mcpApp.capabilities has a capability outside the table,
// all methods outside the table pass. If a customization has an additional member that is an object
// with capabilities, all methods except the handshake pass. Each such message is counted. In strict
// mode only the table counts.
//
// # Sources of knowledge
//
// The gate learns only from the host's messages on the same connection, in whatever message and
// form, as package [ahprelay/ahp/view] reads them. An action with an origin comes from a client. It
// counts only for what clients may do: enable or disable a server, start it or stop it. A rejected
// action has no effect.
//
// A client may return with reconnect and get a replay. Its sessions then keep the facts of the last
// connection on which the same subject used the same clientId. They are kept for 1024 clients, up
// to 16384 servers for all absent clients together, until the host process ends ([view.Host]). If
// nothing is known about a session, such as after a restart of the host-agent, the host-agent
// requests the state from the host on this connection ([view.Reading.Ask]), and the client's
// messages wait for the response.
//
// A replay may change an unknown customization. Then its channel is known but its capabilities are
// not, and all methods pass while it is ready. A session's last facts remain valid when the client
// unsubscribes, until the host changes them on this connection. When a session is removed, its
// channels are no longer ready.
//
// A gate keeps up to 1024 servers and the last 256 channels that are no longer named. A server
// beyond these limits, or with names above 4 KiB, is unknown: it serves nothing, and is counted.
//
// # Client capabilities
//
// A client declares its capabilities in initialize. The host needs them for
//
//	canvasOpen, canvasInvokeAction, canvasInvokeOperation, canvasClose   canvas
//	sampling/createMessage                                               sampling
//	elicitation/create                                                   elicitation
//	roots/list                                                           roots
//	mcpApp in the state of a session                                     mcpApps
//
// In soft mode, a missing capability causes a warning, and the request passes. In strict mode the
// request gets error -32601 and does not reach the client. A state with mcpApp passes even in
// strict mode, because the gate neither changes messages nor removes actions from their sequence.
// But then the channels in that state serve this client nothing.
//
// notifications/progress on an mcp:// channel causes a warning, and passes in both modes, unless
// the client has declared progress or sent a progressToken on such a channel. MCP has no capability
// for it.
//
// A client that returns with reconnect may declare nothing. Then its earlier declaration holds, from
// any connection to this host process on which the same subject used the same clientId, for the last
// 1024 of these. Otherwise its capabilities are unknown, and no request is refused for them.
//
// # Concurrency
//
// [Gate.FromClient], [Gate.FromHost] and [Gate.Leave] must not be called concurrently. All other
// methods are safe for concurrent use.
package mcpgate
