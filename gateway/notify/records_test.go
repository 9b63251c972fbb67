package notify_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/broker/store"
	"ahprelay/gateway/notify"
)

// A shelf keeps records in memory, as the store does for several relays.
type shelf struct {
	mu      sync.Mutex
	rev     uint64
	records map[string]store.Record
	views   []*view
}

// A view is a relay's access to a shelf.
type view struct {
	*shelf
	away   bool          // writes fail, and no record arrives
	ready  chan struct{} // returned by Ready
	tell   time.Duration // delay until this view receives a different view's write
	heard  []func(store.Record)
	prefix []string
}

func newShelf() *shelf { return &shelf{records: map[string]store.Record{}} }

func (s *shelf) view() *view {
	v := &view{shelf: s, ready: make(chan struct{})}
	close(v.ready)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.views = append(s.views, v)
	return v
}

// Write implements the store's Write. Each different view receives the change after its
// delay.
func (v *view) Write(_ context.Context, changes ...store.Change) []store.Result {
	v.mu.Lock()
	defer v.mu.Unlock()
	results := make([]store.Result, len(changes))
	for i, c := range changes {
		old := v.records[c.Key]
		switch {
		case v.away:
			results[i].Err = store.ErrAway
		case old.Rev != c.Rev:
			results[i].Err = store.ErrConflict
		default:
			v.rev++
			r := store.Record{Key: c.Key, Rev: v.rev, Data: c.Data}
			v.records[c.Key], results[i].Rev = r, v.rev
			for _, other := range v.views {
				if other == v || other.tell == 0 {
					other.hearLocked(r)
				} else {
					time.AfterFunc(other.tell, func() {
						v.mu.Lock()
						defer v.mu.Unlock()
						if v.records[r.Key].Rev == r.Rev {
							other.hearLocked(r)
						}
					})
				}
			}
		}
	}
	return results
}

func (v *view) hearLocked(r store.Record) {
	for i, f := range v.heard {
		if !v.away && f != nil && strings.HasPrefix(r.Key, v.prefix[i]) {
			f(r)
		}
	}
}

func (v *view) Follow(prefix string, tell func(store.Record)) (cancel func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key, r := range v.records {
		if !v.away && strings.HasPrefix(key, prefix) {
			tell(r)
		}
	}
	n := len(v.heard)
	v.heard, v.prefix = append(v.heard, tell), append(v.prefix, prefix)
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.heard[n] = nil
	}
}

func (v *view) Update(key string, change func(old []byte) ([]byte, error)) error {
	v.mu.Lock()
	old := v.records[key]
	v.mu.Unlock()
	data, err := change(old.Data)
	if err != nil {
		return err
	}
	return v.Write(context.Background(), store.Change{Key: key, Rev: old.Rev, Data: data})[0].Err
}

// Ready returns a channel that is closed, unless a test replaces it.
func (v *view) Ready() <-chan struct{} { return v.ready }

func (v *view) All(string) (map[string][]byte, error) { return nil, nil }

// back reconnects a view, which then receives all records.
func (v *view) back() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.away = false
	for _, r := range v.records {
		v.hearLocked(r)
	}
}

// jobs counts the unfinished jobs on the shelf.
func (s *shelf) jobs() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.records {
		if strings.HasPrefix(key, "job.") && strings.Contains(string(r.Data), `"job":`) {
			n++
		}
	}
	return n
}

// A member is a relay with a Notifier and a Board, and a view of the shelf shared by
// all relays.
type member struct {
	*notify.Notifier
	board *notify.Board
	view  *view
	name  string
}

func (s *shelf) member(t *testing.T, net *network, name string, gone func(string) bool) *member {
	m := &member{board: notify.NewBoard(), view: s.view()}
	m.start(t, net, name, gone)
	return m
}

// start starts the member's Notifier. With gone, the Notifier learns whether a relay
// has ended.
func (m *member) start(t *testing.T, net *network, name string, gone func(string) bool) {
	var err error
	if m.Notifier, err = notify.Start(notify.Config{
		Board: m.board, Records: m.view, Instance: name, HasEnded: gone, Log: slog.New(slog.DiscardHandler), Transport: net,
		Standing: func(who auth.Client) (auth.Client, bool, error) { return who, true, nil },
		Private:  []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}); err != nil {
		t.Fatal(err)
	}
}

