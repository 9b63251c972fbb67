package gate

import (
	"maps"
	"slices"
)

// KnownMethods are those that the gate knows.
func KnownMethods() []string {
	return slices.Collect(maps.Keys(mapsOf(methods, mcpMethods)))
}

// KnownOfHosts are the notifications and requests of hosts that the gate knows.
func KnownOfHosts() []string {
	return slices.Concat(slices.Collect(maps.Keys(notes)), mcpNotes, asks)
}

func mapsOf(all ...map[string]method) map[string]method {
	one := map[string]method{}
	for _, m := range all {
		maps.Copy(one, m)
	}
	return one
}

// MaxInReach bounds what InReach returns: how many channels a gate remembers of
// those on which the host has spoken.
const MaxInReach = maxInReach

func InReach(c *Chain) int { return len(c.Gates[0].(*Authority).reach.inReach) }

// SchemeRules are the names of the rules by which contents are read.
func SchemeRules() map[string]string {
	names := map[contentRule]string{byFile: "file", byName: "name", byRevision: "revision", byCanvas: "canvas", operateOnly: "operate"}
	rules := map[string]string{}
	for scheme, rule := range contentRules {
		rules[scheme] = names[rule]
	}
	return rules
}
