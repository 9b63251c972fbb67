// Package connect is the program ahp-connect: the client's end of a relay, on a
// person's own machine.
//
//	client ──ws, loopback──▶ Endpoint ─┐
//	client ──stdio─────────▶ Stdio ────┴─ pipe ── Relay.Dial ══ws══▶ relay ──▶ host
//
// A [Home] holds the person's sign-ins and the local tokens. A [Relay] is one sign-in:
// it lists hosts, obtains tokens, and opens connections. An [Endpoint] serves local
// clients. A pipe joins one local client to one host.
//
// # What an attacker can do
//
// A web page can send requests to loopback addresses. The [Endpoint] refuses requests
// with a foreign Origin or a Host that is not a loopback name, so DNS rebinding fails,
// and it wants a local token in any case. A second user of the machine can connect to
// the port, but has no local token. Before the token is verified, the Endpoint reads a
// bounded header only. A process of the same user can read the local tokens, as it can
// read the person's other secrets.
//
// If a different program held the port, clients may have sent it their tokens. All
// local tokens are then renewed.
//
// A relay sees the messages that it carries, but it cannot harm this machine by them:
// sizes are bounded, text must be UTF-8, and no message is parsed for more than the
// answers to requests of ahp-connect itself. A stream that resumes (package resume)
// accepts each packet once.
//
// # Messages of its own
//
// All messages pass unchanged, except two kinds. ahp-connect renews the token of an open
// connection with relay/refreshToken, and keeps the answer. While the relay is
// unreachable, ahp-connect answers ping.
//
// # Concurrency
//
// The methods of Home, Relay and Endpoint may run at once. A pipe ends with its
// context, and leaves no goroutine.
package connect
