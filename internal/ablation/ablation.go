// Package ablation switches optimizations off, so that `make bench ARGS=ablate` can
// measure each optimization's gain. Released programs have no such switch: the
// benchmark links programs with the name of an environment variable that lists the
// optimizations to omit.
package ablation

import (
	"os"
	"slices"
	"strings"
)

// variable is the name of the environment variable, or "". Only the linker sets it.
var variable string

// The omitted optimizations. docs/performance.md has the gain from each.
var (
	SmallStacks    = off("small-stacks")    // package idle: work with a deep stack runs in a goroutine of its own
	LateBuffers    = off("late-buffers")    // package idle: no buffer before bytes arrive
	GiveBack       = off("give-back")       // package memory: memory returns to the system when a process is quiet
	LateReferences = off("late-references") // package routing: references wait longer after late references
	Rows           = off("rows")            // package routing: consecutive bodies are one frame for queues
	OwnFrames      = off("own-frames")      // package hostagent: the host's frames are read in place
	FrameCache     = off("frame-cache")     // package hostagent: a copy of a recent message is not parsed again
	Delays         = off("delays")          // package meter: the delay of messages is measured
)

// off reports whether an optimization is in the list.
func off(name string) bool {
	return variable != "" && slices.Contains(strings.Split(os.Getenv(variable), ","), name)
}
