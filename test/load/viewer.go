package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"ahprelay/test/refclient"
)

// Viewers behave as common clients do.
const (
	// SilenceLimit is how long a viewer waits for a message before it ends a connection.
	// It sends requests more often than this, so answers come.
	SilenceLimit = 25 * time.Second

	firstWait = 250 * time.Millisecond // pause before a viewer connects again the first time
	mostWait  = 2 * time.Second
	closeTime = 5 * time.Second // longest wait for the close of a refused connection
	sendEvery = 200 * time.Millisecond
	pingEvery = 5 // every fifth send is a ping
)

// codeNotFound is the host's error for a client that it does not know.
const codeNotFound = -32008

// A Viewer is a client that watches the chat, sends actions, and reconnects when its
// connection ends.
type Viewer struct {
	id     string
	to     Target
	cancel context.CancelFunc
	done   sync.WaitGroup

	sending sync.Mutex // held while the viewer sends; locked before mu

	mu      sync.Mutex // guards the fields below
	wires   []*wire
	open    *wire // greeted connection; nil: none
	muted   bool  // the viewer sends nothing more
	state   chatState
	epochs  []*epoch
	known   bool // the host has accepted an initialize from this viewer
	ends    []End
	refused int // number of failed attempts to connect
	news    []time.Time
	faults  []string
	sends   int
}

// An epoch is what a viewer has applied between two snapshots.
type epoch struct {
	label   string // label of the connection with the snapshot
	from    int64  // serverSeq of the snapshot
	applied []int64
}

func (e *epoch) last() int64 {
	if len(e.applied) > 0 {
		return e.applied[len(e.applied)-1]
	}
	return e.from
}

// An End tells how a connection of a viewer ended.
type End struct {
	At     time.Time
	Code   int // code of the close frame, or EndCut or EndSilent
	Reason string
}

// These codes stand for ends without a close frame.
const (
	EndCut    = -1 // the network ended the connection
	EndSilent = -2 // the viewer ended it after SilenceLimit
)

// Watch starts a viewer. No other viewer may have the same id.
func Watch(id string, to Target) *Viewer {
	ctx, cancel := context.WithCancel(context.Background())
	v := &Viewer{id: id, to: to, cancel: cancel}
	v.done.Go(func() { v.run(ctx) })
	return v
}

func (v *Viewer) run(ctx context.Context) {
	wait := firstWait
	for ctx.Err() == nil {
		greeted, err := v.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			v.refuse()
		}
		if greeted {
			wait = firstWait
		}
		Pause(ctx, wait/2+rand.N(wait/2))
		wait = min(2*wait, mostWait)
	}
}

func (v *Viewer) refuse() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refused++
}

// connect opens a connection and uses it until it ends. greeted is true if the host
// accepted the viewer.
func (v *Viewer) connect(ctx context.Context) (greeted bool, err error) {
	v.mu.Lock()
	label := fmt.Sprintf("%s.%d", v.id, len(v.wires)+1)
	v.mu.Unlock()
	var w *wire
	started := make(chan struct{})
	w, err = dialWire(ctx, v.to, label, func(in *incoming) {
		<-started
		v.see(w, in)
	})
	if err != nil {
		close(started)
		return false, err
	}
	v.mu.Lock()
	v.wires = append(v.wires, w)
	v.mu.Unlock()
	close(started)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { v.sendLoop(ctx, w) })
	silent := v.guard(ctx, &wg, w)
	greeted = v.greet(ctx, w)
	patience := ctx
	if !greeted { // after a refusal, the relay closes the connection with the reason
		var stop context.CancelFunc
		patience, stop = context.WithTimeout(ctx, closeTime)
		defer stop()
	}
	select {
	case <-w.client.Done():
	case <-patience.Done():
	}
	v.closed(w, ctx.Err() != nil, silent)
	cancel()
	_ = w.client.Abort()
	wg.Wait()
	return greeted, nil
}

// guard ends a connection without a message for SilenceLimit. The returned function
// reports whether it has done so.
func (v *Viewer) guard(ctx context.Context, wg *sync.WaitGroup, w *wire) (silent func() bool) {
	gaveUp := make(chan struct{})
	wg.Go(func() {
		for ctx.Err() == nil && w.silent() < SilenceLimit {
			Pause(ctx, 200*time.Millisecond)
		}
		if ctx.Err() == nil {
			close(gaveUp)
			_ = w.client.Abort()
		}
	})
	return func() bool {
		select {
		case <-gaveUp:
			return true
		default:
			return false
		}
	}
}

// greet sends reconnect, or initialize if the host does not know the viewer. It returns
// true if the host accepts.
func (v *Viewer) greet(ctx context.Context, w *wire) bool {
	v.mu.Lock()
	known := v.known
	var last int64
	if known {
		last = v.epochs[len(v.epochs)-1].last()
	}
	v.mu.Unlock()
	method, params := "initialize", map[string]any{"clientId": v.id, "protocolVersions": v.to.versions(), "initialSubscriptions": channels}
	if known {
		method, params = "reconnect", map[string]any{"clientId": v.id, "lastSeenServerSeq": last, "subscriptions": channels}
	}
	_, err := w.greet(ctx, method, params)
	var refusal *refclient.RPCError
	if errors.As(err, &refusal) && refusal.Code == codeNotFound {
		v.mu.Lock()
		v.known = false
		v.mu.Unlock()
		_, err = w.greet(ctx, "initialize", map[string]any{"clientId": v.id, "protocolVersions": v.to.versions(), "initialSubscriptions": channels})
	}
	return err == nil
}

