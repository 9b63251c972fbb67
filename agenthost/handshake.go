package agenthost

import (
	"encoding/json"
	"strings"
)

type initializeParams struct {
	ClientID             string          `json:"clientId"`
	ProtocolVersions     []string        `json:"protocolVersions"`
	InitialSubscriptions []string        `json:"initialSubscriptions"`
	Capabilities         json.RawMessage `json:"capabilities"`
}

type initializeResult struct {
	ProtocolVersion    string     `json:"protocolVersion"`
	ServerSeq          int64      `json:"serverSeq"`
	Snapshots          []snapshot `json:"snapshots"`
	ServerInfo         serverInfo `json:"serverInfo"`
	DefaultDirectory   string     `json:"defaultDirectory"`
	CompletionTriggers []string   `json:"completionTriggerCharacters"`
	Telemetry          telemetry  `json:"telemetry"`

	Meta json.RawMessage `json:"_meta,omitempty"`
}

type serverInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type telemetry struct {
	Logs string `json:"logs"`
}

// initializeLocked makes this the client's newest connection. The client gets the
// answer before all other messages.
func (c *conn) initializeLocked(raw json.RawMessage) (any, error) {
	h := c.host
	params, err := decodeParams[initializeParams](raw)
	if err != nil {
		return nil, err
	}
	h.logLocked(levelInfo, "Initialize: clientId=%s, protocolVersions=[%s]", params.ClientID, strings.Join(params.ProtocolVersions, ", "))
	v, err := h.dialect.negotiate(params.ProtocolVersions)
	if err != nil {
		return nil, err
	}
	cl := h.joinLocked(c, params.ClientID)
	h.canvases.forgetProviderLocked(params.ClientID)
	cl.offer = readCapabilities(params.Capabilities)
	cl.offer.version = v
	cl.options = nil
	c.offer = cl.offer
	snapshots := []snapshot{}
	for _, uri := range params.InitialSubscriptions {
		c.subscribeLocked(uri, subscribeParams{})
		// If the resource does not exist, the client is subscribed to it and gets no
		// snapshot.
		if snap, err := c.snapshotLocked(uri, view{}); err == nil && snap != nil {
			snapshots = append(snapshots, *snap)
		}
	}
	return initializeResult{
		ProtocolVersion:    v.String(),
		ServerSeq:          h.seq,
		Snapshots:          snapshots,
		ServerInfo:         serverInfo{Name: "agent-host", Version: h.dialect.own[0].String()},
		DefaultDirectory:   h.resources.files.defaultDirectory(),
		CompletionTriggers: []string{"@", "#", "/"},
		Telemetry:          telemetry{Logs: otlpPrefix + "{level}"},
		Meta:               h.cfg.Meta,
	}, nil
}
