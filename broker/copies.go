package broker

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// MaxCopies is how many servers have what relays keep, if there are as many.
const MaxCopies = 3

// How long it takes until it is looked again whether there can be more copies: twice as
// long each time, from when something begins or the number of servers has changed. A
// cluster that is young has them before one of its servers is likely to be lost.
const (
	firstLook = 500 * time.Millisecond
	lastLook  = 20 * time.Second
	countEach = 2 * time.Second // how often servers are counted meanwhile
)

// Copies are those of something in JetStream.
type Copies struct {
	// Count returns how many there are to be now: MaxCopies if no more are wanted.
	Count func(context.Context) (int, error)

	// Make has there be so many.
	Make func(ctx context.Context, copies int) error

	// Mine reports whether this relay is the one that sees to them.
	Mine func() bool

	// Servers returns how many others there are, as far as this relay's own knows. Default:
	// that is not known.
	Servers func() int
}

// Keep has there be as many as can be, until ctx ends.
func (c *Copies) Keep(ctx context.Context) {
	known := c.servers()
	for wait, enough := firstLook, false; c.await(ctx, wait, known, enough); {
		now := c.servers()
		enough = c.look(ctx)
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

// await waits for some time, or, if there are not enough copies, until the number of servers
// is another. It reports whether ctx goes on.
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

// look has there be more copies, and reports whether there are as many as there ever will
// be.
func (c *Copies) look(ctx context.Context) bool {
	copies, err := c.Count(ctx)
	if err != nil || copies >= MaxCopies || !c.Mine() {
		return err == nil && copies >= MaxCopies
	}
	made := copies
	_ = MostCopies(func(more int) error { // it is tried again
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

// MostCopies makes something in JetStream with as many copies as can be.
func MostCopies(with func(copies int) error) (err error) {
	for copies := MaxCopies; copies > 0; copies-- {
		err = with(copies)
		var refused *jetstream.APIError
		if err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) || !errors.As(err, &refused) {
			break // only a server that answers can have too few others
		}
	}
	return err
}
