package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"ahprelay/gateway/audit"
)

type auditCmd struct {
	Verify auditVerifyCmd `cmd:"" help:"Verify the hash chain of audit lines: it shows changed or removed lines, at the end only with --last."`
	Export auditExportCmd `cmd:"" help:"Print audit lines as JSON or CSV."`
}

// auditFiles are the audit files of one relay, the oldest first.
type auditFiles struct {
	Files []string `arg:"" help:"A relay's audit files (--audit-file), the oldest first after rotation." type:"existingfile" placeholder:"FILE"`
}

// read calls visit for each entry. It returns the number of entries, and the hash of the last
// line.
func (f *auditFiles) read(visit func(audit.Entry) error) (n int, last string, err error) {
	for _, path := range f.Files {
		file, err := os.Open(path)
		if err != nil {
			return n, last, err
		}
		last, err = audit.Read(file, last, func(e audit.Entry) error {
			n++
			return visit(e)
		})
		if err = errors.Join(err, file.Close()); err != nil {
			return n, last, fmt.Errorf("%s: %w", path, err)
		}
	}
	return n, last, nil
}

type auditVerifyCmd struct {
	auditFiles
	Last string `help:"Hash that an earlier relay audit verify has printed: a line must still have it, so no line up to there was changed or removed." placeholder:"HASH"`
}

// Run verifies the chain, and prints its length and last hash.
func (c *auditVerifyCmd) Run(s *streams) error {
	known, lines := false, 0
	n, last, err := c.read(func(e audit.Entry) error {
		known = known || e.Hash() == c.Last
		if e.Fields != nil {
			lines++
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n > 0 && lines == 0 {
		return fmt.Errorf("%s: no audit line; want the file of relay serve --audit-file", strings.Join(c.Files, ", "))
	}
	if c.Last != "" && !known {
		return fmt.Errorf("no line has the hash %s; the last line's is %s: lines were changed, or removed at the end", c.Last, last)
	}
	_, err = fmt.Fprintf(s.out, "%d lines in an unbroken chain; the last hash is %s\n", n, last)
	return err
}

type auditExportCmd struct {
	auditFiles
	Since   time.Time `help:"Only lines since this time, such as 2026-11-22T08:00:00Z." placeholder:"TIME"`
	Until   time.Time `help:"Only lines before this time." placeholder:"TIME"`
	Event   []string  `help:"Only these events." placeholder:"EVENT"`
	Subject []string  `help:"Only these subjects." placeholder:"NAME"`
	Host    []string  `help:"Only these hosts." placeholder:"HOST"`
	Format  string    `help:"json (one object in each line) or csv." enum:"json,csv" default:"json"`
}

var auditColumns = []string{"time", "event", "tenant", "host", "subject", "token", "device", "conn", "address", "code", "reason", "detail", "count"}

// Run prints the selected lines, and stops where the chain is broken.
func (c *auditExportCmd) Run(s *streams) error {
	table := csv.NewWriter(s.out)
	if c.Format == "csv" {
		if err := table.Write(auditColumns); err != nil {
			return err
		}
	}
	_, _, err := c.read(func(e audit.Entry) error {
		if !c.wants(e) {
			return nil
		}
		return c.print(s.out, table, e)
	})
	table.Flush()
	return errors.Join(err, table.Error())
}

func (c *auditExportCmd) wants(e audit.Entry) bool {
	if e.Fields == nil {
		return false
	}
	text, _ := e.Fields["time"].(string)
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Before(c.Since) || !c.Until.IsZero() && !at.Before(c.Until) {
		return false
	}
	for name, values := range map[string][]string{"event": c.Event, "subject": c.Subject, "host": c.Host} {
		if len(values) > 0 && !slices.ContainsFunc(values, func(v string) bool { return e.Fields[name] == v }) {
			return false
		}
	}
	return true
}

func (c *auditExportCmd) print(out io.Writer, table *csv.Writer, e audit.Entry) error {
	if c.Format != "csv" {
		_, err := fmt.Fprintf(out, "%s\n", e.Raw)
		return err
	}
	row := make([]string, len(auditColumns))
	for i, name := range auditColumns {
		if v := e.Fields[name]; v != nil {
			row[i] = fmt.Sprint(v)
		}
	}
	return table.Write(row)
}
