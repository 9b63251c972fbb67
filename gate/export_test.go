package gate

import (
	"maps"
	"slices"
)

// KnownMethods are those that the gate knows.
func KnownMethods() []string {
	return slices.Collect(maps.Keys(mapsOf(methods, mcpMethods)))
}

func mapsOf(all ...map[string]method) map[string]method {
	one := map[string]method{}
	for _, m := range all {
		maps.Copy(one, m)
	}
	return one
}

// Teaches is the cheap look at an action, and Learns the whole one: whether
// anything is learnt from it on a channel.
var Teaches = teaches

func Learns(channel string, action []byte) bool {
	r := newReach([][]string{{channel}}, nil, false)
	r.learnFrom(channel, action)
	return len(r.learnt)+len(r.patterns)+len(r.hints) > 0
}

// MaxHeard bounds what Heard returns: how many channels a gate remembers of
// those on which the host has spoken.
const MaxHeard = maxHeard

func Heard(g Gate) int { return len(g.(*Authority).reach.heard) }
