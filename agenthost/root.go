package agenthost

import "encoding/json"

// providerName is the host's only agent and its sessions' scheme.
const providerName = "demo"

type rootState struct {
	Agents         []agent        `json:"agents"`
	ActiveSessions int            `json:"activeSessions"`
	Config         configState    `json:"config"`
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

type configState struct {
	Schema json.RawMessage `json:"schema"`
	Values json.RawMessage `json:"values"`
}

func (h *Host) rootStateLocked() rootState {
	state := rootState{
		Agents:         h.sessions.agentsLocked(),
		ActiveSessions: h.active,
		Config: configState{
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
	h := ss.host
	if len(h.sessions.providers) == 0 {
		return []agent{{
			Provider:    providerName,
			DisplayName: "Demo Agent",
			Description: "Scripted agent without a model behind it",
			Models: []model{{
				ID: "demo-model", Provider: providerName, Name: "Demo Model", MaxContextWindow: 128000,
			}},
			Capabilities: json.RawMessage(`{"multipleChats":{"fork":true}}`),
			Resources:    h.cfg.Resources,
		}}
	}
	agents := []agent{}
	for _, p := range h.sessions.providers {
		agents = append(agents, p.describeLocked())
	}
	return agents
}

// changeActiveLocked counts the sessions with an active turn.
func (h *core) changeActiveLocked(by int) {
	h.active += by
	h.emitLocked(rootChannel, struct {
		Type           string `json:"type"`
		ActiveSessions int    `json:"activeSessions"`
	}{"root/activeSessionsChanged", h.active})
}
