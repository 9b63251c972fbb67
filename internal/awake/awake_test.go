package awake

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A machine stands for the machine that a Keeper keeps awake. It counts the held inhibitors.
type machine struct {
	mu      sync.Mutex
	held    int
	taken   int
	battery bool
	broken  bool
	shown   Held
}

func (m *machine) hold(string) (func(), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken {
		return nil, errors.New("no D-Bus")
	}
	m.held++
	m.taken++
	return sync.OnceFunc(func() { m.mu.Lock(); m.held--; m.mu.Unlock() }), nil
}

func (m *machine) mains() bool { m.mu.Lock(); defer m.mu.Unlock(); return !m.battery }

func (m *machine) set(f func()) { m.mu.Lock(); defer m.mu.Unlock(); f() }

func (m *machine) start(mode Mode, onBattery bool, log *slog.Logger) (*Keeper, func()) {
	k := New(Config{Mode: mode, OnBattery: onBattery, Log: log, Hold: m.hold, Mains: m.mains, Changed: func(h Held) { m.set(func() { m.shown = h }) }})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	return k, func() { stop(); <-done }
}

// TestHeldExactlyWhileWanted changes the numbers of sessions and people and the power supply at
// random. An inhibitor must be held exactly while the mode and the supply demand it.
func TestHeldExactlyWhileWanted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mode := rapid.SampledFrom([]Mode{Working, Connected, Never}).Draw(rt, "mode")
		onBattery := rapid.Bool().Draw(rt, "on battery")
		steps := rapid.SliceOfN(rapid.IntRange(0, 8), 1, 20).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			m := &machine{}
			k, stop := m.start(mode, onBattery, slog.New(slog.DiscardHandler))
			want := Held{}
			for _, step := range steps {
				switch {
				case step < 3:
					want.Sessions = step
					k.Sessions(step)
				case step < 6:
					k.People(step - 3 - want.People)
					want.People = step - 3
				default:
					m.set(func() { m.battery = step == 6 })
					time.Sleep(checkEvery)
				}
				synctest.Wait()
				expect := want
				if mode != Connected {
					expect.People = 0
				}
				if mode == Never || m.battery && !onBattery {
					expect = Held{}
				}
				if held := m.held == 1; held != (expect != Held{}) || m.held > 1 || m.shown != expect {
					rt.Fatalf("after %d of %v: held %d, shown %+v; want %+v", step, steps, m.held, m.shown, expect)
				}
			}
			stop()
			if m.held != 0 {
				rt.Fatal("the machine is held awake after the end; want it released")
			}
		})
	})
}

func TestErrorsAreLoggedOnceAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		m := &machine{broken: true}
		k, stop := m.start(Working, false, slog.New(slog.NewTextHandler(&log, nil)))
		defer stop()
		k.Sessions(1)
		time.Sleep(10 * checkEvery)
		synctest.Wait()
		if n := strings.Count(log.String(), "not kept awake"); n != 1 || m.shown != (Held{}) {
			t.Errorf("after two failures, the log has %d lines, and the desktop shows %+v; want 1 line, and nothing shown", n, m.shown)
		}
		m.set(func() { m.broken = false })
		time.Sleep(checkEvery)
		synctest.Wait()
		if m.held != 1 || m.shown != (Held{Sessions: 1}) {
			t.Errorf("after the retry, %d locks are held, and the desktop shows %+v; want 1, for one session", m.held, m.shown)
		}
	})
}