// crash disconnects the member's view, so that its last writes fail, and closes its
// Notifier.
func (m *member) crash() {
	m.view.leave()
	m.Close()
}

// leave disconnects a view: its writes fail, and it receives no record.
func (v *view) leave() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.away = true
}

// TestSeveralRelaysSendOnce: a host-agent reports the same events to two relays, while
// relays crash or lose the store, writes are late, and the target fails. The target
// gets each event once, or at most once if it was answered before. It also gets an
// event that a relay confirmed and that the host-agent never reports again.
func TestSeveralRelaysSendOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := plan{
			knows: rapid.Bool().Draw(rt, "crashes are known"),
			lags:  rapid.SliceOfN(rapid.IntRange(0, 300), 30, 30).Draw(rt, "lags"),
			steps: rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
				return step{
					rapid.SampledFrom([]string{"needs", "done", "answered", "crash", "away", "back", "fails", "works", "wait"}).Draw(rt, "what"),
					rapid.IntRange(0, 3000).Draw(rt, "n"),
				}
			}), 1, 25).Draw(rt, "steps"),
		}
		var wrong []string
		synctest.Test(t, func(t *testing.T) { wrong = p.run(t) })
		if len(wrong) > 0 {
			rt.Fatal(strings.Join(wrong, "; "))
		}
	})
}

// A plan is a random choice of a test run's steps.
type plan struct {
	knows bool // a relay learns when another has crashed
	// delays of the views, in milliseconds
	lags  []int
	steps []step
}

type step struct {
	what string
	n    int // index of a relay, or milliseconds
}

// A crew has the relays, the host-agent's state and the network of a plan's run.
type crew struct {
	plan
	t      *testing.T
	net    *network
	shelf  *shelf
	relays []*member
	names  int
	open   []notice.Event
	seq    uint64

	mu   sync.Mutex
	gone map[string]bool
}

func (c *crew) start() *member {
	c.names++
	m := c.shelf.member(c.t, c.net, fmt.Sprint("relay", c.names), func(name string) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.knows && c.gone[name]
	})
	m.name = fmt.Sprint("relay", c.names)
	m.view.tell = time.Duration(c.lags[c.names%len(c.lags)]) * time.Millisecond
	return m
}

// report sends the host-agent's next report to all relays, each second, until a relay
// confirms it.
func (c *crew) report(over ...notice.Event) {
	c.seq++
	r := notice.Report{Instance: "agent", Seq: c.seq, Events: append(append([]notice.Event{}, c.open...), over...)}
	for _, e := range c.open {
		r.Open = append(r.Open, e.ID)
	}
	for kept := false; !kept; time.Sleep(time.Second) {
		for _, m := range c.relays {
			m.board.Take("t", "h", r)
			kept = m.Keep() == nil || kept
		}
	}
}

func (c *crew) back() {
	for _, m := range c.relays {
		m.view.back()
	}
}

