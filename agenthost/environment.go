package agenthost

import (
	"os"
	"strings"
)

// hidden lists prefixes of environment variables that agents and their commands do not get,
// because they may contain secrets of the host-agent.
var hidden = []string{"AHP_AGENT_", "AHP_RELAY_", "AHP_REMOTE_"}

// Environment returns the environment for agents and terminals: that of this process, without the
// host-agent's own variables.
func Environment() (list []string) {
	for _, variable := range os.Environ() {
		secret := false
		for _, prefix := range hidden {
			secret = secret || strings.HasPrefix(strings.ToUpper(variable), prefix)
		}
		if !secret {
			list = append(list, variable)
		}
	}
	return list
}
