package mcpgate

import (
	"bytes"

	"ahprelay/ahp"
)

// A surface is a set of capabilities.
type surface uint16

const (
	tools surface = 1 << iota
	toolsChanged
	resources
	resourcesChanged
	logging
	sampling

	laterFlag // mcpApp.capabilities has a capability outside the table
	laterSet  // a customization has capabilities in a member outside knownMembers
	partial   // some capabilities are unreadable, or were never described

	none  surface = 0
	table         = tools | resources | logging | sampling
)

// servedBy lists the capability that serves a client's method.
var servedBy = map[string]surface{
	"tools/list": tools, "tools/call": tools,
	"resources/list": resources, "resources/templates/list": resources, "resources/read": resources,
	"logging/setLevel": logging, "notifications/message": logging,
	"sampling/createMessage": sampling,
}

// methods are servedBy's keys, in display order.
var methods = []string{
	"tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read",
	"logging/setLevel", "notifications/message", "sampling/createMessage",
}

// MCP methods with their own rules.
const (
	mcpInitialize  = "initialize"
	mcpInitialized = "notifications/initialized"
	mcpProgress    = "notifications/progress"
	mcpCancelled   = "notifications/cancelled"

	toolsListChanged     = "notifications/tools/list_changed"
	resourcesListChanged = "notifications/resources/list_changed"
)

// isHandshake reports whether a method belongs to MCP's handshake, which channels do
// not carry.
func isHandshake(method []byte) bool {
	return string(method) == mcpInitialize || string(method) == mcpInitialized
}

// belongsToRequest reports whether a method concerns an open request.
func belongsToRequest(method []byte) bool {
	return string(method) == mcpProgress || string(method) == mcpCancelled
}

// serves reports whether a method is served, and whether the answer is unsure because
// some capabilities are unknown.
func (s surface) serves(method []byte) (yes, unsure bool) {
	by, known := servedBy[string(method)]
	switch {
	case isHandshake(method):
		return false, false
	case known && s&by != 0, belongsToRequest(method) && s&table != 0:
		return true, false
	case s&(laterSet|partial) != 0, s&laterFlag != 0 && !known:
		return true, true
	}
	return false, false
}

// forwards reports whether a host's list_changed notification may pass, and whether the
// answer is unsure because some capabilities are unknown.
func (s surface) forwards(method []byte) (yes, unsure bool) {
	switch string(method) {
	case toolsListChanged:
		yes = s&toolsChanged != 0
	case resourcesListChanged:
		yes = s&resourcesChanged != 0
	default:
		unsure = s&laterFlag != 0
	}
	unsure = !yes && (unsure || s&(laterSet|partial) != 0)
	return yes || unsure, unsure
}

func isListChanged(method []byte) bool {
	return bytes.HasPrefix(method, []byte("notifications/")) && bytes.HasSuffix(method, []byte("/list_changed"))
}

// knownCapabilities are the table's capabilities, with the flag for "listChanged":
// true.
var knownCapabilities = map[string][2]surface{
	"serverTools":     {tools, toolsChanged},
	"serverResources": {resources, resourcesChanged},
	"logging":         {logging, 0},
	"sampling":        {sampling, 0},
}

// knownMembers are the members of a customization that AHP defines. Any other member with
// capabilities belongs to a later version.
var knownMembers = map[string]bool{
	"type": true, "id": true, "uri": true, "name": true, "description": true, "icons": true, "range": true,
	"enabled": true, "enablement": true, "state": true, "channel": true, "mcpApp": true, "children": true,
	"load": true, "_meta": true,
}

// readSurface parses a customization's capability sets. app reports whether the
// customization has mcpApp.
func readSurface(customization []byte) (s surface, app bool) {
	members, err := ahp.AllMembers(customization)
	if err != nil {
		return partial, false
	}
	for _, m := range members {
		set := capabilities(m.Raw)
		switch {
		case m.Name == "mcpApp":
			app = ahp.IsObject(m.Raw)
			s |= readSet(set)
		case !knownMembers[m.Name] && set != nil:
			s |= laterSet
		}
	}
	return s, app
}

// capabilities returns an object's member capabilities, if it is an object.
func capabilities(raw []byte) []byte {
	m := [...]ahp.Member{{Name: "capabilities"}}
	if !ahp.IsObject(raw) || ahp.Members(raw, m[:]) != nil || !ahp.IsObject(m[0].Raw) {
		return nil
	}
	return m[0].Raw
}

func readSet(raw []byte) (s surface) {
	if raw == nil {
		return none
	}
	members, err := ahp.AllMembers(raw)
	if err != nil {
		return partial
	}
	for _, m := range members {
		if !ahp.IsObject(m.Raw) {
			continue // a capability's value is an object
		}
		flags, known := knownCapabilities[m.Name]
		if !known {
			s |= laterFlag
			continue
		}
		s |= flags[0]
		changed := [...]ahp.Member{{Name: "listChanged"}}
		if ahp.Members(m.Raw, changed[:]) == nil && string(changed[0].Raw) == "true" {
			s |= flags[1]
		}
	}
	return s
}
