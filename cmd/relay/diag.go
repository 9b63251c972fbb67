package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"ahprelay/cmd/internal/cli"
)

type diagCmd struct {
	relayFlag
	Admin string `help:"The running relay's admin URL. Default: the address that the relay has written into --data-dir; with --relay, none." placeholder:"URL"`
	Log   string `help:"The relay's log file, whose last 4 MiB are included; - is standard input: journalctl -u ahp-relay | relay diag --log - …" placeholder:"FILE"`
	File  string `arg:"" help:"File to create, a .tar.gz." placeholder:"FILE"`
}

// pageTimeout bounds a request to the admin listener of a relay that may be overloaded.
const pageTimeout = 15 * time.Second

// maxLog bounds the included end of the log, in bytes.
const maxLog = 4 << 20

// Run collects all available parts. The file also notes missing parts: a relay without
// an answer may be the very fault.
func (c *diagCmd) Run(ctx context.Context, s *streams) (err error) {
	relay, err := c.locate()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("diag: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(c.File)
		}
	}()
	zip := gzip.NewWriter(f)
	d := &diagnosis{files: tar.NewWriter(zip), now: time.Now()}
	d.add("version.txt", c.version)
	d.add("check.txt", func() ([]byte, error) { return c.check(ctx) })
	d.add("data-dir.txt", c.listing)
	for _, name := range slices.Sorted(maps.Keys(diagPages)) {
		d.add(name, func() ([]byte, error) { return c.page(ctx, relay, diagPages[name]) })
	}
	if c.Log != "" {
		d.add("log.txt", func() ([]byte, error) { return c.logEnd(ctx) })
	}
	if err := errors.Join(d.err, d.files.Close(), zip.Close(), f.Sync()); err != nil {
		return fmt.Errorf("diag: %w", err)
	}
	for _, missing := range d.missing {
		fmt.Fprintln(s.err, "not there:", missing)
	}
	_, err = fmt.Fprintf(s.out, "%s is written, without secrets; its log may contain names of people, hosts and addresses\n", c.File)
	return err
}

// diagPages maps each name in the archive to the admin page that it holds.
var diagPages = map[string]string{
	"settings.json":    "/admin/settings",
	"metrics.txt":      "/metrics",
	"ready.txt":        "/readyz",
	"connections.json": "/admin/connections",
	"mcp.json":         "/admin/runtime/mcp",
	"goroutines.txt":   "/debug/pprof/goroutine?debug=2",
	"heap.txt":         "/debug/pprof/heap?debug=1",
}

// A diagnosis is an archive under construction.
type diagnosis struct {
	files   *tar.Writer
	now     time.Time
	missing []string
	err     error
}

// add puts a part into the archive, with secrets hidden, or the reason for its
// absence.
func (d *diagnosis) add(name string, get func() ([]byte, error)) {
	data, err := get()
	if err != nil {
		d.missing = append(d.missing, cli.Mask(name+": "+err.Error()))
		data = append(data, "\nincomplete: "+err.Error()+"\n"...)
	}
	data = []byte(cli.Mask(string(data)))
	head := &tar.Header{Name: "ahp-relay-diag/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: d.now, Typeflag: tar.TypeReg}
	if d.err == nil {
		d.err = d.files.WriteHeader(head)
	}
	if d.err == nil {
		_, d.err = d.files.Write(data)
	}
}

func (c *diagCmd) version() ([]byte, error) {
	return fmt.Appendf(nil, "relay diag %s, %s, %s/%s, %d processors, %s\n",
		cli.BuildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), time.Now().UTC().Format(time.RFC3339)), nil
}

func (c *diagCmd) check(ctx context.Context) ([]byte, error) {
	var out bytes.Buffer
	err := (&checkCmd{relayFlag: c.relayFlag}).Run(ctx, &streams{out: &out, err: &out})
	return out.Bytes(), err
}

// listing lists the files in the data directory, without their contents.
func (c *diagCmd) listing() ([]byte, error) {
	dir, err := filepath.EvalSymlinks(c.DataDir) // WalkDir follows no symbolic link
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a running relay has replaced it
		}
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		fmt.Fprintf(&b, "%s %10d %s %s\n", info.Mode(), info.Size(), info.ModTime().UTC().Format(time.RFC3339), name)
		return nil
	})
	return b.Bytes(), err
}

// page gets a page from the admin listener.
func (c *diagCmd) page(ctx context.Context, relay *runningRelay, path string) ([]byte, error) {
	base := c.Admin
	switch {
	case base == "" && relay.known() != nil:
		return nil, relay.known()
	case base == "" && relay.at.Admin == "":
		return nil, fmt.Errorf("the admin address of the relay at %s is unknown: give it with --admin", relay.at.URL)
	case base == "":
		base = relay.at.Admin
	}
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	status, body, err := send(ctx, http.DefaultClient, base, http.MethodGet, path, "", nil)
	if err == nil && status != http.StatusOK && path != "/readyz" {
		err = fmt.Errorf("HTTP %d", status)
	}
	return body, err
}

// logEnd returns the last maxLog bytes of the log, from the beginning of a line.
func (c *diagCmd) logEnd(ctx context.Context) ([]byte, error) {
	var in io.Reader
	if c.Log == "-" {
		in = cli.Stdin(ctx)
	} else {
		f, err := os.Open(c.Log)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	var end []byte
	for piece := make([]byte, 64<<10); ; {
		n, err := in.Read(piece)
		if end = append(end, piece[:n]...); len(end) > 2*maxLog {
			end = append(end[:0], end[len(end)-maxLog:]...)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return end, err
		}
	}
	if len(end) > maxLog {
		_, end, _ = bytes.Cut(end[len(end)-maxLog:], []byte("\n"))
	}
	return end, nil
}
