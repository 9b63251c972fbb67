package procs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func (s *Site) clientTokenFile() string { return filepath.Join(s.cfg.Dir, "client.token") }
func (s *Site) control() string         { return filepath.Join(s.cfg.Dir, "control.sock") }

// connectArgs returns arguments for ahp-connect, with flags for its own state directory
// and for the relay.
func (s *Site) connectArgs(args ...string) []string {
	flags := []string{"--state-dir", filepath.Join(s.cfg.Dir, "connect"), "--key-file"}
	if args[0] != "token" {
		args = append(args, "--relay", "http://"+s.at(clientRelayPort), "--token-file", s.clientTokenFile())
	}
	return append(flags, args...)
}

// StartConnect starts ahp-connect, which reaches the relay through ClientRelay, and
// waits until it serves clients. If the host is sealed, the first call pairs
// ahp-connect with the host.
func (s *Site) StartConnect(ctx context.Context) error {
	if s.Connect == nil {
		token, err := s.Token()
		if err == nil {
			err = os.WriteFile(s.clientTokenFile(), []byte(token), 0o600)
		}
		if err == nil {
			s.connectToken, err = s.say(ctx, ConnectProgram, s.connectArgs("token", "load")...)
		}
		if err == nil && s.cfg.Sealed {
			err = s.pair(ctx)
		}
		if err != nil {
			return err
		}
		s.Connect = s.cfg.Process("", "ahp-connect", ConnectProgram, s.connectArgs("up", "--listen", s.at(connectPort))...)
	}
	return s.Connect.Launch(ctx, func() error { return Reachable(s.at(connectPort)) })
}

// AtConnect returns the URL at which clients reach the host through ahp-connect, and a
// token for it.
func (s *Site) AtConnect() (url, token string) {
	return "ws://" + s.at(connectPort) + "/ahp/" + Host, s.connectToken
}

// say runs a program until it ends, and returns its output.
func (s *Site) say(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.cfg.Programs, program), args...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// devices runs host-agent devices with arguments, and decodes the output.
func (s *Site) devices(ctx context.Context, into any, args ...string) error {
	text, err := s.say(ctx, AgentProgram, append([]string{"devices", "--control", s.control(), "--json"}, args...)...)
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

// pair pairs ahp-connect with the sealed host, and confirms ahp-connect's device at the
// host. It uses the commands that a person would use.
func (s *Site) pair(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	var shown struct{ Code string }
	if err := Until(ctx, retryTime, func() error { return s.devices(ctx, &shown, "--pair") }); err != nil {
		return err
	}
	paired := make(chan error, 1)
	go func() {
		_, err := s.say(ctx, ConnectProgram, s.connectArgs("pair", Host, shown.Code)...)
		paired <- err
	}()
	err := Until(ctx, retryTime, func() error {
		var list struct {
			Waiting []struct{ Fingerprint string }
		}
		if err := s.devices(ctx, &list); err != nil {
			return err
		}
		if len(list.Waiting) != 1 {
			return fmt.Errorf("%d devices wait for a confirmation; want ahp-connect", len(list.Waiting))
		}
		return s.devices(ctx, nil, "--confirm="+list.Waiting[0].Fingerprint)
	})
	if err != nil {
		cancel()
	}
	return errors.Join(err, <-paired)
}
