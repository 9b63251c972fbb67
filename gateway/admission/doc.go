// Package admission limits clients: how many connections, how often, and how fast.
// Each client counts in five scopes: its address, token, subject, host and tenant.
// Each relay counts separately.
//
// A connection above a limit, at a time or per time, is refused before the handshake:
// HTTP 429 with Retry-After. Messages above a rate are read later, which slows the
// client down through its own connection. If the delay would exceed maxDelay, the
// request gets error 4290 with data {limit, retryAfterMs}, and the connection ends
// with close 1013.
//
// Addresses of the machine itself have no limits: behind a proxy that is not trusted
// (gateway.Config.TrustProxy) all clients share such an address. IPv6 addresses count
// by /64, the usual allocation to a customer.
//
// # The flow
//
//	Limiter.Connect     before the handshake: counts a connection in its five scopes, or refuses it
//	  Admission.Opened    the host has accepted the connection: it is no longer pending
//	  Admission.AwaitRate each message: waits for room in all scopes, or reports a wait that is too long
//	  Admission.Leave     the connection has ended
//	Limiter.ConnectAgent  the same for a host-agent's connection to NATS
//	Limiter.Failed, Traded  rates of requests outside connections: see [fair.Buckets]
//
// # State
//
// The current use and the rates of each scope. Scopes without connections are
// remembered, so a client cannot renew its allowance by reconnecting. Above a bound,
// the scopes idle for longest are forgotten.
//
// # Concurrency
//
// A [Limiter] and its Admissions are safe for concurrent use. Its lock guards all
// counts and no other call happens under it. Rates have locks of their own
// (golang.org/x/time/rate), so messages do not wait for new connections.
package admission
