package refhost

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// mcpScheme begins the channels of MCP servers. What follows is this host's
// own business.
const mcpScheme = "mcp://"

// An mcpServer is a server as one session shows it. It is guarded by the
// host's lock.
type mcpServer struct {
	session  *session
	up       *mcpUpstream
	id       string
	enabled  bool
	hidden   bool // no capability set is advertised, so there is no channel
	removed  bool
	stopped  bool // a client wants it so
	address  int  // how often the channel has got another one
	granted  []string
	auth     *mcpAuth      // what is missing; nil if nothing is
	resolved chan struct{} // closed when nothing is missing any more; nil if nothing is
}

// An mcpCustomization is a server in the state of a session: AHP's
// McpServerCustomization.
type mcpCustomization struct {
	Type    string   `json:"type"`
	ID      string   `json:"id"`
	URI     string   `json:"uri"`
	Name    string   `json:"name"`
	Enabled bool     `json:"enabled"`
	State   any      `json:"state"`
	Channel string   `json:"channel,omitempty"`
	MCPApp  *mcpApps `json:"mcpApp,omitempty"`
}

type mcpApps struct {
	Capabilities *MCPCapabilities `json:"capabilities"`
}

// A pluginCustomization is a container of servers.
type pluginCustomization struct {
	Type     string             `json:"type"`
	ID       string             `json:"id"`
	URI      string             `json:"uri"`
	Name     string             `json:"name"`
	Enabled  bool               `json:"enabled"`
	Load     mcpKind            `json:"load"`
	Children []mcpCustomization `json:"children"`
}

// An mcpKind is a state without details.
type mcpKind struct {
	Kind string `json:"kind"`
}

// An mcpFailure is the state of a server that failed.
type mcpFailure struct {
	Kind  string    `json:"kind"`
	Error turnError `json:"error"`
}

// An mcpAuth is the state of a server that wants a token first: AHP's
// McpServerAuthRequiredState.
type mcpAuth struct {
	Kind           string            `json:"kind"`
	Reason         string            `json:"reason"` // required, expired or insufficientScope
	Resource       protectedResource `json:"resource"`
	RequiredScopes []string          `json:"requiredScopes,omitempty"`
	Description    string            `json:"description,omitempty"`
}

// addMCPLocked shows the servers in the session. Nobody is told.
func (s *session) addMCPLocked() {
	for _, up := range s.host.mcp {
		s.mcp = append(s.mcp, &mcpServer{session: s, up: up, id: "mcp-" + up.cfg.Name, enabled: true, granted: []string{scopeRead}})
	}
}

func (m *mcpServer) isReady() bool {
	return m.enabled && !m.stopped && !m.removed && m.auth == nil && m.up.kind == "ready"
}

func (m *mcpServer) state() any {
	switch {
	case !m.enabled || m.stopped:
		return mcpKind{"stopped"}
	case m.auth != nil:
		return *m.auth
	case m.up.kind == "error":
		return mcpFailure{"error", turnError{"mcp-server-failed", m.up.failure}}
	}
	return mcpKind{m.up.kind}
}

// channel is the server's mcp:// channel, "" while there is none.
func (m *mcpServer) channel() string {
	if m.hidden || !m.isReady() {
		return ""
	}
	uri := mcpScheme + "refhost/" + base64.RawURLEncoding.EncodeToString([]byte(m.session.uri)) + "/" + m.up.cfg.Name
	if m.address > 0 {
		uri = fmt.Sprintf("%s.%d", uri, m.address)
	}
	return uri
}

// customization is the server as clients see it: those with mcpApps, or the
// others.
func (m *mcpServer) customization(apps bool) mcpCustomization {
	c := mcpCustomization{Type: "mcpServer", ID: m.id, URI: m.uri(), Name: m.up.cfg.Name, Enabled: m.enabled, State: m.state()}
	if apps && !m.hidden {
		c.Channel, c.MCPApp = m.channel(), &mcpApps{m.up.cfg.Capabilities}
	}
	return c
}

// uri is where the server is declared.
func (m *mcpServer) uri() string {
	if m.up.cfg.Nested {
		return "file:///plugins/" + m.up.cfg.Name + "/plugin.json"
	}
	return "file:///mcp.json"
}

