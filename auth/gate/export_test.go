package gate

import (
	"maps"
	"slices"

	"ahprelay/ahp"
)

// KnownMethods are the clients' methods in the table.
func KnownMethods() []string {
	return slices.Concat(slices.Collect(maps.Keys(ahp.ClientMethods)), slices.Collect(maps.Keys(ahp.MCPMethods)))
}

// KnownOfHosts are the hosts' methods in the table.
func KnownOfHosts() []string { return slices.Collect(maps.Keys(ahp.HostMethods)) }

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
