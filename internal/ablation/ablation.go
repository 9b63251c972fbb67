// Package ablation switches optimizations off, so `make bench ARGS=ablate` can
// measure what each gains. The switch is an environment variable with a list of
// optimizations to omit. Only the benchmark links programs with the variable's
// name; released programs have no such switch.
package ablation

import (
	"os"
	"slices"
	"strings"
)

// variable is the name of the environment variable, or "". Only the linker sets it.
var variable string

// Each variable is true if its optimization is omitted. docs/performance.md lists
// the gains.
var (
	SmallStacks = off("small-stacks") // packages idle, wire: goroutines with deep stacks are not kept
	LateBuffers = off("late-buffers") // package idle: no buffer before bytes arrive
	GiveBack    = off("give-back")    // package memory: memory is returned to the system when a process is quiet
	BusyGarbage = off("busy-garbage") // package memory: garbage may grow further while a process is busy
	Rows        = off("rows")         // package routing: consecutive bodies are queued as one frame
	FrameCache  = off("frame-cache")  // package hostagent: repeated messages are parsed once
	Delays      = off("delays")       // package routing: the delay of messages is measured
	WriteTurns  = off("write-turns")  // package gateway: a tenant's clients are written to in turns
)

// off reports whether an optimization is in the list.
func off(name string) bool {
	return variable != "" && slices.Contains(strings.Split(os.Getenv(variable), ","), name)
}
