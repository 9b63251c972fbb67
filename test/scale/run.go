package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"time"
)

var errBroken = errors.New("promises are broken")

// Run runs the measurements with matching names, and prints a table of their rows. It
// returns an error if a row breaks a promise.
func Run(ctx context.Context, out io.Writer, only *regexp.Regexp, p *Plan, log *slog.Logger) error {
	fmt.Fprintln(out, "| what | measured | must be | |\n|---|---|---|---|")
	broken := false
	for _, m := range Measurements {
		if !only.MatchString(m.Name) {
			continue
		}
		rows, err := m.measureApart(ctx, p, log)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		for _, r := range rows {
			verdict := "ok"
			if !r.Good {
				verdict, broken = "BROKEN", true
			}
			fmt.Fprintf(out, "| %s | %s | %s | %s |\n", r.Name, r.Got, r.Wanted, verdict)
		}
	}
	if broken {
		return errBroken
	}
	return nil
}

// limit is the longest time for a measurement. In the measurement of host-agents with
// their own connections, each host-agent adds realLimit, because it starts once and
// reconnects ten times.
const (
	limit     = 10 * time.Minute
	realLimit = 75 * time.Millisecond
)

// measureApart runs the measurement in a directory of its own. If it fails, the directory
// with the logs stays.
func (m Measurement) measureApart(ctx context.Context, p *Plan, log *slog.Logger) (rows []Row, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit+time.Duration(p.Real)*realLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "ahp-scale-")
	if err != nil {
		return nil, err
	}
	if rows, err = m.Measure(ctx, p, dir, log); err != nil {
		return nil, fmt.Errorf("%w\nlogs: %s", err, dir)
	}
	return rows, os.RemoveAll(dir)
}
