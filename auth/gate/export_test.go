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

// MaxInReach bounds InReach: the channels a gate caches as in reach.
const MaxInReach = maxInReach

func InReach(c *Chain) int { return len(c.Gates[0].(*Authority).reach.inReach) }

// SchemeRules returns the name of each scheme's content rule.
func SchemeRules() map[string]string {
	names := map[contentRule]string{byFile: "file", byName: "name", byRevision: "revision", byCanvas: "canvas", operateOnly: "operate"}
	rules := map[string]string{}
	for scheme, rule := range contentRules {
		rules[scheme] = names[rule]
	}
	return rules
}
