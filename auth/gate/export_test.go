package gate

import (
	"maps"
	"slices"

	"ahprelay/ahp"
)

// KnownMethods returns the methods that clients may send, according to the tables in package ahp.
func KnownMethods() []string {
	return slices.Concat(slices.Collect(maps.Keys(ahp.ClientMethods)), slices.Collect(maps.Keys(ahp.MCPMethods)))
}

// KnownOfHosts returns the methods that hosts may send, according to the table in package ahp.
func KnownOfHosts() []string { return slices.Collect(maps.Keys(ahp.HostMethods)) }

// MaxInReach is how many channels a gate caches as in reach.
const MaxInReach = maxInReach

func InReach(c *Chain) int { return len(c.Gates[0].(*Authority).reach.inReach) }

// SchemeRules returns for each URI scheme the name of the rule that decides about reading its
// content.
func SchemeRules() map[string]string {
	names := map[contentRule]string{byFile: "file", byName: "name", byRevision: "revision", byCanvas: "canvas", operateOnly: "operate"}
	rules := map[string]string{}
	for scheme, rule := range contentRules {
		rules[scheme] = names[rule]
	}
	return rules
}
