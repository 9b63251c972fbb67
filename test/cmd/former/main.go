// Command former builds the programs of an earlier commit, and runs them together with
// the programs of this commit, under load. It tries each mixture of relay, host-agent
// and ahp-connect. It also replaces three relays and the other programs one after
// another, by the other version and back. It prints a table. It exits with 1 if a
// message was lost or repeated, or if a client was closed without need.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"ahprelay/test/document"
	"ahprelay/test/load"
	"ahprelay/test/procs"
)

type flags struct {
	Commit  string        `default:"HEAD~100" help:"The earlier one (${default})."`
	Clients int           `default:"5" help:"Clients under load (${default})."`
	Each    time.Duration `default:"5s" help:"How long each state of things is watched (${default})."`
	Only    string        `help:"Only trials whose name fits this regular expression."`
	List    bool          `help:"Print the names of the trials."`
	Record  string        `placeholder:"FILE" type:"path" help:"Write the table into this Markdown file, too."`
	Keep    string        `placeholder:"DIR" type:"path" help:"Keep programs and logs there."`
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
	only, err := regexp.Compile(f.Only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	list := slices.DeleteFunc(trials(), func(t trial) bool { return !only.MatchString(t.name()) })
	if f.List {
		for _, t := range list {
			fmt.Fprintln(stdout, t.name())
		}
		return nil
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
	var table bytes.Buffer
	broken := v.table(ctx, list, io.MultiWriter(stdout, &table))
	if f.Record != "" && ctx.Err() == nil {
		return errors.Join(broken, document.Replace(f.Record, "make former", table.Bytes()))
	}
	return broken
}

// A versions has the programs of both commits.
type versions struct {
	dir   string
	flags flags
	name  string // short name of the former commit
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
	for which, root := range map[string]string{now: ".", former: tree} {
		into := filepath.Join(v.dir, which) + string(filepath.Separator)
		if _, err := output(ctx, root, "go", "build", "-ldflags=-s -w", "-o", into, "./cmd/relay", "./cmd/host-agent", "./cmd/ahp-connect"); err != nil {
			return err
		}
	}
	return nil
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

// use replaces the links in the directory programs, so that later starts run these
// versions.
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

// A mix tells the version of each program. Without a version of ahp-connect, clients
// connect to the relay itself.
type mix struct{ relay, agent, connect string }

func (m mix) programs() map[string]string {
	return map[string]string{procs.RelayProgram: m.relay, procs.AgentProgram: m.agent, procs.ConnectProgram: cmp.Or(m.connect, now), procs.HostProgram: now}
}

// An ahp is a pair of AHP versions, the host's and the client's.
type ahp struct{ host, client string }

// usual is the pair of AHP versions in all trials that do not test versions of AHP.
var usual = ahp{"0.9", "0.9.0"}

// pairs lists the versions of hosts, each with the versions of clients that such a host
// accepts.
var pairs = []ahp{
	{"0.8", "0.8.0"}, {"0.9", "0.8.0"}, usual, {"0.10", "0.10.0"}, {"1.0", "0.9.0"}, {"1.0", "1.0.0"}, {"1.1", "0.9.0"}, {"1.1", "1.0.0"}, {"1.1", "1.1.0"},
}

// A trial is a run with a mix of programs, in which something happens.
type trial struct {
	mix    mix
	ahp    ahp
	what   string // what happens during the trial
	others int    // number of further relays
	sealed bool
	closes []int // codes with which clients may be closed
	steps  func(ctx context.Context, r *attempt) error
}

// An attempt is a trial that is running.
type attempt struct {
	*procs.Site
	use   func(mix) error        // makes later starts run these versions
	watch func(quiet bool) error // checks the clients; with quiet, no client may have been closed so far
}

var errBroken = errors.New("promises are broken")

// These are the close codes that a replacement of programs may cause. If a relay is
// older than ahp-connect, it cannot continue a connection, and closes it with
// codeResync.
const codeShutdown, codeResync, codeOffline = 1001, 1012, 4100

// name returns the trial's description. It does not contain the former version.
func (t trial) name() string {
	sealed := ""
	if t.sealed {
		sealed = ", sealed"
	}
	return fmt.Sprintf("host %s, client %s, %s%s: relay %s, host-agent %s, ahp-connect %s", t.ahp.host, t.ahp.client, t.what, sealed, t.mix.relay, t.mix.agent, cmp.Or(t.mix.connect, "none"))
}

func sideBySide(_ context.Context, r *attempt) error { return r.watch(true) }

// trials returns all trials: each mixture of both versions, replacements of all
// programs by the other version, and each pair of AHP versions.
func trials() (list []trial) {
	for _, connect := range []string{"", former, now} {
		for _, relay := range []string{former, now} {
			for _, agent := range []string{former, now} {
				m := mix{relay, agent, connect}
				if same := relay == agent && (connect == "" || connect == relay); same {
					continue
				}
				t := trial{mix: m, ahp: usual, what: "side by side", steps: sideBySide}
				if connect == "" {
					list = append(list, t)
					continue
				}
				t.what, t.steps = "network cut for 2 s", cut
				list = append(list, t)
				t.sealed = true
				list = append(list, t)
			}
		}
	}
	for _, way := range [][2]string{{former, now}, {now, former}} {
		from, to := way[0], way[1]
		steps := func(ctx context.Context, r *attempt) error { return roll(ctx, r, mix{to, to, to}) }
		t := trial{mix: mix{from, from, ""}, ahp: usual, what: "replaced one after the other", others: 2, closes: []int{codeShutdown, codeOffline}, steps: steps}
		list = append(list, t)
		t.mix.connect, t.closes = from, append(t.closes, codeResync)
		list = append(list, t)
		t.sealed = true
		list = append(list, t)
	}
	for _, pair := range pairs {
		list = append(list, trial{mix: mix{now, now, now}, ahp: pair, what: "side by side", steps: sideBySide})
	}
	return list
}

// cut ends ahp-connect's connections to the relay. Clients' connections must stay open.
func cut(ctx context.Context, r *attempt) error {
	if err := r.watch(true); err != nil {
		return err
	}
	r.ClientRelay.Cut()
	load.Pause(ctx, 2*time.Second)
	return errors.Join(r.ClientRelay.Heal(), r.watch(true))
}

// roll replaces all processes by another version, one after another, and checks the
// clients after each: first the relays without clients, then the relay with clients,
// the host-agent and ahp-connect.
func roll(ctx context.Context, r *attempt, to mix) error {
	if err := r.use(to); err != nil {
		return err
	}
	for i, other := range r.Others {
		if err := errors.Join(other.End(syscall.SIGTERM), r.StartOther(ctx, i), r.watch(true)); err != nil {
			return err
		}
	}
	if err := errors.Join(r.Relay.End(syscall.SIGTERM), r.StartRelay(ctx), r.watch(false)); err != nil {
		return err
	}
	if err := errors.Join(r.Agent.End(syscall.SIGTERM), r.StartAgent(ctx), r.watch(false)); err != nil {
		return err
	}
	if r.Connect == nil {
		return nil
	}
	return errors.Join(r.Connect.End(syscall.SIGTERM), r.StartConnect(ctx), r.watch(false))
}

// table runs all trials, and writes a row for each as soon as it ends.
func (v *versions) table(ctx context.Context, list []trial, out io.Writer) (broken error) {
	fmt.Fprint(out, "| host | client | relay | host-agent | ahp-connect | what happens | sent | received | lost | repeated | closed with | |\n|---|---|---|---|---|---|--:|--:|--:|--:|---|---|\n")
	for i, t := range list {
		if ctx.Err() != nil {
			return errors.Join(broken, ctx.Err())
		}
		report, codes, err := v.try(ctx, t, filepath.Join(v.dir, fmt.Sprint("trial-", i)))
		verdict := "ok"
		bad := slices.ContainsFunc(codes, func(code int) bool { return !slices.Contains(t.closes, code) })
		if err != nil || bad || report.Lost+report.Repeated > 0 || len(report.Faults) > 0 || report.Received == 0 {
			verdict, broken = fmt.Sprintf("BROKEN %v %q", err, report.Faults), errBroken
		}
		fmt.Fprintf(out, "%s %d | %d | %d | %d | %s | %s |\n", v.row(t), report.Sent, report.Received, report.Lost, report.Repeated, counted(codes), verdict)
	}
	return broken
}

// row returns the cells that describe a trial.
func (v *versions) row(t trial) string {
	host := t.ahp.host
	if t.sealed {
		host += ", sealed"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s |", host, t.ahp.client, v.called(t.mix.relay), v.called(t.mix.agent), v.called(t.mix.connect), t.what)
}

// called returns the name for a version in the table.
func (v *versions) called(which string) string {
	return map[string]string{former: v.flags.Commit, now: "this", "": "–"}[which]
}

// counted returns close codes as a text, each with the number of its connections.
func counted(codes []int) string {
	times := map[int]int{}
	for _, code := range codes {
		times[code]++
	}
	var list []string
	for _, code := range slices.Sorted(maps.Keys(times)) {
		list = append(list, fmt.Sprintf("%d ×%d", code, times[code]))
	}
	return cmp.Or(strings.Join(list, ", "), "–")
}

// limit is the longest time for a trial.
const limit = 5 * time.Minute

// try runs a trial. It returns the comparison of the clients' records with the host's,
// and the codes with which clients were closed.
func (v *versions) try(ctx context.Context, t trial, dir string) (report load.Report, codes []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	programs := filepath.Join(dir, "bin")
	if err := os.MkdirAll(programs, 0o700); err != nil {
		return report, nil, err
	}
	use := func(m mix) error { return use(programs, v, m.programs()) }
	if err := use(t.mix); err != nil {
		return report, nil, err
	}
	site, err := procs.Start(ctx, procs.Config{Bench: procs.Bench{Programs: programs, Dir: dir}, Others: t.others, Sealed: t.sealed, HostFlags: []string{"--protocol", t.ahp.host}})
	if err != nil {
		return report, nil, err
	}
	defer site.Close()
	target := load.Target{URL: site.URL(), Version: t.ahp.client}
	if t.mix.connect != "" {
		err = site.StartConnect(ctx)
		target.URL, target.Token = site.AtConnect()
		target.AnswersPings = true
	} else {
		target.Token, err = site.Token()
	}
	if err != nil {
		return report, nil, err
	}
	crowd := load.Gather(load.Target{URL: site.HostURL(), Version: t.ahp.client}, target, v.flags.Clients)
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
		load.Pause(ctx, v.flags.Each)
		if codes := ends(); quiet && len(codes) > 0 {
			return fmt.Errorf("clients that the fault must not affect were closed: %v", codes)
		}
		return crowd.AwaitWhole(ctx)
	}
	if err := watch(true); err != nil {
		return report, nil, err
	}
	err = t.steps(ctx, &attempt{site, use, watch})
	codes = ends()
	if err != nil {
		return report, codes, err
	}
	report, err = crowd.Finish(ctx, site.Records())
	return report, codes, errors.Join(err, site.Verify())
}
