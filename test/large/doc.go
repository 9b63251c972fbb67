// Package large exchanges large messages beside small messages: with 8 MiB and 72 MiB
// in tests, and with 32 MiB in a benchmark. Relay, host-agent and host run as
// processes.
package large
