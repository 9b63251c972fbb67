// Package hostrpc lets tests drive a reference host in a different process, as its
// agent and its user would: net/rpc calls in JSON-RPC on a separate TCP address.
package hostrpc

import (
	"encoding/json"
	"errors"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"testing/fstest"

	"ahprelay/agenthost"
)

// A Config holds settings without a flag, as JSON.
type Config struct {
	Canvases []Canvas // none: the demo's
	MCP      []MCP    // none: the demo's
	SignIn   []SignIn // the agent's protected resources
	Still    bool     // silences the demo's live session: see scripted.Demo
	Replay   int      // actions kept for replay; 0: the default

	Meta json.RawMessage `json:",omitempty"` // in the result of initialize
}

// A Canvas is a [agenthost.Canvas].
type Canvas struct {
	ID    string
	Mode  agenthost.CanvasMode
	URL   string
	Files fstest.MapFS
}

// An MCP is a [agenthost.MCPServer].
type MCP struct {
	Name  string
	Icons []agenthost.MCPIcon
	Apps  []agenthost.MCPApp
}

// A SignIn is a [agenthost.Resource].
type SignIn struct {
	Resource, Name string
	Servers        []string
	Scopes, Tokens []string
	ClientID       string // "": the host names none
}

// Apply copies the settings into a host's configuration.
func (c *Config) Apply(to *agenthost.Config) {
	for _, canvas := range c.Canvases {
		made := agenthost.Canvas{ID: canvas.ID, Mode: canvas.Mode, URL: canvas.URL}
		if canvas.Files != nil {
			made.Files = canvas.Files
		}
		to.Canvases = append(to.Canvases, made)
	}
	for _, server := range c.MCP {
		to.MCP = append(to.MCP, agenthost.MCPServer{Name: server.Name, Icons: server.Icons, Apps: server.Apps})
	}
	for _, r := range c.SignIn {
		resource := agenthost.Resource{Resource: r.Resource, Name: r.Name, Servers: r.Servers, Scopes: r.Scopes, Tokens: r.Tokens, Required: true}
		if r.ClientID != "" {
			resource.Client = &agenthost.OAuthClient{ID: r.ClientID}
		}
		to.Resources = append(to.Resources, resource)
	}
	to.ReplayBuffer, to.Meta = c.Replay, c.Meta
}

// Args holds the arguments for all calls; each call uses some.
type Args struct {
	Session, Channel string
	ID               string         // a canvas, its action, or an MCP server's name
	Update           map[string]any // nil: move the content
	Payload          any            // or input
	Hidden           bool
}

// None is an empty result.
type None struct{}

// service holds the callable methods.
type service struct{ host *agenthost.Host }

// serviceName prefixes method names.
const serviceName = "Host"

func (s service) OpenCanvas(a Args, channel *string) (err error) {
	*channel, err = s.host.OpenCanvas(a.Session, a.ID, a.Payload)
	return err
}

func (s service) InvokeCanvas(a Args, value *json.RawMessage) (err error) {
	*value, err = s.host.InvokeCanvas(a.Channel, a.ID, a.Payload)
	return err
}

func (s service) Canvases(a Args, channels *[]string) error {
	*channels = s.host.Canvases(a.Session)
	return nil
}

func (s service) UpdateCanvas(a Args, _ *None) error { return s.host.UpdateCanvas(a.Channel, a.Update) }
func (s service) StaleCanvas(a Args, _ *None) error  { return s.host.StaleCanvas(a.Channel) }
func (s service) CloseCanvas(a Args, _ *None) error  { return s.host.CloseCanvas(a.Channel) }
func (s service) ReadyCanvas(a Args, _ *None) error  { return s.host.ReadyCanvas(a.Channel) }
func (s service) MessageCanvas(a Args, _ *None) error {
	return s.host.MessageCanvas(a.Channel, a.Payload)
}
func (s service) RestartMCP(a Args, _ *None) error { return s.host.RestartMCP(a.Session, a.ID) }
func (s service) HideMCP(a Args, _ *None) error    { return s.host.HideMCP(a.Session, a.ID, a.Hidden) }

// Serve serves a host until the listener closes. Connections end with their clients or
// the process.
func Serve(l net.Listener, host *agenthost.Host) error {
	server := rpc.NewServer()
	if err := server.RegisterName(serviceName, service{host}); err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go server.ServeCodec(jsonrpc.NewServerCodec(conn))
	}
}

// A Client calls a host.
type Client struct{ rpc *rpc.Client }

// Dial connects to a served host.
func Dial(address string) (*Client, error) {
	c, err := jsonrpc.Dial("tcp", address)
	return &Client{c}, err
}

// Close ends the connection.
func (c *Client) Close() error { return c.rpc.Close() }

func (c *Client) do(method string, a Args) error {
	return c.rpc.Call(serviceName+"."+method, a, &None{})
}

// OpenCanvas is [agenthost.Host.OpenCanvas], without input.
func (c *Client) OpenCanvas(session, id string) (channel string, err error) {
	return c.OpenCanvasWith(session, id, nil)
}

// OpenCanvasWith is [agenthost.Host.OpenCanvas].
func (c *Client) OpenCanvasWith(session, id string, input any) (channel string, err error) {
	err = c.rpc.Call(serviceName+".OpenCanvas", Args{Session: session, ID: id, Payload: input}, &channel)
	return channel, err
}

// InvokeCanvas is [agenthost.Host.InvokeCanvas].
func (c *Client) InvokeCanvas(channel, action string, input any) (value json.RawMessage, err error) {
	err = c.rpc.Call(serviceName+".InvokeCanvas", Args{Channel: channel, ID: action, Payload: input}, &value)
	return value, err
}

// Canvases is [agenthost.Host.Canvases].
func (c *Client) Canvases(session string) (channels []string, err error) {
	err = c.rpc.Call(serviceName+".Canvases", Args{Session: session}, &channels)
	return channels, err
}

// UpdateCanvas is [agenthost.Host.UpdateCanvas].
func (c *Client) UpdateCanvas(channel string, update map[string]any) error {
	return c.do("UpdateCanvas", Args{Channel: channel, Update: update})
}

// StaleCanvas is [agenthost.Host.StaleCanvas].
func (c *Client) StaleCanvas(channel string) error {
	return c.do("StaleCanvas", Args{Channel: channel})
}

// CloseCanvas is [agenthost.Host.CloseCanvas].
func (c *Client) CloseCanvas(channel string) error {
	return c.do("CloseCanvas", Args{Channel: channel})
}

// ReadyCanvas is [agenthost.Host.ReadyCanvas].
func (c *Client) ReadyCanvas(channel string) error {
	return c.do("ReadyCanvas", Args{Channel: channel})
}

// MessageCanvas is [agenthost.Host.MessageCanvas].
func (c *Client) MessageCanvas(channel string, payload any) error {
	return c.do("MessageCanvas", Args{Channel: channel, Payload: payload})
}

// RestartMCP is [agenthost.Host.RestartMCP].
func (c *Client) RestartMCP(session, server string) error {
	return c.do("RestartMCP", Args{Session: session, ID: server})
}

// HideMCP is [agenthost.Host.HideMCP].
func (c *Client) HideMCP(session, server string, hidden bool) error {
	return c.do("HideMCP", Args{Session: session, ID: server, Hidden: hidden})
}
