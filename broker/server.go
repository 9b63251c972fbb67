package broker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"ahprelay/auth"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
)

// Settings of the embedded NATS server, and of Conn where it must agree.
const (
	// pingInterval: both ends ask each other this often. The server cuts a
	// client that has been silent for four intervals at the latest (it looks
	// once an interval, and forgives two pings): 8 s.
	pingInterval = 2 * time.Second
	maxPingsOut  = 2

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

	// JetStream holds the registry only, in bytes.
	maxStore       = 1 << 30
	maxStoreMemory = 64 << 20

	startTimeout = 10 * time.Second
)

// ServerConfig says how to run a [Server].
type ServerConfig struct {
	Keys     *auth.Keys   // required; whose users the server accepts
	StoreDir string       // required; directory of JetStream's files, made if missing
	Name     string       // unique in a cluster; default: random
	Listen   string       // host:port for NATS over TCP, port 0 picks one; default: connections within the process only
	TLS      *tls.Config  // for the TCP listener; default: none
	Log      *slog.Logger // default: none
}

// A Server is a NATS server within this process. It accepts users signed with
// its keys, and has no mode without authentication.
type Server struct {
	nats *server.Server
	lock *os.File

	close sync.Once
}

// StartServer starts a NATS server and returns when it accepts connections.
// The errors name the address or directory that it cannot use.
func StartServer(cfg ServerConfig) (*Server, error) {
	opts, err := serverOptions(cfg)
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	lock, err := lockDir(cfg.StoreDir)
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("NATS server: %w", err), lock.Close())
	}
	log := newServerLog(cfg.Log)
	ns.SetLoggerV2(log, false, false, false)
	s := &Server{nats: ns, lock: lock}
	ns.Start()
	if fatal := log.fatal(); fatal != "" {
		s.Close()
		return nil, fmt.Errorf("NATS server (listen %q, store %s): %s", cfg.Listen, cfg.StoreDir, fatal)
	}
	if !ns.ReadyForConnections(startTimeout) {
		s.Close()
		return nil, fmt.Errorf("NATS server (listen %q, store %s): not ready after %v", cfg.Listen, cfg.StoreDir, startTimeout)
	}
	return s, nil
}

// Close ends all connections and returns when nothing of the server is left.
func (s *Server) Close() {
	s.close.Do(func() {
		s.nats.Shutdown()
		s.nats.WaitForShutdown()
		_ = s.lock.Close()
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
func (s *Server) Addr() net.Addr { return s.nats.Addr() }

// Name returns the server's name in its cluster.
func (s *Server) Name() string { return s.nats.Name() }

func serverOptions(cfg ServerConfig) (*server.Options, error) {
	if cfg.Keys == nil {
		return nil, errors.New("no Keys given")
	}
	if cfg.StoreDir == "" {
		return nil, errors.New("no StoreDir given")
	}
	if cfg.Name == "" {
		cfg.Name = "relay-" + NewInstance()
	}
	opts := &server.Options{
		ServerName: cfg.Name,
		NoSigs:     true, // signals are the program's

		PingInterval:  pingInterval,
		MaxPingsOut:   maxPingsOut,
		AuthTimeout:   dialTimeout.Seconds(),
		WriteDeadline: writeDeadline,
		WriteTimeout:  server.WriteTimeoutPolicyRetry, // cuts those only that took nothing at all
		MaxPayload:    maxServerPayload,
		MaxPending:    maxPending,

		// One reader that stalls must not slow down everybody who sends to it.
		// It loses messages instead until it reads again or is cut, and links
		// repair that: they number what they send.
		NoFastProducerStall: true,

		JetStream:              true,
		StoreDir:               cfg.StoreDir,
		JetStreamMaxMemory:     maxStoreMemory,
		JetStreamMaxStore:      maxStore,
		DisableJetStreamBanner: true,
	}
	if err := setListener(opts, cfg); err != nil {
		return nil, err
	}
	return opts, setTrust(opts, cfg.Keys)
}

func setListener(opts *server.Options, cfg ServerConfig) error {
	if cfg.Listen == "" {
		opts.DontListen = true
		return nil
	}
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return fmt.Errorf("bad Listen %q: want host:port", cfg.Listen)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return fmt.Errorf("bad Listen %q: port is no number up to 65535", cfg.Listen)
	}
	opts.Host, opts.Port = host, int(n)
	if n == 0 {
		opts.Port = server.RANDOM_PORT
	}
	if cfg.TLS != nil {
		opts.TLSConfig = cfg.TLS
		opts.TLSTimeout = dialTimeout.Seconds()
	}
	return nil
}

// setTrust puts the server into operator mode, with both accounts in memory.
func setTrust(opts *server.Options, keys *auth.Keys) error {
	operatorJWT, err := keys.OperatorJWT()
	if err != nil {
		return err
	}
	operator, err := jwt.DecodeOperatorClaims(operatorJWT)
	if err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	accounts := &server.MemAccResolver{}
	for public, sign := range map[string]func() (string, error){
		keys.SystemAccount(): keys.SystemAccountJWT,
		keys.Account():       keys.AccountJWT,
	} {
		accountJWT, err := sign()
		if err != nil {
			return err
		}
		if err := accounts.Store(public, accountJWT); err != nil {
			return fmt.Errorf("account %s: %w", public, err)
		}
	}
	opts.TrustedOperators = []*jwt.OperatorClaims{operator}
	opts.SystemAccount = keys.SystemAccount()
	opts.AccountResolver = accounts
	return nil
}

// lockDir makes the directory and holds it against other processes until the
// file is closed: two servers would destroy each other's files, and NATS does
// not look.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("store: %s is used by another relay: %w", dir, err), f.Close())
	}
	return f, nil
}
