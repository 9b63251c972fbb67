// Package bench measures the relay and the host-agent, each figure beside the
// same work done another way, in turns within one run.
//
// What is measured are the programs themselves, as processes; what loads them
// are other processes (package loadgen), whose processor time does not count.
// Processor time is user and system time of all threads of a process. A figure
// is the median of its rounds, its spread their least and greatest value; a
// ratio is the median of the rounds' ratios.
//
// In a measured round every frame must arrive, whole, once and in order, and
// every connection must stay: else the run fails, with what was lost.
//
// Saturated is as fast as all clients take it: a host has a bounded number of
// actions on their way to them.
package bench
