// Command faults breaks networks and processes between clients and their host, one
// after another and under load. It prints the effects at the clients, and exits with 1
// if a promise is broken.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"ahprelay/test/document"
	"ahprelay/test/faultproxy"
	"ahprelay/test/faults"
	"ahprelay/test/procs"
)

type flags struct {
	Only     string `placeholder:"REGEXP" help:"Run only the rows whose name matches."`
	Parallel int    `default:"5" help:"Rows at a time (${default})."`
	Clients  int    `default:"5" help:"Clients on the chat (${default})."`
	Patience int    `default:"1" help:"How many times longer than promised things may take (${default}), on machines that are busy otherwise."`
	Out      string `placeholder:"FILE" type:"path" help:"Write the table into this Markdown file, between its marks."`
	Keep     string `placeholder:"DIR" type:"path" help:"Keep logs and records of all processes here. Default: only of rows that broke a promise, in a new directory."`
	List     bool   `help:"Print the names of the rows."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

var errBroken = errors.New("promises are broken")

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var f flags
	parser, err := kong.New(&f, kong.Name("faults"), kong.Description("Breaks networks and processes between AHP clients and their host."), kong.Writers(stdout, stderr))
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return err
	}
	rows, err := pick(f.Only)
	if err != nil {
		return err
	}
	if f.List {
		for _, row := range rows {
			fmt.Fprintln(stdout, row.Name())
		}
		return nil
	}
	if _, err := procs.Build(ctx); err != nil { // programs for all rows with a network
		return err
	}
	if err := faultproxy.OwnNetwork(); err != nil {
		fmt.Fprintln(stderr, "no network of its own:", err)
	}
	rows = slices.DeleteFunc(rows, func(r faults.Row) bool {
		why := r.Skip()
		if why != nil {
			fmt.Fprintf(stderr, "left out: %s: %v\n", r.Name(), why)
		}
		return why != nil
	})
	results, err := runAll(ctx, f, rows, stderr)
	if err != nil {
		return err
	}
	var table bytes.Buffer
	if err := faults.WriteTable(&table, results); err != nil {
		return err
	}
	if f.Out == "" {
		if _, err := stdout.Write(table.Bytes()); err != nil {
			return err
		}
	} else if err := document.Replace(f.Out, "make faults", table.Bytes()); err != nil {
		return err
	}
	for _, r := range results {
		if len(r.Broken) > 0 {
			return errBroken
		}
	}
	return nil
}

func pick(only string) (rows []faults.Row, err error) {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	for _, row := range faults.Rows() {
		if pattern.MatchString(row.Name()) {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("--only %s matches no row", only)
	}
	return rows, nil
}

// runAll runs rows, several at a time. It removes the directory of each row that has
// kept its promises.
func runAll(ctx context.Context, f flags, rows []faults.Row, progress io.Writer) ([]faults.Result, error) {
	dir := f.Keep
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "ahp-faults-"); err != nil {
			return nil, err
		}
	}
	programs, err := os.MkdirTemp("", "ahp-faults-programs-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(programs)
	fmt.Fprintln(progress, "building")
	if err := procs.BuildTo(ctx, programs); err != nil {
		return nil, err
	}
	began := time.Now()
	results := make([]faults.Result, len(rows))
	next := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex // held while a line is printed
	done := 0
	for range max(1, f.Parallel) {
		wg.Go(func() {
			for i := range next {
				results[i] = faults.Run(ctx, rows[i], faults.Options{Programs: programs, Dir: dir, Clients: f.Clients, Patience: f.Patience, Keep: f.Keep != ""})
				mu.Lock()
				done++
				fmt.Fprintf(progress, "%3.0fs %d/%d %s\n    %s\n", time.Since(began).Seconds(), done, len(rows), rows[i].Name(), results[i])
				mu.Unlock()
			}
		})
	}
	for i := range rows {
		next <- i
	}
	close(next)
	wg.Wait()
	if f.Keep == "" && os.Remove(dir) != nil { // the directory still has files
		fmt.Fprintln(progress, "logs and records of rows that broke a promise:", dir)
	}
	return results, ctx.Err()
}
