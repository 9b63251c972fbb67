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

// A Target is where clients connect to.
type Target struct {
	URL   string
	Pick  func() string // returns the URL of each connection; nil: URL
	Token string
	HTTP  *http.Client // for the handshake; default: http.DefaultClient

	Version      string // of AHP; default: 0.9.0
	AnswersPings bool   // it answers pings for the host at any time, as ahp-connect does without a relay
}

func (t Target) versions() []string { return []string{cmp.Or(t.Version, version)} }

// A wire is one connection, with all frames that were sent and received.
type wire struct {
	label   string // identifies this connection in the host's record
	to      Target
	client  *refclient.Client
	onFrame func(*incoming) // called by the reader, before a call gets its answer

	mu      sync.Mutex // guards the fields below
	sent    [][]byte
	got     [][]byte
	heard   time.Time // when the last one came
	lastID  int64
	waiting map[int64]chan *incoming
	pings   map[int64]bool // pings that the host may not have answered: sent before the answer to the greeting, or answered on the way
	greeted bool           // it was
}

// An incoming is a frame of the host's.
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

// dialTimeout is how long a handshake may take.
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

// take records a frame, and passes it on.
func (w *wire) take(frame []byte) {
	w.mu.Lock()
	w.got = append(w.got, frame)
	w.heard = time.Now()
	w.mu.Unlock()
	var in incoming
	if json.Unmarshal(frame, &in) != nil {
		return // the judge reports it
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

// send sends a frame.
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

// An rpcError is an error that the host or the relay answered with.
type rpcError struct {
	code    int
	message string
}

func (e *rpcError) Error() string { return fmt.Sprintf("%d %s", e.code, e.message) }

// ask sends a request, and returns where its answer arrives.
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

// call sends a request, and waits for its answer.
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

// greet is call for the request that opens the connection.
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

// silent returns for how long nothing has come.
func (w *wire) silent() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.heard)
}
