package agenthost

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"ahprelay/ahp"
)

// An mcpUpstream is an MCP server run by the host for all sessions.
type mcpUpstream struct {
	host *Host
	cfg  *MCPServer

	// Guarded by the host's lock.
	kind     string // starting, ready or error
	failure  string // message for people, if kind is error
	stop     chan struct{}
	link     *mcpLink // nil unless ready
	tools    []mcpTool
	progress map[int64]func(message) // called with progress notifications, by request number
}

// startMCPLocked starts the servers at its first call, and adds them to all
// sessions.
func (ms *mcpServers) startMCPLocked() {
	h := ms.host
	if ms.upstreams != nil {
		return
	}
	for i := range h.cfg.MCP {
		up := &mcpUpstream{host: h, cfg: &h.cfg.MCP[i]}
		ms.upstreams = append(ms.upstreams, up)
		up.startLocked()
	}
	for _, s := range h.sessions.all() {
		s.addMCPLocked()
	}
}

// startLocked starts the server, after stopping a running instance.
func (up *mcpUpstream) startLocked() {
	if up.stop != nil {
		close(up.stop)
	}
	stop := make(chan struct{})
	up.stop = stop
	up.kind, up.failure, up.link, up.tools = "starting", "", nil, nil
	up.progress = make(map[int64]func(message))
	up.host.goLocked(func() { up.run(stop) })
}

// run starts the server and serves it until it ends, stop is closed, or the
// host closes.
func (up *mcpUpstream) run(stop <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(context.Background())
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel(nil)
	helpers.Go(func() {
		select {
		case <-stop:
		case <-up.host.done:
		case <-ctx.Done():
		}
		cancel(errHostClosed)
	})
	conn, wait, err := up.host.cfg.ConnectMCP(ctx, up.cfg)
	if err == nil {
		link := newMCPLink(conn, func(l *mcpLink, req *jsonrpc.Request) { up.heard(l, req) })
		helpers.Go(func() {
			if err := up.greet(ctx, stop, link); err != nil {
				cancel(err)
			}
		})
		err = link.run(ctx)
		wait()
	}
	up.ended(stop, err)
}

// greet initializes a started server, lists its tools and publishes its state.
func (up *mcpUpstream) greet(ctx context.Context, stop <-chan struct{}, link *mcpLink) error {
	if err := link.greet(ctx); err != nil {
		return err
	}
	tools, err := link.listTools(ctx)
	if err != nil {
		return err
	}
	up.host.mu.Lock()
	defer up.host.mu.Unlock()
	if up.stop == stop {
		up.kind, up.link, up.tools = "ready", link, tools
		up.changedLocked()
	}
	return nil
}

// ended records that a server has ended, unless the host stopped it.
func (up *mcpUpstream) ended(stop <-chan struct{}, err error) {
	up.host.mu.Lock()
	defer up.host.mu.Unlock()
	if up.stop != stop || up.host.closed {
		return
	}
	up.host.log.Warn("MCP server ended", "server", up.cfg.Name, "error", err)
	up.kind, up.failure, up.link = "error", "The MCP server has ended.", nil
	up.changedLocked()
}

// changedLocked publishes the server's state to every session.
func (up *mcpUpstream) changedLocked() {
	for _, s := range up.host.sessions.all() {
		for _, m := range s.mcp {
			if m.up == up && m.enabled && m.auth == nil && !m.removed {
				m.stateChangedLocked()
			}
		}
	}
}

// heard handles the server's own requests and notifications. The link calls it.
func (up *mcpUpstream) heard(link *mcpLink, req *jsonrpc.Request) {
	if req.IsCall() {
		result, err := answerServer(req)
		_ = link.send(&jsonrpc.Response{ID: req.ID, Result: result, Error: err}) // fails if the server has ended or does not read
		return
	}
	h := up.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if up.link != link {
		return
	}
	switch req.Method {
	case "notifications/progress":
		up.progressLocked(req.Params)
	case "notifications/tools/list_changed":
		h.goLocked(func() { up.listAgain(link) })
		up.forwardLocked(req, func(c *MCPCapabilities) *MCPListCapability { return c.ServerTools })
	case "notifications/resources/list_changed":
		up.forwardLocked(req, func(c *MCPCapabilities) *MCPListCapability { return c.ServerResources })
	}
}

// answerServer answers a request of the server to the host.
func answerServer(req *jsonrpc.Request) (json.RawMessage, error) {
	switch req.Method {
	case "ping":
		return json.RawMessage(`{}`), nil
	case "sampling/createMessage":
		result, err := sample(req.Params)
		if err != nil {
			e := asRPCError(err)
			return nil, &jsonrpc.Error{Code: int64(e.Code), Message: e.Message}
		}
		return encode(result), nil
	}
	return nil, &jsonrpc.Error{Code: ahp.CodeMethodNotFound, Message: "Method not found: " + req.Method}
}

// listAgain lists the tools again after a change.
func (up *mcpUpstream) listAgain(link *mcpLink) {
	tools, err := link.listTools(context.Background()) // ends with the link
	up.host.mu.Lock()
	defer up.host.mu.Unlock()
	if err == nil && up.link == link {
		up.tools = tools
	}
}

// progressLocked passes a progress notification to the sender of the request.
func (up *mcpUpstream) progressLocked(raw json.RawMessage) {
	var token struct {
		Number int64 `json:"progressToken"`
	}
	params, err := decodeParams[message](raw)
	if err != nil || json.Unmarshal(raw, &token) != nil {
		return
	}
	if tell := up.progress[token.Number]; tell != nil {
		tell(params)
	}
}

// forwardLocked notifies clients that a list has changed, if the server's
// capabilities promise that.
func (up *mcpUpstream) forwardLocked(req *jsonrpc.Request, list func(*MCPCapabilities) *MCPListCapability) {
	if promised := list(up.cfg.Capabilities); promised == nil || !promised.ListChanged {
		return
	}
	params := req.Params
	if params == nil {
		params = json.RawMessage(`{}`)
	}
	for _, s := range up.host.sessions.all() {
		for _, m := range s.mcp {
			channel := m.channel()
			if m.up != up || channel == "" {
				continue
			}
			for _, cl := range up.host.clients {
				if c := cl.newest(); c != nil && c.offer.mcpApps && c.subs[s.uri] != nil {
					c.queueLocked(mcpNotificationFrame(channel, req.Method, params))
				}
			}
		}
	}
}

// mcpTool finds a tool and its server. The name may be TOOL or SERVER/TOOL.
func (s *session) mcpTool(name string) (*mcpServer, mcpTool, error) {
	for _, m := range s.mcp {
		for _, t := range m.up.tools {
			if !m.removed && (t.Name == name || m.up.cfg.Name+"/"+t.Name == name) {
				return m, t, nil
			}
		}
	}
	return nil, mcpTool{}, fail(ahp.CodeNotFound, "No MCP server has this tool: %s", name)
}

var errMCPNotReady = errors.New("the MCP server is not ready")

func (m *mcpServer) linkLocked() (*mcpLink, error) {
	if !m.isReady() {
		return nil, errMCPNotReady
	}
	return m.up.link, nil
}

// grants reports whether a scope is empty or granted.
func (m *mcpServer) grants(scope string) bool {
	return scope == "" || slices.Contains(m.granted, scope)
}