func (p plan) run(t *testing.T) (wrong []string) {
	c := &crew{plan: p, t: t, net: newNetwork(), shelf: newShelf(), gone: map[string]bool{}}
	c.relays = []*member{c.start(), c.start()}
	if _, err := c.relays[0].SetTarget(context.Background(), ada, notify.Target{Kind: notify.Webhook, URL: one}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // until all relays have received the target
	want := map[string]bool{}
	for events, step := range p.steps {
		e := event(events, notice.Approval)
		switch step.what {
		case "needs":
			want[e.ID] = true
			c.open = append(c.open, e)
			c.report()
		case "done":
			want[e.ID] = true
			e.Kind = notice.Done
			c.report(e)
		case "answered":
			if len(c.open) > 0 {
				if c.net.told()[c.open[0].ID] == 0 {
					delete(want, c.open[0].ID) // its notification may or may not be sent
				}
				c.open = c.open[1:]
				c.report()
			}
		case "crash":
			c.back()
			time.Sleep(2 * time.Second)
			synctest.Wait() // until all writes have arrived
			m := c.relays[step.n%2]
			c.mu.Lock()
			c.gone[m.name] = true
			c.mu.Unlock()
			m.crash()
			c.relays[step.n%2] = c.start()
			c.back()
			c.report()
		case "away":
			if m, other := c.relays[step.n%2], c.relays[1-step.n%2]; !other.view.away {
				m.view.leave()
			}
		case "back":
			c.back()
		case "fails":
			c.net.set("127.0.0.1", 503)
		case "works":
			c.net.set("127.0.0.1", 200)
		case "wait":
			time.Sleep(time.Duration(step.n) * time.Millisecond)
		}
	}
	c.back()
	c.net.set("127.0.0.1", 200)
	c.report()
	time.Sleep(time.Hour)
	synctest.Wait()
	told := c.net.told()
	for id := range want {
		if told[id] == 0 {
			wrong = append(wrong, id+" was not told")
		}
	}
	for id, n := range told {
		if n > 1 {
			wrong = append(wrong, fmt.Sprintf("%s was told %d times", id, n))
		}
	}
	if n := c.shelf.jobs(); n != 0 {
		wrong = append(wrong, fmt.Sprintf("%d jobs are left", n))
	}
	for _, m := range c.relays {
		m.Close()
	}
	return wrong
}

// TestNotificationOfACrashedRelayIsWithdrawn: a relay sends a notification, and crashes
// before it records that. The event is answered before a different relay takes over the
// job. The second relay withdraws the notification.
func TestNotificationOfACrashedRelayIsWithdrawn(t *testing.T) {
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash known %v", known), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shelf, net := newShelf(), newNetwork()
				var crashed atomic.Bool
				gone := func(name string) bool { return known && name == "first" && crashed.Load() }
				first, second := shelf.member(t, net, "first", nil), shelf.member(t, net, "second", gone)
				defer first.Close()
				defer second.Close()
				if _, err := second.SetTarget(t.Context(), ada, notify.Target{Kind: notify.Webhook, URL: one}); err != nil {
					t.Fatal(err)
				}
				net.set("127.0.0.1", 0) // the request arrives, and its response is lost
				e := event(1, notice.Approval)
				asked := notice.Report{Instance: "agent", Seq: 1, Open: []string{e.ID}, Events: []notice.Event{e}}
				first.board.Take("t", "h", asked)
				if err := first.Keep(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // the relay's first attempt to claim the job may fail
				if net.count("127.0.0.1") != 1 {
					t.Fatal("the first relay has not sent the notification; want it sent once")
				}
				first.crash()
				crashed.Store(true)
				net.set("127.0.0.1", 200)
				second.board.Take("t", "h", asked)
				second.board.Take("t", "h", notice.Report{Instance: "agent", Seq: 2})
				if err := second.Keep(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if got := net.withdrawn()[e.ID]; got != 1 {
					t.Errorf("the notification was withdrawn %d times; want once", got)
				}
				if n := shelf.jobs(); n != 0 {
					t.Errorf("the store has %d jobs after the withdrawal; want 0", n)
				}
			})
		})
	}
}

// TestEventBeforeTheTargetsAreKnownIsNotConfirmed: a host-agent reports an event to a
// relay that has not read the records yet. The relay does not confirm the event, so
// that a different relay may still take it. When the relay has read the targets, it
// notifies them.
func TestEventBeforeTheTargetsAreKnownIsNotConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shelf, net := newShelf(), newNetwork()
		first := shelf.member(t, net, "first", nil)
		defer first.Close()
		if _, err := first.SetTarget(t.Context(), ada, notify.Target{Kind: notify.Webhook, URL: one}); err != nil {
			t.Fatal(err)
		}
		late := &member{board: notify.NewBoard(), view: shelf.view()}
		late.view.ready, late.view.away = make(chan struct{}), true
		late.start(t, net, "late", nil)
		defer late.Close()
		e := event(1, notice.Approval)
		late.board.Take("t", "h", notice.Report{Instance: "agent", Seq: 1, Open: []string{e.ID}, Events: []notice.Event{e}})
		if err := late.Keep(); !errors.Is(err, store.ErrAway) {
			t.Errorf("Keep = %v; want ErrAway, because the relay knows no targets yet", err)
		}
		late.view.back()
		close(late.view.ready)
		time.Sleep(time.Minute)
		if got := net.count("127.0.0.1"); got != 1 {
			t.Errorf("the target was notified %d times; want once", got)
		}
	})
}
