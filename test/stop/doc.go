// Package stop tests how the processes of relay and host-agent stop: pending
// data arrives, clients are notified, and the processes end in time.
package stop
