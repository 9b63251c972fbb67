// Package scale measures a cluster of relays with many hosts. The relays' NATS servers,
// stores and registries are real. In most rows, a host-agent is only a source of lease
// requests: they come from a separate process over few connections. In a [RealRun], the
// relays are complete, and each host-agent has its own connections. Command
// test/cmd/bench runs the measurements (docs/performance.md).
package scale
