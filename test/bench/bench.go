package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// A part is one benchmark.
type part struct {
	name string
	run  func(*testbed) ([]Figure, error)
}

// parts are all benchmarks, in the order of the table.
var parts = []part{
	{"fanout", fanout},
	{"bursts", bursts},
	{"uplink", uplink},
	{"audience", audience},
	{"phone", phone},
	{"windows", windows},
	{"latency", latency},
	{"memory", memory},
	{"tls", tlsIdle},
	{"large", large},
	{"neighbour", neighbour},
	{"stalled", stalled},
	{"growth", growth},
	{"gate", gates},
	{"flap", flap},
	{"storm", storm},
	{"console", consolePart},
	{"canvas", canvas},
}

// Names returns the names of all parts.
func Names() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// partTime is how long a part may take before it is hung.
const partTime = 5 * time.Minute

// Run runs parts by name, all without names, and returns their figures. When a
// part fails, it returns those of the others too, and why.
func Run(ctx context.Context, o Options, names ...string) ([]Figure, error) {
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("there is no part %q; there are %s", name, strings.Join(Names(), ", "))
		}
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	var figures []Figure
	var failed []string
	for _, p := range parts {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		began := time.Now()
		fmt.Fprintf(o.Progress, "%s\n", p.name)
		more, err := p.runIn(ctx, o)
		if err != nil {
			fmt.Fprintf(o.Progress, "%s failed: %v\n", p.name, err)
			failed = append(failed, fmt.Sprintf("%s: %v", p.name, err))
		}
		figures = append(figures, more...)
		fmt.Fprintf(o.Progress, "%s: %.0f s\n", p.name, time.Since(began).Seconds())
	}
	if failed != nil {
		return figures, fmt.Errorf("parts that failed:\n%s", strings.Join(failed, "\n"))
	}
	return figures, ctx.Err()
}

// runIn runs a part in a testbed of its own. Logs of one that fails stay.
func (p part) runIn(ctx context.Context, o Options) (figures []Figure, err error) {
	ctx, cancel := context.WithTimeout(ctx, partTime)
	defer cancel()
	b, err := newTestbed(ctx, o, p.name)
	if err != nil {
		return nil, err
	}
	defer func() {
		b.close()
		if err == nil {
			_ = os.RemoveAll(b.dir)
		}
	}()
	figures, err = p.run(b)
	for i := range figures {
		figures[i].Part = p.name
	}
	return figures, err
}
