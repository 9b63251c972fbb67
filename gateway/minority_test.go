package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/notice"
	"ahprelay/gateway/canvas"
	"ahprelay/routing"
)

// A relay is cut off from the majority of its cluster. As its configuration says, its
// clients may read only, are closed, or notice nothing. In the first two cases, no
// request that changes something reaches the host. After the cut, a new client's change
// reaches it.
func TestMinorityChangesNothing(t *testing.T) {
	const change = `{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"ahp-session:/1","action":{"type":"x"}}}`
	for mode, want := range map[Minority]struct{ reads, changes, ready bool }{
		"":            {true, false, false},
		MinorityRead:  {true, false, false},
		MinorityStop:  {false, false, false},
		MinorityServe: {true, true, true},
	} {
		t.Run(string(mode), func(t *testing.T) {
			inWorld(t, Config{Minority: mode}, func(w *world) {
				w.startAgent(routing.AgentEndConfig{})
				viewer := w.dial(w.token(nil))
				viewer.request(1, "initialize")
				w.hostConn(1).accept(1)
				writer := w.dial(w.token(nil))
				writer.request(1, "initialize")
				w.hostConn(2).accept(1)
				w.server.setCutOff(true)
				ready := func() bool {
					r := httptest.NewRecorder()
					w.server.Handler().ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/readyz", nil))
					return r.Code == http.StatusOK
				}
				if ready() != want.ready {
					t.Errorf("ready = %v; want %v", ready(), want.ready)
				}
				if want.reads {
					w.hostConn(1).send(`{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-root://"}}`)
					viewer.request(2, "subscribe")
					synctest.Wait()
					if got := len(viewer.messages()); got != 2 {
						t.Errorf("a client with level look got %d messages while the relay is cut off; want 2", got)
					}
					viewer.wantOpen()
				} else {
					viewer.wantClosed(ahp.CloseHostOffline, "host offline: "+cutReason)
					w.dial(w.token(nil)).wantClosed(ahp.CloseHostOffline, "host offline: "+cutReason)
				}
				if want.reads {
					writer.send(change)
				}
				synctest.Wait()
				if got := len(w.hostConn(2).messages()) > 1; got != want.changes {
					t.Errorf("the host got the client's change: %v; want %v", got, want.changes)
				}
				if want.reads && !want.changes {
					writer.wantClosed(ahp.CloseHostOffline, "host offline: "+errCutOff.Error())
				}
				_, release, err := w.server.hosts.lend(w.server.life, testTenant, testHost)
				if away := errors.Is(err, canvas.ErrHostAway); away == want.changes {
					t.Errorf("opening a canvas: %v; want ErrHostAway only if changes are refused", err)
				}
				if err == nil {
					release()
				}
				answered := false
				_, err = w.server.unlessCutOff(func(context.Context, notice.Answer) (notice.Outcome, error) {
					answered = true
					return notice.Outcome{}, nil
				})(t.Context(), notice.Answer{})
				if err != nil || answered != want.changes {
					t.Errorf("a notification's answer reached the host: %v, %v; want %v", answered, err, want.changes)
				}

				w.server.setCutOff(false)
				if !ready() {
					t.Error("the relay is not ready after the cut; want ready")
				}
				again := w.dial(w.token(nil))
				again.request(1, "initialize")
				w.hostConn(3).accept(1)
				again.send(change)
				synctest.Wait()
				if len(w.hostConn(3).messages()) != 2 {
					t.Error("the host does not get the change made after the cut; want it")
				}
			})
		})
	}
}

// Clients of an absent host send requests, which wait. Then the relay is cut off, and the host
// returns. The request that only reads must reach the host. The other must not, and its client must
// be closed.
func TestHeldChangeIsNotMadeDuringACut(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		reader, writer := w.dial(w.token(nil)), w.dial(w.token(nil))
		reader.request(1, "reconnect")
		writer.request(2, "reconnect")
		writer.send(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"ahp-session:/1","action":{"type":"x"}}}`)
		synctest.Wait()
		w.server.setCutOff(true)
		w.startAgent(routing.AgentEndConfig{})
		w.hostConn(2)
		synctest.Wait()
		var got []string
		for n := range 2 {
			got = append(got, w.hostConn(n+1).messages()...)
		}
		if len(got) != 1 || !strings.Contains(got[0], `"id":1`) {
			t.Errorf("the host got %q; want the reader's reconnect alone", got)
		}
		reader.wantOpen()
		writer.wantClosed(ahp.CloseHostOffline, "host offline: "+errCutOff.Error())
	})
}

// A cut begins while a client connects: the relay has checked that it serves clients, and still
// looks up the host. With MinorityStop, the client must be closed like those that are connected.
func TestClientThatConnectsAsACutBeginsIsClosed(t *testing.T) {
	inWorld(t, Config{Minority: MinorityStop}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		find := w.server.hosts.enrolled
		w.server.hosts.enrolled = func(ctx context.Context, tenant, host string) error {
			w.server.setCutOff(true)
			return find(ctx, tenant, host)
		}
		c := w.dial(w.token(nil))
		synctest.Wait()
		c.wantClosed(ahp.CloseHostOffline, "host offline: "+cutReason)
	})
}

// A cut has an effect only once it has lasted 15 s (minorityAfter), and until it ends.
// The watch sees a shorter cut too, and advises to move.
func TestShortCutHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		var effects []bool
		var seen atomic.Bool
		advised := 0
		w := startCutWatch(&cutWatch{
			cutOff: func(context.Context) bool { return cut.Load() }, members: func() (int, int) { return 1, 3 }, changed: func(on bool) { effects = append(effects, on) }, log: slog.New(slog.DiscardHandler),
			advise: func() { advised++ }, seen: &seen,
		})
		defer w.close()
		for _, step := range []struct {
			cut     bool
			time    time.Duration
			effects int
		}{{false, time.Hour, 0}, {true, minorityAfter - time.Second, 0}, {false, minorityAfter, 0}, {true, minorityAfter + 2*time.Second, 1}, {true, time.Hour, 1}, {false, 2 * time.Second, 2}} {
			cut.Store(step.cut)
			time.Sleep(step.time)
			synctest.Wait()
			if seen.Load() != step.cut || (advised > 0) != step.cut {
				t.Errorf("%+v: the relay noticed the cut: %v, and its advice to host-agents changed %d times; want both exactly for a long cut", step, seen.Load(), advised)
			}
			advised = 0
			if len(effects) != step.effects {
				t.Fatalf("after %+v, the effects are %v; want %d of them", step, effects, step.effects)
			}
		}
		if !effects[0] || effects[1] {
			t.Errorf("the callback for cuts was called with %v; want on, then off", effects)
		}
	})
}

// missingMajority names the remedy if, and only if, too few servers are connected.
func TestMissingMajorityIsNamed(t *testing.T) {
	for members, want := range map[[2]int]bool{{1, 3}: true, {2, 3}: false, {1, 2}: true, {2, 4}: true, {3, 4}: false, {1, 1}: false} {
		if text := missingMajority(members[0], members[1]); strings.Contains(text, "relay serve") != want {
			t.Errorf("for %d of %d relays, the text is %q; want advice only without a majority", members[0], members[1], text)
		}
	}
}

// Minority.check accepts "read", and refuses an unknown choice.
func TestMinorityIsChecked(t *testing.T) {
	if Minority("all").check() == nil || Minority("read").check() != nil {
		t.Error("check must refuse the minority mode all and accept read")
	}
}
