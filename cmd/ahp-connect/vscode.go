package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"ahprelay/internal/connect"
)

type vscodeCmd struct {
	Host     []string `arg:"" optional:"" help:"The hosts to add." placeholder:"HOST"`
	Remove   bool     `help:"Remove the entries of these hosts, or of all hosts, and revoke their local tokens."`
	Settings string   `help:"VS Code's settings.json. Default: the one of your user in VS Code." type:"path" placeholder:"FILE"`
}

func (c *vscodeCmd) Run(ctx context.Context, s *streams) error {
	if c.Settings == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return err
		}
		c.Settings = filepath.Join(dir, "Code", "User", "settings.json")
	}
	listen, err := s.home.Address()
	switch {
	case err != nil:
		return err
	case strings.HasPrefix(listen, "unix:"):
		return errors.New("ahp-connect up listens on a socket, which VS Code cannot open: start it with --listen 127.0.0.1:8486")
	case len(c.Host) == 0 && !c.Remove:
		return errors.New("name the hosts to add: ahp-connect hosts lists them")
	}
	settings := &connect.VSCode{File: c.Settings, Listen: listen, Tokens: s.home.Tokens()}
	if c.Remove {
		return settings.Remove(c.Host)
	}
	relays, err := s.home.Relays()
	if err != nil {
		return err
	}
	for _, host := range c.Host {
		if err := relays.CheckHost(ctx, "", host); err != nil {
			return err
		}
	}
	if err := settings.Add(c.Host); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "Written to %s, which is now readable by you alone. Keep ahp-connect up running (ahp-connect install).\n", c.Settings)
	return err
}
