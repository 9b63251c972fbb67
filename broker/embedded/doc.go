// Package embedded runs a NATS server within a relay's process.
//
// # Cluster
//
// Embedded servers can be routed to each other ([Cluster]). They share messages, and
// what JetStream keeps for relays, of which most must be there to change it. For that a
// server has a name that outlives it, and a directory.
//
// # Regions
//
// Clusters can be joined by gateways ([Gateways]): each is a region then, and keeps for
// its relays what it has to decide alone.
package embedded
