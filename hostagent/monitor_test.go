package hostagent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/registry"
)

// A watched is a fake host with a monitor, whose announcements it keeps.
type watched struct {
	*testing.T
	*monitor
	host *fakeHost

	mu   sync.Mutex
	said []string // the monitor's announcements, in order
}

func underEyes(t *testing.T, host *fakeHost, test func(w *watched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &watched{T: t, host: host}
		if host.hanging {
			host.hangs = make(chan struct{})
		}
		w.monitor = newMonitor("ws://host", host.dialNoting, testResume, slog.New(slog.DiscardHandler), func(now condition) {
			w.mu.Lock()
			defer w.mu.Unlock()
			said := string(now.state)
			if now.silent > 0 {
				said += " silent for " + now.silent.String()
			}
			if now.reason != "" {
				said += ": " + now.reason
			}
			if now.version != "" {
				said += ", " + now.version
			}
			w.said = append(w.said, said)
		})
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { w.monitor.run(ctx) })
		test(w)
		cancel()
		wg.Wait()
		for _, s := range host.all() {
			if !s.isClosed() {
				t.Error("the monitor has left a connection to the host open; want all closed")
			}
		}
	})
}

// last waits until nothing happens. It returns the latest announcement and forgets all.
func (w *watched) last() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.said[len(w.said)-1]
	w.said = nil
	return last
}

// wantSaid fails unless the monitor's announcements since the last wantSaid or last equal want.
func (w *watched) wantSaid(want ...string) {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.said, want) {
		w.Errorf("the monitor announced %q; want %q", w.said, want)
	}
	w.said = nil
}

func TestMonitorSeesHost(t *testing.T) {
	host := &fakeHost{down: errRefused, answers: answersVersion}
	underEyes(t, host, func(w *watched) {
		w.wantSaid("offline: " + reasonNobody)
		time.Sleep(time.Minute)
		w.wantSaid() // no announcement
		if host.dials < 30 || host.dials > 100 {
			t.Errorf("the monitor dialled an absent host %d times in a minute; want 30 to 100 times", host.dials)
		}
		host.set(func() { host.down = nil })
		time.Sleep(3 * time.Second)
		w.wantSaid("online, AHP 0.9.0, 0.8.0")
		if !w.alive(context.Background()) {
			t.Error("alive = false; want true")
		}
		time.Sleep(time.Hour)
		w.wantSaid()
		if len(host.all()) != 1 {
			t.Errorf("the monitor opened %d connections to the host in an hour; want 1", len(host.all()))
		}
		w.learn(ahp.InitializeResult{ProtocolVersion: "0.9.0", ServerInfo: []byte(`{"name":"refhost","version":"1.2"}`)})
		w.wantSaid("online, refhost 1.2, AHP 0.9.0, 0.8.0")
		w.learn(ahp.InitializeResult{ProtocolVersion: "0.9.0", ServerInfo: []byte(`{"name":"refhost","version":"1.2"}`)})
		w.wantSaid()

		host.crash()
		w.wantSaid("offline: " + reasonEnded + ", refhost 1.2, AHP 0.9.0, 0.8.0")
		if w.alive(context.Background()) {
			t.Error("alive = true; want false")
		}
		time.Sleep(time.Second)
		w.wantSaid("offline: " + reasonNobody + ", refhost 1.2, AHP 0.9.0, 0.8.0")
		host.set(func() { host.down = nil })
		time.Sleep(3 * time.Second)
		w.wantSaid("online, AHP 0.9.0, 0.8.0") // the host may be a different program now, so its name is unknown
	})
}

// TestVersionsAreOfThePresentHost has a host that reports its versions, and then one at the same address that
// reports none. The monitor must not announce the versions of the first for the second.
func TestVersionsAreOfThePresentHost(t *testing.T) {
	host := &fakeHost{answers: answersVersion}
	underEyes(t, host, func(w *watched) {
		w.wantSaid("online, AHP 0.9.0, 0.8.0")
		w.learn(ahp.InitializeResult{ProtocolVersion: "0.9.0", ServerInfo: []byte(`{"name":"refhost","version":"1.2"}`)})
		w.wantSaid("online, refhost 1.2, AHP 0.9.0, 0.8.0")
		time.Sleep(time.Minute)
		host.crash()
		host.set(func() { host.down, host.answers = nil, answersAll })
		time.Sleep(retryMost + identifyTime)
		if got := w.last(); got != "online" {
			t.Errorf("the monitor announced %q for a host that reports no versions; want \"online\"", got)
		}
		w.learn(ahp.InitializeResult{ProtocolVersion: "0.7.0"})
		w.wantSaid("online, AHP 0.7.0")
	})
}

