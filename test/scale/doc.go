// Package scale measures a cluster of relays with many hosts. Servers, stores
// and registries are real. In most rows, host-agents are reduced to their lease requests,
// which come from a separate process over few connections. A [RealRun] has whole relays,
// and host-agents with connections of their own.
package scale
