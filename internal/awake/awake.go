// Package awake keeps the machine from idle sleep while agents work or people are connected.
// [Watch] announces sleep.
//
//	Linux    an inhibitor of systemd-logind, over D-Bus
//	macOS    caffeinate
//	Windows  SetThreadExecutionState
//
// All of these end with the process, even if it crashes. A person can still send the
// machine to sleep, and closing a laptop's lid still does.
package awake

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"ahprelay/internal/signal"
)

// A Mode selects what keeps the machine awake.
type Mode string

const (
	Working   Mode = "working"   // running turns
	Connected Mode = "connected" // running turns, and connected people with the level talk or higher
	Never     Mode = "never"
)

// checkEvery is the interval at which a Keeper checks the power supply, and repeats
// a failed attempt.
const checkEvery = 30 * time.Second

// Held counts the sessions and people that keep the machine awake. The zero value lets it
// sleep.
type Held struct {
	Sessions int // with a running turn
	People   int // connected; counted in mode Connected only
}

// Config configures a Keeper.
type Config struct {
	Mode      Mode
	OnBattery bool // also keep awake without mains power
	Log       *slog.Logger
	Changed   func(Held) // called by Run after each change; may be nil

	// Hold and Mains replace the machine in tests. Defaults: [Hold] and [Mains].
	Hold  func(reason string) (release func(), err error)
	Mains func() bool
}

// A Keeper keeps the machine awake while Run runs.
type Keeper struct {
	cfg     Config
	changed chan struct{} // capacity 1

	mu   sync.Mutex
	want Held
}

// New returns a Keeper.
func New(cfg Config) *Keeper {
	if cfg.Hold == nil {
		cfg.Hold = Hold
	}
	if cfg.Mains == nil {
		cfg.Mains = Mains
	}
	return &Keeper{cfg: cfg, changed: make(chan struct{}, 1)}
}

// Sessions sets the number of sessions with a running turn. It does not block.
func (k *Keeper) Sessions(n int) { k.set(func(want *Held) { want.Sessions = n }) }

// People adds n to the number of connected people with the level talk or higher. It
// does not block.
func (k *Keeper) People(n int) {
	if k.cfg.Mode == Connected {
		k.set(func(want *Held) { want.People += n })
	}
}

func (k *Keeper) set(change func(*Held)) {
	k.mu.Lock()
	change(&k.want)
	k.mu.Unlock()
	signal.Send(k.changed)
}

// wanted returns the sessions and people for which the machine must stay awake now, given
// the mode and the power supply.
func (k *Keeper) wanted() Held {
	k.mu.Lock()
	want := k.want
	k.mu.Unlock()
	if k.cfg.Mode == Never || want == (Held{}) || !k.cfg.OnBattery && !k.cfg.Mains() {
		return Held{}
	}
	return want
}

// Run keeps the machine awake whenever necessary, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	var now Held
	var release func()
	defer func() {
		if release != nil {
			release()
		}
	}()
	for failed := false; ; {
		want := k.wanted()
		switch {
		case want == Held{} && release != nil:
			release()
			release = nil
		case want != Held{} && release == nil:
			var err error
			if release, err = k.cfg.Hold("coding agents are in use"); err != nil {
				want = Held{}
				if !failed {
					k.cfg.Log.Info("machine not kept awake", "error", err)
				}
			}
			failed = err != nil
		}
		if want != now && k.cfg.Changed != nil {
			k.cfg.Changed(want)
		}
		now = want
		select {
		case <-ctx.Done():
			return
		case <-k.changed:
		case <-time.After(checkEvery):
		}
	}
}
