package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

type configCheckCmd struct {
	File string `arg:"" help:"YAML file, as for --config." type:"path" placeholder:"FILE"`
}

// Run reads the file like relay serve, together with the environment, and opens neither
// ports nor the data directory.
func (c *configCheckCmd) Run(ctx context.Context, s *streams) error {
	var a app
	if parsed, err := a.program().Parse([]string{"serve", "--config", c.File}, s.out, s.err); parsed == nil || err != nil {
		return err
	}
	if err := a.Serve.check(ctx, s); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "%s is in order\n", c.File)
	return err
}

func (c *serveCmd) check(ctx context.Context, s *streams) error {
	if c.Witness {
		cfg := c.config(s)
		return cfg.CheckWitness()
	}
	if _, err := os.Stat(c.AuditFile); errors.Is(err, fs.ErrNotExist) { // a start creates the file, but not its directory
		if _, err := os.Stat(filepath.Dir(c.AuditFile)); err == nil {
			c.AuditFile = ""
		}
	}
	cfg, end, err := c.prepare(s)
	if err != nil {
		return err
	}
	defer end()
	return cfg.Check(ctx)
}