// TestSilenceCountsWhileTheHostAgentRuns pauses the host-agent, as SIGSTOP does, while the monitor waits for
// an answer. The pause is no silence of the host: the monitor must not announce one before it has had time to
// read the answer, and must announce it if there is none.
func TestSilenceCountsWhileTheHostAgentRuns(t *testing.T) {
	for _, answers := range []bool{true, false} {
		host := &fakeHost{answers: answersVersion}
		underEyes(t, host, func(w *watched) {
			w.wantSaid("online, AHP 0.9.0, 0.8.0")
			host.set(func() { host.mute = true })
			time.Sleep(pingEvery)
			synctest.Wait()
			w.monitor.mu.Lock()
			w.asked = w.asked.Add(-time.Minute) // the pause
			w.monitor.mu.Unlock()
			w.suspect()
			w.wantSaid()
			if answers {
				host.set(func() { host.mute = false })
				host.all()[0].toUs <- `{"jsonrpc":"2.0","id":1,"result":null}`
				time.Sleep(time.Minute)
				w.wantSaid()
				return
			}
			time.Sleep(listenEvery)
			if got := w.last(); !strings.HasPrefix(got, "online silent for ") {
				t.Errorf("the monitor announced %q; want that the host is silent", got)
			}
		})
	}
}

// TestHungHostIsSilent has a host that stops answering. The monitor must announce it as online and
// silent, and as online without silence after its next answer.
func TestHungHostIsSilent(t *testing.T) {
	for _, kind := range []string{"program", "WebSocket"} {
		t.Run(kind, func(t *testing.T) {
			host := &fakeHost{answers: answersVersion, pongs: kind == "WebSocket"}
			underEyes(t, host, func(w *watched) {
				w.wantSaid("online, AHP 0.9.0, 0.8.0")
				host.set(func() { host.mute = true })
				if !w.alive(context.Background()) {
					t.Error("alive = false for a host that does not answer; want true")
				}
				if got := w.reason(); got != reasonSilent {
					t.Errorf("reason = %q; want %q", got, reasonSilent)
				}
				// The monitor sends a ping at once, when alive is called.
				time.Sleep(pingTimeout - aliveWithin - time.Millisecond)
				w.wantSaid()
				time.Sleep(time.Millisecond)
				w.wantSaid("online silent for 5s, AHP 0.9.0, 0.8.0")
				sent := len(host.all()[0].messages())
				time.Sleep(time.Hour)
				w.wantSaid()
				if got := len(host.all()[0].messages()); got != sent || len(host.all()) != 1 {
					t.Errorf("the monitor sent %d more messages and opened %d more connections; want none for a silent host", got-sent, len(host.all())-1)
				}
				host.set(func() { host.mute = false })
				host.all()[0].toUs <- `{"jsonrpc":"2.0","id":1,"result":null}` // the late answer to the ping
				w.wantSaid("online, AHP 0.9.0, 0.8.0")
				time.Sleep(time.Hour)
				w.wantSaid()
			})
		})
	}
}

// TestMonitorHearsClients has a host that does not answer the monitor, but sends messages to a
// client. The monitor must not announce silence until the client gets no messages either.
func TestMonitorHearsClients(t *testing.T) {
	host := &fakeHost{answers: answersVersion}
	underEyes(t, host, func(w *watched) {
		w.wantSaid("online, AHP 0.9.0, 0.8.0")
		var mu sync.Mutex
		var said time.Time
		w.mu.Lock()
		w.heard = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return said
		}
		w.mu.Unlock()
		say := func() {
			mu.Lock()
			defer mu.Unlock()
			said = time.Now()
		}
		host.set(func() { host.mute = true })
		for range 100 {
			time.Sleep(time.Second)
			say()
		}
		w.wantSaid()
		time.Sleep(pingEvery + pingTimeout)
		w.wantSaid("online silent for 5s, AHP 0.9.0, 0.8.0")
		say()
		time.Sleep(listenEvery)
		w.wantSaid("online, AHP 0.9.0, 0.8.0")
	})
}

