// Package broker connects relays and host-agents to NATS, and manages the NATS
// accounts of tenants. The embedded server is the separate package embedded, so that
// host-agents are built without it.
//
// # Connections
//
// A [Conn] reconnects until it is closed. It probes a silent peer: a NATS server with a
// NATS ping, a relay with a WebSocket ping. It does so within 4 s of an unanswered write,
// and after 8 s without bytes in either direction. If no bytes arrive within further 2.5
// s, or when the machine has slept, it closes the network connection
// and dials again after a random delay. The delay is at most 0.8 s during the first 20
// s, while links survive, and later at most 5 s. It is random to spread a thousand
// host-agents that lose the same relay. A host-agent with several relay URLs tries
// them in turn. It can compress its stream in a WebSocket, see [CompressHeader].
//
// # Tenants
//
// Each tenant has a NATS account of its own, and relays share a further account. A
// relay connects to the accounts of the tenants that it serves ([Tenants]). It opens
// accounts on demand ([Demand]), and closes them when they have been unused for some
// time. When a user of an unknown account logs in, the embedded server asks for that
// account's tenant. Relays make NATS refuse users whose enrolment was revoked
// (registry.Registry.Admit).
package broker
