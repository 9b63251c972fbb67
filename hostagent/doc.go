// Package hostagent makes a private AHP host reachable through relays. It
// dials out only: to the relay's base URL for credentials, to NATS, and to the
// host.
//
// # The host
//
// An [Agent] opens a connection of its own to the host for each client, so that
// the host sees each client's own identity and capabilities, and one more for
// itself, on which a monitor pings the host: that is how relays know whether
// the host is up when no client is there, and how a connection that the host
// closed is told from a host that is gone.
//
// An [Upstream] is a WebSocket, over TCP, TLS or a Unix socket, or a command
// that is started for each connection and speaks AHP on its standard input and
// output, one message a line. Messages pass byte for byte, except that line
// breaks between the tokens of a message become spaces for a command.
//
// # Who a connection is for
//
// The host is told who the client is, as the relay has verified it, where hosts
// that do not care do not notice: a WebSocket's handshake has the headers
//
//	AHP-Relay-Subject     of the client's token
//	AHP-Relay-Tenant
//	AHP-Relay-Access      read, talk, approve, write or admin: what is left of the token's by --allow and --approve-only
//	AHP-Relay-Connection  id of the connection, as in all logs
//
// and a command the variables AHP_REMOTE_SUBJECT, AHP_REMOTE_TENANT,
// AHP_REMOTE_ACCESS and AHP_REMOTE_CONNECTION. Values are percent-encoded as a
// segment of a URL's path is. The monitor's connection has none of them. No
// client can set them, but whoever reaches the host otherwise can: a host that
// believes them must let nobody else connect, by its connection token
// (--upstream-token-file) or a Unix socket.
//
// What clients may do, the host-agent sees to: see package gate.
//
// # What the host-agent asks itself
//
// The host gets a few requests on a client's connection that the client has not sent. They
// are exceptions to the promise that each end gets what the other has sent, and nothing
// else:
//
//   - subscribe, for a channel to which the client is subscribed. The host-agent learns from
//     the answer what a canvas is, before it serves its content (package contentproxy); and,
//     when a client resumes with a replay, what MCP servers its sessions have (package
//     mcpgate) and which contents and options the host has named to it (package gate). It
//     asks for 16 channels at most, and for none whose state it knows;
//   - canvasReadResource, for a canvas that the client is shown by URL and that the host serves.
//
// Their ids begin with "host-agent-" and cannot be guessed; the gates judge them like the
// client's own; their answers do not reach the client. What a resumed client sends waits
// until the host has answered, 5 s at most. A host that takes a second subscribe for a change
// of options may send the client its default delivery.
//
// # The ends of a connection
//
// When a client is gone, what it has sent is still written, for a few seconds
// at most, and the connection to the host closed. When the host closes the
// connection, the client is told so with CloseResync, or with CloseHostOffline if
// the host has closed the monitor's as well.
//
// A host that does not answer is not gone. Its connections stay, and new ones
// wait for it for 10 min; relays are told since when it is silent. Only if its
// machine acknowledges nothing for the resume time are clients closed, with
// CloseHostOffline, unless the host is still heard on their own connection.
//
// What clients and presence are told of a host that is away names no address,
// no path and nothing else of the host's surroundings: that is in the log, and
// in what [Agent.Check] says.
//
// # Ends of an Agent
//
// [Agent.Run] tells clients and relays before it returns, within a few seconds
// whether or not they and the host answer.
//
// # Crashes
//
// At a NATS server, a host-agent that has crashed looks like one whose network was
// cut: a connection ends, or falls silent. Of a cut shorter than the resume window
// clients are to hear nothing, of a crash at once. So Run starts a sentinel: a
// process that does nothing but wait for the end of its standard input, which is a
// pipe from the host-agent. If that ends without a farewell, the sentinel connects
// as the host-agent would, with a key of its own, and releases the host in the name
// of the instance that is gone. Relays then end the links to it and close its
// clients with CloseHostOffline, "host-agent crashed"; those that come back to
// resume wait for the next host-agent, which gets the host at once.
//
// The sentinel learns relays, instance and enrolment token through the pipe: there
// is nothing secret among its arguments, and of the environment it gets what
// concerns proxies and certificates. It has a session of its own and ignores the
// signals that ask programs to end. It ends by itself: with its host-agent, or as
// soon as relays know of a crash, or 30 s after it. When everything is killed
// together, as the processes of a container are, there is nobody left to tell
// relays. Then the next host-agent does, if it has the same state directory: a file
// there says which instance runs, and is locked by it. Who gets the lock knows that
// the instance has ended, and releases the host in its name. Else the resume window
// has to pass.
package hostagent