// TestMonitorTrustsItself crashes a host while a client still reads its last messages. alive must
// return false, although the host seemed to send something.
func TestMonitorTrustsItself(t *testing.T) {
	host := &fakeHost{answers: answersVersion}
	underEyes(t, host, func(w *watched) {
		w.wantSaid("online, AHP 0.9.0, 0.8.0")
		var said atomic.Pointer[time.Time]
		said.Store(&time.Time{})
		w.mu.Lock()
		w.heard = func() time.Time { return *said.Load() }
		w.mu.Unlock()
		host.set(func() { host.mute = true })
		var clients sync.WaitGroup
		for range 3 {
			clients.Go(func() {
				if w.alive(context.Background()) {
					t.Error("alive = true for a host that has crashed; want false")
				}
			})
			time.Sleep(time.Millisecond)
			now := time.Now()
			said.Store(&now)
		}
		host.crash()
		clients.Wait()
	})
}

// TestMonitorWaitsForTheEnd has a host that closes its clients and still answers the monitor. If it
// ends soon after, alive must return false. If it only answers, alive must return true within
// aliveWithin.
func TestMonitorWaitsForTheEnd(t *testing.T) {
	for _, ends := range []bool{true, false} {
		host := &fakeHost{answers: answersVersion}
		underEyes(t, host, func(w *watched) {
			w.wantSaid("online, AHP 0.9.0, 0.8.0")
			var clients sync.WaitGroup
			asked := time.Now()
			for range 3 {
				clients.Go(func() {
					if w.alive(context.Background()) == ends {
						t.Errorf("alive = %v for a host with ends = %v; want the opposite", ends, ends)
					}
				})
			}
			for range 10 {
				time.Sleep(endWithin / 20)
				w.life()
			}
			if ends {
				host.crash()
			}
			clients.Wait()
			if took := time.Since(asked); took > aliveWithin {
				t.Errorf("alive took %v; want at most %v", took, aliveWithin)
			}
		})
	}
}

// TestSilentHostIsPresentUntilItEnds has a host that accepts a connection without a handshake. The
// monitor must announce it as online and silent, until it ends or completes the handshake.
func TestSilentHostIsPresentUntilItEnds(t *testing.T) {
	for _, ends := range []bool{false, true} {
		host := &fakeHost{answers: answersVersion, hanging: true, pongs: true}
		underEyes(t, host, func(w *watched) {
			w.wantSaid()
			time.Sleep(pingTimeout)
			w.wantSaid("online silent for 5s")
			time.Sleep(3 * openTime)
			w.wantSaid()
			if ends {
				host.set(func() { host.down = errRefused })
				close(host.hangs)
				time.Sleep(retryMost)
				w.wantSaid("offline: " + reasonNobody)
				return
			}
			close(host.hangs)
			synctest.Wait()
			time.Sleep(retryMost)
			if now := w.last(); now != "online, AHP 0.9.0, 0.8.0" {
				t.Errorf("the monitor announced %q; want online", now)
			}
		})
	}
}

// TestFailedDialWakesMonitor reports a client's failed dial to the monitor. The monitor must then
// dial at once, without its usual pause.
func TestFailedDialWakesMonitor(t *testing.T) {
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
			t.Error("the monitor did not dial at once; want a dial after suspect")
		}
		host.set(func() { host.down = nil })
		w.suspect()
		synctest.Wait()
		if !w.alive(context.Background()) {
			t.Error("alive = false; want true, without a wait")
		}
	})
}

