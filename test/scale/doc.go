// Package scale measures a cluster of relays with many hosts. Servers, stores
// and registries are real; host-agents are reduced to their lease requests,
// which come from a separate process.
package scale
