package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/link"
)

// newTestRegistry returns a registry that does not run: tests give it messages
// and turns.
func newTestRegistry(t testing.TB, cfg Config) *Registry {
	t.Helper()
	return newTestRegistryAt(t, newTestServer(t), cfg)
}

func newTestRegistryAt(t testing.TB, server broker.RelayConfig, cfg Config) *Registry {
	t.Helper()
	cfg.Conn, cfg.Tenants = dialTest(t, server, "me"), newTestTenants(t, server)
	cfg.Revocations = loadRevocations(t, "")
	cfg.Instance, cfg.LeaseTTL, cfg.Log = "me", DefaultLeaseTTL, slog.New(slog.DiscardHandler)
	return &Registry{
		cfg: cfg, started: time.Now(), wake: make(chan struct{}, 1), file: newStateFile("", cfg.Log),
		hosts: map[string]*knownHost{}, changed: map[string]bool{}, peers: map[string]*peer{}, gone: map[string]time.Time{}, shown: map[string]time.Time{},
	}
}

// newTestServer starts a server and returns how relays connect to it.
func newTestServer(t testing.TB) broker.RelayConfig {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server, err := embedded.Start(embedded.Config{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return broker.RelayConfig{Keys: keys, Server: server}
}

func dialTest(t testing.TB, cfg broker.RelayConfig, instance string) *broker.Conn {
	t.Helper()
	cfg.Instance = instance
	conn, err := broker.DialRelay(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func newTestTenants(t testing.TB, cfg broker.RelayConfig) *broker.Tenants {
	t.Helper()
	cfg.Instance = "me"
	tenants, err := broker.StartTenants(context.Background(), broker.TenantsConfig{Relay: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tenants.Close)
	return tenants
}

// say has another relay say something.
func (r *Registry) say(t testing.TB, news relayNews) {
	t.Helper()
	news.Version = newsVersion
	body, err := json.Marshal(news)
	if err != nil {
		t.Fatal(err)
	}
	r.receive(&nats.Msg{Subject: newsAll, Data: body})
}

// turns has time pass for a registry, as from now.
func (r *Registry) turns(from time.Time, d time.Duration, each func(now time.Time)) time.Time {
	for until := from.Add(d); from.Before(until); {
		from = from.Add(beatEvery)
		each(from)
		r.turn(from)
	}
	return from
}

func nothing(time.Time) {}

// A process that was stopped for a while has heard nothing, which is no sign
// that others are gone or leases have run out.
func TestPauseIsNoSilence(t *testing.T) {
	r := newTestRegistry(t, Config{Cluster: true})
	r.say(t, relayNews{From: "other", Cluster: true, Hosts: []hostState{{
		Key: "t.h", Enrolled: time.Now(), LastSeen: time.Now(), Revision: 1,
		Lease: &lease{Instance: "x", Seq: 1, Presence: Presence{State: Online, Wire: [2]int{link.WireMin, link.WireMax}}},
	}}})
	now := r.turns(time.Now(), 3*time.Second, nothing)
	now = r.turns(now.Add(time.Minute), 3*time.Second, nothing)
	if gone := r.goneRelays(); len(gone) > 0 || r.decider() == "" {
		t.Errorf("after a pause, %v are gone, and %q decides", gone, r.decider())
	}
	if h, _ := r.Lookup("t", "h"); h.State != Online {
		t.Errorf("after a pause, the host is %+v", h)
	}
	now = r.turns(now, 3*time.Second, nothing)
	if gone := strings.Join(r.goneRelays(), " "); gone != "other" || r.decider() != "" {
		t.Errorf("after silence, %q are gone, and %q decides", gone, r.decider())
	}
	r.turns(now, DefaultLeaseTTL, nothing)
	if h, _ := r.Lookup("t", "h"); h.State != Offline || h.Reason != reasonLost {
		t.Errorf("after silence, the host is %+v", h)
	}
	r.say(t, relayNews{From: "other", Cluster: true})
	if gone := r.goneRelays(); len(gone) > 0 {
		t.Errorf("%v are gone; one was heard again", gone)
	}
}

// An instance whose successor has started is gone as soon as it is not heard
// any more. If it is, the data directory was copied.
func TestSuccessor(t *testing.T) {
	r := newTestRegistry(t, Config{Former: []string{"mine"}})
	start := time.Now()
	alive := func(time.Time) { r.say(t, relayNews{From: "old"}) }
	claim := func(time.Time) {
		r.say(t, relayNews{From: "new", Former: []string{"old", "older", "me"}})
	}
	now := r.turns(start, 10*time.Second, func(now time.Time) {
		alive(now)
		claim(now)
		for _, p := range r.peers {
			p.heard = now
		}
	})
	if gone := strings.Join(r.goneRelays(), " "); strings.Contains(gone, "old ") || !strings.Contains(gone, "older") || !strings.Contains(gone, "mine") {
		t.Errorf("gone: %q; want mine and older", gone)
	}
	r.turns(now, 3*time.Second, func(now time.Time) { claim(now); r.peers["new"].heard = now })
	if gone := r.goneRelays(); len(gone) != 3 {
		t.Errorf("gone: %v; want old too, and not me", gone)
	}
}

// A relay that is to decide and does not answer is not waited for twice.
func TestDeciderDoesNotAnswer(t *testing.T) {
	server := newTestServer(t)
	r := newTestRegistryAt(t, server, Config{})
	r.desk = &leaseDesk{registry: r, log: r.cfg.Log}
	elder := relayNews{From: "elder", Started: r.started.Add(-time.Hour)}
	r.say(t, elder)
	asked := make(chan *nats.Msg, 10)
	relay := dialTest(t, server, "other")
	if _, err := relay.Subscribe(relaySubject("elder", "lease"), asked); err != nil {
		t.Fatal(err)
	}
	if err := relay.Flush(time.Minute); err != nil {
		t.Fatal(err)
	}
	for seq, wantAsked := range []int{1, 1} {
		req := `{"op":"hold","instance":"x","seq":` + string(rune('1'+seq)) + `,"presence":{"state":"online"}}`
		if answer := r.desk.answer("t.h", []byte(req)); answer.Result != leaseHeld {
			t.Errorf("answer %+v; want that the lease is held", answer)
		}
		if len(asked) != wantAsked {
			t.Errorf("the elder was asked %d times; want %d", len(asked), wantAsked)
		}
	}
	if h, _ := r.Lookup("t", "h"); h.AgentInstance != "x" {
		t.Errorf("host %+v; want it held by x", h)
	}
	r.say(t, elder)
	if r.decider() != "elder" {
		t.Error("a relay that is heard again does not decide")
	}
}

// A relay that is new is told all that is known, at once and once.
func TestNewRelayIsTold(t *testing.T) {
	server := newTestServer(t)
	r := newTestRegistryAt(t, server, Config{})
	for i := range 2*newsHosts + 1 {
		if err := r.Enrol("t", fmt.Sprintf("h%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	relay := dialTest(t, server, "other")
	told := make(chan *nats.Msg, 100)
	if _, err := relay.Subscribe(relaySubject("new", "news"), told); err != nil {
		t.Fatal(err)
	}
	if err := relay.Flush(time.Minute); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.say(t, relayNews{From: "new"})
	}
	if err := errors.Join(r.cfg.Conn.Flush(time.Minute), relay.Flush(time.Minute)); err != nil {
		t.Fatal(err)
	}
	hosts := 0
	for i := range 3 {
		var news relayNews
		select {
		case msg := <-told:
			if err := json.Unmarshal(msg.Data, &news); err != nil {
				t.Fatal(err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("it was told %d messages", i)
		}
		hosts += len(news.Hosts)
		if news.From != "me" || news.Last != (i == 2) {
			t.Errorf("message %d is from %q, the last: %v", i, news.From, news.Last)
		}
	}
	if hosts != 2*newsHosts+1 || len(told) > 0 {
		t.Errorf("told of %d hosts, and %d messages more; want %d and none", hosts, len(told), 2*newsHosts+1)
	}
}

// Of two host-agents that ask two relays at the same time, one gets the host.
func TestOneDecides(t *testing.T) {
	server := newTestServer(t)
	one := newTestRegistryAt(t, server, Config{})
	cfg := one.cfg
	cfg.Conn = dialTest(t, server, "you")
	cfg.Instance = "you"
	cfg.Tenants = newTestTenants(t, server)
	running := make([]*Registry, 2)
	for i, cfg := range []Config{one.cfg, cfg} {
		r, err := Start(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		running[i] = r
	}
	for i := range 200 {
		results := make(chan leaseResult, 2)
		for j, r := range running {
			req := fmt.Sprintf(`{"op":"hold","instance":"agent%d","seq":1,"presence":{"state":"online"}}`, j)
			go func() { results <- r.desk.answer(fmt.Sprintf("t.h%d", i), []byte(req)).Result }()
		}
		if a, b := <-results, <-results; (a == leaseHeld) == (b == leaseHeld) {
			t.Fatalf("host %d: answers %q and %q; want one held", i, a, b)
		}
	}
}

// A lease runs out at the same time wherever it is known.
func TestLeaseHasAnAge(t *testing.T) {
	now := time.Now()
	k := &knownHost{
		hostState: hostState{Key: "t.h", Lease: &lease{Instance: "x", Seq: 1}}, alive: true, renewed: now.Add(-10 * time.Second),
	}
	s := k.wire(now)
	later := now.Add(time.Minute) // by another clock
	if o := s.known(later, DefaultLeaseTTL); !o.alive || later.Sub(o.renewed) != 10*time.Second {
		t.Errorf("renewed %v ago, alive %v; want 10s, true", later.Sub(o.renewed), o.alive)
	}
	s = k.wire(now.Add(5 * time.Second))
	if o := s.known(later, DefaultLeaseTTL); o.alive {
		t.Error("a lease that ran out is alive elsewhere")
	}
	for age, alive := range map[int64]bool{math.MinInt64: true, math.MaxInt64: false} {
		s.Age = age
		if o := s.known(later, DefaultLeaseTTL); o.renewed.After(later) || o.alive != alive {
			t.Errorf("age %d: renewed %v ago, alive %v", age, later.Sub(o.renewed), o.alive)
		}
	}
}

// Whatever comes from another relay, of this version or the next, does no harm.
func FuzzRelayNews(f *testing.F) {
	f.Add([]byte(`{"v":1,"from":"other","started":"2026-03-04T00:00:00Z","cluster":true,"former":["old"],"hosts":[{"host":"t.h","enrolled":"2026-03-04T00:00:00Z","lastSeen":"2026-03-04T00:00:00Z","lease":{"instance":"x","seq":1,"presence":{"state":"online","wire":[1,1]}},"revision":1,"age":100}],"last":true}`))
	f.Add([]byte(`{"v":1,"from":"other","hosts":[{"host":"t.h","lease":{}},{"host":"t.h","age":-9223372036854775808}]}`))
	f.Add([]byte(`{"v":2,"from":"me","bye":true}`))
	r := newTestRegistry(f, Config{Cluster: true})
	f.Fuzz(func(t *testing.T, body []byte) {
		r.receive(&nats.Msg{Subject: newsAll, Data: body})
		for _, s := range r.states() {
			if err := s.check(); err != nil {
				t.Fatalf("keeps %+v: %v", s, err)
			}
		}
		for key := range r.hosts {
			tenant, host, _ := strings.Cut(key, ".")
			if h, ok := r.Lookup(tenant, host); !ok || h.State == "" {
				t.Errorf("host %q is %+v", key, h)
			}
		}
		clear(r.hosts)
		clear(r.peers)
	})
}
