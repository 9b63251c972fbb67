package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"syscall"
	"time"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/auth"
	"ahprelay/cmd/internal/agents"
	"ahprelay/cmd/internal/cli"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/internal/clock"
)

// The demo's host.
const (
	demoTenant = "default"
	demoHost   = "demo"
	demoTTL    = 24 * time.Hour
)

type demoCmd struct {
	Listen  string `help:"Public listener's address; if it is in use, a free port." default:"${listen}" placeholder:"HOST:PORT"`
	LAN     bool   `help:"Listen for phones and other machines on the same network, without TLS: everyone on that network can read the traffic." name:"lan"`
	Verbose bool   `help:"Log relay and host-agent." short:"v"`
	Agent   string `help:"Use a real coding agent in the current folder in place of the scripted agent: claude, codex, gemini, opencode or any other name that host-agent agents lists." placeholder:"NAME"`
}

// Run runs the whole path in one process: client (the console, in a browser) – relay –
// NATS – host-agent – demo host. All addresses are loopback addresses, except with --lan.
func (c *demoCmd) Run(ctx context.Context, s *streams) error {
	log := s.log
	if !c.Verbose {
		log = (&cli.Common{LogFormat: s.logs.LogFormat, LogLevel: max(s.logs.LogLevel, slog.LevelWarn)}).Logger(s.err)
	}
	if c.LAN {
		if err := c.showOnLAN(); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "ahp-relay-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w; set TMPDIR to a writable directory", err)
	}
	defer os.RemoveAll(dir)
	relay, err := c.startRelay(ctx, dir, log)
	if err != nil {
		return err
	}
	defer relay.Close()
	host, err := c.startHost(log)
	if err != nil {
		return err
	}
	defer host.stop()
	agent, err := newDemoAgent(relay, host.upstream, log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	failed := make(chan error, 1)
	wg.Go(func() { failed <- agent.Run(ctx) })
	awaitDemoHost(ctx, relay)
	if err := c.welcome(s.out, relay, host.place); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// startRelay starts the relay on the requested address or, if that is in use, on a free
// port.
func (c *demoCmd) startRelay(ctx context.Context, dir string, log *slog.Logger) (*gateway.Relay, error) {
	cfg := gateway.RelayConfig{
		DataDir: dir, Listen: c.Listen, AdminListen: "127.0.0.1:0", ListenPlain: c.LAN,
		Gateway: gateway.Config{
			Version: cli.BuildVersion(), Log: log,
			CanvasDomain: "http://localhost:0", // browsers resolve all names below it to this machine
		},
	}
	relay, err := gateway.StartRelay(ctx, cfg)
	if errors.Is(err, syscall.EADDRINUSE) {
		host, _, _ := net.SplitHostPort(c.Listen)
		cfg.Listen = net.JoinHostPort(host, "0")
		return gateway.StartRelay(ctx, cfg)
	}
	return relay, err
}

type runningHost struct {
	upstream hostagent.Upstream
	stop     func()
	place    url.Values // the console opens it first; nil: the list of sessions
}

// startHost starts the scripted host, or a host with the chosen agent.
func (c *demoCmd) startHost(log *slog.Logger) (*runningHost, error) {
	if c.Agent == "" {
		return startDemoHost(log)
	}
	if c.LAN {
		return nil, errors.New("--agent and --lan exclude each other: on the network, a reader of the traffic could use the agent")
	}
	flags := agents.Flags{Agent: []string{c.Agent}, Folder: []string{"."}, Bypass: true}
	programs, err := flags.Programs(nil)
	if err != nil {
		return nil, err
	}
	host, err := agents.Start(agents.Config{Flags: flags, Programs: programs, Version: cli.BuildVersion(), Log: log})
	if err != nil {
		return nil, err
	}
	return &runningHost{upstream: hostagent.Upstream{Local: host.Local}, stop: func() { _ = host.Close() }}, nil
}

// startDemoHost starts the scripted host on a loopback address.
func startDemoHost(log *slog.Logger) (*runningHost, error) {
	host, err := scripted.New(agenthost.Config{Protocol: agenthost.NewestProtocol, Logger: log}, scripted.Demo{})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	server := &http.Server{Handler: host, ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	session, canvas := scripted.ShowDemo(host)
	return &runningHost{
		upstream: hostagent.Upstream{URL: "ws://" + l.Addr().String()},
		place:    url.Values{"session": {session}, "side": {"canvas"}, "of": {canvas}},
		stop: func() {
			_ = server.Close()
			_ = host.Close()
			wg.Wait()
		},
	}, nil
}

func newDemoAgent(relay *gateway.Relay, upstream hostagent.Upstream, log *slog.Logger) (*hostagent.Agent, error) {
	token, err := relay.Keys().Tokens().IssueHost(auth.Enrolment{Tenant: demoTenant, Host: demoHost, Expires: time.Now().Add(demoTTL)})
	if err != nil {
		return nil, err
	}
	return hostagent.New(hostagent.Config{
		Plain:  true, // the relay runs in this process
		Relays: []string{relay.URL()}, Token: func() (string, error) { return token, nil },
		Upstream: upstream, Version: cli.BuildVersion(), Log: log,
		Notify: hostagent.NotifyNeeds, // the console shows the open questions
	})
}

// demoPatience bounds the wait for the demo's host.
const demoPatience = 5 * time.Second

// awaitDemoHost returns when the relay knows the demo's host, or after demoPatience. Until
// then, clients get the error that there is no such host.
func awaitDemoHost(ctx context.Context, relay *gateway.Relay) {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	asks := &runningRelay{keys: relay.Keys(), at: gateway.Addresses{URL: relay.URL()}, client: http.DefaultClient}
	for ctx.Err() == nil {
		if known, _, err := asks.hosts(ctx, demoTenant); err == nil && len(known) > 0 {
			return
		}
		clock.Sleep(ctx, 20*time.Millisecond)
	}
}

func demoToken(tokens auth.Tokens) (string, error) {
	return tokens.IssueClient(auth.Client{
		Tenant: demoTenant, Subject: "demo visitor", Hosts: []string{demoHost}, Access: auth.AccessWrite,
		Expires: time.Now().Add(demoTTL),
	})
}

// welcome prints the addresses of the console, opened at a place, and of the host.
func (c *demoCmd) welcome(out io.Writer, relay *gateway.Relay, place url.Values) error {
	token, err := demoToken(relay.Keys().Tokens())
	if err != nil {
		return err
	}
	at := url.Values{"host": {demoHost}, "token": {token}}
	maps.Copy(at, place)
	console := relay.URL() + "/#" + at.Encode()
	ws := "ws" + relay.URL()[len("http"):] + "/ahp/" + demoHost
	if _, err = fmt.Fprintf(out, `A relay, NATS, a host-agent and a demo host are running in this process.

Open the console:
  %s

Or point any AHP client at it:
  %s?access_token=%s

Metrics and connections: %s/metrics, %s/admin/connections?details=1
Ctrl-C ends the demo; nothing of it is kept.
`, console, ws, token, relay.AdminURL(), relay.AdminURL()); err != nil || !c.LAN {
		return err
	}
	if _, err := fmt.Fprintln(out, "On a phone in the same network, open the console's address, or scan this code:"); err != nil {
		return err
	}
	return cli.PrintQR(out, out, shortAddress(relay.URL(), token))
}

// shortAddress returns the console's address without the host's name: the token permits
// one host only. The address's QR code fits 80 columns.
func shortAddress(relay, token string) string {
	return relay + "/#" + url.Values{"token": {token}}.Encode()
}

// showOnLAN makes the demo listen on this machine's network address, unless --listen names
// one.
func (c *demoCmd) showOnLAN() error {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", c.Listen, err)
	}
	if at, err := netip.ParseAddr(host); err == nil && !at.IsLoopback() && !at.IsUnspecified() {
		return nil // the user chose one
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	at, ok := lanAddress(addresses)
	if !ok {
		return errors.New("--lan: this machine has no network address; give one with --listen")
	}
	c.Listen = net.JoinHostPort(at.String(), port)
	return nil
}

// lanAddress returns the address at which the network reaches this machine. Private
// and IPv4 addresses come first.
func lanAddress(addresses []net.Addr) (best netip.Addr, ok bool) {
	rank := func(a netip.Addr) int {
		switch {
		case !a.IsValid() || !a.IsGlobalUnicast():
			return 0
		case a.Is4() && a.IsPrivate():
			return 4
		case a.Is4():
			return 3
		case a.IsPrivate():
			return 2
		}
		return 1
	}
	for _, address := range addresses {
		p, err := netip.ParsePrefix(address.String())
		if a := p.Addr().Unmap(); err == nil && rank(a) > rank(best) {
			best, ok = a, true
		}
	}
	return best, ok
}
