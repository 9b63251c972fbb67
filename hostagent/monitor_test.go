package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker"
)

// A watched is a host under the eyes of a monitor.
type watched struct {
	*testing.T
	*monitor
	host *fakeHost

	mu   sync.Mutex
	said []string // what the monitor said, in order
}

func underEyes(t *testing.T, host *fakeHost, test func(w *watched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &watched{T: t, host: host}
		w.monitor = newMonitor("ws://host", host.dial, testResume, slog.New(slog.DiscardHandler), func(state broker.State, reason, version string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.said = append(w.said, strings.TrimSpace(fmt.Sprintf("%s %s %s", state, reason, version)))
		})
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { w.monitor.run(ctx) })
		test(w)
		cancel()
		wg.Wait()
		for _, s := range host.all() {
			if !s.isClosed() {
				t.Error("the monitor has left a connection open")
			}
		}
	})
}

// wantSaid fails unless the monitor has said that, and nothing else, since the
// last call.
func (w *watched) wantSaid(want ...string) {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.said, want) {
		w.Errorf("monitor said %q; want %q", w.said, want)
	}
	w.said = nil
}

func TestMonitorSeesHost(t *testing.T) {
	host := &fakeHost{down: errors.New("connection refused"), answers: answersVersion}
	underEyes(t, host, func(w *watched) {
		w.wantSaid("offline connection refused")
		time.Sleep(time.Minute)
		w.wantSaid() // no news
		if host.dials < 30 || host.dials > 100 {
			t.Errorf("%d attempts in a minute; want about one each 1 to 2 s", host.dials)
		}
		host.set(func() { host.down = nil })
		time.Sleep(3 * time.Second)
		w.wantSaid("online  AHP 0.9.0")
		if !w.alive(context.Background()) {
			t.Error("alive = false; want true")
		}
		time.Sleep(time.Hour)
		w.wantSaid()
		if len(host.all()) != 1 {
			t.Errorf("%d connections in an hour; want 1", len(host.all()))
		}
		w.learn(ahp.InitializeResult{ProtocolVersion: "0.9.0", ServerInfo: []byte(`{"name":"refhost","version":"1.2"}`)})
		w.wantSaid("online  refhost 1.2, AHP 0.9.0")
		w.learn(ahp.InitializeResult{ProtocolVersion: "0.9.0", ServerInfo: []byte(`{"name":"refhost","version":"1.2"}`)})
		w.wantSaid()

		host.crash()
		w.wantSaid("offline upstream ws://host: connection lost: EOF refhost 1.2, AHP 0.9.0")
		if w.alive(context.Background()) {
			t.Error("alive = true; want false")
		}
		time.Sleep(time.Second)
		w.wantSaid("offline connection refused refhost 1.2, AHP 0.9.0")
		host.set(func() { host.down = nil })
		time.Sleep(3 * time.Second)
		w.wantSaid("online  AHP 0.9.0") // it may be another one now
	})
}

// TestMonitorSeesHang has the host hang without closing anything.
func TestMonitorSeesHang(t *testing.T) {
	host := &fakeHost{answers: answersAll}
	underEyes(t, host, func(w *watched) {
		w.wantSaid("online")
		host.set(func() { host.mute = true })
		began := time.Now()
		if w.alive(context.Background()) {
			t.Error("alive = true of a host that hangs")
		}
		if took := time.Since(began); took != aliveWithin {
			t.Errorf("alive took %v; want %v", took, aliveWithin)
		}
		if got := w.reason(); got != "the host does not answer" {
			t.Errorf("reason = %q", got)
		}
		// That has the monitor look at once.
		time.Sleep(pingTimeout - time.Second)
		w.wantSaid()
		time.Sleep(time.Second)
		w.wantSaid("offline no answer to ping within 5s")
		time.Sleep(pingTimeout + time.Second)
		w.wantSaid("offline upstream ws://host does not speak AHP, or hangs: no answer to ping within 5s")
		host.set(func() { host.mute = false })
		time.Sleep(2*pingTimeout + retryMost)
		w.wantSaid("online")
	})
}

