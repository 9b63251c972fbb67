// Package embedded runs a NATS server within a relay's process.
//
// # Cluster
//
// Embedded servers can be routed to each other ([Cluster]). They share
// nothing but messages.
package embedded
