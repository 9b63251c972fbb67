// Package broker has the connections of relays and host-agents to NATS, and the
// accounts of tenants there. The server itself, where it is embedded in a relay,
// is package embedded below it: host-agents do not have it.
//
// # Connections
//
// A [Conn] comes back by itself, for ever. When nothing arrives for 4 s the other side
// is asked for a sign of life: a NATS server by a ping of NATS, a relay by one of the
// WebSocket. It is given up when nothing arrives for 6.5 s, or when the machine has slept, and made anew after a random wait: at most
// 0.8 s for the first 20 s, during which links outlive it, then up to 5 s. So a
// thousand host-agents that lose a relay do not come back at once, but all of them
// soon. A host-agent that knows several relays goes from one to the next. What it
// sends through a WebSocket can be compressed, see [CompressHeader].
//
// # Tenants
//
// Each tenant has a NATS account of its own, and relays one for themselves. A
// relay has a connection to those that it serves ([Tenants]): they are opened when
// somebody needs them ([Demand]), and closed when nobody has for a while. An embedded
// server asks whose an account is when a user of it comes that it does not know. A relay
// tells NATS which users to refuse, because their enrolment was revoked
// (registry.Registry.Admit).
package broker
