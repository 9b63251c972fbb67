// Package agents is a relay's HTTP interface for host-agents.
//
// # The flow
//
//	POST /agent/enroll       exchanges an enrolment token for a credential bound to a key
//	POST /agent/renew        exchanges a credential for its successor
//	POST /agent/challenge  ┐ at each connection: NATS credentials for the host and a
//	POST /agent/credentials┘ proved nkey; a credential's key is proved too
//	GET  /nats               a WebSocket: its binary messages carry a connection to the NATS server
//
// Any message at /nats, including a ping, renews the lease of the host-agent instance that the
// handshake names ([broker.InstanceHeader]). The relay closes a WebSocket that is silent for 10 s;
// an unused one ([broker.StandbyHeader]) may be silent for longer.
//
// A renewed credential ends the previous one only when the new one is first used, because the
// response with it may have been lost. If a credential was renewed twice, the successor that is
// used first is valid: see [API.MayTakeOver]. An enrolment token cannot be used twice, so the relay
// repeats its answer to the same request.
//
// # What it owns
//
// The API owns the WebSockets at /nats, each with its enrolment. They end when the enrolment is
// revoked, and when the relay stops. Relays share the record of which credential is in use, as a
// revocation (registry.Revocations).
//
// # Concurrency
//
// An [API] is safe for concurrent use. Its lock renewing makes the check and the record of the
// credential in use atomic. The tunnels' lock guards the set of WebSockets. The two locks are
// never held together. A third lock, enrolling, guards the answers to enrolments.
package agents
