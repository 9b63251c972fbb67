// Package scale measures a cluster of relays with many hosts: real servers, stores and
// registries, and host-agents of which only the lease requests are there, in another
// process.
package scale
