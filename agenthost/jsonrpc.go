package agenthost

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"ahprelay/ahp"
)

// A message is one JSON-RPC object. Keys are case-sensitive; of equal keys, the last
// counts, as in JavaScript.
type message map[string]json.RawMessage

// errNotMessage reports JSON other than an object, such as a batch or a number. Like
// VS Code's host, this host does not answer it.
var errNotMessage = errors.New("not a JSON object")

// maxNested bounds the nesting of a frame. A value in it may be part of a state later, where a few more objects
// and lists are around it, and a relay reads frames with a nesting of at most ahp.MaxDepth.
const maxNested = ahp.MaxDepth - 100

// errNested reports a message above maxNested.
var errNested = errors.New("nested too deep")

// parseMessage parses a frame. It returns errNotMessage for JSON other than
// an object, and errNested with the message for a frame above maxNested.
func parseMessage(frame []byte) (message, error) {
	if !json.Valid(frame) {
		return nil, errors.New("not JSON")
	}
	if trimmed := bytes.TrimLeft(frame, " \t\r\n"); trimmed[0] != '{' {
		return nil, errNotMessage
	}
	var msg message
	err := json.Unmarshal(frame, &msg)
	if err == nil && ahp.Deeper(frame, maxNested) {
		err = errNested
	}
	return msg, err
}

// isRequest reports whether m needs an answer. That includes a request with a null
// id.
func (m message) isRequest() bool { return m["method"] != nil && m["id"] != nil }

func (m message) isNotification() bool { return m["method"] != nil && m["id"] == nil }

func (m message) isResponse() bool {
	return m["method"] == nil && m["id"] != nil && (m["result"] != nil || m["error"] != nil)
}

// method returns the method's name, or the raw JSON if it is not a string.
func (m message) method() string {
	var name string
	if json.Unmarshal(m["method"], &name) != nil {
		return string(m["method"])
	}
	return name
}

// An rpcError is an error object of JSON-RPC.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func (e *rpcError) Error() string { return e.Message }

// fail returns an error with this code and text for the client.
func fail(code int, format string, args ...any) error {
	return &rpcError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// asRPCError converts all Go errors to error objects.
func asRPCError(err error) *rpcError {
	if e, ok := errors.AsType[*rpcError](err); ok {
		return e
	}
	code := ahp.CodeInternalError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = ahp.CodeNotFound
	case errors.Is(err, fs.ErrPermission):
		code = ahp.CodePermissionDenied
	case errors.Is(err, fs.ErrExist):
		code = ahp.CodeAlreadyExists
	}
	return &rpcError{Code: code, Message: err.Error()}
}

// decodeParams decodes a request's params.
func decodeParams[T any](raw json.RawMessage) (T, error) {
	var params T
	if raw == nil {
		return params, fail(ahp.CodeInvalidParams, "Invalid params: missing")
	}
	if err := json.Unmarshal(raw, &params); err != nil {
		return params, fail(ahp.CodeInvalidParams, "Invalid params: %v", err)
	}
	return params, nil
}

// encode encodes JSON as JavaScript does, without HTML escapes. It never fails for
// values of the host.
func encode(v any) json.RawMessage {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("agenthost: encode %T: %v", v, err))
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// resultFrame encodes a result. nil becomes null.
func resultFrame(id json.RawMessage, result any) []byte {
	if r, ok := result.(encodedResult); ok {
		return joinFrame(`{"jsonrpc":"2.0","id":`, id, `,"result":`, json.RawMessage(r))
	}
	return joinFrame(`{"jsonrpc":"2.0","id":`, id, `,"result":`, encode(result))
}

func errorFrame(id json.RawMessage, e *rpcError) []byte {
	return joinFrame(`{"jsonrpc":"2.0","id":`, id, `,"error":`, encode(e))
}

// notificationFrame encodes a notification with encoded params.
func notificationFrame(method string, params json.RawMessage) []byte {
	return joinFrame(`{"jsonrpc":"2.0","method":`, encode(method), `,"params":`, params)
}

func requestFrame(id int64, method string, params any) []byte {
	head := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%s,"params":`, id, encode(method))
	return append(append(head, encode(params)...), '}')
}

func joinFrame(head string, first json.RawMessage, mid string, second json.RawMessage) []byte {
	frame := make([]byte, 0, len(head)+len(first)+len(mid)+len(second)+1)
	frame = append(frame, head...)
	frame = append(frame, first...)
	frame = append(frame, mid...)
	frame = append(frame, second...)
	return append(frame, '}')
}
