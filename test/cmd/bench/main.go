// Command bench measures relay and host-agent, and other ways to do the same work for
// comparison. "bench scale" measures clusters of relays with many hosts, and exits with 1
// if a figure breaks a promise. Both print a table in Markdown. "bench plot" writes the
// documents and pictures that follow from the figures in docs/bench/.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"ahprelay/test/bench"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/document"
	"ahprelay/test/procs"
	"ahprelay/test/scale"
)

type flags struct {
	Parts partsFlags `cmd:"" default:"withargs" help:"Measure relay and host-agent beside other ways. This command needs no name: bench fanout latency."`
	Scale scaleFlags `cmd:"" help:"Measure clusters of relays with many hosts."`
	Plot  struct{}   `cmd:"" help:"Write the documents and pictures that follow from what is in docs/bench/."`
}

type partsFlags struct {
	Parts     []string      `arg:"" optional:"" help:"Parts to run: ${parts}. Default: all but ablate and phone20."`
	Rounds    int           `default:"5" help:"How often each figure is measured (${default}); a figure is the median."`
	JSON      string        `name:"json" placeholder:"FILE" type:"path" help:"Write the figures into this file too."`
	Record    bool          `help:"Keep the figures in docs/bench/, and write the documents and pictures that follow from them, as bench plot does. Parts that are run again take the place of the former."`
	Keep      string        `placeholder:"DIR" type:"path" help:"Keep logs of parts that fail here. Default: a new directory."`
	RelayFlag []string      `name:"relay-flag" sep:"none" placeholder:"FLAG" help:"One more flag of all relays, such as --relay-flag=--admin-listen=127.0.0.1:8485 for profiles. May be repeated."`
	AgentFlag []string      `name:"agent-flag" sep:"none" placeholder:"FLAG" help:"The same of all host-agents."`
	Host      string        `name:"host-command" placeholder:"PROGRAM" type:"path" help:"An AHP host of 0.9 that listens at 127.0.0.1:$$PORT, keeps its state in $$STATE, and whose provider mock knows 'stream N MS SIZE': the audience is measured with it too."`
	Slack     time.Duration `name:"timer-slack" default:"1ms" help:"Timer slack of all programs in a run, peers included, as the systemd units of the packages set it (${default}); 50us is the kernel's own."`
	Tiny      bool          `help:"Hardly any work, to see that everything runs. The figures mean nothing."`
}

type scaleFlags struct {
	Only string `placeholder:"REGEXP" help:"Run only what matches: ${measurements}."`
	scale.Sizes
}

func main() {
	asked, err := loadgen.Main(os.Args[1:], scale.Roles)
	if !asked {
		// Child processes inherit the limit for open files. Without permission to raise it,
		// the run has fewer hosts.
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: openFiles, Max: openFiles})
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// openFiles is the number of files and sockets that a process may have open.
const openFiles = 1 << 16

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var f flags
	command, err := f.parse(args, stdout, stderr)
	switch {
	case err != nil:
		return err
	case command == "scale":
		return f.Scale.run(ctx, stdout, stderr)
	case command == "plot":
		return publish(ctx, stderr)
	}
	return f.Parts.run(ctx, stdout, stderr)
}

// parse reads the arguments, and returns the name of the command.
func (f *flags) parse(args []string, stdout, stderr io.Writer) (command string, err error) {
	var measurements []string
	for _, m := range scale.Measurements {
		measurements = append(measurements, m.Name)
	}
	parser, err := kong.New(f, kong.Name("bench"), kong.Description("Measures relay and host-agent."), kong.Writers(stdout, stderr),
		kong.Vars{"parts": strings.Join(bench.Names(), ", "), "measurements": strings.Join(measurements, ", ")})
	if err != nil {
		return "", err
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return "", err
	}
	return parsed.Selected().Name, nil
}

func (f *scaleFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	only, err := regexp.Compile(f.Only)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	return scale.Run(ctx, stdout, only, &scale.Plan{Sizes: f.Sizes}, log)
}

