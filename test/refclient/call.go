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

// An RPCError is the error in a JSON-RPC response.
type RPCError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error implements error.
func (e *RPCError) Error() string { return fmt.Sprintf("%d %s", e.Code, e.Message) }

const codeMethodNotFound, codeInternalError = -32601, -32603

// A message is a request, a notification or a response of JSON-RPC.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *RPCError       `json:"error,omitempty"`
}

// Call sends a request and returns the result of its response. An error response
// becomes an [*RPCError]. If the connection ends first, Call returns [ErrClosed]. With
// nil params, the request has none.
func (c *Client) Call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	id, answer := c.expect()
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
	case msg := <-answer: // the response came just before the end
		return result(method, msg)
	default:
		return nil, fmt.Errorf("call %s: %w: %w", method, ErrClosed, c.Err())
	}
}

// expect returns the id for a new request, and a channel that receives the response.
func (c *Client) expect() (id string, answer chan message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	id, answer = strconv.FormatInt(c.lastID, 10), make(chan message, 1)
	c.pending[id] = answer
	return id, answer
}

// Ask sends a request without waiting for its response.
func (c *Client) Ask(method string, params any) error {
	id, _ := c.expect()
	if err := c.send(message{ID: json.RawMessage(id), Method: method}, params); err != nil {
		return fmt.Errorf("ask %s: %w", method, err)
	}
	return nil
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
	return c.SendRaw(frame)
}

// dispatch gives a response to the call that waits for it, and a request to its
// handler. It ignores every other frame.
func (c *Client) dispatch(ctx context.Context, frame []byte) {
	var msg message
	if !bytes.Contains(frame, []byte(`"id"`)) { // most frames have no id, and some of these are long
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

// answer calls the handler for a request from the host, and sends the response.
func (c *Client) answer(ctx context.Context, request message) {
	reply := message{JSONRPC: "2.0", ID: request.ID}
	if handler := c.opts.Handlers[request.Method]; handler == nil {
		reply.Error = &RPCError{Code: codeMethodNotFound, Message: "Method not found: " + request.Method}
	} else {
		reply.Result, reply.Error = runHandler(ctx, handler, request.Params)
	}
	frame, err := json.Marshal(reply)
	if err != nil {
		return // the handler returned a RawMessage that is not JSON
	}
	c.link.Send(frame) // an error means that the connection has ended, so the host waits for nothing
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

// redact returns a URL without the parts that may contain a token.
func redact(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "(bad URL)"
	}
	return u.Scheme + "://" + u.Host + u.Path
}
