package mcpgate

import (
	"bytes"

	"ahprelay/ahp"
)

// neededFor says which capability of the client's a request of the host's
// needs.
var neededFor = map[string]capability{
	"canvasOpen": canvas, "canvasInvokeAction": canvas, "canvasInvokeOperation": canvas, "canvasClose": canvas,
	"sampling/createMessage": samplingClient,
	"elicitation/create":     elicitation,
	"roots/list":             roots,
}

// A capability is one that a client declares in initialize.
type capability uint8

const (
	canvas capability = 1 << iota
	mcpApps
	samplingClient
	elicitation
	roots
)

// classOf is how events of a missing capability are called.
var classOf = map[capability]string{
	canvas:         "canvas_without_client_capability",
	mcpApps:        "mcp_apps_without_client_capability",
	samplingClient: "sampling_without_client_capability",
	elicitation:    "elicitation_without_client_capability",
	roots:          "roots_without_client_capability",
}

// nameOf is how clients call it.
var nameOf = map[capability]string{
	canvas: "canvas", mcpApps: "mcpApps", samplingClient: "sampling", elicitation: "elicitation", roots: "roots",
}

// maxCapabilities is how much of what a client has declared is kept as it
// came, in bytes.
const maxCapabilities = 4 << 10

// declared is what a client can do, as far as is known.
type declared struct {
	known bool
	flags capability
	raw   []byte // as it came; nil if that was too long, or nothing
	from  string // how it is known
}

// How capabilities are known.
const (
	fromInitialize = "initialize"
	fromReconnect  = "reconnect"
	fromEarlier    = "earlier connection"
)

// lacks reports whether the client is known not to have a capability.
func (d *declared) lacks(c capability) bool { return d.known && d.flags&c == 0 }

// readDeclared reads the capabilities of a client, nil if it has sent none.
func readDeclared(raw []byte, from string) declared {
	d := declared{known: true, from: from}
	if ahp.IsNone(raw) {
		return d
	}
	m := [...]ahp.Member{{Name: "canvas"}, {Name: "mcpApps"}, {Name: "sampling"}, {Name: "elicitation"}, {Name: "roots"}}
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
