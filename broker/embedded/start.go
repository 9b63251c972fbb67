package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/internal/natslog"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
)

// Settings of the embedded NATS server.
const (
	// The server closes a client or route after at most four ping intervals of silence:
	// it checks once per interval, and allows two missing pongs.
	maxPingsOut = 2

	// quietPing is the ping interval of a server that listens for no clients or gateways.
	// All its clients come through the relay's port, which detects lost host-agents
	// itself. Pings to a thousand idle connections every 2 s would need a tenth of a
	// processor.
	quietPing = 10 * time.Minute

	// writeDeadline is how long a client or another server may accept no byte before the
	// server closes the connection. A slow one stays connected.
	writeDeadline = 5 * time.Second

	// maxPending bounds the server's queue for one client in bytes: two link windows.
	// Above three quarters, the server drops messages for this client; above the
	// bound, it closes the client.
	maxPending = 32 << 20

	// maxServerPayload bounds a NATS message in bytes. It is NATS's default, and
	// larger than a link packet.
	maxServerPayload = 1 << 20

	// maxStoreMemory and maxStoreDisk bound JetStream's data in bytes. A registry with
	// 100,000 hosts takes 100 MB.
	maxStoreMemory = 256 << 20
	maxStoreDisk   = 16 << 30

	// syncInterval bounds how much a crash of the machine can lose. Lost hosts return
	// when their host-agents connect; revocations are also in the relay's file.
	syncInterval = time.Second

	startTimeout = 10 * time.Second
	startPoll    = 50 * time.Millisecond

	answerTime = 2 * time.Second // how long a stop waits for JetStream's answers
	answerPoll = time.Millisecond
)

// Start starts a NATS server, and returns when it accepts connections. Errors name the
// address or directory which cannot be used.
func Start(cfg Config) (_ *Server, err error) {
	accounts := &resolver{wait: cfg.Wait, ready: make(chan struct{}), over: make(chan struct{}), building: map[string]time.Time{}}
	opts, err := serverOptions(cfg, accounts)
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	s := &Server{keys: cfg.Keys, accounts: accounts, turns: newTurns(), store: cfg.Store, others: othersOf(opts), size: cfg.Cluster.Size}
	if err := expect(opts, cfg.Cluster, s.others); err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	if err := s.joinOthers(opts); err != nil {
		return nil, fmt.Errorf("NATS server%s: %w", cfg.listens(), err)
	}
	if config := opts.Cluster.TLSConfig; config != nil {
		s.answerJoining(config)
	}
	if cfg.Listen != "" {
		if s.port, err = listen(cfg); err != nil {
			return nil, fmt.Errorf("NATS server: %w", err)
		}
		defer func() {
			if err != nil {
				s.port.close()
			}
		}()
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	accounts.server.Store(ns)
	log := natslog.New(cfg.Log)
	ns.SetLoggerV2(log, false, false, false)
	s.nats = ns
	for tenant, revoked := range cfg.Tenants {
		if err := s.SetTenant(tenant, revoked); err != nil {
			return nil, fmt.Errorf("NATS server: %w", err)
		}
	}
	// The relays' account exists before the first route, see resolver.renew.
	if _, err := ns.LookupAccount(cfg.Keys.Authority().RelaysAccount()); err != nil {
		return nil, fmt.Errorf("NATS server: relays' account: %w", err)
	}
	ns.Start()
	if err := awaitReady(ns, log); err != nil {
		s.Close()
		return nil, fmt.Errorf("NATS server%s: %w", cfg.listens(), err)
	}
	if s.port != nil {
		s.port.open(s)
	}
	return s, nil
}

// awaitReady returns when the server's listeners are open, or with the reason why not.
func awaitReady(ns *server.Server, log *natslog.Log) error {
	for until := time.Now().Add(startTimeout); ; {
		ready := ns.ReadyForConnections(startPoll)
		if fatal := log.Fatal(); fatal != "" {
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

// Close hands leaderships over to other servers, ends all connections and waits until
// the server has ended.
func (s *Server) Close() {
	s.close.Do(func() {
		s.accounts.end()
		s.handOver()
		if s.port != nil {
			s.port.close()
		}
		s.awaitStore()
		// Shutdown leaves open the copies of streams that this server creates at that time. So JetStream as
		// a whole ends first, unless this server leads it: a leader would pause for 2 s.
		if s.nats.JetStreamIsClustered() && !s.nats.JetStreamIsLeader() {
			_ = s.nats.ShutdownJetStream() // always nil
		}
		s.nats.Shutdown()
		s.nats.WaitForShutdown()
	})
}

// awaitStore returns when JetStream has answered all requests, after answerTime at the latest. A
// shutdown does not wait for a stream that is being created, and would leave its files open.
func (s *Server) awaitStore() {
	for until := time.Now().Add(answerTime); time.Now().Before(until); time.Sleep(answerPoll) {
		if info, err := s.nats.Jsz(nil); err != nil || info.API.Inflight == 0 {
			return
		}
	}
}

func serverOptions(cfg Config, accounts *resolver) (*server.Options, error) {
	if cfg.Keys == nil {
		return nil, errors.New("no Keys given")
	}
	cfg.Name = cmp.Or(cfg.Name, "relay-"+link.NewInstance())
	opts := &server.Options{
		ServerName: cfg.Name,
		NoSigs:     true, // the program handles signals
		DontListen: true, // the port listens, see port

		PingInterval:  quietPing,
		MaxPingsOut:   maxPingsOut,
		AuthTimeout:   broker.DialTimeout.Seconds(),
		WriteDeadline: writeDeadline,
		WriteTimeout:  server.WriteTimeoutPolicyRetry, // closes a client only if it has accepted no byte
		MaxPayload:    maxServerPayload,
		MaxPending:    maxPending,

		// A stalled reader must not slow down its senders. Until it reads again or is
		// closed, it loses messages; links detect and repair the loss.
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

// setTrust makes the server accept JWTs from the keys' operator, and loads the
// accounts without host-agents.
func setTrust(opts *server.Options, keys *auth.Keys, accounts *resolver) error {
	operators, err := keys.Authority().OperatorJWTs(auth.Embedded)
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
	opts.SystemAccount = keys.Authority().SystemAccount()
	opts.AccountResolver = accounts
	return nil
}
