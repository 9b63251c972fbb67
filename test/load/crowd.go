package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"ahprelay/test/procs"
)

// A Crowd is a driver and its viewers: all clients of a load test.
type Crowd struct {
	Viewers []*Viewer
	driver  *Driver
}

// A Crowd's load is a chat in which the agent answers as fast as a fast model.
const (
	deltasPerSecond = 50
	deltaSize       = 100
)

// Gather starts a crowd: a driver that connects to host, and n viewers that connect to
// viewers, which is the system under test.
func Gather(host, viewers Target, n int) *Crowd {
	c := &Crowd{driver: Drive(host, deltasPerSecond, deltaSize)}
	for i := range n {
		c.Viewers = append(c.Viewers, Watch(fmt.Sprintf("viewer-%d", i+1), viewers))
	}
	return c
}

// AwaitWhole waits until every viewer has received all messages up to a moment after
// the call, or until ctx ends.
func (c *Crowd) AwaitWhole(ctx context.Context) error {
	var target string
	var seq int64
	return procs.Until(ctx, 5*time.Millisecond, func() error {
		if turn, now, ok := c.driver.now(); ok && turn != target {
			target, seq = turn, now // the first turn, or a new turn after a restart of the host
		}
		if target == "" || slices.ContainsFunc(c.Viewers, func(v *Viewer) bool { return !v.whole(target, seq) }) {
			return errors.New("not all viewers have received the host's messages")
		}
		return nil
	})
}

// Finish ends the load and waits until all messages have arrived. It compares the
// clients' records with those of the host, of which there is a file for each run, and
// returns the differences.
func (c *Crowd) Finish(ctx context.Context, records []string) (Report, error) {
	var r Report
	wires := make([]*wire, len(c.Viewers))
	for i, v := range c.Viewers {
		if wires[i] = v.mute(); wires[i] == nil {
			return r, fmt.Errorf("the viewer %s is not connected at the end of the load", v.id)
		}
	}
	fence := func() error {
		var all errgroup.Group
		for _, w := range wires {
			all.Go(func() error { return w.ping(ctx) })
		}
		return all.Wait()
	}
	if err := fence(); err != nil { // the host has then received everything that viewers sent
		return r, fmt.Errorf("no answer to the pings after the viewers' last messages: %w", err)
	}
	last, err := c.driver.finish(ctx)
	if err != nil {
		return r, err
	}
	if err := fence(); err != nil { // viewers have then received everything that the host sent
		return r, fmt.Errorf("no answer to the pings after the driver's last message: %w", err)
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

// Close ends the driver and all viewers.
func (c *Crowd) Close() {
	for _, v := range c.Viewers {
		v.cancel()
	}
	for _, v := range c.Viewers {
		v.Close()
	}
	c.driver.Close()
}
