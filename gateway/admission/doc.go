// Package admission says who may come to a relay, how often, and how fast. What a client
// may use is counted in five scopes that it belongs to: its address, its token, that
// one's subject, its host and its tenant. Each relay counts for itself.
//
// A connection too many, at a time or in a time, is refused before the handshake: HTTP 429, with
// Retry-After. Messages that come too fast are read later, so that the client
// is slowed down by its own connection. If that would take longer than
// maxDelay, it is told: the request with error 4290 and data {limit,
// retryAfterMs}, and close 1013.
//
// Addresses of the machine itself have no limits: behind a proxy that is not
// trusted (gateway.Config.TrustProxy) all clients have one. IPv6 addresses count by
// /64, which is what one customer has.
//
// # The flow
//
//	Limiter.Connect     before the handshake: counts a connection in its five scopes, or refuses it
//	  Admission.Opened    its host has taken it: it is not pending any more
//	  Admission.AwaitRate each message: waits until all scopes have room, or says that it takes too long
//	  Admission.Leave     it is gone
//	Limiter.ConnectAgent  the same of a host-agent's connection to NATS
//	Limiter.Failed, Traded  rates of requests that come without a connection: see Buckets
//
// # What it owns
//
// What is in use in each scope, and the rates of each. Scopes without connections are remembered, so that nobody
// gets new allowances by leaving and coming back, and the longest idle are forgotten above a bound.
//
// # Concurrency
//
// A [Limiter] and its Admissions are safe for concurrent use. Its lock guards all counts and is held while nothing
// else is called; rates have locks of their own (golang.org/x/time/rate), so that messages do not
// wait for those who come and go. [Buckets] have one lock.
package admission
