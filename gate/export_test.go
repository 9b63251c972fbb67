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
