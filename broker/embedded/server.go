package embedded

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/link"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
)

// Settings of the embedded NATS server.
const (
	// The server cuts a client that has been silent for four ping intervals at
	// the latest (it looks once an interval, and forgives two pings): 8 s.
	maxPingsOut = 2

	// quietPing is the interval of a server that nobody reaches over the network but
	// through a relay's port, which listens for itself whether host-agents are there: to ask
	// each of a thousand that say nothing every 2 s would cost a tenth of a processor.
	quietPing = 2 * time.Minute

	// writeDeadline: the server cuts a client that accepted not one byte in
	// this time. One that accepts some, however slowly, is left alone.
	writeDeadline = 5 * time.Second

	// maxPending bounds what the server queues for one client, in bytes: two
	// link windows. Above three quarters of it messages for that client are
	// dropped, above all of it the client is cut.
	maxPending = 32 << 20

	// maxServerPayload is the longest NATS message, in bytes: the default, and
	// more than a link packet needs.
	maxServerPayload = 1 << 20

	// maxStoreMemory and maxStoreDisk bound what JetStream takes: a registry of
	// 100,000 hosts is 100 MB.
	maxStoreMemory = 256 << 20
	maxStoreDisk   = 16 << 30

	// syncInterval is how much of what was written a crash of the machine may
	// cost: hosts come again, and revocations are in a file of the relay's.
	syncInterval = time.Second

	startTimeout = 10 * time.Second
	startPoll    = 50 * time.Millisecond
)

// A Config says how to run a [Server].
type Config struct {
	Keys    *auth.Keys                      // required; whose users the server accepts
	Name    string                          // unique in a cluster; default: random
	Listen  string                          // host:port for NATS over TCP, port 0 picks one; default: connections within the process only
	TLS     *tls.Config                     // for the TCP listener; default: none
	Tenants map[string]map[string]time.Time // accounts known from the start, with the users that are refused
	Wait    time.Duration                   // how long users of accounts that are not known wait for Resolve to be called; default: they do not
	Store   string                          // directory for JetStream; default: none
	Cluster Cluster                         // servers that this one exchanges messages with; default: none
	Log     *slog.Logger                    // default: none

	Gateways Gateways // to clusters of other regions; default: none
}

// A Server is a NATS server within this process. It accepts users signed with
// its keys, and has no mode without authentication.
type Server struct {
	nats     *server.Server
	keys     *auth.Keys
	accounts *resolver // the accounts that it accepts users of
	made     sync.Map  // the accounts that were set once: *server.Account by name
	tenants  sync.Map  // account to the tenant whose it is
	port     *port     // nil: none that is for others
	turns    *turns    // of host-agents
	store    string    // directory of JetStream; "": none

	close sync.Once
}

// Start starts a NATS server and returns when it accepts connections.
// The errors name the address or directory that it cannot use.
func Start(cfg Config) (_ *Server, err error) {
	accounts := newResolver(cfg.Wait)
	opts, err := serverOptions(cfg, accounts)
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	var p *port
	if cfg.Listen != "" {
		if p, err = listen(cfg); err != nil {
			return nil, fmt.Errorf("NATS server: %w", err)
		}
		defer func() {
			if err != nil {
				p.close()
			}
		}()
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	log := newServerLog(cfg.Log)
	ns.SetLoggerV2(log, false, false, false)
	s := &Server{nats: ns, keys: cfg.Keys, accounts: accounts, port: p, turns: newTurns(), store: cfg.Store}
	for tenant, revoked := range cfg.Tenants {
		if err := s.SetTenant(tenant, revoked); err != nil {
			return nil, fmt.Errorf("NATS server: %w", err)
		}
	}
	ns.Start()
	if err := awaitReady(ns, log); err != nil {
		s.Close()
		return nil, fmt.Errorf("NATS server%s: %w", cfg.Cluster.listens(), err)
	}
	if cfg.Store != "" { // what it has is read when the account is known
		if _, err := ns.LookupAccount(cfg.Keys.RelaysAccount()); err != nil {
			s.Close()
			return nil, fmt.Errorf("NATS server: account of relays: %w", err)
		}
	}
	if s.port != nil {
		s.port.open(s)
	}
	return s, nil
}

// awaitReady returns when the server's listeners are there, or cannot be.
func awaitReady(ns *server.Server, log *serverLog) error {
	for until := time.Now().Add(startTimeout); ; {
		ready := ns.ReadyForConnections(startPoll)
		if fatal := log.fatal(); fatal != "" {
			return errors.New(fatal)
		}
		if ready {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("not ready after %v", startTimeout)
		}
	}
}

// Close has other servers of the cluster lead what this one does, ends all connections and
// returns when nothing of the server is left.
func (s *Server) Close() {
	s.close.Do(func() {
		s.accounts.end()
		s.handOver()
		if s.port != nil {
			s.port.close()
		}
		s.nats.Shutdown()
		s.nats.WaitForShutdown()
	})
}

// InProcessConn opens a connection as from the network, with the NATS protocol
// in plain on it. The server does not learn an address: log the remote one
// where it is known.
func (s *Server) InProcessConn() (net.Conn, error) {
	c, err := s.nats.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("NATS server: connect in process: %w", err)
	}
	return c, nil
}

