// Package procs runs relay, host-agent, AHP host and NATS as processes, for
// tests of what happens when one of them dies or a network between them fails.
//
//	client ─▶ ClientRelay ─▶ relay ─▶ RelayNATS ─▶ NATS ◀─ AgentNATS ◀─ host-agent ─▶ AgentHost ─▶ host
//
// The names with capitals are fault proxies. With [Config.ExternalNATS], NATS
// is nats-server of go.mod; otherwise it is in the relay, there is no
// RelayNATS, and the host-agent comes through the relay's /nats.
//
// Each [Site] has an address of its own in 127.0.0.0/8, where ports are fixed:
// a process that is started again finds its port free, since outgoing
// connections have other addresses. So this runs on Linux only.
package procs
