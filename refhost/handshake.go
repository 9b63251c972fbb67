package refhost

import (
	"encoding/json"
	"strings"

	"ahprelay/ahp"
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
}

type serverInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type telemetry struct {
	Logs string `json:"logs"`
}

// initializeLocked makes the connection its client's newest. The answer comes
// before anything else that the client is sent as such.
func (h *Host) initializeLocked(c *conn, raw json.RawMessage) (any, error) {
	params, err := decodeParams[initializeParams](raw)
	if err != nil {
		return nil, err
	}
	h.logLocked(levelInfo, "Initialize: clientId=%s, protocolVersions=[%s]", params.ClientID, strings.Join(params.ProtocolVersions, ", "))
	v, err := negotiate(params.ProtocolVersions)
	if err != nil {
		return nil, err
	}
	cl := h.joinLocked(c, params.ClientID)
	h.forgetProviderLocked(params.ClientID)
	cl.offer = readCapabilities(params.Capabilities)
	cl.offer.version = v
	c.offer = cl.offer
	snapshots := []snapshot{}
	for _, uri := range params.InitialSubscriptions {
		c.subscribeLocked(uri, subscribeParams{})
		// A resource that does not exist yet is subscribed without a snapshot.
		if snap, err := h.snapshotLocked(c, uri, view{}); err == nil && snap != nil {
			snapshots = append(snapshots, *snap)
		}
	}
	return initializeResult{
		ProtocolVersion:    v.String(),
		ServerSeq:          h.seq,
		Snapshots:          snapshots,
		ServerInfo:         serverInfo{Name: "refhost", Version: hostVersions[0].String()},
		DefaultDirectory:   h.files.defaultDirectory(),
		CompletionTriggers: []string{"@", "#", "/"},
		Telemetry:          telemetry{Logs: otlpPrefix + "{level}"},
	}, nil
}

type reconnectParams struct {
	ClientID          string   `json:"clientId"`
	LastSeenServerSeq int64    `json:"lastSeenServerSeq"`
	Subscriptions     []string `json:"subscriptions"`
}

type reconnectResult struct {
	Type      string            `json:"type"`
	Actions   []json.RawMessage `json:"actions,omitzero"`
	Missing   []string          `json:"missing,omitzero"`
	Snapshots []snapshot        `json:"snapshots,omitzero"`
}

// reconnectLocked makes the connection the newest of a client that the host
// remembers, with the version and capabilities of its initialize. The answer
// holds everything up to now; live actions come after it.
func (h *Host) reconnectLocked(c *conn, raw json.RawMessage) (any, error) {
	params, err := decodeParams[reconnectParams](raw)
	if err != nil {
		return nil, err
	}
	h.logLocked(levelInfo, "Reconnect: clientId=%s, lastSeenSeq=%d", params.ClientID, params.LastSeenServerSeq)
	if h.clients[params.ClientID] == nil {
		return nil, fail(ahp.CodeNotFound, "Reconnect client not found: %s", params.ClientID)
	}
	c.offer = h.joinLocked(c, params.ClientID).offer
	h.goLocked(func() { h.providerBack(params.ClientID) })
	replay := h.canReplayLocked(params.LastSeenServerSeq)
	missing, snapshots := []string{}, []snapshot{}
	for _, uri := range params.Subscriptions {
		if c.subs[uri] != nil {
			continue
		}
		snap, err := h.snapshotLocked(c, uri, view{})
		if err != nil {
			h.logLocked(levelInfo, "Reconnect: failed to restore subscription %s: %v", uri, err)
			missing = append(missing, uri)
			continue
		}
		c.subscribeLocked(uri, subscribeParams{})
		if snap != nil && !replay {
			snapshots = append(snapshots, *snap)
		}
	}
	if !replay {
		return reconnectResult{Type: "snapshot", Snapshots: snapshots}, nil
	}
	return reconnectResult{Type: "replay", Actions: h.replayLocked(c, params.LastSeenServerSeq), Missing: missing}, nil
}
