package refhost

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// An MCPServer is one that the host runs, and shows in every session: the
// reference MCP server, which keeps a list of tasks.
type MCPServer struct {
	// Name is shown, and is part of the server's id. No two are the same.
	Name string

	// Transport is how the host talks to it. Default: [MCPMemory].
	Transport MCPTransport

	// Command is what is run for [MCPStdio]: a program that calls [ServeMCP].
	Command []string

	// Nested shows the server as a child of a plugin, not by itself.
	Nested bool

	// Capabilities are what clients with mcpApps are promised. Default: all.
	Capabilities *MCPCapabilities

	// Apps are user interfaces beside the board of tasks; with [MCPMemory].
	Apps []MCPApp `json:"-"`

	// Servers are the authorization servers that tokens come from. Default: one that
	// is nowhere.
	Servers []string

	// Tokens are those that authenticate takes, each with the scopes that it
	// grants. Default: demo-grant, which grants all.
	Tokens map[string][]string `json:"-"`
}

// An MCPTransport is what stands between a host and an MCP server.
type MCPTransport string

const (
	// MCPMemory is a pipe within the process.
	MCPMemory MCPTransport = "memory"

	// MCPStdio is a process's standard input and output.
	MCPStdio MCPTransport = "stdio"
)

// MCPCapabilities is AHP's AhpMcpUiHostCapabilities: what of a server is
// served on its channel. What is nil is not.
type MCPCapabilities struct {
	ServerTools     *MCPListCapability `json:"serverTools,omitempty"`
	ServerResources *MCPListCapability `json:"serverResources,omitempty"`
	Logging         *struct{}          `json:"logging,omitempty"`
	Sampling        *struct{}          `json:"sampling,omitempty"`
}

// An MCPListCapability is one about a list.
type MCPListCapability struct {
	ListChanged bool `json:"listChanged,omitempty"` // changes of the list are told
}

// The scopes of the reference server. Who has not authenticated has the first.
const (
	scopeRead    = "tasks.read"
	scopePublish = "tasks.publish"
)

// DemoMCPToken is the token that servers without Tokens take.
const DemoMCPToken = "demo-grant"

// demoMCP are the servers of a demo host.
var demoMCP = []MCPServer{{Name: "tasks"}}

// checkMCP returns a checked copy in which nothing is left open.
func checkMCP(given []MCPServer) ([]MCPServer, error) {
	var checked []MCPServer
	for _, m := range given {
		if m.Servers == nil {
			m.Servers = []string{"https://login.example/"}
		}
		if m.Transport == "" {
			m.Transport = MCPMemory
		}
		if m.Capabilities == nil {
			list := &MCPListCapability{ListChanged: true}
			m.Capabilities = &MCPCapabilities{ServerTools: list, ServerResources: list, Logging: &struct{}{}, Sampling: &struct{}{}}
		}
		if m.Tokens == nil {
			m.Tokens = map[string][]string{DemoMCPToken: {scopeRead, scopePublish}}
		}
		switch {
		case m.Name == "" || strings.ContainsAny(m.Name, " /"):
			return nil, fmt.Errorf("refhost: Config.MCP has the Name %q", m.Name)
		case slices.ContainsFunc(checked, func(other MCPServer) bool { return other.Name == m.Name }):
			return nil, fmt.Errorf("refhost: Config.MCP has %q twice", m.Name)
		case m.Transport != MCPMemory && m.Transport != MCPStdio:
			return nil, fmt.Errorf("refhost: Config.MCP has the Transport %q; want %q or %q", m.Transport, MCPMemory, MCPStdio)
		case (m.Transport == MCPStdio) != (len(m.Command) > 0):
			return nil, fmt.Errorf("refhost: Config.MCP has %q with a Command of %d words by %s", m.Name, len(m.Command), m.Transport)
		case m.Transport == MCPStdio && len(m.Apps) > 0:
			return nil, fmt.Errorf("refhost: Config.MCP has %q with Apps by %s", m.Name, m.Transport)
		}
		checked = append(checked, m)
	}
	return checked, nil
}

// protectedResource is OAuth's metadata of a server (RFC 9728).
type protectedResource struct {
	Resource             string   `json:"resource"`
	ResourceName         string   `json:"resource_name"`
	AuthorizationServers []string `json:"authorization_servers"`
	ScopesSupported      []string `json:"scopes_supported"`
}

// resource is the server as authorization servers know it.
func (m *MCPServer) resource() protectedResource {
	return protectedResource{
		Resource:             "https://" + m.Name + ".mcp.example/",
		ResourceName:         "The tasks of " + m.Name,
		AuthorizationServers: m.Servers,
		ScopesSupported:      []string{scopeRead, scopePublish},
	}
}

// mcpTool is what the host knows of a tool.
type mcpTool struct {
	Name  string                     `json:"name"`
	Title string                     `json:"title"`
	Meta  map[string]json.RawMessage `json:"_meta"`
}

// scope is what must have been granted to call the tool, "" for nothing.
func (t mcpTool) scope() string {
	var scope string
	_ = json.Unmarshal(t.Meta[scopeMeta], &scope) // nil is nothing
	return scope
}
