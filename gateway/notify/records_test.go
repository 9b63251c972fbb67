package notify_test

import (
	"context"
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

// A shelf has records as a stream would, for several relays.
type shelf struct {
	mu      sync.Mutex
	rev     uint64
	records map[string]store.Record
	views   []*view
}

// A view is one relay's.
type view struct {
	*shelf
	away   bool          // nothing can be written, nor is anything heard
	tell   time.Duration // after that it hears what others write
	heard  []func(store.Record)
	prefix []string
}

func newShelf() *shelf { return &shelf{records: map[string]store.Record{}} }

func (s *shelf) view() *view {
	v := &view{shelf: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.views = append(s.views, v)
	return v
}

// Write has what others hear come late.
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
		if strings.HasPrefix(key, prefix) {
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

func (v *view) All(string) (map[string][]byte, error) { return nil, nil }

// back has a view that was away hear all that there is.
func (v *view) back() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.away = false
	for _, r := range v.records {
		v.hearLocked(r)
	}
}

// jobs counts those that are not over.
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

// A member is one relay of several.
type member struct {
	*notify.Teller
	board *notify.Board
	view  *view
	name  string
}

func (s *shelf) member(t *testing.T, net *network, name string, gone func(string) bool) *member {
	m := &member{board: notify.NewBoard(), view: s.view()}
	var err error
	if m.Teller, err = notify.StartTeller(notify.TellerConfig{
		Board: m.board, Records: m.view, Instance: name, HasEnded: gone, Log: slog.New(slog.DiscardHandler), Transport: net,
		Standing: func(who auth.Client) (auth.Client, bool) { return who, true },
		Private:  []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

// crash ends a member without a word: what it would still write is lost.
func (m *member) crash() {
	m.view.leave()
	m.Close()
}

// leave has a view be away.
func (v *view) leave() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.away = true
}

// TestSeveralRelaysTellOnce has relays that hear the same reports, of which some crash, lose
// the store for a while, or hear late of what others do, and a way that is away: each event is
// told once, by one of them, unless it was answered before anybody could. What was confirmed to
// the host-agent is told though nobody reports it again.
func TestSeveralRelaysTellOnce(t *testing.T) {
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

// A plan is what happens to relays.
type plan struct {
	knows bool // relays know which others have crashed
	lags  []int
	steps []step
}

type step struct {
	what string
	n    int // which relay, or how long
}

// A crew is the relays, the host-agent and the way of a plan.
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

// report reports what is open, and what is over, until a relay confirms it.
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
	if _, err := c.relays[0].SetWay(context.Background(), ada, notify.Way{Kind: notify.Webhook, URL: one}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // all have heard of it
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
					delete(want, c.open[0].ID) // it may be told, or not
				}
				c.open = c.open[1:]
				c.report()
			}
		case "crash":
			c.back()
			time.Sleep(2 * time.Second)
			synctest.Wait() // what was told is kept, and nothing is on its way
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

// TestWhatACrashedRelayToldIsWithdrawn has a relay crash between the push and its note, and
// somebody answer before another relay takes the job over: the push is withdrawn.
func TestWhatACrashedRelayToldIsWithdrawn(t *testing.T) {
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash known %v", known), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shelf, net := newShelf(), newNetwork()
				var crashed atomic.Bool
				gone := func(name string) bool { return known && name == "first" && crashed.Load() }
				first, second := shelf.member(t, net, "first", nil), shelf.member(t, net, "second", gone)
				defer first.Close()
				defer second.Close()
				if _, err := second.SetWay(t.Context(), ada, notify.Way{Kind: notify.Webhook, URL: one}); err != nil {
					t.Fatal(err)
				}
				net.set("127.0.0.1", 0) // it is there, and the answer is not
				e := event(1, notice.Approval)
				asked := notice.Report{Instance: "agent", Seq: 1, Open: []string{e.ID}, Events: []notice.Event{e}}
				first.board.Take("t", "h", asked)
				if err := first.Keep(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // it may claim the job in a second attempt
				if net.count("127.0.0.1") != 1 {
					t.Fatal("the first relay has not told")
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
					t.Errorf("withdrawn %d times; want once", got)
				}
				if n := shelf.jobs(); n != 0 {
					t.Errorf("%d jobs are left", n)
				}
			})
		})
	}
}