// topLevel is the server, or the plugin that it is a child of.
func (m *mcpServer) topLevel(apps bool) any {
	c := m.customization(apps)
	if !m.up.cfg.Nested {
		return c
	}
	return pluginCustomization{
		Type: "plugin", ID: "plugin-" + m.up.cfg.Name, URI: c.URI, Name: "Plugin " + c.Name, Enabled: true,
		Load: mcpKind{"loaded"}, Children: []mcpCustomization{c},
	}
}

// customizations are all that the session has, nil on a host without MCP
// servers.
func (s *session) customizations(apps bool) []any {
	if s.mcp == nil {
		return nil
	}
	all := []any{}
	for _, m := range s.mcp {
		if !m.removed {
			all = append(all, m.topLevel(apps))
		}
	}
	return all
}

// Actions about customizations. Clients without mcpApps get others, without
// channels.

type mcpStateAction struct {
	Type    string `json:"type"`
	ID      string `json:"id"`
	State   any    `json:"state"`
	Channel string `json:"channel,omitempty"`
}

type customizationAction struct {
	Type          string `json:"type"`
	Customization any    `json:"customization"`
}

type customizationsAction struct {
	Type           string `json:"type"`
	Customizations []any  `json:"customizations"`
}

func (m *mcpServer) stateChangedLocked() {
	action := mcpStateAction{"session/mcpServerStateChanged", m.id, m.state(), m.channel()}
	plain := action
	plain.Channel = ""
	m.session.host.emitVariantsLocked(m.session.uri, action, plain)
}

func (m *mcpServer) updatedLocked() {
	action := func(apps bool) any { return customizationAction{"session/customizationUpdated", m.topLevel(apps)} }
	m.session.host.emitVariantsLocked(m.session.uri, action(true), action(false))
}

func (s *session) customizationsChangedLocked() {
	action := func(apps bool) any {
		return customizationsAction{"session/customizationsChanged", s.customizations(apps)}
	}
	s.host.emitVariantsLocked(s.uri, action(true), action(false))
}

// toggleMCPLocked follows session/customizationToggled, after it has come
// back to all: enablement decides, of AHP 0.8 and later, or enabled.
func (s *session) toggleMCPLocked(action json.RawMessage) {
	var a struct {
		ID         string `json:"id"`
		Enabled    *bool  `json:"enabled"`
		Enablement []struct {
			Kind    string `json:"kind"`
			Enabled bool   `json:"enabled"`
		} `json:"enablement"`
	}
	if json.Unmarshal(action, &a) != nil {
		return
	}
	for _, decided := range a.Enablement {
		if decided.Kind == "session" { // the only place where this host decides
			a.Enabled = &decided.Enabled
		}
	}
	if m := s.mcpNamed(a.ID); m != nil && a.Enabled != nil && m.enabled != *a.Enabled {
		m.enabled = *a.Enabled
		m.stateChangedLocked()
	}
}

// runMCPLocked follows session/mcpServerStartRequested and …StopRequested, after
// they have come back to all, who take the server to be starting, or stopped.
func (s *session) runMCPLocked(action json.RawMessage, runs bool) {
	var a struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(action, &a) != nil {
		return
	}
	if m := s.mcpNamed(a.ID); m != nil {
		m.stopped = !runs
		m.stateChangedLocked()
	}
}

// mcpNamed returns a server by its id or name, nil if there is none.
func (s *session) mcpNamed(name string) *mcpServer {
	for _, m := range s.mcp {
		if m.id == name || m.up.cfg.Name == name {
			return m
		}
	}
	return nil
}

// requireLocked stops the server until a client has authenticated.
func (m *mcpServer) requireLocked(reason string, scopes []string, description string) {
	m.auth = &mcpAuth{Kind: "authRequired", Reason: reason, Resource: m.up.cfg.resource(), RequiredScopes: scopes, Description: description}
	if m.resolved == nil {
		m.resolved = make(chan struct{})
	}
	m.stateChangedLocked()
}

// grantLocked lets the server go on with these scopes, if they are enough.
func (m *mcpServer) grantLocked(scopes []string) bool {
	for _, scope := range m.auth.RequiredScopes {
		if !slices.Contains(scopes, scope) {
			m.requireLocked("insufficientScope", m.auth.RequiredScopes, "The token does not grant "+strings.Join(m.auth.RequiredScopes, " ")+".")
			return false
		}
	}
	m.granted, m.auth = scopes, nil
	close(m.resolved)
	m.resolved = nil
	m.stateChangedLocked()
	return true
}

