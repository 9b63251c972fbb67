package agenthost

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// An MCPServer is a server that the host runs and shows in every session: the reference
// MCP server, which keeps a list of tasks.
type MCPServer struct {
	// Name is shown to people and is part of the server's id. It must be unique.
	Name string

	// Transport connects host and server. Default: [MCPMemory].
	Transport MCPTransport

	// Command is the program for [MCPStdio].
	Command []string

	// Nested shows the server as the child of a plugin.
	Nested bool

	// Capabilities are promised to clients with the capability mcpApps. Default: all.
	Capabilities *MCPCapabilities

	// Icons are shown beside the name. Default: none.
	Icons []MCPIcon

	// Apps are additional user interfaces, permitted with [MCPMemory] only.
	Apps []MCPApp `json:"-"`

	// Servers are the authorization servers that issue tokens. Default: a server that
	// does not exist.
	Servers []string

	// Tokens maps each valid token to its scopes. Default: demo-grant, with all
	// scopes.
	Tokens map[string][]string `json:"-"`
}

// An MCPApp is an additional user interface: a tool show_<Name> and the resource
// ui://tasks/<Name>.
type MCPApp struct {
	Name string
	HTML string
	Meta map[string]any // _meta of the resource
}

// An MCPIcon is AHP's Icon: a picture at an address, which may be a data: URI.
type MCPIcon struct {
	Src         string `json:"src"`
	ContentType string `json:"contentType,omitempty"`
	Theme       string `json:"theme,omitempty"` // light, dark, or "" for both
}

// An MCPTransport connects a host and an MCP server.
type MCPTransport string

const (
	// MCPMemory is a pipe inside the process.
	MCPMemory MCPTransport = "memory"

	// MCPStdio is a process's standard input and output.
	MCPStdio MCPTransport = "stdio"
)

// MCPCapabilities is AHP's AhpMcpUiHostCapabilities: the methods served on a server's
// channel. The methods of a nil field are not served.
type MCPCapabilities struct {
	ServerTools     *MCPListCapability `json:"serverTools,omitempty"`
	ServerResources *MCPListCapability `json:"serverResources,omitempty"`
	Logging         *struct{}          `json:"logging,omitempty"`
	Sampling        *struct{}          `json:"sampling,omitempty"`
}

// An MCPListCapability is a capability about a list.
type MCPListCapability struct {
	ListChanged bool `json:"listChanged,omitempty"` // changes are published
}

// Constants of MCP Apps (SEP-1865).
const (
	appMIMEType  = "text/html;profile=mcp-app"
	appExtension = "io.modelcontextprotocol/ui"
)

// ScopeMeta is the key in _meta under which a tool names its required scope. Only this
// host uses it; a server on the web would answer 403.
const ScopeMeta = "refhost/scope"

// Scopes of the reference server. Sessions have scopeRead from their beginning.
const (
	scopeRead    = "tasks.read"
	scopePublish = "tasks.publish"
)

// DemoMCPToken is valid at servers for which Tokens is nil.
const DemoMCPToken = "demo-grant"

// checkMCP returns a validated copy of the servers with defaults.
func checkMCP(given []MCPServer) ([]MCPServer, error) {
	var checked []MCPServer
	for _, m := range given {
		if m.Servers == nil {
			m.Servers = []string{"https://login.example/"}
		}
		m.Transport = cmp.Or(m.Transport, MCPMemory)
		if m.Capabilities == nil {
			list := &MCPListCapability{ListChanged: true}
			m.Capabilities = &MCPCapabilities{ServerTools: list, ServerResources: list, Logging: &struct{}{}, Sampling: &struct{}{}}
		}
		if m.Tokens == nil {
			m.Tokens = map[string][]string{DemoMCPToken: {scopeRead, scopePublish}}
		}
		switch {
		case m.Name == "" || strings.ContainsAny(m.Name, " /"):
			return nil, fmt.Errorf("agenthost: Config.MCP has the Name %q; want a word without a slash", m.Name)
		case slices.ContainsFunc(checked, func(other MCPServer) bool { return other.Name == m.Name }):
			return nil, fmt.Errorf("agenthost: Config.MCP has %q twice", m.Name)
		case m.Transport != MCPMemory && m.Transport != MCPStdio:
			return nil, fmt.Errorf("agenthost: Config.MCP has the Transport %q; want %q or %q", m.Transport, MCPMemory, MCPStdio)
		case (m.Transport == MCPStdio) != (len(m.Command) > 0):
			return nil, fmt.Errorf("agenthost: Config.MCP has %q with a Command of %d words and the Transport %s; only stdio needs a Command", m.Name, len(m.Command), m.Transport)
		case m.Transport == MCPStdio && len(m.Apps) > 0:
			return nil, fmt.Errorf("agenthost: Config.MCP has %q with Apps by %s", m.Name, m.Transport)
		}
		checked = append(checked, m)
	}
	return checked, nil
}

// protectedResource is a server's OAuth metadata (RFC 9728).
type protectedResource struct {
	Resource             string   `json:"resource"`
	ResourceName         string   `json:"resource_name"`
	AuthorizationServers []string `json:"authorization_servers"`
	ScopesSupported      []string `json:"scopes_supported"`
}

// resource returns the server's metadata, which names its authorization servers.
func (m *MCPServer) resource() protectedResource {
	return protectedResource{
		Resource:             "https://" + m.Name + ".mcp.example/",
		ResourceName:         "The tasks of " + m.Name,
		AuthorizationServers: m.Servers,
		ScopesSupported:      []string{scopeRead, scopePublish},
	}
}

// mcpTool is the host's record of a tool.
type mcpTool struct {
	Name  string                     `json:"name"`
	Title string                     `json:"title"`
	Meta  map[string]json.RawMessage `json:"_meta"`
}

// scope returns the scope required to call the tool, or "".
func (t mcpTool) scope() string {
	var scope string
	_ = json.Unmarshal(t.Meta[ScopeMeta], &scope) // without the key, no scope is needed
	return scope
}
