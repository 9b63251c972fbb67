package agenthost

import (
	"encoding/json"
	"slices"
)

type rootState struct {
	Agents         []agent        `json:"agents"`
	ActiveSessions int            `json:"activeSessions"`
	Config         Schema         `json:"config"`
	Terminals      []terminalInfo `json:"terminals,omitzero"` // absent before the first terminal
}

type agent struct {
	Provider     string          `json:"provider"`
	DisplayName  string          `json:"displayName"`
	Description  string          `json:"description"`
	Models       []model         `json:"models"`
	Capabilities json.RawMessage `json:"capabilities"`
	Resources    []Resource      `json:"protectedResources,omitempty"`
}

type model struct {
	ID               string `json:"id"`
	Provider         string `json:"provider"`
	Name             string `json:"name"`
	MaxContextWindow int    `json:"maxContextWindow"`
	SupportsVision   bool   `json:"supportsVision"`
}

func (h *Host) rootStateLocked() rootState {
	state := rootState{
		Agents:         h.sessions.agentsLocked(),
		ActiveSessions: h.sessions.activeLocked(),
		Config: Schema{
			Schema: json.RawMessage(`{"type":"object","properties":{}}`),
			Values: json.RawMessage(`{}`),
		},
	}
	if h.terminals.values != nil {
		state.Terminals = h.terminals.terminalInfosLocked()
	}
	return state
}

func (ss *sessionTable) agentsLocked() []agent {
	agents := []agent{}
	for _, p := range ss.providers {
		described := p.describeLocked()
		described.Resources = ss.host.cfg.Resources
		agents = append(agents, described)
	}
	return agents
}

// activeLocked returns the number of sessions in which a turn runs.
func (ss *sessionTable) activeLocked() (n int) {
	for _, s := range ss.all() {
		if slices.ContainsFunc(s.listed, func(ch *chat) bool { return ch.active != nil }) {
			n++
		}
	}
	return n
}

// announceActiveLocked publishes the number of active sessions.
func (h *core) announceActiveLocked(n int) {
	h.emitLocked(rootChannel, struct {
		Type           string `json:"type"`
		ActiveSessions int    `json:"activeSessions"`
	}{"root/activeSessionsChanged", n})
}
