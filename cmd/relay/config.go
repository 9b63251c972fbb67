package main

import (
	"context"
	"fmt"
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
	serve := a.Serve
	if folder := filepath.Dir(serve.AuditFile); serve.AuditFile != "" { // the relay would create the file
		if _, err := os.Stat(folder); err != nil {
			return fmt.Errorf("--audit-file: %w", err)
		}
		serve.AuditFile = ""
	}
	cfg, end, err := serve.prepare(s)
	if err != nil {
		return err
	}
	defer end()
	if err := cfg.Check(ctx); err != nil {
		return err
	}
	for flag, file := range map[string]string{"--tls-cert": serve.TLSCert, "--tls-key": serve.TLSKey} {
		if _, err := os.Stat(file); file != "" && err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	_, err = fmt.Fprintf(s.out, "%s is in order\n", c.File)
	return err
}