// TestMonitorIsPoked has an attempt to connect fail: the monitor does not wait
// to look itself.
func TestMonitorIsPoked(t *testing.T) {
	host := &fakeHost{answers: answersAll}
	underEyes(t, host, func(w *watched) {
		w.wantSaid("online")
		host.crash()
		time.Sleep(time.Minute)
		synctest.Wait()
		n := host.dials
		w.suspect()
		w.suspect()
		synctest.Wait()
		if host.dials == n {
			t.Error("the monitor did not look")
		}
		host.set(func() { host.down = nil })
		w.suspect()
		synctest.Wait()
		if !w.alive(context.Background()) {
			t.Error("alive = false; want true, without a wait")
		}
	})
}

// TestMonitorAtStrangers has the monitor look at what is no AHP host.
func TestMonitorAtStrangers(t *testing.T) {
	for name, test := range map[string]struct {
		answers func(env ahp.Envelope) string
		want    string
	}{
		"silent": {func(ahp.Envelope) string { return "" }, "upstream ws://host does not speak AHP, or hangs: no answer to ping within 5s"},
		"echo": {func(env ahp.Envelope) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping","params":%s}`, env.ID, env.Params)
		}, "upstream ws://host does not speak AHP, or hangs: no answer to ping within 5s"},
		"not JSON": {func(ahp.Envelope) string { return "HELLO" }, "upstream ws://host does not speak AHP, or hangs: no answer to ping within 5s"},
		"another id": {func(ahp.Envelope) string { return `{"id":"1","result":null}` },
			"upstream ws://host does not speak AHP, or hangs: no answer to ping within 5s"},
		"JSON-RPC without ping": {func(env ahp.Envelope) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}`, env.ID)
		}, "upstream ws://host speaks JSON-RPC but answers an AHP ping with an error: is this an AHP host's port?"},
	} {
		t.Run(name, func(t *testing.T) {
			host := &fakeHost{answers: test.answers}
			underEyes(t, host, func(w *watched) {
				time.Sleep(time.Minute)
				w.wantSaid("offline " + test.want)
				if got := w.reason(); got != test.want {
					t.Errorf("reason = %q; want %q", got, test.want)
				}
			})
		})
	}
	t.Run("hangs up", func(t *testing.T) {
		host := &fakeHost{}
		host.answers = func(ahp.Envelope) string {
			go host.all()[len(host.all())-1].end(io.EOF)
			return ""
		}
		underEyes(t, host, func(w *watched) {
			time.Sleep(time.Minute)
			w.wantSaid("offline upstream ws://host does not speak AHP, or hangs: EOF")
		})
	})
}

// TestMonitorStops ends a monitor whose host hangs.
func TestMonitorStops(t *testing.T) {
	underEyes(t, &fakeHost{mute: true}, func(w *watched) { synctest.Wait() })
	underEyes(t, &fakeHost{answers: answersAll}, func(w *watched) { time.Sleep(time.Hour) })
	underEyes(t, &fakeHost{down: io.EOF}, func(w *watched) { time.Sleep(time.Hour) })
}

// TestPresenceIsAnnounced passes changes of the host on at once, and those of
// the number of clients in a while, together.
func TestPresenceIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p presence
		p.init("1.0")
		if got := p.now(); got.State != broker.Offline || got.Reason != notYet || got.AgentVersion != "1.0" || got.Clients != 0 {
			t.Errorf("first presence = %+v", got)
		}
		var mu sync.Mutex
		var told []broker.Presence
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			p.announce(ctx, func(now broker.Presence) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, now)
			})
		})
		// wantTold checks how often relays were told, and returns what last.
		wantTold := func(times int) broker.Presence {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(told) != times {
				t.Fatalf("told %d times; want %d", len(told), times)
			}
			return told[max(times, 1)-1]
		}
		synctest.Wait()
		p.hostChanged(broker.Online, "", "AHP 0.9.0")
		if got := wantTold(1); got.State != broker.Online || got.HostVersion != "AHP 0.9.0" {
			t.Errorf("told %+v; want the change, at once", got)
		}
		for range 10 {
			p.clients(+1)
			synctest.Wait()
		}
		p.clients(-1)
		time.Sleep(countEvery - time.Millisecond)
		wantTold(1)
		time.Sleep(time.Millisecond)
		if got := wantTold(2); got.Clients != 9 {
			t.Errorf("told %+v; want 9 clients", got)
		}
		p.clients(+1)
		synctest.Wait()
		p.hostChanged(broker.Offline, "asleep", "AHP 0.9.0")
		if got := wantTold(3); got.State != broker.Offline || got.Reason != "asleep" || got.Clients != 10 {
			t.Errorf("told %+v; want all of it at once", got)
		}
		cancel()
		wg.Wait()
	})
}
