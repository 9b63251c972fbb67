// Package stop tests how the processes of relay and host-agent stop: the receivers get
// all pending messages, clients are closed with a reason, and the processes end in
// time.
package stop
