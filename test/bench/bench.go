package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"ahprelay/test/must"
)

// A part is a benchmark with a name.
type part struct {
	name  string
	run   func(*testbed) []Figure
	asked bool // the part runs only if it is named
}

// parts lists all benchmarks in the order of the table.
var parts = []part{
	{name: "fanout", run: fanout},
	{name: "bursts", run: bursts},
	{name: "uplink", run: uplink},
	{name: "audience", run: audience},
	{name: "phone", run: phone},
	{name: "phone20", run: longPhone, asked: true},
	{name: "sealed", run: sealedCost},
	{name: "latency", run: latency},
	{name: "memory", run: memory},
	{name: "rest", run: rest},
	{name: "hosts", run: hosts},
	{name: "returns", run: returns},
	{name: "starts", run: starts},
	{name: "tls", run: tlsIdle},
	{name: "large", run: large},
	{name: "neighbour", run: neighbour},
	{name: "stalled", run: stalled},
	{name: "growth", run: growth},
	{name: "gate", run: gates},
	{name: "feed", run: feed},
	{name: "flap", run: flap},
	{name: "storm", run: storm},
	{name: "console", run: consolePart},
	{name: "canvas", run: canvas},
	{name: "ablate", run: ablate, asked: true},
}

// Names returns the names of all parts.
func Names() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// partTime limits the time of a part. The longest, hosts, takes three minutes a round.
const partTime = 20 * time.Minute

// Check returns an error if a part does not exist.
func Check(names []string) error {
	_, err := chosen(names)
	return err
}

// chosen returns the parts with these names. Without names, it returns all parts that
// need not be named.
func chosen(names []string) (list []part, err error) {
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("there is no part %q; there are %s", name, strings.Join(Names(), ", "))
		}
	}
	for _, p := range parts {
		if slices.Contains(names, p.name) || len(names) == 0 && !p.asked {
			list = append(list, p)
		}
	}
	return list, nil
}

// Run runs the parts with these names, or without names all parts that need not be
// named. It returns their figures and durations. If a part fails, the error describes
// the failure, and the other parts run all the same.
func Run(ctx context.Context, o Options, names ...string) (done []RecordedPart, figures []Figure, err error) {
	list, err := chosen(names)
	if err != nil {
		return nil, nil, err
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	var failed []string
	for i, p := range list {
		began := time.Now()
		fmt.Fprintf(o.Progress, "%s (%d of %d%s)\n", p.name, i+1, len(list), o.Former.left(list[i:]))
		more, err := p.runIn(ctx, o)
		took := RecordedPart{p.name, math.Round(time.Since(began).Seconds())}
		if err != nil {
			fmt.Fprintf(o.Progress, "%s failed: %v\n", p.name, err)
			failed = append(failed, fmt.Sprintf("%s: %v", p.name, err))
		} else {
			done = append(done, took)
		}
		figures = append(figures, more...)
		fmt.Fprintf(o.Progress, "%s: %.0f s\n", p.name, took.Seconds)
	}
	if failed != nil {
		return done, figures, fmt.Errorf("parts that failed:\n%s", strings.Join(failed, "\n"))
	}
	return done, figures, ctx.Err()
}

// left describes how long the parts will take, from their recorded durations. It
// returns "" if a duration is unknown.
func (r *Record) left(list []part) string {
	if r == nil {
		return ""
	}
	seconds := 0.0
	for _, p := range list {
		at := slices.IndexFunc(r.Parts, func(q RecordedPart) bool { return q.Name == p.name })
		if at < 0 {
			return ""
		}
		seconds += r.Parts[at].Seconds
	}
	return fmt.Sprintf("; about %v left", time.Duration(seconds)*time.Second)
}

// runIn runs a part in its own testbed. It keeps the logs of a part that fails.
func (p part) runIn(ctx context.Context, o Options) (figures []Figure, err error) {
	ctx, cancel := context.WithTimeout(ctx, partTime)
	defer cancel()
	b := newTestbed(ctx, o, p.name)
	err = must.Catch(func() {
		defer b.close()
		must.Do(os.MkdirAll(b.dir, 0o700))
		b.startLoad()
		figures = p.run(b)
	})
	for i := range figures {
		figures[i].Part = p.name
	}
	if err == nil {
		_ = os.RemoveAll(b.dir)
	}
	return figures, err
}
