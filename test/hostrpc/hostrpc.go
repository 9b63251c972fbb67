// Package hostrpc lets tests act as the agent and the user of a reference host that
// runs in another process. The calls are net/rpc with JSON-RPC, at a separate TCP
// address.
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

// A Config holds settings of a reference host for which the program has no flags. It is
// passed as JSON.
type Config struct {
	Canvases []Canvas // none: the demo's
	MCP      []MCP    // none: the demo's
	SignIn   []SignIn // the agent's protected resources
	Still    bool     // stops the demo's live session: see scripted.Demo
	Replay   int      // number of actions that the host keeps for replay; 0: the default

	Meta json.RawMessage `json:",omitempty"` // _meta in the result of initialize
}

// A Canvas holds the fields of an [agenthost.Canvas] that tests set.
type Canvas struct {
	ID    string
	Mode  agenthost.CanvasMode
	URL   string
	Files fstest.MapFS
}

// An MCP holds the fields of an [agenthost.MCPServer] that tests set.
type MCP struct {
	Name  string
	Icons []agenthost.MCPIcon
	Apps  []agenthost.MCPApp
}

// A SignIn holds the fields of an [agenthost.Resource] that tests set.
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

// Args holds the arguments of every method; each method uses some.
type Args struct {
	Session, Channel string
	ID               string         // id of a canvas, name of its action, or name of an MCP server
	Update           map[string]any // changes of a canvas; nil: move the content
	Payload          any            // payload of a message, or input of a canvas or action
	Hidden           bool
}

// None is an empty result.
type None struct{}

// service has the methods that clients call.
type service struct{ host *agenthost.Host }

// serviceName stands before a method's name in a call.
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

// Serve answers clients' calls for a host until the listener closes. A connection ends
// when its client closes it, or with the process.
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

// A Client calls the methods of a host in another process.
type Client struct{ rpc *rpc.Client }

// Dial connects to the address at which a process calls [Serve].
func Dial(address string) (*Client, error) {
	c, err := jsonrpc.Dial("tcp", address)
	return &Client{c}, err
}

// Close ends the connection.
func (c *Client) Close() error { return c.rpc.Close() }

func (c *Client) do(method string, a Args) error {
	return c.rpc.Call(serviceName+"."+method, a, &None{})
}

// OpenCanvas calls [agenthost.Host.OpenCanvas] without input.
func (c *Client) OpenCanvas(session, id string) (channel string, err error) {
	return c.OpenCanvasWith(session, id, nil)
}

// OpenCanvasWith calls [agenthost.Host.OpenCanvas].
func (c *Client) OpenCanvasWith(session, id string, input any) (channel string, err error) {
	err = c.rpc.Call(serviceName+".OpenCanvas", Args{Session: session, ID: id, Payload: input}, &channel)
	return channel, err
}

// InvokeCanvas calls [agenthost.Host.InvokeCanvas].
func (c *Client) InvokeCanvas(channel, action string, input any) (value json.RawMessage, err error) {
	err = c.rpc.Call(serviceName+".InvokeCanvas", Args{Channel: channel, ID: action, Payload: input}, &value)
	return value, err
}

// Canvases calls [agenthost.Host.Canvases].
func (c *Client) Canvases(session string) (channels []string, err error) {
	err = c.rpc.Call(serviceName+".Canvases", Args{Session: session}, &channels)
	return channels, err
}

// UpdateCanvas calls [agenthost.Host.UpdateCanvas].
func (c *Client) UpdateCanvas(channel string, update map[string]any) error {
	return c.do("UpdateCanvas", Args{Channel: channel, Update: update})
}

// StaleCanvas calls [agenthost.Host.StaleCanvas].
func (c *Client) StaleCanvas(channel string) error {
	return c.do("StaleCanvas", Args{Channel: channel})
}

// CloseCanvas calls [agenthost.Host.CloseCanvas].
func (c *Client) CloseCanvas(channel string) error {
	return c.do("CloseCanvas", Args{Channel: channel})
}

// ReadyCanvas calls [agenthost.Host.ReadyCanvas].
func (c *Client) ReadyCanvas(channel string) error {
	return c.do("ReadyCanvas", Args{Channel: channel})
}

// MessageCanvas calls [agenthost.Host.MessageCanvas].
func (c *Client) MessageCanvas(channel string, payload any) error {
	return c.do("MessageCanvas", Args{Channel: channel, Payload: payload})
}

// RestartMCP calls [agenthost.Host.RestartMCP].
func (c *Client) RestartMCP(session, server string) error {
	return c.do("RestartMCP", Args{Session: session, ID: server})
}

// HideMCP calls [agenthost.Host.HideMCP].
func (c *Client) HideMCP(session, server string, hidden bool) error {
	return c.do("HideMCP", Args{Session: session, ID: server, Hidden: hidden})
}
