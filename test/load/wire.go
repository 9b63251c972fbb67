package load

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"ahprelay/test/refclient"
)

// A Target is the address to which clients connect.
type Target struct {
	URL   string
	Pick  func() string // returns the URL for each connection; nil: URL
	Token string
	HTTP  *http.Client // client for the handshake; default: http.DefaultClient

	Version      string // version of AHP; default: 0.9.0
	AnswersPings bool   // the target itself answers pings at any time, as ahp-connect does while it has no relay
}

func (t Target) versions() []string { return []string{cmp.Or(t.Version, version)} }

// A wire is a connection of a viewer or driver, with all frames in both directions.
type wire struct {
	label   string // identifies this connection in the host's record
	to      Target
	client  *refclient.Client
	onFrame func(*incoming) // called for each frame, before a call gets its answer

	mu      sync.Mutex // guards the fields below
	sent    [][]byte
	got     [][]byte
	heard   time.Time // when the last frame came
	lastID  int64
	waiting map[int64]chan *incoming
	pings   map[int64]bool // ids of pings that the host may not have answered: sent before the answer to the greeting, or answered by the target
	greeted bool           // the greeting was answered
}

// An incoming is a frame from the host.
type incoming struct {
	ID     *int64          `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// dialTimeout limits the time for a handshake.
const dialTimeout = 10 * time.Second

func dialWire(ctx context.Context, to Target, label string, onFrame func(*incoming)) (*wire, error) {
	w := &wire{label: label, to: to, onFrame: onFrame, heard: time.Now(), waiting: map[int64]chan *incoming{}, pings: map[int64]bool{}}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var err error
	url := to.URL
	if to.Pick != nil {
		url = to.Pick()
	}
	w.client, err = refclient.Dial(ctx, url, refclient.Options{
		Token: to.Token, HTTPClient: to.HTTP, NoRecord: true, Unanswered: true, OnFrame: w.take,
	})
	return w, err
}

// take records a frame from the host, and passes it to onFrame or to the waiting call.
func (w *wire) take(frame []byte) {
	w.mu.Lock()
	w.got = append(w.got, frame)
	w.heard = time.Now()
	w.mu.Unlock()
	var in incoming
	if json.Unmarshal(frame, &in) != nil {
		return // the comparison of records reports this frame
	}
	w.onFrame(&in)
	if in.ID == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if answer := w.waiting[*in.ID]; answer != nil {
		delete(w.waiting, *in.ID)
		answer <- &in
	}
}

// send records a frame and sends it to the host.
func (w *wire) send(frame []byte) error {
	w.mu.Lock()
	w.sent = append(w.sent, frame)
	w.mu.Unlock()
	return w.client.SendRaw(frame)
}

func (w *wire) notify(method string, params any) error {
	frame, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
	if err != nil {
		return err
	}
	return w.send(frame)
}

// An rpcError is an error response by the host or the relay.
type rpcError struct {
	code    int
	message string
}

func (e *rpcError) Error() string { return fmt.Sprintf("%d %s", e.code, e.message) }

// ask sends a request. The returned channel receives the response.
func (w *wire) ask(method string, params map[string]any) (<-chan *incoming, error) {
	answer := make(chan *incoming, 1)
	w.mu.Lock()
	w.lastID++
	id := w.lastID
	w.waiting[id] = answer
	if method == "ping" && (!w.greeted || w.to.AnswersPings) {
		w.pings[id] = true
	}
	w.mu.Unlock()
	frame, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	return answer, w.send(frame)
}

var errEnded = errors.New("connection ended")

// call sends a request, waits for the response, and returns the result.
func (w *wire) call(ctx context.Context, method string, params map[string]any) (json.RawMessage, error) {
	answer, err := w.ask(method, params)
	if err != nil {
		return nil, err
	}
	select {
	case in := <-answer:
		if in.Error != nil {
			return nil, &rpcError{in.Error.Code, in.Error.Message}
		}
		return in.Result, nil
	case <-w.client.Done():
		return nil, errEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// greet is call for initialize or reconnect. It adds the connection's label to the
// request.
func (w *wire) greet(ctx context.Context, method string, params map[string]any) (json.RawMessage, error) {
	params["channel"] = rootChannel
	params["clientInfo"] = map[string]string{"name": "load", "version": w.label}
	result, err := w.call(ctx, method, params)
	w.mu.Lock()
	w.greeted = true
	w.mu.Unlock()
	return result, err
}

func (w *wire) ping(ctx context.Context) error {
	_, err := w.call(ctx, "ping", map[string]any{"channel": rootChannel})
	return err
}

// silent returns how long ago the last frame came.
func (w *wire) silent() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.heard)
}
