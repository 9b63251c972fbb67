// Package embedded runs a NATS server within a relay's process.
//
// # Cluster
//
// Embedded servers can be connected by routes ([Cluster]). They share messages and the
// relays' JetStream data, which a majority of them can change. For that, a server
// needs a permanent name and a directory.
//
// # Regions
//
// Gateways connect clusters ([Gateways]). Each cluster is then a region, which decides
// alone about its relays' data.
package embedded
