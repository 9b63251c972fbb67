// Package admission limits how many connections clients have, how often they connect, and how fast
// they send. Each client counts in five scopes: its address, token, subject, host and tenant. Each
// relay counts separately.
//
// A connection that exceeds a limit is refused before the handshake: HTTP 429 with Retry-After.
// Messages that exceed a rate are read later, which slows the client down through TCP. If the delay
// would exceed 10 s, a request gets error 4290 with data {limit, retryAfterMs}, and the connection
// is closed with 1013.
//
// Loopback addresses have no limits: behind a proxy on this machine that is not in
// gateway.Config.TrustProxy, all clients have such an address. IPv6 addresses count by /64, the
// usual allocation to a customer.
//
// # The flow
//
//	Limiter.Connect     before the handshake: counts a connection in its five scopes, or refuses it
//	  Admission.Opened    the host has accepted the connection: it is no longer pending
//	  Admission.AwaitRate each message: waits until all scopes permit it, or reports that the wait is too long
//	  Admission.Leave     the connection has ended
//	Limiter.ConnectAgent  the same for a host-agent's connection to NATS
//	Limiter.Failed, Traded  rates of requests outside connections: see [fair.Buckets]
//
// # State
//
// The current use and the rates of each scope. Scopes without connections are remembered, so that a
// client cannot renew its allowance by reconnecting. Above 16,384, the scopes that were idle for
// longest are forgotten.
//
// # Concurrency
//
// A [Limiter] and its Admissions are safe for concurrent use. The Limiter's lock guards all counts,
// and no calls are made while it is held. Rates have locks of their own (golang.org/x/time/rate),
// so messages do not wait for new connections.
package admission
