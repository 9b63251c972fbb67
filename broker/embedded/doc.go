// Package embedded runs a NATS server within a relay's process.
//
// # Cluster
//
// Embedded servers can be connected by routes ([Cluster]). They then share messages,
// and JetStream data of the relays, which a majority of the servers can change. Each
// server needs a permanent name and a data directory.
//
// # Regions
//
// Gateways connect clusters ([Gateways]). Each cluster is then a region, with its own
// JetStream data.
package embedded
