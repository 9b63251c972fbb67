// Command scale measures a cluster of relays with many hosts, and prints a table. It
// exits with 1 if a figure in the table breaks a promise.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"ahprelay/auth"
	"ahprelay/test/scale"
)

type flags struct {
	Only string `placeholder:"REGEXP" help:"Run only what matches: ${names}."`
	scale.Sizes

	Agents []string `hidden:"" help:"Be the host-agents with connections of their own from a number on: DIR,FIRST,COUNT,EVERY,AT-ONCE,URL,…"`

	Fleet []string `hidden:"" help:"Be so many hosts of the keys in a directory, at these URLs: DIR,URL,…"`
	Join  []string `hidden:"" help:"Be another relay of a cluster of so many, until it knows so many hosts: DIR,ROUTE,…"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

var errBroken = errors.New("promises are broken")

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags{}
	var names []string
	for _, m := range scale.Measurements {
		names = append(names, m.Name)
	}
	parser, err := kong.New(&f, kong.Name("scale"), kong.Description("Measures a cluster of relays with many hosts."), kong.Writers(stdout, stderr), kong.Vars{"names": strings.Join(names, ", ")})
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return err
	}
	if len(f.Agents) > 0 {
		return beAgents(ctx, f.Agents)
	}
	if len(f.Fleet) > 0 {
		return beFleet(ctx, &f)
	}
	if len(f.Join) > 0 {
		return beRelay(ctx, &f)
	}
	only, err := regexp.Compile(f.Only)
	if err != nil {
		return err
	}
	plan := &scale.Plan{Sizes: f.Sizes, Fleet: startFleet, Join: startRelay, Agents: startAgents}
	return table(ctx, stdout, only, plan, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError})))
}

// limit is the longest time for a measurement. In the measurement of host-agents with
// their own connections, each host-agent adds realLimit, because it starts once and
// reconnects ten times.
const (
	limit     = 10 * time.Minute
	realLimit = 75 * time.Millisecond
)

func table(ctx context.Context, out io.Writer, only *regexp.Regexp, p *scale.Plan, log *slog.Logger) error {
	fmt.Fprintln(out, "| what | measured | must be | |\n|---|---|---|---|")
	broken := false
	for _, m := range scale.Measurements {
		if !only.MatchString(m.Name) {
			continue
		}
		rows, err := measure(ctx, m, p, log)
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

func measure(ctx context.Context, m scale.Measurement, p *scale.Plan, log *slog.Logger) ([]scale.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+time.Duration(p.Real)*realLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "ahp-scale-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	return m.Measure(ctx, p, dir, log)
}

// another returns a command that runs this program with other arguments.
func another(ctx context.Context, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = os.Stderr
	return cmd, nil
}

// list returns the texts joined by commas, for a flag.
func list(first string, others []string) string {
	return strings.Join(append([]string{first}, others...), ",")
}

// startFleet runs a fleet of host-agents in a separate process, so that the measurement
// does not count their cost.
func startFleet(ctx context.Context, c *scale.Cluster, hosts int) (stop func(), err error) {
	return startAnother(ctx, "--hosts", strconv.Itoa(hosts), "--fleet", list(c.KeyDir(), c.URLs()))
}

// startAnother starts this program with other arguments. stop ends it.
func startAnother(ctx context.Context, args ...string) (stop func(), err error) {
	cmd, err := another(ctx, args...)
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}, nil
}

// beFleet runs the fleet in the process that startFleet has started.
func beFleet(ctx context.Context, f *flags) error {
	keys, err := auth.ExistingKeys(f.Fleet[0])
	if err != nil {
		return err
	}
	fleet := &scale.Fleet{Keys: keys, URLs: f.Fleet[1:], Hosts: f.Hosts, Tenants: scale.FleetTenants}
	return fleet.Run(ctx)
}

// startAgents runs host-agents with their own connections in a separate process.
func startAgents(ctx context.Context, dir string, a scale.Agents) (stop func(), err error) {
	return startAnother(ctx, agentsArgs(dir, a)...)
}

// agentsArgs returns the arguments with which this program runs host-agents.
func agentsArgs(dir string, a scale.Agents) []string {
	return []string{"--agents", list(dir, append([]string{strconv.Itoa(a.First), strconv.Itoa(a.Count), a.Every.String(), strconv.Itoa(a.AtOnce)}, a.URLs...))}
}

// beAgents runs the host-agents in the process that startAgents has started.
func beAgents(ctx context.Context, args []string) error {
	if len(args) < 5 {
		return fmt.Errorf("--agents has %d parts; want at least 5", len(args))
	}
	a := &scale.Agents{URLs: args[5:]}
	var failed [5]error
	a.Keys, failed[0] = auth.ExistingKeys(args[0])
	a.First, failed[1] = strconv.Atoi(args[1])
	a.Count, failed[2] = strconv.Atoi(args[2])
	a.Every, failed[3] = time.ParseDuration(args[3])
	a.AtOnce, failed[4] = strconv.Atoi(args[4])
	if err := errors.Join(failed[:]...); err != nil {
		return err
	}
	return a.Run(ctx)
}

// startRelay adds a relay to a cluster in a separate process, so that its garbage is
// not collected together with that of the other relays. It waits until the relay knows
// a number of hosts.
func startRelay(ctx context.Context, c *scale.Cluster, hosts int) error {
	cmd, err := another(ctx, "--relays", strconv.Itoa(len(c.Relays)), "--hosts", strconv.Itoa(hosts), "--join", list(c.Dir(), c.Routes()))
	if err != nil {
		return err
	}
	return cmd.Run()
}

// beRelay runs the relay in the process that startRelay has started. The end of the
// process closes everything.
func beRelay(ctx context.Context, f *flags) error {
	c, err := scale.RunningCluster(f.Join[0], f.Join[1:], f.Relays, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return c.JoinAndKnow(ctx, f.Hosts)
}
