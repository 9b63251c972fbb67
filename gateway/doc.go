// Package gateway is the relay's edge: what clients and host-agents reach over
// HTTP and WebSocket. A [Relay] is the whole program; a [Server] is its HTTP
// part, in front of a registry and a connection to NATS.
//
// # Clients
//
// A client opens a WebSocket at /ahp/{host}, with a client token in one of the
// places that [authn.RequestToken] names. A WebSocket at / with a token for exactly one host
// goes to that host. What is wrong with the token is answered
// before the upgrade, with HTTP 401; what is wrong with the host after it,
// with a close code, because browsers show only these.
//
// Each text frame is one AHP message. Messages pass as they are, both ways,
// except these: ping is answered here while the host is away, and so are
// requests that wait for a host which is not there; relay/refreshToken and, with
// a canvas domain, relay/canvasTicket are the relay's own. What a token allows is
// for the host-agent to see to: for a client that may not do everything, it
// answers, leaves out and replaces messages as package gate says. Connections of
// such clients are opened only at host-agents that say that they do. Large messages to a client come as
// continuation frames. Large messages of clients take turns: one is read on only
// while there is room for it, and whoever waits for that is not closed for
// standing still. Pings of the WebSocket are answered in their turn, behind what
// is queued.
//
// # Ends
//
// A connection ends behind what is queued for the client, with the first
// reason that there is; the client has a time for the queue and one for the
// closing handshake. What the client sends until it closes too still goes to
// the host, unless it is the token that has ended; so does what it sent before it
// went, if a connection to the host is just being made. A client that shows no life,
// or on whose account too much waits, loses what is queued. Close codes are those of
// [ahp.CloseCode]; 1002 is the WebSocket library's for those who do not speak
// WebSocket.
//
// # Rooms
//
// What is not a client's connection has packages below this one, each with the
// state that is its own. A Server makes them (newAPIs) and gives each the few
// functions that it needs of the rest:
//
//	admission     what clients may use, and what is in use of that
//	audit         who did what
//	authn         who sends a request; whoever may not go on is answered there
//	  api/hosts      /api/hosts
//	  api/agents     /agent, and /nats: how host-agents get NATS credentials and reach NATS
//	  api/people     /auth and most of /api: people, devices, links, and the pages for them
//	  api/notify     /api/events, /api/notify and /api/answers
//	  api/operator   /operator
//	  canvas         the canvas domain
//
// Here are clients, the links to hosts (hosts), the listeners, and the Relay. A client has parts
// with fields of their own, and a Server three:
//
//	credential       the tokens that a client has shown, and the end of the latest
//	pendingMessages  what waits for a connection to its host
//	load             what waits on its account, and since when nothing of that moves
//	outbox           what it is still to be sent
//	liveness         whether it is there: pings, and what answers them
//	tickets          what it asks to see canvases by URL
//	budget           what waits for all clients, in bytes; uploads, the turns of large messages
//	relief           closes clients when memory is short, those first that have stood still for longest
//	adminPages       the admin listener
//
// # Concurrency
//
// All goroutines are started through Server.spawn, which Close waits for. The
// network connections of WebSockets end with the Server, whoever waits on
// them. Locks are taken in this order: a client's, or that of its load, those of hosts, registry
// and the routing package, an outbox's, the Server's. Those of a credential, of uploads
// and of reports are held while nothing else is called but what counts.
package gateway
