package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A Crowd is a driver and viewers.
type Crowd struct {
	Viewers []*Viewer
	driver  *Driver
}

// A Crowd's load: one chat with a fast model.
const (
	deltasPerSecond = 50
	deltaSize       = 100
)

// Gather starts a crowd: a driver at the host, and viewers that connect through
// the system under test.
func Gather(host, viewers Target, n int) *Crowd {
	c := &Crowd{driver: Drive(host, deltasPerSecond, deltaSize)}
	for i := range n {
		c.Viewers = append(c.Viewers, Watch(fmt.Sprintf("viewer-%d", i+1), viewers))
	}
	return c
}

// AwaitWhole returns when every viewer has seen everything up to some moment
// after the call, or when ctx ends.
func (c *Crowd) AwaitWhole(ctx context.Context) error {
	var target string
	var seq int64
	for {
		if turn, now, ok := c.driver.now(); ok && turn != target {
			target, seq = turn, now // the host was restarted, or this is the first look
		}
		if target != "" && !slices.ContainsFunc(c.Viewers, func(v *Viewer) bool { return !v.whole(target, seq) }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not all viewers are back: %w", context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Finish ends the load, waits until all messages have arrived, and judges them.
// The records are those of the host's runs.
func (c *Crowd) Finish(ctx context.Context, records []string) (Report, error) {
	var r Report
	wires := make([]*wire, len(c.Viewers))
	for i, v := range c.Viewers {
		if wires[i] = v.mute(); wires[i] == nil {
			return r, fmt.Errorf("%s is not connected in the end", v.id)
		}
	}
	fence := func() error {
		errs := make([]error, len(wires))
		var wg sync.WaitGroup
		for i, w := range wires {
			wg.Go(func() { errs[i] = w.ping(ctx) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	if err := fence(); err != nil { // the host has received everything that they sent
		return r, fmt.Errorf("the load does not end: %w", err)
	}
	last, err := c.driver.finish(ctx)
	if err != nil {
		return r, err
	}
	if err := fence(); err != nil { // they have received everything that the host sent
		return r, fmt.Errorf("the load does not end: %w", err)
	}
	c.Close()
	t, err := readTranscript(records)
	if err != nil {
		return r, err
	}
	for _, v := range c.Viewers {
		t.judge(v, &r)
		want, err := t.stateAt(last, v.epochs[len(v.epochs)-1].last())
		if err != nil {
			return r, err
		}
		if diff := v.state.difference(want); diff != "" {
			r.Lost++
			r.fault("%s: %s", v.id, diff)
		}
	}
	return r, nil
}

// Close ends the crowd.
func (c *Crowd) Close() {
	for _, v := range c.Viewers {
		v.cancel()
	}
	for _, v := range c.Viewers {
		v.Close()
	}
	c.driver.Close()
}
