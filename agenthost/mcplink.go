package agenthost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"ahprelay/ahp"
)

// An MCPConn is a connection to an MCP server. It has the methods of the Go
// SDK's mcp.Connection that a host needs, so hosts without MCP servers do not
// link package mcp. One goroutine may Read while others Write. Close ends both.
type MCPConn interface {
	Read(ctx context.Context) (jsonrpc.Message, error)
	Write(ctx context.Context, msg jsonrpc.Message) error
	Close() error
}

// An mcpLink is the host's end of a connection to an MCP server. It forwards messages
// unchanged; the SDK's client would drop unknown messages.
type mcpLink struct {
	conn MCPConn
	on   func(*mcpLink, *jsonrpc.Request) // called by run for each message except answers
	out  chan jsonrpc.Message             // to the writer; bounded
	done chan struct{}                    // closed when run ends

	mu    sync.Mutex // guards the fields below
	ended bool
	last  int64
	calls map[int64]chan<- *jsonrpc.Response
}

// mcpQueue bounds the messages queued for a server.
const mcpQueue = 256

// errMCPGone reports that the MCP server has ended.
var errMCPGone = errors.New("the MCP server is gone")

func newMCPLink(conn MCPConn, on func(*mcpLink, *jsonrpc.Request)) *mcpLink {
	return &mcpLink{
		conn: conn, on: on, out: make(chan jsonrpc.Message, mcpQueue), done: make(chan struct{}),
		calls: make(map[int64]chan<- *jsonrpc.Response),
	}
}

// run reads and writes until ctx ends or the server ends, and then closes the connection.
func (l *mcpLink) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var loops sync.WaitGroup
	loops.Go(func() { cancel(l.readLoop(ctx)) })
	loops.Go(func() { cancel(l.writeLoop(ctx)) })
	<-ctx.Done()
	err := errors.Join(context.Cause(ctx), l.conn.Close())
	loops.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	close(l.done)
	return err
}

func (l *mcpLink) readLoop(ctx context.Context) error {
	for {
		msg, err := l.conn.Read(ctx)
		if err != nil {
			return err
		}
		switch msg := msg.(type) {
		case *jsonrpc.Request:
			l.on(l, msg)
		case *jsonrpc.Response:
			l.answered(msg)
		}
	}
}

func (l *mcpLink) writeLoop(ctx context.Context) error {
	for {
		select {
		case msg := <-l.out:
			if err := l.conn.Write(ctx, msg); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *mcpLink) answered(msg *jsonrpc.Response) {
	id, ok := msg.ID.Raw().(int64)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if reply := l.calls[id]; reply != nil {
		delete(l.calls, id)
		reply <- msg // capacity 1
	}
}

// send queues a message without blocking.
func (l *mcpLink) send(msg jsonrpc.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return errMCPGone
	}
	select {
	case l.out <- msg:
		return nil
	default:
		return errors.New("the MCP server does not keep up")
	}
}

// notify sends a notification, and ignores errors.
func (l *mcpLink) notify(method string, params json.RawMessage) {
	_ = l.send(&jsonrpc.Request{Method: method, Params: params})
}

// An mcpCall is an open request to a server.
type mcpCall struct {
	link  *mcpLink
	id    int64
	reply <-chan *jsonrpc.Response
}

// start sends a request. prepare, if not nil, is called first with the request's number,
// and returns the params.
func (l *mcpLink) start(method string, params json.RawMessage, prepare func(id int64) json.RawMessage) (*mcpCall, error) {
	l.mu.Lock()
	l.last++
	id := l.last
	reply := make(chan *jsonrpc.Response, 1)
	l.calls[id] = reply
	l.mu.Unlock()
	if prepare != nil {
		params = prepare(id)
	}
	rpcID, err := jsonrpc.MakeID(float64(id))
	if err == nil {
		err = l.send(&jsonrpc.Request{ID: rpcID, Method: method, Params: params})
	}
	if err != nil {
		l.forget(id)
		return nil, err
	}
	return &mcpCall{link: l, id: id, reply: reply}, nil
}

func (l *mcpLink) forget(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.calls, id)
}

// wait returns the answer unchanged. If stop closes first, wait asks the server to cancel
// the request.
func (c *mcpCall) wait(stop <-chan struct{}) (json.RawMessage, error) {
	select {
	case reply := <-c.reply:
		return mcpResult(reply)
	case <-c.link.done:
		return nil, errMCPGone
	case <-stop:
		c.cancel("")
		c.link.forget(c.id)
		return nil, errors.New("the caller has stopped waiting for this call")
	}
}

// cancel asks the server to cancel the call. The server may still send an answer.
func (c *mcpCall) cancel(reason string) {
	c.link.notify("notifications/cancelled", encode(struct {
		RequestID int64  `json:"requestId"`
		Reason    string `json:"reason,omitempty"`
	}{c.id, reason}))
}

func mcpResult(reply *jsonrpc.Response) (json.RawMessage, error) {
	if reply.Error == nil {
		return reply.Result, nil
	}
	if e, ok := errors.AsType[*jsonrpc.Error](reply.Error); ok {
		err := &rpcError{Code: int(e.Code), Message: e.Message}
		if e.Data != nil {
			err.Data = e.Data
		}
		return nil, err
	}
	return nil, fail(ahp.CodeInternalError, "%v", reply.Error)
}

// call sends a request of the host and waits for the answer.
func (l *mcpLink) call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	call, err := l.start(method, encode(params), nil)
	if err != nil {
		return nil, err
	}
	return call.wait(ctx.Done())
}

// mcpVersion is the MCP version offered to servers.
const mcpVersion = "2025-11-25"

// mcpClientVersion is the host's version as sent to servers.
const mcpClientVersion = "0.9.0"

// greet performs MCP's handshake. Clients of the mcp:// channel do not see it.
func (l *mcpLink) greet(ctx context.Context) error {
	_, err := l.call(ctx, "initialize", map[string]any{
		"protocolVersion": mcpVersion,
		"clientInfo":      map[string]string{"name": "agent-host", "version": mcpClientVersion},
		"capabilities": map[string]any{
			"sampling":   struct{}{},
			"extensions": map[string]any{appExtension: map[string]any{"mimeTypes": []string{appMIMEType}}},
		},
	})
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	l.notify("notifications/initialized", encode(struct{}{}))
	return nil
}

func (l *mcpLink) listTools(ctx context.Context) ([]mcpTool, error) {
	var tools []mcpTool
	var page struct {
		Tools      []mcpTool `json:"tools"`
		NextCursor string    `json:"nextCursor,omitempty"`
	}
	for first := true; first || page.NextCursor != ""; first = false {
		params := map[string]string{}
		if page.NextCursor != "" {
			params["cursor"] = page.NextCursor
		}
		result, err := l.call(ctx, "tools/list", params)
		if err != nil {
			return nil, fmt.Errorf("tools/list: %w", err)
		}
		page.Tools, page.NextCursor = nil, ""
		if err := json.Unmarshal(result, &page); err != nil {
			return nil, fmt.Errorf("tools/list: %w", err)
		}
		tools = append(tools, page.Tools...)
	}
	return tools, nil
}
