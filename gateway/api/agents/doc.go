// Package agents is a relay's HTTP interface for host-agents.
//
// # The flow
//
//	POST /agent/enroll       trades an enrolment token for a credential bound to a key
//	POST /agent/renew        trades a credential for its successor
//	POST /agent/challenge  ┐ at each connection: NATS credentials for the host and a
//	POST /agent/credentials┘ proved nkey; a credential's key is proved too
//	GET  /nats               a WebSocket: its binary messages carry a connection to the NATS server
//
// Any message at /nats, also a ping, keeps the lease of the host-agent instance that
// the handshake names ([broker.InstanceHeader]). A WebSocket that is silent for 10 s
// is closed.
//
// A renewed credential ends the previous one at its first use and not before, because
// the answer may have been lost. If the same credential was renewed twice, the
// successor that is used first is valid: see [API.MayTakeOver].
//
// # What it owns
//
// The API owns the WebSockets at /nats, each with its enrolment. They end when the
// enrolment is revoked, and when the relay stops. The relays share the record of the
// credential in use as a revocation (registry.Revocations).
//
// # Concurrency
//
// An [API] is safe for concurrent use. Its lock renewing makes the check and the
// record of the credential in use atomic. The tunnels' lock guards their set. The two
// locks are never held together.
package agents