// requireScopeLocked stops the server for want of a scope.
func (m *mcpServer) requireScopeLocked(scope string) {
	m.requireLocked("insufficientScope", []string{scope}, "This needs the scope "+scope+".")
}

// RequireMCPAuth does as if a server of a session wanted a token: the reason
// is required, expired or insufficientScope. What was granted is void.
func (h *Host) RequireMCPAuth(session, server, reason string) error {
	return h.withMCP(session, server, func(m *mcpServer) error {
		switch reason {
		case "required", "expired":
			m.granted = nil
			m.requireLocked(reason, []string{scopeRead}, map[string]string{
				"required": "Sign in to use these tasks.", "expired": "The token has expired.",
			}[reason])
		case "insufficientScope":
			m.requireScopeLocked(scopePublish)
		default:
			return fail(ahp.CodeInvalidParams, "No such reason: %s", reason)
		}
		return nil
	})
}

// RestartMCP gives the server's channel another address.
func (h *Host) RestartMCP(session, server string) error {
	return h.withMCP(session, server, func(m *mcpServer) error {
		h.emitVariantsLocked(session, mcpStateAction{"session/mcpServerStateChanged", m.id, mcpKind{"starting"}, ""}, nil)
		m.address++
		m.stateChangedLocked()
		return nil
	})
}

// HideMCP stops advertising what clients may do with a server, or does so
// again.
func (h *Host) HideMCP(session, server string, hidden bool) error {
	return h.withMCP(session, server, func(m *mcpServer) error {
		m.hidden = hidden
		m.updatedLocked()
		return nil
	})
}

// RemoveMCP takes a server from a session, or brings it back.
func (h *Host) RemoveMCP(session, server string, removed bool) error {
	return h.withMCP(session, server, func(m *mcpServer) error {
		m.removed = removed
		if !removed {
			m.session.customizationsChangedLocked()
			return nil
		}
		h.emitLocked(session, inputRemovedAction{"session/customizationRemoved", m.id})
		return nil
	})
}

func (h *Host) withMCP(session, server string, f func(*mcpServer) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.sessions.get(session)
	if !ok {
		return h.noSessionLocked(session)
	}
	m := s.mcpNamed(server)
	if m == nil {
		return fail(ahp.CodeNotFound, "No such MCP server: %s", server)
	}
	return f(m)
}

// authenticateLocked answers authenticate. A token for the resource of servers
// that wait for one is looked at, and not kept.
func (h *Host) authenticateLocked(_ *conn, raw json.RawMessage) (any, error) {
	params, err := decodeParams[struct {
		Resource string `json:"resource"`
		Token    string `json:"token"`
	}](raw)
	if err != nil {
		return nil, err
	}
	if known, err := h.signInLocked(params.Resource, params.Token); known {
		return struct{}{}, err
	}
	waiting := h.mcpWaitingLocked(params.Resource)
	if len(waiting) == 0 {
		return nil, fail(ahp.CodeAuthRequired, "Authentication failed for resource: %s", params.Resource)
	}
	granted := true
	for _, m := range waiting {
		scopes, known := m.up.cfg.Tokens[params.Token]
		granted = known && m.grantLocked(scopes) && granted
	}
	if !granted {
		return nil, mcpAuthError(waiting[0].up.cfg)
	}
	return struct{}{}, nil
}

// mcpWaitingLocked are the servers that want a token for a resource.
func (h *Host) mcpWaitingLocked(resource string) (waiting []*mcpServer) {
	for _, s := range h.sessions.all() {
		for _, m := range s.mcp {
			if m.auth != nil && m.auth.Resource.Resource == resource {
				waiting = append(waiting, m)
			}
		}
	}
	return waiting
}

// mcpAuthError tells which token is missing.
func mcpAuthError(cfg *MCPServer) error {
	return &rpcError{Code: ahp.CodeAuthRequired, Message: "Authentication failed for resource: " + cfg.resource().Resource,
		Data: map[string][]protectedResource{"resources": {cfg.resource()}}}
}
