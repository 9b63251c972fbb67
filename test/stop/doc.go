// Package stop tests how relay and host-agent stop, as processes: pending data
// arrives, clients are told, and the processes end in time.
package stop
