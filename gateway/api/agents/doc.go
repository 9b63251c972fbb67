// Package agents is what host-agents ask of a relay over HTTP.
//
// # The flow
//
//	POST /agent/enroll       an enrolment token, used up by that, for a credential that is bound to a key
//	POST /agent/renew        a credential for its successor
//	POST /agent/challenge  ┐ for each time that it connects: NATS credentials for its host,
//	POST /agent/credentials┘ for an nkey that it proves, and the credential's key
//	GET  /nats               a WebSocket whose binary messages are a connection to the NATS server
//
// Whatever comes at /nats, a ping at least, keeps the lease
// of the run of the host-agent that is named in the handshake ([broker.InstanceHeader]);
// a WebSocket that brings nothing for 10 s is ended.
//
// A credential that was renewed ends the one before when it is first used, and not before:
// the answer may have been lost. Of two that were renewed from the same one, the first that is
// used is good: see [API.MayTakeOver].
//
// # What it owns
//
// The WebSockets at /nats, each with the enrolment that it was opened with: they end when that
// is revoked, and when the relay stops. Which credential is in use is among what relays
// know to be revoked (registry.Revocations), so all of them go by it.
//
// # Concurrency
//
// An [API] is safe for concurrent use. Its lock renewing makes one step of looking which
// credential is in use and noting it; that of the WebSockets guards their set. Neither is
// held while the other is taken.
package agents
