// Package connect implements ahp-connect, the client's end of a relay on a person's own
// machine.
//
//	client ──ws, loopback──▶ Endpoint ─┐
//	client ──stdio─────────▶ NewLines ─┴─ pipe ── Relay.Dial ══ws══▶ relay ──▶ host
//
// A [Home] stores the person's sign-ins and the local tokens. A [Relay] is a sign-in at
// one relay: it lists hosts, gets tokens, and opens connections. An [Endpoint] serves
// local clients. A pipe connects one local client to one host.
//
// # What an attacker can do
//
// A web page can send requests to loopback addresses. The [Endpoint] refuses requests
// with a foreign Origin, or with a Host other than a loopback name (against DNS
// rebinding), and requires a local token for all but the console's files. Other users of the machine can connect
// to the port, but have no local token. Until the token is verified, the Endpoint reads
// only a bounded header. A process of the same user can read the local tokens, like all
// secrets of that user.
//
// If a different program has used the port, clients may have sent their tokens to it.
// All local tokens are then renewed.
//
// A relay can read the unsealed messages it carries, but cannot harm this machine with them:
// sizes are bounded, text must be UTF-8, and ahp-connect parses only the answers to its
// own requests. A resumed stream (package resume) accepts each packet once.
//
// # Messages which ahp-connect handles itself
//
// Messages pass unchanged, with two exceptions. ahp-connect renews the token of an open
// connection with relay/refreshToken, and does not pass on the answer. While the relay
// is unreachable, it answers pings.
//
// # Concurrency
//
// The methods of Home, Relay and Endpoint are safe for concurrent use. A pipe ends when
// its context ends, and leaves no goroutine.
package connect
