// Package broker connects relays and host-agents to NATS, and manages the NATS
// accounts of tenants. The embedded server is a separate package, embedded, so
// host-agents do not link it.
//
// # Connections
//
// A [Conn] reconnects for ever. After 4 s without traffic it probes the peer: a NATS
// server by a NATS ping, a relay by a WebSocket ping. After 6.5 s, or when the machine
// has slept, it closes the connection and dials again after a random delay: at most
// 0.8 s for the first 20 s, while links survive, later up to 5 s. The randomness
// spreads a thousand host-agents that lose the same relay. A host-agent with several
// relay URLs tries them in turn. It can compress its stream through a WebSocket, see
// [CompressHeader].
//
// # Tenants
//
// Each tenant has its own NATS account, and relays share another. A relay connects to
// the accounts that it serves ([Tenants]). Accounts are opened on demand ([Demand])
// and closed after a time without use. An embedded server asks for the tenant of an
// unknown account when one of its users logs in. Relays make NATS refuse users whose
// enrolment was revoked (registry.Registry.Admit).
package broker