// A greeting holds the members that viewers need from the result of initialize or
// reconnect.
type greeting struct {
	Type      string               `json:"type"`
	ServerSeq int64                `json:"serverSeq"`
	Snapshots []refclient.Snapshot `json:"snapshots"`
	Actions   []refclient.Action   `json:"actions"`
}

// see handles each frame from the host, in order.
func (v *Viewer) see(w *wire, in *incoming) {
	v.mu.Lock()
	defer v.mu.Unlock()
	defer func() {
		if v.open == w { // the relay may answer pings before the greeting
			v.news = append(v.news, time.Now())
		}
	}()
	switch {
	case in.Method == "action":
		var a refclient.Action
		if json.Unmarshal(in.Params, &a) == nil {
			v.applyLocked(w, a)
		}
	case in.ID != nil && in.Result != nil && v.open != w:
		var g greeting
		if json.Unmarshal(in.Result, &g) == nil && (g.Type != "" || g.Snapshots != nil) {
			v.greetedLocked(w, g)
		}
	}
}

// greetedLocked brings the viewer's state up to date from the answer to a greeting. It
// runs before any later message is handled.
func (v *Viewer) greetedLocked(w *wire, g greeting) {
	v.open = w
	v.known = true
	if g.Type == "replay" {
		for _, a := range g.Actions {
			v.applyLocked(w, a)
		}
		return
	}
	e := &epoch{label: w.label, from: g.ServerSeq}
	v.state = chatState{}
	for _, s := range g.Snapshots {
		e.from = max(e.from, s.FromSeq)
		if s.Resource != chat {
			continue
		}
		if err := v.state.load(s.State); err != nil {
			v.faultLocked("%v", err)
		}
	}
	v.epochs = append(v.epochs, e)
}

func (v *Viewer) applyLocked(w *wire, a refclient.Action) {
	if !slices.Contains(channels, a.Channel) {
		v.faultLocked("action on %s, which it has not subscribed", a.Channel)
		return
	}
	if v.open != w || len(v.epochs) == 0 {
		v.faultLocked("action %d before the answer to the greeting", a.ServerSeq)
		return
	}
	e := v.epochs[len(v.epochs)-1]
	if a.ServerSeq <= e.last() {
		v.faultLocked("action %d after %d", a.ServerSeq, e.last())
		return
	}
	e.applied = append(e.applied, a.ServerSeq)
	if a.Channel != chat {
		return
	}
	if err := v.state.apply(a.Action); err != nil {
		v.faultLocked("%v", err)
	}
}

func (v *Viewer) faultLocked(format string, args ...any) {
	if len(v.faults) < 10 {
		v.faults = append(v.faults, v.id+": "+fmt.Sprintf(format, args...))
	}
}

// sendLoop sends actions and, at intervals, requests until the connection ends. Before
// the answer to the greeting, it sends only pings.
func (v *Viewer) sendLoop(ctx context.Context, w *wire) {
	ticker := time.NewTicker(sendEvery)
	defer ticker.Stop()
	for i := 1; ; i++ {
		select {
		case <-ticker.C:
		case <-w.client.Done():
			return
		case <-ctx.Done():
			return
		}
		if v.sendOne(w, i) != nil {
			return
		}
	}
}

func (v *Viewer) sendOne(w *wire, i int) error {
	v.sending.Lock()
	defer v.sending.Unlock()
	v.mu.Lock()
	muted, open := v.muted, v.open == w
	if open && !muted {
		v.sends++
	}
	n := v.sends
	v.mu.Unlock()
	if muted {
		return nil
	}
	if open {
		if err := w.client.Notify("dispatchAction", map[string]any{"channel": chat, "clientSeq": n, "action": map[string]any{
			"type": "chat/draftChanged", "draft": map[string]string{"text": fmt.Sprintf("%s wrote %d", v.id, n)},
		}}); err != nil {
			return err
		}
	}
	if i%pingEvery != 0 {
		return nil
	}
	return w.client.Ask("ping", map[string]any{"channel": rootChannel})
}

// closed records how a connection ended, unless the test itself ended the viewer.
func (v *Viewer) closed(w *wire, asked bool, silent func() bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if asked {
		return // the comparison treats this connection as open
	}
	if v.open == w {
		v.open = nil
	}
	code, reason := w.client.CloseStatus()
	if silent() {
		code, reason = EndSilent, ""
	}
	v.ends = append(v.ends, End{time.Now(), code, reason})
}

// whole reports whether the viewer has received everything of a turn up to serverSeq
// seq.
func (v *Viewer) whole(turn string, seq int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.open != nil && v.state.turn(turn) != nil && v.epochs[len(v.epochs)-1].last() >= seq
}

// mute makes the viewer send nothing more. It returns the open connection, or nil.
func (v *Viewer) mute() *wire {
	v.sending.Lock()
	defer v.sending.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.muted = true
	return v.open
}

// Ends returns how the viewer's connections have ended so far.
func (v *Viewer) Ends() []End {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.ends)
}

// Pause returns the longest time, after a moment, in which the viewer received nothing
// from the host.
func (v *Viewer) Pause(after time.Time) (longest time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := after
	for _, at := range append(slices.Clone(v.news), time.Now()) {
		if at.Before(after) {
			continue
		}
		longest = max(longest, at.Sub(before))
		before = at
	}
	return longest
}

// Close ends the viewer, and waits for its end.
func (v *Viewer) Close() {
	v.cancel()
	v.done.Wait()
}
