// Package bench measures the relay and the host-agent. Each figure is compared
// with the same work done by a different system, in turns within one run.
//
// The measured programs run as processes of their own. The load comes from
// separate processes (package loadgen), which do not count. Processor time is
// the user and system time of all threads in a process. A figure is the median
// of its rounds, and its spread their lowest and highest value; a ratio is the
// median of the rounds' ratios.
//
// In a measured round every frame must arrive complete, once and in order, and
// every connection must stay open: otherwise the run fails and reports the loss.
//
// "Saturated" work runs as fast as all clients can read: a host has a limited
// number of actions in flight to them.
//
// Command test/cmd/bench runs this package and package scale. docs/performance.md
// describes both kinds of runs.
package bench
