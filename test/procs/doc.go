// Package procs runs relay, host-agent, AHP host and NATS as processes. Its tests kill
// a process or break the network between two processes.
//
//	client ─▶ ClientRelay ─▶ relay ─▶ RelayNATS ─▶ NATS ◀─ AgentNATS ◀─ host-agent ─▶ AgentHost ─▶ host
//
// The capitalized names are fault proxies. With [Config.ExternalNATS], NATS is
// the nats-server in go.mod; otherwise it is embedded in the relay, there is no
// RelayNATS, and the host-agent connects through the relay's /nats.
//
// Each [Site] has its own address in 127.0.0.0/8 with fixed ports: a restarted
// process finds its port free, because outgoing connections use different
// addresses. So this package runs on Linux only.
package procs
