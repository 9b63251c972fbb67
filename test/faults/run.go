package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"ahprelay/test/load"
	"ahprelay/test/procs"
)

// Options configure a run.
type Options struct {
	Programs string // directory with the programs from procs.Build
	Dir      string // for logs and state, one directory for each row
	Clients  int    // default 5

	// Patience multiplies all promised times, because rows that run at the same time share
	// the processors. Default 1.
	Patience int

	Keep bool // keeps the directory of a row without a broken promise
}

// A Result is what a row has measured.
type Result struct {
	Row Row
	load.Report
	Closes map[int]int   // number of closed connections, by code
	Told   time.Duration // from the fault's beginning until the last client was closed; 0: no client was closed
	Pause  time.Duration // longest time in which a client received nothing
	Whole  time.Duration // from the fault's end until all clients had received everything
	Note   string        // further figures
	Broken []string      // each broken promise, with the measured value
}

// These are the durations of a row's phases.
const (
	warmUp   = 1500 * time.Millisecond
	coolDown = time.Second
	giveUp   = 60 * time.Second // limit for clients to receive everything
)

// Run runs a row in a new directory, and returns its result.
func Run(ctx context.Context, row Row, o Options) Result {
	if o.Clients == 0 {
		o.Clients = 5
	}
	o.Patience = max(1, o.Patience)
	r := Result{Row: row, Closes: map[int]int{}}
	dir := filepath.Join(o.Dir, notName.ReplaceAllString(row.Name(), "-"))
	if err := r.run(ctx, o, dir); err != nil {
		r.broken("%v", err)
	}
	r.check(o)
	if len(r.Broken) == 0 && !o.Keep {
		_ = os.RemoveAll(dir)
	}
	return r
}

var notName = regexp.MustCompile(`[^A-Za-z0-9]+`)

func (r *Result) run(ctx context.Context, o Options, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	site, err := procs.Start(ctx, procs.Config{Bench: procs.Bench{Programs: o.Programs, Dir: dir}, ExternalNATS: r.Row.external, Others: r.Row.others, RelayMemory: r.Row.memory, RelayFlags: r.Row.flags, NoRecord: r.Row.alone != nil, Straight: r.Row.alone != nil})
	if err != nil {
		return err
	}
	defer site.Close()
	if r.Row.alone != nil {
		return r.Row.alone(ctx, site, r)
	}
	token, err := site.Token()
	if err != nil {
		return err
	}
	target := load.Target{URL: site.URL(), Token: token}
	if r.Row.balanced {
		relays := balance(site.Relays())
		defer relays.judge(r)
		defer relays.stop()
		target.Pick = relays.pick
	}
	crowd := load.Gather(load.Target{URL: site.HostURL()}, target, o.Clients)
	defer crowd.Close()
	if err := awaitWhole(ctx, crowd); err != nil {
		return fmt.Errorf("before the fault: %w", err)
	}
	load.Pause(ctx, warmUp)
	if ends := endsOf(crowd); len(ends) > 0 {
		return fmt.Errorf("connections ended before the fault: %v", ends)
	}
	return r.breakIt(ctx, site, crowd)
}

// breakIt injects the fault and heals it. It then measures the effects, and compares
// the records of clients and host.
func (r *Result) breakIt(ctx context.Context, site *procs.Site, crowd *load.Crowd) error {
	began := time.Now()
	if err := r.Row.inject(ctx, site); err != nil {
		return err
	}
	if r.Row.during != nil {
		if err := r.Row.during(ctx, site); err != nil {
			return err
		}
	}
	load.Pause(ctx, time.Until(began.Add(r.Row.hold)))
	if err := r.Row.heal(ctx, site); err != nil {
		return err
	}
	healed := time.Now()
	back := awaitWhole(ctx, crowd)
	r.Whole = time.Since(healed)
	load.Pause(ctx, coolDown)
	for _, end := range endsOf(crowd) {
		r.Closes[end.Code]++
		if end.At.Before(healed) || r.Told == 0 {
			r.Told = max(r.Told, end.At.Sub(began))
		}
	}
	for _, v := range crowd.Viewers {
		r.Pause = max(r.Pause, v.Pause(began))
	}
	if back != nil {
		return back
	}
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	var err error
	r.Report, err = crowd.Finish(ctx, site.Records())
	return err
}

func awaitWhole(ctx context.Context, crowd *load.Crowd) error {
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	return crowd.AwaitWhole(ctx)
}

func endsOf(crowd *load.Crowd) (ends []load.End) {
	for _, v := range crowd.Viewers {
		ends = append(ends, v.Ends()...)
	}
	return ends
}

// check compares the result with the row's promise, and adds each broken part.
func (r *Result) check(o Options) {
	p := r.Row.promise
	slack := time.Duration(o.Patience)
	if r.Lost > 0 || r.Repeated > 0 || len(r.Faults) > 0 {
		r.broken("%d lost, %d repeated: %q", r.Lost, r.Repeated, r.Faults)
	}
	for code, n := range r.Closes {
		if !slices.Contains(p.codes, code) {
			r.broken("%d connections closed with %s", n, codeName(code))
		}
	}
	if p.must && len(r.Closes) == 0 {
		r.broken("no connection was closed; want %s", codeName(p.codes[0]))
	}
	if p.told > 0 && r.Told > slack*p.told {
		r.broken("clients were told after %v; want %v", r.Told, p.told)
	}
	if p.pause > 0 && r.Pause > slack*p.pause {
		r.broken("nothing came for %v; want at most %v", r.Pause, p.pause)
	}
	if want := whole + p.later; r.Whole > slack*want {
		r.broken("whole again after %v; want %v", r.Whole, want)
	}
}

func (r *Result) broken(format string, args ...any) {
	r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
}

func codeName(code int) string {
	switch code {
	case load.EndCut:
		return "cut"
	case load.EndSilent:
		return "gave up"
	}
	return fmt.Sprint(code)
}
