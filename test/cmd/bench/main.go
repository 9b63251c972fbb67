// Command bench measures relay and host-agent, each figure beside the same
// work done another way, and prints a table in Markdown.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"ahprelay/test/bench"
	"ahprelay/test/bench/loadgen"
	"ahprelay/test/procs"
)

type flags struct {
	Parts     []string `arg:"" optional:"" help:"Parts to run: ${parts}. Default: all."`
	Rounds    int      `default:"5" help:"How often each figure is measured (${default}); a figure is the median."`
	JSON      string   `name:"json" placeholder:"FILE" type:"path" help:"Write the figures into this file too."`
	Out       string   `placeholder:"FILE" type:"path" help:"Write the table into this Markdown file, between its lines that say so. For runs of all parts."`
	Keep      string   `placeholder:"DIR" type:"path" help:"Keep logs of parts that fail here. Default: a new directory."`
	RelayFlag []string `name:"relay-flag" sep:"none" placeholder:"FLAG" help:"One more flag of all relays, such as --relay-flag=--admin-listen=127.0.0.1:8485 for profiles. May be repeated."`
	AgentFlag []string `name:"agent-flag" sep:"none" placeholder:"FLAG" help:"The same of all host-agents."`
	Host      string   `name:"host-command" placeholder:"PROGRAM" type:"path" help:"An AHP host of 0.9 that listens at 127.0.0.1:$$PORT, keeps its state in $$STATE, and whose provider mock knows 'stream N MS SIZE': the audience is measured with it too."`
	Tiny      bool     `help:"Hardly any work, to see that everything runs. The figures mean nothing."`
}

func main() {
	asked, err := loadgen.Main(os.Args[1:])
	if !asked {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var f flags
	parser, err := kong.New(&f, kong.Name("bench"), kong.Description("Measures relay and host-agent beside other ways."),
		kong.Writers(stdout, stderr), kong.Vars{"parts": strings.Join(bench.Names(), ", ")})
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return err
	}
	if err := check(&f); err != nil {
		return err
	}
	machine := bench.ThisMachine()
	dir := f.Keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "ahp-bench-"); err != nil {
			return err
		}
	}
	programs := filepath.Join(dir, "programs")
	defer func() {
		_ = os.RemoveAll(programs)
		if f.Keep == "" && os.Remove(dir) != nil { // it is not empty
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
	figures, failed := bench.Run(ctx, bench.Options{
		Programs: programs, Dir: dir, Rounds: f.Rounds, Tiny: f.Tiny, Progress: stderr, RelayFlags: f.RelayFlag, AgentFlags: f.AgentFlag, HostCommand: f.Host,
	}, f.Parts...)
	var table bytes.Buffer
	if err := bench.WriteTable(&table, machine, figures); err != nil {
		return err
	}
	if _, err := stdout.Write(table.Bytes()); err != nil {
		return err
	}
	if f.Out != "" && failed == nil {
		if err := replaceTable(f.Out, table.Bytes()); err != nil {
			return err
		}
	}
	if f.JSON != "" {
		if err := writeJSON(f.JSON, figures); err != nil {
			return err
		}
	}
	return failed
}

// check finds what is wrong with flags before anything is built.
func check(f *flags) error {
	if f.Rounds < 1 {
		return fmt.Errorf("--rounds is %d; want at least 1", f.Rounds)
	}
	if f.Out != "" && (len(f.Parts) > 0 || f.Tiny) {
		return errors.New("--out is for runs of all parts")
	}
	for _, name := range f.Parts {
		if !slices.Contains(bench.Names(), name) {
			return fmt.Errorf("there is no part %q; there are %s", name, strings.Join(bench.Names(), ", "))
		}
	}
	return nil
}

// The lines between which a file has the table.
const (
	tableBegins = "<!-- make bench writes from here -->\n"
	tableEnds   = "<!-- to here -->\n"
)

func replaceTable(file string, table []byte) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(text, []byte(tableBegins))
	_, after, ended := bytes.Cut(rest, []byte(tableEnds))
	if !ok || !ended {
		return fmt.Errorf("%s has no lines %q and %q", file, strings.TrimSpace(tableBegins), strings.TrimSpace(tableEnds))
	}
	return os.WriteFile(file, slices.Concat(before, []byte(tableBegins), []byte("\n"), table, []byte("\n"), []byte(tableEnds), after), 0o644)
}

func writeJSON(name string, figures []bench.Figure) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := bench.WriteJSON(file, figures); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}
