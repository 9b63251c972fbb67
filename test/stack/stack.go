// Package stack runs a relay, a host-agent, a Tap and an AHP host for tests. All run in
// this process, over real sockets.
//
//	client ─ws─▶ relay ─NATS─▶ host-agent ─ws─▶ Tap ─ws─▶ host
//
// The Tap records the frames that the host sends on each connection. Clients must
// receive exactly these frames.
package stack

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/hostagent"
	"ahprelay/test/faultproxy"
	"ahprelay/test/procs"
)

// A stack has one tenant and one host, with these names.
const (
	Tenant = procs.Tenant
	Host   = procs.Host
)

// A Config describes a stack. A field's zero value means its default, except where a
// value is required.
type Config struct {
	DataDir  string // data directory of the relay; required
	Upstream string // URL of the AHP host; required

	Relay       gateway.RelayConfig // default for listeners: free ports
	Agent       hostagent.Config    // the stack sets Relays, Token and Upstream if they are empty
	NATSOverTCP bool                // the host-agent connects to NATS over TCP, not through the relay's /nats
	Log         *slog.Logger        // log of relay and host-agent; default: none
}

// A Stack is a running relay with a running host-agent, and a Tap in front of the host.
type Stack struct {
	Relay *gateway.Relay
	Tap   *Tap

	cfg       Config
	last      func(*Stack, *hostagent.Config) error
	stopAgent context.CancelFunc
	agent     sync.WaitGroup
	agentErr  error
}

// Start starts a stack. It waits until the host is online, or until ctx ends.
func Start(ctx context.Context, cfg Config) (*Stack, error) { return StartWith(ctx, cfg, nil) }

