package scale

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"ahprelay/gateway"
	"ahprelay/test/load"
	"ahprelay/test/must"
	"ahprelay/test/stack"
)

// longestNotice limits the time from a cut until clients at the isolated relay are
// closed with 4100. The relay must first notice the cut, and then waits for 15 s.
const longestNotice = 30 * time.Second

// partitionMoves is partitionClients with a single host-agent, which reaches all
// relays. Its relay is isolated, so the host-agent moves to another relay. The clients
// there must keep their connections. s.Apart host-agents without hosts, a third of them
// at the isolated relay, move at the same time.
func partitionMoves(ctx context.Context, c *Cluster, s *Plan) (rows []Row) {
	defer func() { c.ways.Close() }() // p.start sets them
	p := &divided{}
	defer p.close()
	p.start(ctx, c, gateway.MinorityRead)
	second := &watchedLog{text: "second connection opened"}
	p.log = slog.New(second)
	p.agent(p.relays...)
	home := p.awaitHome(ctx)
	more := p.surround(ctx, c, s.Apart)
	defer more.stop()
	others := slices.DeleteFunc(slices.Clone(p.relays), func(r *gateway.Relay) bool { return r == p.relays[home] })
	p.watch(home, slices.Index(p.relays, others[0]))
	must.Within("the host-agent opens no second connection", func() { must.Do(await(ctx, func() bool { return second.seen.Load() })) })
	must.Within("before the cut", func() {
		must.Do(p.crowd.AwaitWhole(ctx))
		more.awaitSecond(ctx, p.named(home))
	})
	c.ways.Cut(home)
	began := time.Now()
	must.Within("while it is cut", func() {
		must.Do(await(ctx, func() bool { at, _ := p.endpoint(ctx, others[0]); return at != "" && at != p.named(home) }))
		must.Do(p.crowd.AwaitWhole(ctx))
	})
	took := time.Since(began)
	must.Within("while it is cut", func() { more.awaitMoved(ctx, others) })
	moved := time.Since(began)
	load.Pause(ctx, time.Until(began.Add(s.Cut)))
	late, cancel := context.WithDeadline(ctx, began.Add(max(s.Cut, longestNotice)))
	_ = await(late, func() bool { return eachTold(p.minority, ends(p.minority, began)) })
	cancel()
	var pause time.Duration
	for _, v := range p.crowd.Viewers {
		pause = max(pause, v.Pause(began))
	}
	sent := ends(p.minority, began)
	must.Do(c.ways.Heal(0))
	healed := time.Now()
	fell := more.fallen(ctx, p.relays)
	agreed := time.Since(healed)
	load.Pause(ctx, s.Cut/2)
	closed := ends(p.crowd.Viewers, began)
	report := must.Get(p.crowd.Finish(ctx, []string{p.record}))
	name := fmt.Sprintf("the relay of a host-agent cut off from two others for %v, all three reachable for the host-agent", s.Cut)
	return []Row{
		{Name: name + ": closed at another relay", Got: fmt.Sprintf("%s (served by that side after %v)", codes(closed), took.Round(100*time.Millisecond)), Wanted: "none", Good: len(closed) == 0},
		{Name: name + ": longest pause there", Got: pause.Round(100 * time.Millisecond).String(), Wanted: "< 15s", Good: pause < 15*time.Second},
		{Name: name + ": lost and repeated there", Got: fmt.Sprintf("%d and %d of %d %v", report.Lost, report.Repeated, report.Sent, report.Faults), Wanted: "none", Good: report.Lost+report.Repeated+len(report.Faults) == 0},
		{Name: name + ": clients at that relay are told to reconnect", Got: codes(sent), Wanted: "4100 each", Good: eachTold(p.minority, sent)},
		{
			Name: fmt.Sprintf("%s: of %d host-agents with connections of their own, the %d at that relay are held by the others", name, more.n, more.home),
			Got:  moved.Round(100 * time.Millisecond).String(), Wanted: "reported: the machine's load decides", Good: true,
		},
		none(name+": of these host-agents' hosts, listed as offline meanwhile, by any relay", fell),
		within(name+": healed, all three relays list all hosts", agreed, longestNotice, 10*time.Millisecond),
	}
}

// eachTold reports whether each viewer's connection was closed with 4100.
func eachTold(viewers []*load.Viewer, all []load.End) bool {
	told := 0
	for _, e := range all {
		if e.Code == 4100 {
			told++
		}
	}
	return told >= len(viewers)
}

// awaitHome waits until all relays report the same relay as the host-agent's. It
// returns this relay's number.
func (p *divided) awaitHome(ctx context.Context) (home int) {
	agreed := func() bool {
		at := map[string]int{}
		for _, r := range p.relays {
			where, _ := p.endpoint(ctx, r)
			at[where]++
		}
		for i := range p.relays {
			if at[p.named(i)] == len(p.relays) {
				home = i
				return true
			}
		}
		return false
	}
	must.Within("before the cut", func() { must.Do(await(ctx, agreed)) })
	return home
}

// named returns the host's URL at a relay, in the form in which relays report it.
func (p *divided) named(relay int) string {
	return fmt.Sprintf("ws://relay-%d/ahp/%s", relay, stack.Host)
}

// A watchedLog is a slog.Handler that discards all records. It notes whether a record
// contained text.
type watchedLog struct {
	slog.Handler
	text string
	seen atomic.Bool
}

// Enabled implements [slog.Handler].
func (*watchedLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (w *watchedLog) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, w.text) {
		w.seen.Store(true)
	}
	return nil
}

// WithAttrs implements [slog.Handler].
func (w *watchedLog) WithAttrs([]slog.Attr) slog.Handler { return w }
