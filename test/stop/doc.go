// Package stop tests what relay and host-agent do when they are told to stop,
// as processes: what is under way arrives, clients are told, and they end in
// time.
package stop