// StartWith is Start. When the relay runs, it calls last, which may edit the
// host-agent's configuration.
func StartWith(ctx context.Context, cfg Config, last func(*Stack, *hostagent.Config) error) (*Stack, error) {
	s, err := launch(ctx, cfg, last)
	if err != nil {
		return nil, err
	}
	if err := s.AwaitState(ctx, "online"); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Launch starts a stack without waiting for the host.
func Launch(ctx context.Context, cfg Config) (*Stack, error) { return launch(ctx, cfg, nil) }

func launch(ctx context.Context, cfg Config, last func(*Stack, *hostagent.Config) error) (_ *Stack, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Stack{cfg: cfg, last: last}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.Tap, err = NewTap(cfg.Upstream); err != nil {
		return nil, err
	}
	if err = s.StartRelay(ctx); err != nil {
		return nil, err
	}
	if err = s.StartAgent(); err != nil {
		return nil, err
	}
	return s, nil
}

// StartRelay starts the relay with the stack's configuration.
func (s *Stack) StartRelay(ctx context.Context) (err error) {
	cfg := s.cfg.Relay
	cfg.DataDir = s.cfg.DataDir
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.AdminListen == "" {
		cfg.AdminListen = "127.0.0.1:0"
	}
	if s.cfg.NATSOverTCP {
		cfg.NATSListen = "127.0.0.1:0"
	}
	if cfg.Gateway.Log == nil {
		cfg.Gateway.Log = s.cfg.Log
	}
	s.Relay, err = gateway.StartRelay(ctx, cfg)
	return err
}

// RestartRelay stops the relay in order, and starts it again at the same addresses. For
// this, the configuration must name the addresses in Listen.
func (s *Stack) RestartRelay(ctx context.Context) error {
	s.StopRelay(ctx)
	return s.StartRelay(ctx)
}

// StopRelay drains the relay and then stops it.
func (s *Stack) StopRelay(ctx context.Context) {
	drain, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s.Relay.Drain(drain, 0)
	s.Relay.Close()
}

// HostToken returns an enrolment token for a host in the stack's tenant.
func (s *Stack) HostToken(host string) (string, error) {
	return s.Relay.Keys().Tokens().IssueHost(auth.Enrolment{Tenant: Tenant, Host: host, Expires: time.Now().Add(time.Hour)})
}

// StartAgent starts the host-agent and returns at once.
func (s *Stack) StartAgent() error {
	token, err := s.HostToken(Host)
	if err != nil {
		return err
	}
	cfg := s.cfg.Agent
	cfg.Relays = []string{s.Relay.URL()}
	cfg.Token = func() (string, error) { return token, nil }
	if cfg.Upstream.URL == "" && len(cfg.Upstream.Command) == 0 {
		cfg.Upstream.URL = s.Tap.URL()
	}
	if s.cfg.NATSOverTCP {
		cfg.NATSURLs = []string{"nats://" + s.Relay.NATSAddr().String()}
	}
	if cfg.Log == nil {
		cfg.Log = s.cfg.Log
	}
	if s.last != nil {
		if err := s.last(s, &cfg); err != nil {
			return err
		}
	}
	agent, err := hostagent.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stopAgent = cancel
	s.agent.Go(func() { s.agentErr = agent.Run(ctx) })
	return nil
}

// StopAgent stops the host-agent, waits for its end, and returns the error of its Run.
func (s *Stack) StopAgent() error {
	if s.stopAgent != nil {
		s.stopAgent()
	}
	s.agent.Wait()
	return s.agentErr
}

// Close stops everything that the stack has started.
func (s *Stack) Close() {
	_ = s.StopAgent()
	if s.Relay != nil {
		s.Relay.Close()
	}
	if s.Tap != nil {
		s.Tap.Close()
	}
}

// Token returns a client token for all hosts with write access. change, if not nil,
// edits the token's authority.
func (s *Stack) Token(change func(*auth.Client)) (string, error) {
	c := auth.Client{
		Tenant: Tenant, Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite,
		Expires: time.Now().Add(time.Hour),
	}
	if change != nil {
		change(&c)
	}
	return s.Relay.Keys().Tokens().IssueClient(c)
}

// URL returns the URL at which clients reach a host through the relay.
func (s *Stack) URL(host string) string { return "ws" + s.Relay.URL()[len("http"):] + "/ahp/" + host }

// API returns the description of the stack's host from the relay's API.
func (s *Stack) API(ctx context.Context) (hostsapi.Info, error) {
	token, err := s.Token(nil)
	if err != nil {
		return hostsapi.Info{}, err
	}
	return procs.GetJSON[hostsapi.Info](ctx, s.Relay.URL()+"/api/hosts/"+Host, token)
}

// AwaitState waits until the relay's API reports a state for the host. It returns an
// error if the host-agent or ctx ends first.
func (s *Stack) AwaitState(ctx context.Context, state string) error {
	for {
		info, err := s.API(ctx)
		if err == nil && string(info.State) == state {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("host is not "+state+" but "+string(info.State)+": "+info.Reason), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// A Server serves an HTTP handler at a loopback address. A test can stop it and start
// it again at the same address, like a host that crashes and returns.
type Server struct {
	handler http.Handler
	address string
	http    *http.Server
	done    sync.WaitGroup
}

// Serve starts a Server at a free port.
func Serve(handler http.Handler) (*Server, error) {
	s := &Server{handler: handler, address: faultproxy.OwnAddress()}
	return s, s.Start()
}

// Restart starts a stopped server at its address, with a new handler.
func (s *Server) Restart(handler http.Handler) error {
	s.handler = handler
	return s.Start()
}

// Start makes a stopped server listen at its address again.
func (s *Server) Start() error {
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		return err
	}
	s.address = l.Addr().String()
	s.http = &http.Server{Handler: s.handler, ReadHeaderTimeout: 10 * time.Second}
	s.done.Go(func() { _ = s.http.Serve(l) })
	return nil
}

// URL returns the WebSocket URL of the server.
func (s *Server) URL() string { return "ws://" + s.address }

// Stop makes the server accept no more connections. Its open WebSockets stay open.
func (s *Server) Stop() {
	_ = s.http.Close()
	s.done.Wait()
}
