package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"ahprelay/test/refclient"
)

// The load uses these channels and this provider.
const (
	rootChannel = "ahp-root://"
	session     = "demo:/busy"
	chat        = "ahp-chat://default/ZGVtbzovYnVzeQ" // base64url of the session
	provider    = "demo"
	version     = "0.9.0"
	startedAt   = "2026-11-21T12:00:00.000Z"
)

var channels = []string{session, chat}

// A Driver keeps a turn running in the chat, over its own connection to the host. When
// the host restarts, it reconnects and starts a new turn.
type Driver struct {
	to     Target
	prompt string
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	wire *wire      // nil while no turn runs
	turn string
	seq  int64 // highest serverSeq that the driver has received
	runs int
}

// Drive starts a Driver. In its turn, the agent sends perSecond deltas a second, at
// most 1000, with size bytes each.
func Drive(to Target, perSecond, size int) *Driver {
	ctx, cancel := context.WithCancel(context.Background())
	most := min(64<<20/size, 9_999_999)
	d := &Driver{to: to, cancel: cancel, prompt: fmt.Sprintf("stream %d %d %d", most, max(1, 1000/perSecond), size)}
	d.done.Go(func() { d.run(ctx) })
	return d
}

func (d *Driver) run(ctx context.Context) {
	for ctx.Err() == nil {
		if w, err := d.connect(ctx); err == nil {
			select {
			case <-w.client.Done():
			case <-ctx.Done():
			}
			d.lost()
			_ = w.client.Abort()
		}
		Pause(ctx, 100*time.Millisecond)
	}
}

func (d *Driver) connect(ctx context.Context) (*wire, error) {
	d.mu.Lock()
	d.runs++
	label := fmt.Sprintf("driver.%d", d.runs)
	d.seq = 0
	d.mu.Unlock()
	w, err := dialWire(ctx, d.to, label, d.see)
	if err != nil {
		return nil, err
	}
	if err := d.begin(ctx, w, label); err != nil {
		_ = w.client.Abort()
		return nil, err
	}
	return w, nil
}

// begin greets the host, creates the session, subscribes to the channels, and starts a
// turn.
func (d *Driver) begin(ctx context.Context, w *wire, turn string) error {
	_, err := w.greet(ctx, "initialize", map[string]any{
		"clientId": w.label, "protocolVersions": d.to.versions(), "initialSubscriptions": channels,
	})
	if err != nil {
		return err
	}
	if _, err := w.client.Call(ctx, "createSession", map[string]any{"channel": session, "provider": provider}); err != nil {
		return err
	}
	for _, channel := range channels {
		if _, err := w.client.Call(ctx, "subscribe", map[string]any{"channel": channel}); err != nil {
			return err
		}
	}
	err = w.client.Notify("dispatchAction", map[string]any{"channel": chat, "clientSeq": 1, "action": map[string]any{
		"type": "chat/turnStarted", "turnId": turn, "startedAt": startedAt,
		"message": map[string]any{"text": d.prompt, "origin": map[string]any{"kind": "user"}},
	}})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wire, d.turn = w, turn
	return nil
}

func (d *Driver) see(in *incoming) {
	if in.Method != "action" {
		return
	}
	var a refclient.Action
	if json.Unmarshal(in.Params, &a) == nil {
		d.mu.Lock()
		d.seq = max(d.seq, a.ServerSeq)
		d.mu.Unlock()
	}
}

func (d *Driver) lost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wire = nil
}

// now returns the running turn and the highest serverSeq so far. If no turn runs, ok is
// false.
func (d *Driver) now() (turn string, seq int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.turn, d.seq, d.wire != nil
}

// finish ends the turn, and returns a snapshot of the chat after the end.
func (d *Driver) finish(ctx context.Context) (last refclient.Snapshot, err error) {
	d.mu.Lock()
	w, turn := d.wire, d.turn
	d.mu.Unlock()
	if w == nil {
		return last, errors.New("the driver has no connection to the host")
	}
	err = w.client.Notify("dispatchAction", map[string]any{"channel": chat, "clientSeq": 2, "action": map[string]any{
		"type": "chat/turnCancelled", "turnId": turn, "duration": 1,
	}})
	if err != nil {
		return last, err
	}
	if err := w.ping(ctx); err != nil {
		return last, fmt.Errorf("end the turn: %w", err)
	}
	raw, err := w.client.Call(ctx, "subscribe", map[string]any{"channel": chat})
	if err != nil {
		return last, err
	}
	var result struct{ Snapshot refclient.Snapshot }
	err = json.Unmarshal(raw, &result)
	return result.Snapshot, err
}

// Close ends the driver, and waits for its end.
func (d *Driver) Close() {
	d.cancel()
	d.done.Wait()
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
