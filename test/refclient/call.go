package refclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
)

// An RPCError is an error object of JSON-RPC.
type RPCError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error implements error.
func (e *RPCError) Error() string { return fmt.Sprintf("%d %s", e.Code, e.Message) }

const codeMethodNotFound, codeInternalError = -32601, -32603

// A message is any JSON-RPC message.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *RPCError       `json:"error,omitempty"`
}

// Call sends a request and waits for its result. An error answer becomes an
// [*RPCError], and the connection's end [ErrClosed]. Nil params are left out.
func (c *Client) Call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	c.mu.Lock()
	c.lastID++
	id := strconv.FormatInt(c.lastID, 10)
	answer := make(chan message, 1)
	c.pending[id] = answer
	c.mu.Unlock()
	defer c.forget(id)
	if err := c.send(message{ID: json.RawMessage(id), Method: method}, params); err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	select {
	case msg := <-answer:
		return result(method, msg)
	case <-ctx.Done():
		return nil, fmt.Errorf("call %s: %w", method, context.Cause(ctx))
	case <-c.done:
	}
	select {
	case msg := <-answer: // it came last
		return result(method, msg)
	default:
		return nil, fmt.Errorf("call %s: %w: %w", method, ErrClosed, c.Err())
	}
}

func (c *Client) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

func result(method string, msg message) (json.RawMessage, error) {
	if msg.Error != nil {
		return nil, fmt.Errorf("call %s: %w", method, msg.Error)
	}
	return msg.Result, nil
}

// Notify sends a notification.
func (c *Client) Notify(method string, params any) error {
	if err := c.send(message{Method: method}, params); err != nil {
		return fmt.Errorf("notify %s: %w", method, err)
	}
	return nil
}

func (c *Client) send(msg message, params any) error {
	msg.JSONRPC = "2.0"
	if params != nil {
		raw, err := json.Marshal(params)
		if err != nil {
			return err
		}
		msg.Params = raw
	}
	frame, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	return c.link.Send(frame)
}

// dispatch hands a frame to the waiting call or the handler. It ignores frames that
// are no messages.
func (c *Client) dispatch(ctx context.Context, frame []byte) {
	var msg message
	if !bytes.Contains(frame, []byte(`"id"`)) { // as in most frames, some of which are long
		return
	}
	if json.Unmarshal(frame, &msg) != nil || msg.ID == nil {
		return
	}
	if msg.Method != "" {
		if !c.opts.Unanswered {
			c.wg.Go(func() { c.answer(ctx, msg) })
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer := c.pending[string(msg.ID)]; answer != nil {
		delete(c.pending, string(msg.ID))
		answer <- msg
	}
}

// answer handles a request of the host.
func (c *Client) answer(ctx context.Context, request message) {
	reply := message{JSONRPC: "2.0", ID: request.ID}
	if handler := c.opts.Handlers[request.Method]; handler == nil {
		reply.Error = &RPCError{Code: codeMethodNotFound, Message: "Method not found: " + request.Method}
	} else {
		reply.Result, reply.Error = runHandler(ctx, handler, request.Params)
	}
	frame, err := json.Marshal(reply)
	if err != nil {
		return // the handler gave a RawMessage that is not JSON
	}
	c.link.Send(frame) // fails if the connection has ended, when no host waits for it
}

func runHandler(ctx context.Context, handler Handler, params json.RawMessage) (json.RawMessage, *RPCError) {
	value, err := handler(ctx, params)
	if err == nil {
		var raw json.RawMessage
		if raw, err = json.Marshal(value); err == nil {
			return raw, nil
		}
	}
	if e, ok := errors.AsType[*RPCError](err); ok {
		return nil, e
	}
	return nil, &RPCError{Code: codeInternalError, Message: err.Error()}
}

// redact returns a URL without possible tokens.
func redact(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "(bad URL)"
	}
	return u.Scheme + "://" + u.Host + u.Path
}
