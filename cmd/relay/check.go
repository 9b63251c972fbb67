package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"ahprelay/broker/registry"
	"ahprelay/gateway/canvas"
)

type checkCmd struct {
	dataFlag
	relayFlag
	CanvasDomain string `help:"Also check this canvas domain (see relay serve): that it leads to a relay, and that it is separate from the domain of --relay." placeholder:"DOMAIN" env:"-"` // a health check is about the relay alone
}

// Run checks one step after the other, and advises on the first fault.
func (c *checkCmd) Run(ctx context.Context, s *streams) error {
	if warning := c.warnOfDomain(); warning != "" {
		fmt.Fprintln(s.out, "warn", warning)
	}
	steps := []func(context.Context) (string, error){c.checkKeys, c.checkRelay, c.checkHosts}
	if c.CanvasDomain != "" {
		steps = append(steps, c.checkCanvases)
	}
	for _, step := range steps {
		said, err := step(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(s.out, "ok ", said)
	}
	return nil
}

// warnOfDomain returns a warning about the relation of canvas domain and relay domain,
// or "".
func (c *checkCmd) warnOfDomain() string {
	at, err := url.Parse(c.Relay)
	if err != nil || c.CanvasDomain == "" {
		return ""
	}
	origin, err := canvas.ParseDomain(c.CanvasDomain)
	if err != nil {
		return "" // checkCanvases reports it
	}
	return origin.Shares(at.Hostname())
}

func (c *checkCmd) checkKeys(context.Context) (string, error) {
	if _, err := c.keys(); err != nil {
		return "", err
	}
	return "keys in " + c.DataDir, nil
}

func (c *checkCmd) checkRelay(ctx context.Context) (string, error) {
	status, body, err := c.get(ctx, "/readyz", "")
	switch {
	case err != nil:
		return "", err
	case status == http.StatusServiceUnavailable:
		return "", fmt.Errorf("the relay at %s runs but is not ready: %s", c.Relay, body)
	case status != http.StatusOK:
		return "", fmt.Errorf("the server at %s is not a relay (HTTP %d)", c.Relay, status)
	}
	return "relay at " + c.Relay + ": " + strings.TrimSpace(string(body)), nil
}

func (c *checkCmd) checkCanvases(ctx context.Context) (string, error) {
	if err := canvas.CheckDomain(ctx, c.CanvasDomain); err != nil {
		return "", err
	}
	return "canvases at " + c.CanvasDomain, nil
}

func (c *checkCmd) checkHosts(ctx context.Context) (string, error) {
	hosts, _, err := c.list(ctx, c.dataFlag)
	if err != nil {
		return "", err
	}
	online := 0
	for _, h := range hosts {
		if h.State == registry.Online {
			online++
		}
	}
	return fmt.Sprintf("%d hosts enrolled, %d online", len(hosts), online), nil
}