// TestHostsThatDoNotPingArePresent has hosts that answer no ping before initialize, and servers
// that are no AHP host. The monitor must announce all of them as online.
func TestHostsThatDoNotPingArePresent(t *testing.T) {
	for name, answers := range map[string]func(env ahp.Envelope) string{
		"silent": func(ahp.Envelope) string { return "" },
		"echo": func(env ahp.Envelope) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping","params":%s}`, env.ID, env.Params)
		},
		"not JSON":   func(ahp.Envelope) string { return "HELLO" },
		"another id": func(ahp.Envelope) string { return `{"id":"1","result":null}` },
		"JSON-RPC without ping": func(env ahp.Envelope) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}`, env.ID)
		},
		"answers initialize alone": func(env ahp.Envelope) string {
			if string(env.Method) != "initialize" {
				return ""
			}
			return answersVersion(env)
		},
	} {
		for _, kind := range []string{"program", "WebSocket"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				want := "online"
				if name == "answers initialize alone" {
					want = "online, AHP 0.9.0, 0.8.0"
				}
				underEyes(t, &fakeHost{answers: answers, pongs: kind == "WebSocket"}, func(w *watched) {
					time.Sleep(identifyTime)
					w.wantSaid(want)
					time.Sleep(time.Hour)
					w.wantSaid()
				})
			})
		}
	}
	t.Run("hangs up", func(t *testing.T) {
		host := &fakeHost{}
		host.answers = func(ahp.Envelope) string {
			go host.all()[len(host.all())-1].end(io.EOF)
			return ""
		}
		underEyes(t, host, func(w *watched) {
			time.Sleep(time.Minute)
			w.wantSaid("offline: " + reasonEnded)
		})
	})
}

// TestMonitorStopsWhileItsHostHangs stops the monitor of a host that does not answer, of a host
// that does, and of a host that cannot be dialled. Each monitor must end.
func TestMonitorStopsWhileItsHostHangs(t *testing.T) {
	underEyes(t, &fakeHost{mute: true}, func(w *watched) { synctest.Wait() })
	underEyes(t, &fakeHost{answers: answersAll}, func(w *watched) { time.Sleep(time.Hour) })
	underEyes(t, &fakeHost{down: io.EOF}, func(w *watched) { time.Sleep(time.Hour) })
}

// TestMonitorIsTurnedAway has a host that refuses the monitor's initialize and closes the
// connection, as in AHP 1.0. The monitor must announce it as online, and send initialize again only
// after the host has ended and returned.
func TestMonitorIsTurnedAway(t *testing.T) {
	host := &fakeHost{pongs: true}
	host.answers = func(env ahp.Envelope) string {
		if string(env.Method) == "initialize" {
			socks := host.all()
			sock := socks[len(socks)-1]
			sock.toUs <- answersVersion(env)
			go sock.end(io.EOF)
			return ""
		}
		return answersAll(env)
	}
	underEyes(t, host, func(w *watched) {
		w.wantSaid("online, AHP 0.9.0, 0.8.0")
		time.Sleep(time.Hour)
		w.wantSaid()
		if got := len(host.all()); got != 2 {
			t.Errorf("the monitor opened %d connections to the host in an hour; want 2", got)
		}
		host.crash()
		w.wantSaid("offline: " + reasonEnded + ", AHP 0.9.0, 0.8.0")
		host.set(func() { host.down, host.answers = nil, answersAll })
		time.Sleep(3 * time.Second)
		if now := w.last(); !strings.HasPrefix(now, "online") {
			t.Errorf("the monitor announced %q; want online", now)
		}
	})
}

func TestPresenceIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p presence
		p.init("1.0", false, new(Waking).terms)
		if got := p.now(); got.State != registry.Offline || got.Reason != errNotYet.Error() || got.AgentVersion != "1.0" || got.Clients != 0 {
			t.Errorf("the first presence is %+v; want offline, errNotYet, version 1.0, no clients", got)
		}
		var mu sync.Mutex
		var told []registry.Presence
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			p.announce(ctx, func(now registry.Presence) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, now)
			})
		})
		// wantTold fails unless there were this many announcements, and returns the last
		// announcement.
		wantTold := func(times int) registry.Presence {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(told) != times {
				t.Fatalf("the relay is told %d times; want %d", len(told), times)
			}
			return told[max(times, 1)-1]
		}
		synctest.Wait()
		p.hostChanged(condition{state: registry.Online, version: "AHP 0.9.0"})
		if got := wantTold(1); got.State != registry.Online || got.HostVersion != "AHP 0.9.0" {
			t.Errorf("the relay receives the presence %+v; want the change, at once", got)
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
			t.Errorf("the relay receives the presence %+v; want 9 clients", got)
		}
		p.clients(+1)
		synctest.Wait()
		p.hostChanged(condition{state: registry.Offline, reason: "asleep", version: "AHP 0.9.0"})
		if got := wantTold(3); got.State != registry.Offline || got.Reason != "asleep" || got.Clients != 10 {
			t.Errorf("the relay receives the presence %+v; want the new state, its reason and 10 clients in one message", got)
		}
		cancel()
		wg.Wait()
	})
}
