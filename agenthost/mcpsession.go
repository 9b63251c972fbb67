package agenthost

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// mcpScheme begins the channels of MCP servers. The rest of a channel's URI is chosen
// by this host.
const mcpScheme = "mcp://"

// An mcpServer is a server in one session. The host's lock guards it.
type mcpServer struct {
	session  *session
	up       *mcpUpstream
	id       string
	enabled  bool
	hidden   bool // the server advertises no capabilities, so it has no channel
	removed  bool
	stopped  bool // stopped by a client
	address  int  // increases with each new channel address
	granted  []string
	auth     *mcpAuth      // the missing authorization, or nil
	resolved chan struct{} // closed when a client has authenticated; nil if no authorization is missing
}

// An mcpCustomization is a server in a session's state: AHP's McpServerCustomization.
type mcpCustomization struct {
	Type    string   `json:"type"`
	ID      string   `json:"id"`
	URI     string   `json:"uri"`
	Name    string   `json:"name"`
	Enabled bool     `json:"enabled"`
	State   any      `json:"state"`
	Channel string   `json:"channel,omitempty"`
	MCPApp  *mcpApps `json:"mcpApp,omitempty"`

	Icons []MCPIcon `json:"icons,omitempty"`
}

type mcpApps struct {
	Capabilities *MCPCapabilities `json:"capabilities"`
}

// A pluginCustomization contains servers.
type pluginCustomization struct {
	Type     string             `json:"type"`
	ID       string             `json:"id"`
	URI      string             `json:"uri"`
	Name     string             `json:"name"`
	Enabled  bool               `json:"enabled"`
	Load     mcpKind            `json:"load"`
	Children []mcpCustomization `json:"children"`
}

// An mcpKind is a server state without details.
type mcpKind struct {
	Kind string `json:"kind"`
}

// An mcpFailure is the state of a failed server.
type mcpFailure struct {
	Kind  string    `json:"kind"`
	Error TurnError `json:"error"`
}

// An mcpAuth is the state of a server that needs a token: AHP's
// McpServerAuthRequiredState.
type mcpAuth struct {
	Kind           string            `json:"kind"`
	Reason         string            `json:"reason"` // required, expired or insufficientScope
	Resource       protectedResource `json:"resource"`
	RequiredScopes []string          `json:"requiredScopes,omitempty"`
	Description    string            `json:"description,omitempty"`
}

// addMCPLocked adds the servers to the session without publishing.
func (s *session) addMCPLocked() {
	for _, up := range s.host.mcp.upstreams {
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
		return mcpFailure{"error", TurnError{"mcp-server-failed", m.up.failure}}
	}
	return mcpKind{m.up.kind}
}

// channel returns the server's mcp:// channel, or "" if there is none.
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

// customization returns the server's entry in a session's state. apps is true for
// clients with mcpApps.
func (m *mcpServer) customization(apps bool) mcpCustomization {
	c := mcpCustomization{Type: "mcpServer", ID: m.id, URI: m.uri(), Name: m.up.cfg.Name, Icons: m.up.cfg.Icons, Enabled: m.enabled, State: m.state()}
	if apps && !m.hidden {
		c.Channel, c.MCPApp = m.channel(), &mcpApps{m.up.cfg.Capabilities}
	}
	return c
}

// uri returns the URI at which the server is declared.
func (m *mcpServer) uri() string {
	if m.up.cfg.Nested {
		return "file:///plugins/" + m.up.cfg.Name + "/plugin.json"
	}
	return "file:///mcp.json"
}

// topLevel returns the server's entry, or the entry of the plugin that contains the
// server.
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

// customizations returns all of the session's customizations, nil on a host without
// MCP servers.
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

// Customization actions. Clients without mcpApps receive them without channels.

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

// toggleMCPLocked applies session/customizationToggled after its echo. The member
// enablement (since AHP 0.8) takes precedence over the member enabled.
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
		if decided.Kind == "session" { // this host decides for sessions only
			a.Enabled = &decided.Enabled
		}
	}
	if m := s.mcpNamed(a.ID); m != nil && a.Enabled != nil && m.enabled != *a.Enabled {
		m.enabled = *a.Enabled
		m.stateChangedLocked()
	}
}

// runMCPLocked applies session/mcpServerStartRequested and …StopRequested after their
// echo. Clients have already assumed the new state.
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

// mcpNamed returns a server by id or name, or nil.
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

// grantLocked resumes the server if the scopes include all required ones.
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

// requireScopeLocked stops the server until it has the scope.
func (m *mcpServer) requireScopeLocked(scope string) {
	m.requireLocked("insufficientScope", []string{scope}, "This needs the scope "+scope+".")
}

// RequireMCPAuth makes a session's server require a token. The reason is required,
// expired or insufficientScope. The first two withdraw the granted scopes.
func (h *Host) RequireMCPAuth(session, server, reason string) error {
	return h.mcp.withMCP(session, server, func(m *mcpServer) error {
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

// RestartMCP gives the server's channel a new address.
func (h *Host) RestartMCP(session, server string) error {
	return h.mcp.withMCP(session, server, func(m *mcpServer) error {
		h.emitVariantsLocked(session, mcpStateAction{"session/mcpServerStateChanged", m.id, mcpKind{"starting"}, ""}, nil)
		m.address++
		m.stateChangedLocked()
		return nil
	})
}

// HideMCP withdraws or restores a server's advertised capabilities.
func (h *Host) HideMCP(session, server string, hidden bool) error {
	return h.mcp.withMCP(session, server, func(m *mcpServer) error {
		m.hidden = hidden
		m.updatedLocked()
		return nil
	})
}

// RemoveMCP removes a server from a session, or restores it.
func (h *Host) RemoveMCP(session, server string, removed bool) error {
	return h.mcp.withMCP(session, server, func(m *mcpServer) error {
		m.removed = removed
		if !removed {
			m.session.customizationsChangedLocked()
			return nil
		}
		h.emitLocked(session, inputRemovedAction{"session/customizationRemoved", m.id})
		return nil
	})
}

func (ms *mcpServers) withMCP(session, server string, f func(*mcpServer) error) error {
	h := ms.host
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.sessions.get(session)
	if !ok {
		return h.sessions.noSessionLocked(session)
	}
	m := s.mcpNamed(server)
	if m == nil {
		return fail(ahp.CodeNotFound, "No such MCP server: %s", server)
	}
	return f(m)
}

type authenticateParams struct {
	Resource string `json:"resource"`
	Token    string `json:"token"`
}

// authenticateLocked answers authenticate. It compares the token with those of the
// agent's resource or of the servers that wait for one, and does not store it.
func (ms *mcpServers) authenticateLocked(_ *conn, params authenticateParams) (any, error) {
	if known, err := ms.signInLocked(params.Resource, params.Token); known {
		return struct{}{}, err
	}
	waiting := ms.mcpWaitingLocked(params.Resource)
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

// mcpWaitingLocked returns the servers that need a token for a resource.
func (ms *mcpServers) mcpWaitingLocked(resource string) (waiting []*mcpServer) {
	for _, s := range ms.host.sessions.all() {
		for _, m := range s.mcp {
			if m.auth != nil && m.auth.Resource.Resource == resource {
				waiting = append(waiting, m)
			}
		}
	}
	return waiting
}

func mcpAuthError(cfg *MCPServer) error {
	return &rpcError{Code: ahp.CodeAuthRequired, Message: "Authentication failed for resource: " + cfg.resource().Resource,
		Data: map[string][]protectedResource{"resources": {cfg.resource()}}}
}
