package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"ahprelay/broker/registry"
	"ahprelay/gateway"
	"ahprelay/gateway/canvas"
)

type checkCmd struct {
	relayFlag
	CanvasDomain string `help:"Also check this canvas domain (see relay serve): that it leads to a relay, and that it is separate from the relay's own domain." placeholder:"DOMAIN" env:"-"` // a container's health check has the environment of relay serve, but is about the relay alone
}

// Run checks one step after the other, and advises on the first fault.
func (c *checkCmd) Run(ctx context.Context, s *streams) error {
	if _, err := c.keys(); err != nil {
		return err
	}
	fmt.Fprintln(s.out, "ok  keys in", c.DataDir)
	relay, err := c.running()
	if err != nil {
		return err
	}
	if warning := c.warnOfDomain(relay.at.Public); warning != "" {
		fmt.Fprintln(s.out, "warn", warning)
	}
	steps := []func(context.Context) (string, error){relay.checkReady, func(ctx context.Context) (string, error) { return relay.checkHosts(ctx, c.Tenant) }}
	if c.CanvasDomain != "" {
		steps = append(steps, c.checkCanvases)
	}
	for _, step := range steps {
		said, err := step(ctx)
		if err != nil {
			return err
		}
		mark := "ok "
		if strings.Contains(said, gateway.Degraded) {
			mark = "warn"
		}
		fmt.Fprintln(s.out, mark, said)
	}
	return nil
}

// warnOfDomain returns a warning if canvases and relay share a registrable domain, and
// otherwise "".
func (c *checkCmd) warnOfDomain(relay string) string {
	at, err := url.Parse(relay)
	if err != nil || c.CanvasDomain == "" {
		return ""
	}
	origin, err := canvas.ParseDomain(c.CanvasDomain)
	if err != nil {
		return "" // checkCanvases reports it
	}
	return origin.Shares(at.Hostname())
}

func (r *runningRelay) checkReady(ctx context.Context) (string, error) {
	status, body, err := r.send(ctx, http.MethodGet, "/readyz", "", nil)
	switch {
	case err != nil:
		return "", err
	case status == http.StatusServiceUnavailable:
		return "", fmt.Errorf("the relay at %s runs but is not ready: %s", r.at.URL, body)
	case status != http.StatusOK:
		return "", r.notRelay(status)
	}
	return "relay at " + r.at.URL + ": " + strings.TrimSpace(string(body)), nil
}

func (c *checkCmd) checkCanvases(ctx context.Context) (string, error) {
	if err := canvas.CheckDomain(ctx, c.CanvasDomain); err != nil {
		return "", err
	}
	return "canvases at " + c.CanvasDomain, nil
}

func (r *runningRelay) checkHosts(ctx context.Context, tenant string) (string, error) {
	hosts, _, err := r.hosts(ctx, tenant)
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
