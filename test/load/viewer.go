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

// How viewers behave, like stock clients.
const (
	// SilenceLimit is how long a viewer waits for a message before it gives a
	// connection up. It sends requests more often than that.
	SilenceLimit = 25 * time.Second

	firstWait = 250 * time.Millisecond // before it connects again
	mostWait  = 2 * time.Second
	closeTime = 5 * time.Second // longest time until a refused connection is closed
	sendEvery = 200 * time.Millisecond
	pingEvery = 5 // sends
)

// codeNotFound is a host's error for an unknown client.
const codeNotFound = -32008

// A Viewer is a client that watches the chat and sends actions.
type Viewer struct {
	id     string
	to     Target
	cancel context.CancelFunc
	done   sync.WaitGroup

	sending sync.Mutex // held while something is sent; taken before mu

	mu      sync.Mutex // guards the fields below
	wires   []*wire
	open    *wire // nil while no connection has been greeted
	muted   bool  // sends nothing more
	state   chatState
	epochs  []*epoch
	known   bool // the host has accepted an initialize
	ends    []End
	refused int // attempts to connect that failed
	news    []time.Time
	faults  []string
	sends   int
}

// An epoch is everything that a viewer has applied since a snapshot.
type epoch struct {
	label   string // of the connection that it began on
	from    int64  // serverSeq of the snapshot
	applied []int64
}

func (e *epoch) last() int64 {
	if len(e.applied) > 0 {
		return e.applied[len(e.applied)-1]
	}
	return e.from
}

// An End is how a connection of a viewer ended.
type End struct {
	At     time.Time
	Code   int // of the close frame; see the constants
	Reason string
}

// Codes of connections that ended without a close frame.
const (
	EndCut    = -1 // the network ended it
	EndSilent = -2 // the viewer gave it up
)

// Watch starts a viewer with a unique id.
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
		pause(ctx, wait/2+rand.N(wait/2))
		wait = min(2*wait, mostWait)
	}
}

func (v *Viewer) refuse() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refused++
}

// connect carries one connection from its beginning to its end.
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
	if !greeted { // a relay that refuses closes with the reason
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

// guard gives up a connection that is silent.
func (v *Viewer) guard(ctx context.Context, wg *sync.WaitGroup, w *wire) (silent func() bool) {
	gaveUp := make(chan struct{})
	wg.Go(func() {
		for ctx.Err() == nil && w.silent() < SilenceLimit {
			pause(ctx, 200*time.Millisecond)
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

// greet opens the connection with reconnect, or with initialize if the host
// does not know the viewer.
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
	var refusal *rpcError
	if errors.As(err, &refusal) && refusal.code == codeNotFound {
		v.mu.Lock()
		v.known = false
		v.mu.Unlock()
		_, err = w.greet(ctx, "initialize", map[string]any{"clientId": v.id, "protocolVersions": v.to.versions(), "initialSubscriptions": channels})
	}
	return err == nil
}

// A greeting holds the members of an initialize or reconnect result that viewers need.
type greeting struct {
	Type      string               `json:"type"`
	ServerSeq int64                `json:"serverSeq"`
	Snapshots []refclient.Snapshot `json:"snapshots"`
	Actions   []refclient.Action   `json:"actions"`
}

// see handles the host's frames, in order.
func (v *Viewer) see(w *wire, in *incoming) {
	v.mu.Lock()
	defer v.mu.Unlock()
	defer func() {
		if v.open == w { // the relay may answer pings before that
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

// greetedLocked brings the state up to date. It runs before any message after the
// answer is handled.
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

// sendLoop sends actions, and requests at intervals. Before the greeting is answered,
// it sends only pings.
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
		if err := w.notify("dispatchAction", map[string]any{"channel": chat, "clientSeq": n, "action": map[string]any{
			"type": "chat/draftChanged", "draft": map[string]string{"text": fmt.Sprintf("%s wrote %d", v.id, n)},
		}}); err != nil {
			return err
		}
	}
	if i%pingEvery != 0 {
		return nil
	}
	_, err := w.ask("ping", map[string]any{"channel": rootChannel})
	return err
}

// closed notes how a connection ended.
func (v *Viewer) closed(w *wire, asked bool, silent func() bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if asked {
		return // for the judge, it is still open
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

// whole reports whether the viewer has everything of the turn up to seq.
func (v *Viewer) whole(turn string, seq int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.open != nil && v.state.turn(turn) != nil && v.epochs[len(v.epochs)-1].last() >= seq
}

// mute stops the viewer from sending, and returns its connection.
func (v *Viewer) mute() *wire {
	v.sending.Lock()
	defer v.sending.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.muted = true
	return v.open
}

// Ends returns how its connections ended so far.
func (v *Viewer) Ends() []End {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.ends)
}

// Pause returns the longest time without news from the host, after a point in
// time.
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

// Close ends the viewer.
func (v *Viewer) Close() {
	v.cancel()
	v.done.Wait()
}
