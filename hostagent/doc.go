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
// # The ends of a connection
//
// When a client is gone, what it has sent is still written, for a few seconds
// at most, and the connection to the host closed. When the host closes the
// connection, the client is told so with CloseResync if the host still answers
// the monitor, and with CloseHostOffline if not.
//
// # Ends of an Agent
//
// [Agent.Run] tells clients and relays before it returns, within a few seconds
// whether or not they and the host answer.
package hostagent
