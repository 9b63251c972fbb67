// Package hostagent makes a private AHP host reachable through relays. It dials out
// only: to the relay's base URL for credentials, to NATS, and to the host.
//
// # The host
//
// An [Agent] opens a separate connection to the host for each client, so the host sees
// each client's identity and capabilities. Viewers are the exception: those of an
// audience share a connection of their relay (package audience), and those of a link to a
// sealed host share a connection of the host-agent, and its messages as a crowd. A
// monitor pings the host on one more connection, so relays know whether the host is up
// even while no client is connected. If a client's connection ends, the monitor shows
// whether the host has closed that connection only or is gone.
//
// An [Upstream] is a WebSocket over TCP, TLS or a Unix socket, a host in this process
// ([Local]), or a command. The command is started for each connection and speaks AHP on
// its standard input and output, with one message per line. Messages that no gate changes
// pass byte for byte, except that for a command the line breaks between a message's tokens
// become spaces.
//
// # The client behind a connection
//
// The host-agent gives the host the client's identity, as verified by the relay, in a
// place that other hosts ignore. A WebSocket handshake has the headers
//
//	AHP-Relay-Subject     of the client's token
//	AHP-Relay-Tenant
//	AHP-Relay-Access      read, talk, approve, write or admin: the token's level, limited by --allow and --approve-only
//	AHP-Relay-Connection  id of the connection, as in all logs
//
// and a command has the variables AHP_REMOTE_SUBJECT, AHP_REMOTE_TENANT,
// AHP_REMOTE_ACCESS and AHP_REMOTE_CONNECTION. Values are percent-encoded like a path
// segment. Connections that serve no client, such as the monitor's, have none of them.
// Clients cannot set these values, but anything that reaches the host directly can. A
// host that trusts them must therefore accept no other connections: it needs a
// connection token (--upstream-token-file) or a Unix socket.
//
// Package gate enforces the clients' permissions.
//
// The host-agent itself answers some requests of clients, such as relay/answers (see
// given.go), relay/private (private.go) and relay/signIn (signin.go). The host never
// receives these requests.
//
// # The host-agent's own requests
//
// The host receives a few requests on a client's connection that the client has not
// sent:
//
//   - subscribe, for a channel to which the client is subscribed. From the answer, the
//     host-agent learns a canvas before it serves its content (package contentproxy).
//     When a client resumes with a replay, the host-agent also learns the MCP servers
//     of the client's sessions (package mcpgate), and the contents and options that
//     the host has named to the client (package gate). It asks for at most 16
//     channels, and only for channels with unknown state.
//   - canvasReadResource, for a canvas that is shown to the client by URL and served
//     by the host.
//   - subscribe and authenticate, for a sign-in that the client has requested.
//
// Their ids begin with "host-agent-" and cannot be guessed. The gates judge them like
// the client's requests, and the client does not receive their answers. Messages of a
// resumed client wait for these answers, at most 5 s. A host that treats a second
// subscribe as a change of options may return to default delivery for the client.
//
// # The ends of a connection
//
// When a client leaves, its last messages are still written, for at most 30 s, and the
// connection to the host is closed. When the host closes the connection, the
// client is closed with CloseResync, or with CloseHostOffline if the host has closed
// the monitor's connection as well.
//
// A host that does not answer is not gone. Its connections stay, new ones wait for it
// for 10 min, and relays learn the start of its silence. Clients are closed with
// CloseHostOffline only if the host's machine acknowledges nothing for the resume
// time. A client on whose connection the host is still heard stays.
//
// Close reasons and presence never contain an address, a path or other details of the
// host's surroundings. These details appear in the log and in the output of [Agent.Check].
//
// # Ends of an Agent
//
// [Agent.Run] closes clients and informs relays before it returns, within a few
// seconds, even if they or the host do not answer.
//
// # Crashes
//
// To a NATS server, a crashed host-agent looks like a host-agent with a broken
// network: a connection ends, or falls silent. Clients must not notice a break shorter
// than the resume window, but must learn of a crash at once. Run therefore starts a
// sentinel: a process that waits for the end of its standard input, which is a pipe
// from the host-agent. If the pipe ends without a farewell, the sentinel connects like
// the host-agent, with its own key, and releases the host on behalf of the crashed
// instance. Relays then end their links to that instance and close its clients with
// CloseHostOffline, "host-agent crashed". Clients that return to resume wait for the
// next host-agent, which gets the host at once.
//
// The sentinel receives relays, instance and enrolment token through the pipe. Its
// arguments contain no secret, and from the environment it receives only the variables
// for proxies and certificates. It has its own session and ignores the signals that
// ask programs to end. It ends with its host-agent, as soon as relays know of a crash,
// or 30 s after the crash. If both processes are killed together, as in a container,
// the next host-agent informs the relays, provided that it has the same state
// directory. A file there names the running instance, which holds the file's lock. A
// host-agent that gets the lock knows that the instance has ended, and releases the
// host on its behalf. Without the file, the resume window has to pass.
package hostagent
