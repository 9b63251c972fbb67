package load

import (
	"cmp"
	"context"
	"encoding/json"
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
	heard   time.Time      // when the last frame came
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
	w := &wire{label: label, to: to, onFrame: onFrame, heard: time.Now(), pings: map[int64]bool{}}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var err error
	url := to.URL
	if to.Pick != nil {
		url = to.Pick()
	}
	w.client, err = refclient.Dial(ctx, url, refclient.Options{
		Token: to.Token, HTTPClient: to.HTTP, NoRecord: true, Unanswered: true, OnFrame: w.take, OnSend: w.note,
	})
	return w, err
}

// take records a frame from the host, and passes it to onFrame.
func (w *wire) take(frame []byte) {
	w.mu.Lock()
	w.got = append(w.got, frame)
	w.heard = time.Now()
	w.mu.Unlock()
	if in, ok := read(frame); ok { // the comparison of records reports other frames
		w.onFrame(&in)
	}
}

// note records a frame to the host.
func (w *wire) note(frame []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, frame)
	if in, ok := read(frame); ok && in.Method == "ping" && (!w.greeted || w.to.AnswersPings) {
		w.pings[*in.ID] = true
	}
}

// greet sends initialize or reconnect. It adds the connection's label to the request.
func (w *wire) greet(ctx context.Context, method string, params map[string]any) (json.RawMessage, error) {
	params["channel"] = rootChannel
	params["clientInfo"] = map[string]string{"name": "load", "version": w.label}
	result, err := w.client.Call(ctx, method, params)
	w.mu.Lock()
	w.greeted = true
	w.mu.Unlock()
	return result, err
}

func (w *wire) ping(ctx context.Context) error {
	_, err := w.client.Call(ctx, "ping", map[string]any{"channel": rootChannel})
	return err
}

// silent returns how long ago the last frame came.
func (w *wire) silent() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.heard)
}
