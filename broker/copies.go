package broker

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// MaxCopies is the highest number of copies of the relays' data in JetStream.
const MaxCopies = 3

// Delays between checks for missing copies. They begin at firstLook, and double. They
// start anew when the number of servers changes, so a young cluster gets its copies
// before a server is likely to fail.
const (
	firstLook = 500 * time.Millisecond
	lastLook  = 20 * time.Second
	countEach = 2 * time.Second // interval at which servers are counted between checks
	turn      = 7 * time.Second // how long other relays wait for the responsible relay
)

// Copies keeps the number of copies in JetStream at the maximum that the servers allow.
type Copies struct {
	// Count returns the configured number of copies, or MaxCopies if no more are
	// wanted.
	Count func(context.Context) (int, error)

	// Make sets the number of copies.
	Make func(ctx context.Context, copies int) error

	// Mine reports whether this relay is responsible for adding copies. If the
	// responsible relay has an earlier version, it may not do so; other relays
	// therefore act after a delay (turn).
	Mine func() bool

	// Servers returns the number of other servers that this relay's server knows.
	// Default: unknown.
	Servers func() int

	short time.Time // since when copies have been missing although a different relay is responsible; owned by Keep
}

// Keep adds copies whenever possible, until ctx ends.
func (c *Copies) Keep(ctx context.Context) {
	known := c.servers()
	for wait, enough := firstLook, false; c.await(ctx, wait, known, enough); {
		now := c.servers()
		enough = c.raise(ctx)
		switch {
		case enough:
			wait = lastLook
		case now != known:
			wait = firstLook
		default:
			wait = min(2*wait, lastLook)
		}
		known = now
	}
}

// await waits for the next check. While copies are missing, it also returns when the
// number of servers changes. It returns false when ctx ends.
func (c *Copies) await(ctx context.Context, wait time.Duration, known int, enough bool) bool {
	for over := time.Now().Add(wait); ; {
		left := time.Until(over)
		if left <= 0 || !enough && c.servers() != known {
			return true
		}
		if !enough {
			left = min(left, countEach)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(left):
		}
	}
}

func (c *Copies) servers() int {
	if c.Servers == nil {
		return 0
	}
	return c.Servers()
}

// raise tries to add copies, and reports whether there are MaxCopies.
func (c *Copies) raise(ctx context.Context) bool {
	copies, err := c.Count(ctx)
	if err != nil || copies >= MaxCopies || c.Mine() {
		c.short = time.Time{}
	} else if c.short.IsZero() {
		c.short = time.Now()
	}
	if err != nil || copies >= MaxCopies || !c.short.IsZero() && time.Since(c.short) < turn {
		return err == nil && copies >= MaxCopies
	}
	made := copies
	_ = MostCopies(func(more int) error { // repeated at the next check
		if more <= copies {
			return nil
		}
		err := c.Make(ctx, more)
		if err == nil {
			made = more
		}
		return err
	})
	return made >= MaxCopies
}

// MostCopies calls with for MaxCopies, then for fewer copies, until a call succeeds or
// fails for a reason other than too few servers.
func MostCopies(with func(copies int) error) (err error) {
	for copies := MaxCopies; copies > 0; copies-- {
		err = with(copies)
		var refused *jetstream.APIError
		if err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) || !errors.As(err, &refused) {
			break // only a server's refusal means that there are too few servers
		}
	}
	return err
}

// Create is MostCopies for a new stream. The end of ctx prevents further calls. It does not
// interrupt a call, which ends at the deadline of ctx: a nats-server that is shut down while
// it creates a stream leaves the stream's goroutines and files behind.
func Create(ctx context.Context, with func(ctx context.Context, copies int) error) error {
	call := context.WithoutCancel(ctx)
	if deadline, limited := ctx.Deadline(); limited {
		var cancel context.CancelFunc
		call, cancel = context.WithDeadline(call, deadline)
		defer cancel()
	}
	return MostCopies(func(copies int) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return with(call, copies)
	})
}