// Addr returns the address of the TCP listener, nil if there is none.
func (s *Server) Addr() net.Addr {
	if s.port == nil {
		return nil
	}
	return s.port.Addr()
}

// Name returns the server's name in its cluster.
func (s *Server) Name() string { return s.nats.Name() }

func serverOptions(cfg Config, accounts *resolver) (*server.Options, error) {
	if cfg.Keys == nil {
		return nil, errors.New("no Keys given")
	}
	if cfg.Name == "" {
		cfg.Name = "relay-" + link.NewInstance()
	}
	opts := &server.Options{
		ServerName: cfg.Name,
		NoSigs:     true, // signals are the program's
		DontListen: true, // see port

		PingInterval:  quietPing,
		MaxPingsOut:   maxPingsOut,
		AuthTimeout:   broker.DialTimeout.Seconds(),
		WriteDeadline: writeDeadline,
		WriteTimeout:  server.WriteTimeoutPolicyRetry, // cuts those only that took nothing at all
		MaxPayload:    maxServerPayload,
		MaxPending:    maxPending,

		// One reader that stalls must not slow down everybody who sends to it.
		// It loses messages instead until it reads again or is cut, and links
		// repair that: they number what they send.
		NoFastProducerStall: true,
	}
	if cfg.Listen != "" || cfg.Gateways.Listen != "" {
		opts.PingInterval = broker.PingInterval
	}
	if cfg.Store != "" {
		opts.JetStream, opts.StoreDir = true, cfg.Store
		opts.JetStreamMaxMemory, opts.JetStreamMaxStore = maxStoreMemory, maxStoreDisk
		opts.SyncInterval = syncInterval
	}
	if err := setGateways(opts, cfg); err != nil {
		return nil, err
	}
	if err := setCluster(opts, cfg); err != nil {
		return nil, err
	}
	return opts, setTrust(opts, cfg.Keys, accounts)
}

// listenAddress splits host:port, as the NATS server wants it.
func listenAddress(what, address string) (host string, port int, err error) {
	host, digits, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("bad %s %q: want host:port", what, address)
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("bad %s %q: port is no number up to 65535", what, address)
	}
	if n == 0 {
		return host, server.RANDOM_PORT, nil
	}
	return host, int(n), nil
}

// setTrust puts the server into operator mode, with the accounts that no
// host-agent can be in.
func setTrust(opts *server.Options, keys *auth.Keys, accounts *resolver) error {
	operators, err := keys.OperatorJWTs(auth.Embedded)
	if err != nil {
		return err
	}
	for _, text := range operators {
		operator, err := jwt.DecodeOperatorClaims(text)
		if err != nil {
			return fmt.Errorf("operator: %w", err)
		}
		opts.TrustedOperators = append(opts.TrustedOperators, operator)
	}
	for _, sign := range relaysOwn(keys) {
		if _, err := accounts.put(sign(auth.Embedded)); err != nil {
			return err
		}
	}
	opts.SystemAccount = keys.SystemAccount()
	opts.AccountResolver = accounts
	return nil
}

// relaysOwn are the claims of accounts that no host-agent can be in.
func relaysOwn(keys *auth.Keys) []func(auth.Servers) (string, error) {
	return []func(auth.Servers) (string, error){keys.SystemAccountJWT, keys.RelaysAccountJWT}
}
