package mcpgate

import (
	"bytes"

	"ahprelay/ahp"
)

// neededFor maps a host's request to the capability that the client needs for it.
var neededFor = map[string]capability{
	"canvasOpen": canvas, "canvasInvokeAction": canvas, "canvasInvokeOperation": canvas, "canvasClose": canvas,
	"sampling/createMessage": samplingClient,
	"elicitation/create":     elicitation,
	"roots/list":             roots,
}

// A capability is a client's capability, as declared in initialize or reconnect.
type capability uint8

const (
	canvas capability = 1 << iota
	mcpApps
	samplingClient
	elicitation
	roots
	progress // not in MCP, which has no capability for progress
)

// classOf has the event class for each missing capability.
var classOf = map[capability]string{
	canvas:         "canvas_without_client_capability",
	mcpApps:        "mcp_apps_without_client_capability",
	samplingClient: "sampling_without_client_capability",
	elicitation:    "elicitation_without_client_capability",
	roots:          "roots_without_client_capability",
}

// nameOf lists each capability's name in AHP.
var nameOf = map[capability]string{
	canvas: "canvas", mcpApps: "mcpApps", samplingClient: "sampling", elicitation: "elicitation", roots: "roots",
}

// maxCapabilities is the longest declaration that is kept, in bytes.
const maxCapabilities = 4 << 10

// A declared holds a client's known capabilities.
type declared struct {
	known bool
	flags capability
	raw   []byte // the declaration; nil if it was absent or too long
	from  string // which message declared them, see below
}

// How a client's capabilities became known.
const (
	fromInitialize = "initialize"
	fromReconnect  = "reconnect"
	fromEarlier    = "earlier connection"
)

func (d *declared) lacks(c capability) bool { return d.known && d.flags&c == 0 }

// asksForProgress reports whether params have a progressToken, with which MCP clients
// request progress notifications.
func asksForProgress(params []byte) bool {
	meta, token := [...]ahp.Member{{Name: "_meta"}}, [...]ahp.Member{{Name: "progressToken"}}
	return bytes.Contains(params, []byte("progressToken")) &&
		ahp.Members(params, meta[:]) == nil && ahp.IsObject(meta[0].Raw) &&
		ahp.Members(meta[0].Raw, token[:]) == nil && !ahp.IsNone(token[0].Raw)
}

// readDeclared parses a client's capabilities. raw is nil if the client declared none.
func readDeclared(raw []byte, from string) declared {
	d := declared{known: true, from: from}
	if ahp.IsNone(raw) {
		return d
	}
	m := [...]ahp.Member{{Name: "canvas"}, {Name: "mcpApps"}, {Name: "sampling"}, {Name: "elicitation"}, {Name: "roots"}, {Name: "progress"}}
	if ahp.Members(raw, m[:]) != nil {
		return declared{}
	}
	for i := range m {
		if ahp.IsObject(m[i].Raw) || string(m[i].Raw) == "true" {
			d.flags |= 1 << i
		}
	}
	if len(raw) <= maxCapabilities {
		d.raw = bytes.Clone(raw)
	}
	return d
}
