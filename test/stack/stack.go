// Package stack runs the whole path for tests, in one process and over real
// sockets: a relay, a host-agent, a wire tap and an AHP host.
//
//	client ─ws─▶ relay ─NATS─▶ host-agent ─ws─▶ Tap ─ws─▶ host
//
// The Tap keeps the frames that the host sent on each connection. Clients must
// receive exactly these.
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

// Names that the stack uses.
const (
	Tenant = procs.Tenant
	Host   = procs.Host
)

// A Config describes a stack. A field's zero value means its default.
type Config struct {
	DataDir  string // required
	Upstream string // required; URL of the AHP host

	Relay       gateway.RelayConfig // listeners default to free ports
	Agent       hostagent.Config    // Relays, Token and Upstream are filled in
	NATSOverTCP bool                // the host-agent connects over TCP instead of /nats
	Log         *slog.Logger        // default: none
}

// A Stack is a running relay with a host-agent.
type Stack struct {
	Relay *gateway.Relay
	Tap   *Tap

	cfg       Config
	last      func(*Stack, *hostagent.Config) error
	stopAgent context.CancelFunc
	agent     sync.WaitGroup
	agentErr  error
}

// Start starts a stack and returns when the host is online, or ctx ends.
func Start(ctx context.Context, cfg Config) (*Stack, error) { return StartWith(ctx, cfg, nil) }

// StartWith is Start. It lets the caller change the host-agent's configuration once the
// relay is running.
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

// Launch starts a stack and does not wait for the host.
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

// StartRelay starts the relay.
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

// RestartRelay stops the relay gracefully, and starts it again at the same addresses. Config's
// Listen must name them.
func (s *Stack) RestartRelay(ctx context.Context) error {
	s.StopRelay(ctx)
	return s.StartRelay(ctx)
}

// StopRelay stops the relay gracefully.
func (s *Stack) StopRelay(ctx context.Context) {
	drain, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s.Relay.Drain(drain, 0)
	s.Relay.Close()
}

// HostToken returns an enrolment token for a host.
func (s *Stack) HostToken(host string) (string, error) {
	return s.Relay.Keys().Tokens().IssueHost(auth.Enrolment{Tenant: Tenant, Host: host, Expires: time.Now().Add(time.Hour)})
}

// StartAgent starts the host-agent, in the background.
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

// StopAgent stops the host-agent and returns why it ended.
func (s *Stack) StopAgent() error {
	if s.stopAgent != nil {
		s.stopAgent()
	}
	s.agent.Wait()
	return s.agentErr
}

// Close ends everything that runs.
func (s *Stack) Close() {
	_ = s.StopAgent()
	if s.Relay != nil {
		s.Relay.Close()
	}
	if s.Tap != nil {
		s.Tap.Close()
	}
}

// Token returns a client token for all hosts. change, if not nil, changes the client's
// authority.
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

// URL returns where clients reach a host.
func (s *Stack) URL(host string) string { return "ws" + s.Relay.URL()[len("http"):] + "/ahp/" + host }

// API returns the relay's description of the host.
func (s *Stack) API(ctx context.Context) (hostsapi.Info, error) {
	token, err := s.Token(nil)
	if err != nil {
		return hostsapi.Info{}, err
	}
	return procs.GetJSON[hostsapi.Info](ctx, s.Relay.URL()+"/api/hosts/"+Host, token)
}

// AwaitState returns when the API reports the given host state, when the host-agent
// ends, or when ctx ends.
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

// A Server is an HTTP handler on a loopback address. It can be stopped and started again at
// the same address, like a host that crashes and returns.
type Server struct {
	handler http.Handler
	address string
	http    *http.Server
	done    sync.WaitGroup
}

// Serve starts a handler on a free loopback port.
func Serve(handler http.Handler) (*Server, error) {
	s := &Server{handler: handler, address: faultproxy.OwnAddress()}
	return s, s.Start()
}

// Restart serves a new handler on the same address.
func (s *Server) Restart(handler http.Handler) error {
	s.handler = handler
	return s.Start()
}

// Start listens on the previous address.
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

// Stop accepts no more connections. WebSockets stay open.
func (s *Server) Stop() {
	_ = s.http.Close()
	s.done.Wait()
}
