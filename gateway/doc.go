// Package gateway is the relay's public edge: it serves clients and host-agents over
// HTTP and WebSocket. A [Relay] is the whole program. A [Server] is its HTTP part, in
// front of a registry and a connection to NATS.
//
// # Clients
//
// A client opens a WebSocket at /ahp/{host} with a client token in one of the places
// [auth.RequestToken] lists. A WebSocket at / with a token for exactly one host goes
// to that host. A bad token is refused before the upgrade, with HTTP 401. A bad host
// is refused after the upgrade, with a close code, because browsers show only close
// codes to pages.
//
// Each WebSocket text message is one AHP message. Messages pass unchanged in both
// directions, with these exceptions. While the host is away, the relay answers ping
// itself, and holds other messages. The relay also answers relay/refreshToken and, with a
// canvas domain, the requests of package canvas. The host-agent enforces a token's limits:
// for a client with limited authority it answers, drops and replaces messages as package
// gate specifies. The relay opens connections for such clients only at host-agents with
// the feature "authority". Large messages to a client travel as continuation frames.
// Large messages from clients take turns: the relay reads on only while memory is
// available, and a client in this queue is not closed for standing still. WebSocket
// pings are answered in order, behind the queued data.
//
// # Ends
//
// The close frame follows the data queued for the client. It has the first reason given.
// Writing the queue and the closing handshake each have a time limit. Messages the client
// sends before its own close frame still go to the host, unless its token has ended. If a
// client disconnects while its connection to the host is being opened, the messages that
// it has sent still go to the host. A client without signs of life, one that reads too
// slowly, or one that is closed to free memory, loses the queued data. Close codes are
// those of [ahp.CloseCode]; the WebSocket library sends 1002 for violations of the
// WebSocket protocol.
//
// # Packages
//
// The main packages below this one; a Server creates their objects (newAPIs), and gives
// each the few functions it needs:
//
//	wire          WebSocket connections: frames, compression, paced writes
//	admission     limits on clients, and their current use
//	audit         the audit log
//	authn         authentication of requests, and the answers to those refused
//	  api/hosts      /api/hosts
//	  api/agents     /agent and /nats: NATS credentials and connections for host-agents
//	  api/people     /auth and most of /api: people, devices, links and their pages
//	  api/notify     /api/events, /api/notify and /api/answers
//	  api/operator   /operator
//	  canvas         the canvas domain
//
// This package holds the clients, the links to hosts (hosts), the listeners and the
// Relay. The parts of a client, and of a Server, with state of their own:
//
//	credential       the client's first and latest tokens, and their expiry
//	pendingMessages  messages waiting for a connection to the host
//	load             memory for a client's messages to its host, and their last progress
//	outbox           frames queued for a client; writers lets a tenant's outboxes write in turns
//	liveness         pings and the client's answers
//	tickets          a client's requests for canvases by URL
//	budget           bytes queued for all clients; uploads schedules large messages
//	relief           closes clients when memory is short
//	adminPages       the admin listener
//
// # Concurrency
//
// Server.spawn starts all goroutines of a Server, and Close waits for them. The network
// connections of WebSockets end with the Server, which unblocks their readers and
// writers. Lock order: a client's lock or its load's, then those of hosts, registry
// and package routing, then an outbox's, then that of writers, then the Server's. While the locks of
// credential, uploads and reports are held, only counters and the log are called.
package gateway
