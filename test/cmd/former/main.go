// Command former builds relay and host-agent from an earlier commit, and runs them
// with those of this commit, under load: each host-agent at the relay of the second
// version, and a rolling replacement of three relays. It prints a table, and exits
// with 1 if anything was lost or repeated, or a client was closed without need.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"ahprelay/test/load"
	"ahprelay/test/procs"
)

type flags struct {
	Commit  string        `default:"HEAD~100" help:"The earlier one (${default})."`
	Clients int           `default:"5" help:"Clients under load (${default})."`
	Each    time.Duration `default:"5s" help:"How long each state of things is watched (${default})."`
	Keep    string        `placeholder:"DIR" help:"Keep programs and logs there."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "former:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := flags{}
	parser, err := kong.New(&f, kong.Name("former"), kong.Description("Has an earlier version work with this one."), kong.Writers(stdout, stderr))
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return err
	}
	dir := f.Keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "ahp-former-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	v := versions{dir: dir, flags: f}
	if err := v.build(ctx); err != nil {
		return err
	}
	return v.table(ctx, stdout)
}

// versions are the programs of both.
type versions struct {
	dir   string
	flags flags
	name  string // of the commit, short
}

const (
	former = "former"
	now    = "now"
)

func (v *versions) build(ctx context.Context) (err error) {
	if v.name, err = output(ctx, "", "git", "rev-parse", "--short", v.flags.Commit); err != nil {
		return err
	}
	for _, which := range []string{former, now} {
		if err := os.MkdirAll(filepath.Join(v.dir, which), 0o755); err != nil {
			return err
		}
	}
	if err := procs.BuildTo(ctx, filepath.Join(v.dir, now)); err != nil {
		return err
	}
	tree := filepath.Join(v.dir, "tree")
	if _, err := output(ctx, "", "git", "worktree", "add", "--detach", tree, v.name); err != nil {
		return err
	}
	defer func() {
		_, gone := output(context.WithoutCancel(ctx), "", "git", "worktree", "remove", "--force", tree)
		err = errors.Join(err, gone)
	}()
	_, err = output(ctx, tree, "go", "build", "-ldflags=-s -w", "-o", filepath.Join(v.dir, former)+string(filepath.Separator), "./cmd/relay", "./cmd/host-agent")
	return err
}

func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// use makes later starts use these versions.
func use(programs string, v *versions, of map[string]string) error {
	for program, which := range of {
		link := filepath.Join(programs, program)
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Symlink(filepath.Join(v.dir, which, program), link); err != nil {
			return err
		}
	}
	return nil
}

// A trial is an experiment with a site.
type trial struct {
	name         string
	relay, agent string
	others       int
	closes       []int // codes with which clients may be closed
	steps        func(ctx context.Context, s *procs.Site, of func(relay, agent string) error, watch func(quiet bool) error) error
}

var errBroken = errors.New("promises are broken")

const codeShutdown, codeOffline = 1001, 4100

func (v *versions) trials() []trial {
	stay := func(_ context.Context, _ *procs.Site, _ func(string, string) error, watch func(quiet bool) error) error {
		return watch(true)
	}
	return []trial{
		{name: "host-agent of " + v.name + ", relay of now", relay: now, agent: former, steps: stay},
		{name: "relay of " + v.name + ", host-agent of now", relay: former, agent: now, steps: stay},
		{
			name: "three relays and the host-agent of " + v.name + ", replaced one after the other", relay: former, agent: former, others: 2,
			closes: []int{codeShutdown, codeOffline}, steps: func(ctx context.Context, s *procs.Site, of func(string, string) error, watch func(quiet bool) error) error {
				return roll(ctx, s, now, of, watch)
			},
		},
		{
			name: "three relays and the host-agent of now, replaced by those of " + v.name, relay: now, agent: now, others: 2,
			closes: []int{codeShutdown, codeOffline}, steps: func(ctx context.Context, s *procs.Site, of func(string, string) error, watch func(quiet bool) error) error {
				return roll(ctx, s, former, of, watch)
			},
		},
	}
}

// roll replaces one process after the other, and watches in between: those with no clients
// first, then the relay that has them, then the host-agent.
func roll(ctx context.Context, s *procs.Site, to string, of func(relay, agent string) error, watch func(quiet bool) error) error {
	if err := of(to, to); err != nil {
		return err
	}
	for i, other := range s.Others {
		if err := errors.Join(other.End(syscall.SIGTERM), s.StartOther(ctx, i), watch(true)); err != nil {
			return err
		}
	}
	if err := errors.Join(s.Relay.End(syscall.SIGTERM), s.StartRelay(ctx), watch(false)); err != nil {
		return err
	}
	return errors.Join(s.Agent.End(syscall.SIGTERM), s.StartAgent(ctx), watch(false))
}

func (v *versions) table(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out, "| what | sent | received | lost | repeated | closed with | |\n|---|--:|--:|--:|--:|---|---|")
	broken := false
	for i, t := range v.trials() {
		report, codes, err := v.try(ctx, t, filepath.Join(v.dir, fmt.Sprint("trial-", i)))
		verdict := "ok"
		bad := slices.ContainsFunc(codes, func(code int) bool { return !slices.Contains(t.closes, code) })
		if err != nil || bad || report.Lost+report.Repeated > 0 || len(report.Faults) > 0 || report.Received == 0 {
			verdict, broken = fmt.Sprintf("BROKEN %v %q", err, report.Faults), true
		}
		fmt.Fprintf(out, "| %s | %d | %d | %d | %d | %v | %s |\n", t.name, report.Sent, report.Received, report.Lost, report.Repeated, codes, verdict)
	}
	if broken {
		return errBroken
	}
	return nil
}

// limit is for one trial.
const limit = 5 * time.Minute

// try runs a trial, and returns the judge's report and the clients' close codes.
func (v *versions) try(ctx context.Context, t trial, dir string) (report load.Report, codes []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	programs := filepath.Join(dir, "bin")
	if err := os.MkdirAll(programs, 0o700); err != nil {
		return report, nil, err
	}
	of := func(relay, agent string) error {
		return use(programs, v, map[string]string{procs.RelayProgram: relay, procs.AgentProgram: agent, procs.HostProgram: now})
	}
	if err := of(t.relay, t.agent); err != nil {
		return report, nil, err
	}
	site, err := procs.Start(ctx, procs.Config{Bench: procs.Bench{Programs: programs, Dir: dir}, Others: t.others})
	if err != nil {
		return report, nil, err
	}
	defer site.Close()
	token, err := site.Token()
	if err != nil {
		return report, nil, err
	}
	crowd := load.Gather(load.Target{URL: site.HostURL()}, load.Target{URL: site.URL(), Token: token}, v.flags.Clients)
	defer crowd.Close()
	ends := func() (codes []int) {
		for _, viewer := range crowd.Viewers {
			for _, end := range viewer.Ends() {
				codes = append(codes, end.Code)
			}
		}
		return codes
	}
	watch := func(quiet bool) error {
		if err := crowd.AwaitWhole(ctx); err != nil {
			return err
		}
		select {
		case <-time.After(v.flags.Each):
		case <-ctx.Done():
		}
		if codes := ends(); quiet && len(codes) > 0 {
			return fmt.Errorf("clients were closed that had nothing to do with it: %v", codes)
		}
		return crowd.AwaitWhole(ctx)
	}
	if err := watch(true); err != nil {
		return report, nil, err
	}
	err = t.steps(ctx, site, of, watch)
	codes = ends()
	if err != nil {
		return report, codes, err
	}
	report, err = crowd.Finish(ctx, site.Records())
	return report, codes, errors.Join(err, site.Verify())
}
