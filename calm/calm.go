// Package calm has the Go runtime of a program look after itself less often.
//
// A thread of the runtime looks every 20 µs, while anything runs, whether something runs for too long; others
// that look for work wait 3 µs. The kernel makes some 70 µs of either (timer slack, prctl(2)), so that a program that
// gets a message now and then spends much of its time on waking threads for nothing, and has the
// message wait for a processor meanwhile. With [slack] they sleep for longer.
//
// In turns with the same programs without it, on two busy cores: a request and its answer through relay and host-agent take 0.82 of the
// time and 0.73 of the processor; bursts to 100 clients 0.89 and 0.9, saturated fan-out 0.87 of the relay's
// processor and 0.93 of the host-agent's. Timers of the program are up to that much later, too.
package calm

import (
	"os"
	"slices"

	"ahprelay/without"
)

// Down gives the program the slack, if it is to run one of some commands, which run for long. Threads
// have what the one had that made them, and the one in question is there before the program is:
// so the program begins anew, as the same process. Call it first. Where it cannot, the program
// goes on as it is.
func Down(commands ...string) {
	if !without.Calm && slices.ContainsFunc(os.Args[1:], func(arg string) bool { return slices.Contains(commands, arg) }) {
		down()
	}
}

// Usually calls start, which starts another program: that has the slack that programs usually
// have.
func Usually(start func() error) error { return usually(start) }