// run measures parts, and keeps their figures. Its branches are steps that may fail, one
// after another.
func (f *partsFlags) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	if !f.Tiny {
		if err := procs.RestartWithSlack(f.Slack); err != nil {
			return err
		}
	}
	root, err := procs.Root(ctx)
	if err != nil {
		return err
	}
	record := bench.Record{Machine: bench.ThisMachine(), Commit: bench.ThisCommit(ctx, root), Date: time.Now().UTC().Truncate(time.Second)}
	former, err := bench.NewestRecord(recordsOf(root))
	if err != nil {
		return err
	}
	dir := f.Keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "ahp-bench-"); err != nil {
			return err
		}
	}
	programs := filepath.Join(dir, "programs")
	defer func() {
		_ = os.RemoveAll(programs)
		if f.Keep == "" && os.Remove(dir) != nil { // the directory still has files
			fmt.Fprintln(stderr, "logs of parts that failed:", dir)
		}
	}()
	if err := os.MkdirAll(programs, 0o700); err != nil {
		return err
	}
	fmt.Fprintln(stderr, "building")
	if err := procs.BuildTo(ctx, programs); err != nil {
		return err
	}
	parts, figures, failed := bench.Run(ctx, bench.Options{
		Programs: programs, Dir: dir, Rounds: f.Rounds, Tiny: f.Tiny, Progress: stderr, Former: former,
		RelayFlags: f.RelayFlag, AgentFlags: f.AgentFlag, HostCommand: f.Host,
	}, f.Parts...)
	if err := bench.WriteTable(stdout, record.Machine, figures); err != nil {
		return err
	}
	record.Add(parts, figures)
	if f.JSON != "" {
		failed = errors.Join(failed, record.Save(f.JSON))
	}
	if f.Record {
		if err := keep(&record, recordsOf(root), parts, figures); err != nil {
			return errors.Join(failed, err)
		}
		failed = errors.Join(failed, publish(ctx, stderr))
	}
	return failed
}

// check returns an error for flags that contradict each other.
func (f *partsFlags) check() error {
	if f.Rounds < 1 {
		return fmt.Errorf("--rounds is %d; want at least 1", f.Rounds)
	}
	if f.Record && f.Tiny {
		return errors.New("--record cannot be used with --tiny, whose figures mean nothing")
	}
	return bench.Check(f.Parts)
}

// recordsOf returns the directory with the records of all runs, below the module's.
func recordsOf(root string) string { return filepath.Join(root, "docs", "bench") }

// keep adds measured parts to the record for the same day, commit and machine, and
// writes it.
func keep(record *bench.Record, dir string, parts []bench.RecordedPart, figures []bench.Figure) error {
	file := filepath.Join(dir, record.Name())
	switch former, err := bench.ReadRecord(file); {
	case err == nil:
		former.Machine, former.Commit, former.Date = record.Machine, record.Commit, record.Date
		former.Add(parts, figures)
		return former.Save(file)
	case errors.Is(err, os.ErrNotExist):
		return record.Save(file)
	default:
		return err
	}
}

// writer is the command in the markers around the tables in documents.
const writer = "make bench"

// publish writes everything that is made from the newest record of each part: the
// tables, the figures in README, and the pictures.
func publish(ctx context.Context, stderr io.Writer) error {
	root, err := procs.Root(ctx)
	if err != nil {
		return err
	}
	kept := recordsOf(root)
	records, err := bench.NewestParts(kept)
	if err != nil {
		return err
	}
	if len(records) == 0 {
		return fmt.Errorf("%s has no record", kept)
	}
	var table bytes.Buffer
	var figures []bench.Figure
	for i, r := range records {
		if i > 0 {
			table.WriteString("\nParts that have not run since, at earlier commits: ")
		}
		fmt.Fprintf(&table, "Commit %s, %s. ", r.Commit, r.Date.Format(time.DateOnly))
		if err := bench.WriteTable(&table, r.Machine, r.Figures); err != nil {
			return err
		}
		figures = append(figures, r.Figures...)
	}
	if err := document.Replace(filepath.Join(root, "docs", "performance.md"), writer, table.Bytes()); err != nil {
		return err
	}
	lines, err := bench.ReadmeLines(figures)
	if err != nil {
		fmt.Fprintf(stderr, "the README stays as it is: %v\n", err)
	} else if err := document.Replace(filepath.Join(root, "README.md"), writer, lines); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", ".", kept) // test/bench/plot is a separate module
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(root, "test", "bench", "plot"), stderr, stderr
	return cmd.Run()
}
