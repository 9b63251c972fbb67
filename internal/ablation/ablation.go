// Package ablation switches mechanisms for speed off, so that `make bench ARGS=ablate`
// can measure the same program without each. Released programs have no such switch:
// only the benchmark links programs with the name of an environment variable that
// lists the mechanisms.
package ablation

import (
	"os"
	"slices"
	"strings"
)

// variable is the name of the environment variable; "": there is none. Only the
// linker sets it.
var variable string

// What a program does without. docs/performance.md says what each is worth.
var (
	SmallStacks    = off("small-stacks")    // package idle: what needs a deep stack runs in a goroutine of its own
	LateBuffers    = off("late-buffers")    // package idle: no buffer before there is something to read
	GiveBack       = off("give-back")       // package memory: memory goes back to the system when a process is quiet
	LateReferences = off("late-references") // package routing: references wait longer where some have come late
	Rows           = off("rows")            // package routing: bodies that go out in a row are one frame for queues
	OwnFrames      = off("own-frames")      // package hostagent: frames of the host are read where they lie
	FrameCache     = off("frame-cache")     // package hostagent: a copy of what was just read is not read again
	Delays         = off("delays")          // package meter: how long messages wait is measured
)

// off reports whether a mechanism is in the list.
func off(name string) bool {
	return variable != "" && slices.Contains(strings.Split(os.Getenv(variable), ","), name)
}
