package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/broker/store"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/gateway/canvas"
	"ahprelay/gateway/notify"
)

// RelayConfig says how a [Relay] is to work. Everything but DataDir has a
// default.
type RelayConfig struct {
	DataDir     string // required; holds keys and the registry; this relay's alone
	Listen      string // public listener; default 127.0.0.1:8484
	AdminListen string // admin listener; default 127.0.0.1:8485; "none" for none
	NATSListen  string // NATS over TCP for host-agents, with TLS as the public listener unless it is a loopback address; default: none, they come over /nats
	NATSURL     string // an external NATS cluster to join; default: the embedded server

	// ForgetAfter is how long a host may not be seen until it is forgotten. Default:
	// for ever.
	ForgetAfter time.Duration

	// The embedded NATS server's connections to those of other relays with the
	// same keys: where it listens for them (default: nowhere), and where it
	// looks for them. See [embedded.Cluster].
	ClusterListen string
	ClusterRoutes []string

	// Region is the cluster of NATS servers that this relay is at, where gateways join
	// several: of the embedded servers as the rest says, see [embedded.Gateways]; of
	// NATSURL as that is called there.
	Region           string
	GatewayListen    string
	GatewayAdvertise string
	Gateways         []string // REGION=HOST:PORT

	// TLS is for the public listener; default: none. Without it, a listener on
	// other than loopback addresses is an error, unless ListenPlain is set.
	TLS         TLSConfig
	ListenPlain bool

	Notify NotifyConfig // how people are told while they look at nothing

	Gateway Config // Keys, Bus, Registry, Instance, NATS, Ready and Degraded are filled in

	times requestTimes // default: defaultTimes
}

// requestTimes are how long a request may take to come.
type requestTimes struct{ header, body time.Duration }

var defaultTimes = requestTimes{header: 10 * time.Second, body: 30 * time.Second}

// Default addresses of listeners.
const (
	DefaultListen      = "127.0.0.1:8484"
	DefaultAdminListen = "127.0.0.1:8485"
	NoListener         = "none"
)

// TrustFile is the file in the data directory that an external NATS cluster
// includes in its configuration, to accept this relay and its host-agents.
const TrustFile = "nats-trust.conf"

// Times of starting and stopping a relay.
const (
	startTimeout  = 20 * time.Second
	answerTimeout = 2 * time.Minute // a profile takes its time
	idleTimeout   = 2 * time.Minute
	stopTimeout   = time.Second

	// accountWait is how long a host-agent that comes to the NATS server waits, as the
	// relay starts, for it to be known whose it is: less than it has to log in.
	accountWait = 4 * time.Second

	// routeTimeout is how long a relay of a cluster waits for another one
	// before it starts alone.
	routeTimeout = 2 * time.Second
)

// maxHeader is how long the header of a request may be, in bytes: some tokens
// fit.
const maxHeader = 64 << 10

// A Relay is a whole relay: NATS, the registry, a [Server] and its listeners.
type Relay struct {
	log      *slog.Logger
	keys     *auth.Keys
	dir      *dataDir
	nats     *embedded.Server // nil with an external cluster
	conn     *broker.Conn     // for what relays tell each other
	tenants  *broker.Tenants
	revoked  *registry.Revocations
	registry *registry.Registry
	people   *store.Store
	deaf     func() // ends hearing of proofs
	server   atomic.Pointer[Server]
	receiver *notify.Receiver
	teller   *notify.Teller
	exchange *notify.Exchange
	records  *store.Store
	certs    certificates // nil: no TLS
	endCerts func()       // ends getting them
	public   *listener
	admin    *listener // nil: none
	rolling  *keyRoll  // nil: not started yet
}

// StartRelay starts a relay and returns when it takes connections. Errors name
// the address, file or server that cannot be used.
func StartRelay(ctx context.Context, cfg RelayConfig) (relay *Relay, err error) {
	cfg.Gateway = cfg.Gateway.withDefaults()
	r := &Relay{log: cfg.Gateway.Log}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := cfg.TLS.check(cfg.Gateway.CanvasDomain); err != nil {
		return nil, err
	}
	if err := cfg.checkPlain(ctx); err != nil {
		return nil, err
	}
	if r.public, err = listen(ctx, "--listen", cfg.Listen, DefaultListen); err != nil {
		return nil, err
	}
	if cfg.Gateway.CanvasDomain != "" {
		r.public.maxHeader = maxHeader + canvas.MaxCookies
	}
	if domain, ok := strings.CutSuffix(cfg.Gateway.CanvasDomain, ":0"); ok {
		_, port, _ := net.SplitHostPort(r.public.Addr().String())
		cfg.Gateway.CanvasDomain = domain + ":" + port
	}
	if cfg.AdminListen != NoListener {
		if r.admin, err = listen(ctx, "--admin-listen", cfg.AdminListen, DefaultAdminListen); err != nil {
			return nil, err
		}
	}
	if r.keys, err = auth.LoadKeys(cfg.DataDir); err != nil {
		return nil, err
	}
	if r.dir, err = openDataDir(cfg.DataDir); err != nil {
		return nil, err
	}
	if err = r.useTLS(&cfg); err != nil {
		return nil, err
	}
	cfg.Gateway.Instance = link.NewInstance()
	if err = cfg.checkCluster(); err != nil {
		return nil, err
	}
	if r.revoked, err = registry.LoadRevocations(filepath.Join(cfg.DataDir, revokedName), r.log); err != nil {
		return nil, err
	}
	if err = r.startNATS(ctx, &cfg); err != nil {
		return nil, err
	}
	if err = r.startStores(ctx, &cfg); err != nil {
		return nil, err
	}
	server, err := New(cfg.Gateway)
	if err != nil {
		return nil, err
	}
	if err = r.hearProofs(server); err != nil {
		return nil, err
	}
	if err = r.dir.note(cfg.Gateway.Instance); err != nil {
		return nil, err
	}
	r.server.Store(server)
	r.rolling = rollKeys(r.keys, r.keysChanged(&cfg), r.log)
	if err = r.startNotify(ctx, &cfg, server); err != nil {
		return nil, err
	}
	r.public.serve(server.Handler(), server.asking, cfg.times, r.log)
	if r.admin != nil {
		r.admin.serve(server.AdminHandler(), nil, cfg.times, r.log)
	}
	return r, nil
}

// A Witness is a member of a cluster that serves nobody: it has a copy of what relays
// know together, so that most of them are there when one is away.
type Witness struct {
	log     *slog.Logger
	dir     *dataDir
	nats    *embedded.Server
	rolling *keyRoll
}

// StartWitness starts a witness. Of the configuration it takes the data directory,
// which has the keys of the relays, and what is said of the cluster.
func StartWitness(ctx context.Context, cfg RelayConfig) (*Witness, error) {
	if cfg.ClusterListen == "" || len(cfg.ClusterRoutes) == 0 {
		return nil, errors.New("--witness is of use to other relays only: add --cluster-listen and --cluster-route")
	}
	cfg.Gateway = cfg.Gateway.withDefaults()
	keys, err := auth.ExistingKeys(cfg.DataDir) // with keys of its own nobody would let it in
	if err != nil {
		return nil, err
	}
	r := &Relay{log: cfg.Gateway.Log, keys: keys}
	if r.dir, err = openDataDir(cfg.DataDir); err != nil {
		return nil, err
	}
	cfg.NATSListen = ""
	if r.revoked, err = registry.LoadRevocations("", nil); err != nil {
		return nil, errors.Join(err, r.dir.close())
	}
	if err := r.startServer(ctx, &cfg); err != nil {
		return nil, errors.Join(err, r.dir.close())
	}
	r.nats.Resolve(func(string) (string, error) { return "", errServesNobody })
	return &Witness{r.log, r.dir, r.nats, rollKeys(keys, r.nats.KeysChanged, r.log)}, nil
}

// errServesNobody is why a witness takes no host-agent.
var errServesNobody = errors.New("a witness serves nobody")

// ClusterAddr returns the address for the relays of the cluster.
func (w *Witness) ClusterAddr() string { return w.nats.ClusterAddr() }

// Close ends the witness.
func (w *Witness) Close() {
	w.rolling.close()
	w.nats.Close()
	if err := w.dir.close(); err != nil {
		w.log.Warn("data directory", "error", err)
	}
}

// useTLS puts TLS into the public listener, if there is to be any.
func (r *Relay) useTLS(cfg *RelayConfig) error {
	if !cfg.TLS.on() {
		return nil
	}
	canvases, err := cfg.Gateway.canvasOrigin()
	if err != nil {
		return err
	}
	r.certs, r.endCerts, err = cfg.TLS.certificates(cfg.DataDir, canvases, r.log)
	if err != nil {
		return err
	}
	r.public.secure(withHTTP2(r.certs.tlsConfig(len(cfg.TLS.ACMEDomains) > 0 && cfg.TLS.ACMEDNS == nil), canvases))
	return nil
}

// natsTLS returns what the NATS listener is to have, nil for none.
func (r *Relay) natsTLS(ctx context.Context, address string) *tls.Config {
	if r.certs == nil {
		return nil
	}
	if local, err := isLocal(ctx, address); err != nil || local {
		return nil
	}
	return r.certs.tlsConfig(false)
}

// checkCluster reports settings that do not go together.
func (c *RelayConfig) checkCluster() error {
	switch {
	case c.ClusterListen == "" && len(c.ClusterRoutes) > 0:
		return fmt.Errorf("--cluster-route %s: relays connect to each other; add --cluster-listen host:port", c.ClusterRoutes[0])
	case c.ClusterListen != "" && c.NATSURL != "":
		return errors.New("--cluster-listen joins embedded NATS servers, and --nats-url takes others in their place; choose one")
	case c.GatewayListen != "" && c.NATSURL != "":
		return errors.New("--gateway-listen joins embedded NATS servers, and --nats-url takes others in their place; choose one")
	case c.GatewayListen == "" && len(c.Gateways) > 0:
		return fmt.Errorf("--gateway %s: regions connect to each other; add --gateway-listen host:port", c.Gateways[0])
	case c.GatewayListen != "" && c.Region == "":
		return errors.New("--gateway-listen joins regions; add --region with the name of this one")
	case c.Region != "" && c.GatewayListen == "" && c.NATSURL == "":
		return fmt.Errorf("--region %s: add --gateway-listen, where other regions reach this one", c.Region)
	}
	return nil
}

// several reports whether other NATS servers may have the store, too.
func (c *RelayConfig) several() bool { return c.ClusterListen != "" || c.Region != "" }

// gateways returns what leads to other regions.
func (c *RelayConfig) gateways() (embedded.Gateways, error) {
	remotes, err := embedded.ParseRemotes(c.Gateways)
	if err != nil {
		return embedded.Gateways{}, fmt.Errorf("--gateway: %w", err)
	}
	return embedded.Gateways{Region: c.Region, Listen: c.GatewayListen, Advertise: c.GatewayAdvertise, Remotes: remotes}, nil
}

// startNATS starts or joins NATS.
func (r *Relay) startNATS(ctx context.Context, cfg *RelayConfig) (err error) {
	g := &cfg.Gateway
	dial := broker.RelayDialConfig{Keys: r.keys, Instance: g.Instance, URL: cfg.NATSURL, Events: r.events("")}
	trust := filepath.Join(cfg.DataDir, TrustFile)
	if cfg.NATSURL == "" {
		if err := r.startServer(ctx, cfg); err != nil {
			return err
		}
		dial.Server = r.nats
		g.NATS = r.nats.HostConn
	} else if err := r.keys.WriteTrustConfig(trust); err != nil {
		return err
	}
	if r.conn, err = broker.DialRelay(ctx, dial); err == nil {
		r.tenants, err = broker.StartTenants(ctx, broker.TenantsConfig{Relay: dial, Events: r.events, Log: r.log})
	}
	if err != nil && cfg.NATSURL != "" {
		err = fmt.Errorf("%w; does that server include %s in its configuration?", err, trust)
	}
	return err
}

// startServer starts the embedded server. A relay of a cluster gives others a
// moment to be found, and starts alone if there are none.
func (r *Relay) startServer(ctx context.Context, cfg *RelayConfig) (err error) {
	node, err := r.dir.node()
	if err != nil {
		return err
	}
	gateways, err := cfg.gateways()
	if err != nil {
		return err
	}
	r.nats, err = embedded.Start(embedded.Config{
		Keys: r.keys, Listen: cfg.NATSListen, TLS: r.natsTLS(ctx, cfg.NATSListen), Name: node, Log: r.log,
		Store:    filepath.Join(cfg.DataDir, storeOf(cfg.Region)),
		Cluster:  embedded.Cluster{Listen: cfg.ClusterListen, Routes: cfg.ClusterRoutes},
		Gateways: gateways,
		Wait:     accountWait,
	})
	if err != nil || len(cfg.ClusterRoutes) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, routeTimeout)
	defer cancel()
	if r.nats.AwaitRoute(ctx) != nil {
		r.log.Warn("no other relay of the cluster is there yet; starting alone", "routes", cfg.ClusterRoutes)
	}
	return nil
}

// startStores starts what relays have together. Its stores are waited for together.
func (r *Relay) startStores(ctx context.Context, cfg *RelayConfig) error {
	limit := time.Now().Add(storesWait)
	if cfg.several() {
		limit = time.Now().Add(storesWaitCluster)
	}
	var first atomic.Pointer[registry.Registry]
	if err := r.startRecords(ctx, cfg, &first); err != nil {
		return err
	}
	if err := r.startRegistry(ctx, cfg); err != nil {
		return err
	}
	first.Store(r.registry)
	if err := r.startPeople(ctx, cfg, limit); err != nil {
		return err
	}
	_, err := r.awaitRecords(ctx, r.records, limit)
	return err
}

// startRegistry starts the registry, and fills in what the gateway needs.
func (r *Relay) startRegistry(ctx context.Context, cfg *RelayConfig) (err error) {
	g := &cfg.Gateway
	var neighbours registry.Neighbours
	var revive func() error
	if cfg.ClusterListen != "" {
		neighbours = r.nats
	}
	if r.nats != nil {
		revive = r.nats.ReviveStore
	}
	r.registry, err = registry.Start(ctx, registry.Config{
		Conn: r.conn, Tenants: r.tenants, Instance: g.Instance, Version: g.Version, Log: r.log,
		Keys: r.keys.SetIDs, URL: strings.TrimSuffix(g.OwnURL, "/"),
		LeaseTTL: max(g.Resume, registry.DefaultLeaseTTL), // host-agents renew theirs as often as that wants
		File:     filepath.Join(cfg.DataDir, hostsName), Previous: r.dir.former,
		Revocations: r.revoked, ForgetAfter: cfg.ForgetAfter,
		Cluster: cfg.several(), Region: cfg.Region, Neighbours: neighbours, Revive: revive,
	})
	if err != nil {
		return err
	}
	g.Keys, g.Bus, g.Registry = r.keys, r.tenants, r.registry
	g.Ready = func() error {
		if !r.conn.Connected() {
			return errors.New("no connection to NATS")
		}
		return nil
	}
	return nil
}

// startPeople takes what relays know of people together.
func (r *Relay) startPeople(ctx context.Context, cfg *RelayConfig, limit time.Time) error {
	in, err := r.awaitRecords(ctx, r.people, limit)
	if err == nil && !in && !cfg.several() {
		err = fmt.Errorf("people and devices: %w", r.people.Away())
	}
	if err != nil {
		return err
	}
	cfg.Gateway.People = people.NewDirectory(sharedPeople{r.people})
	cfg.Gateway.Degraded = r.degraded(r.keys.FirstRetired())
	return nil
}

// degraded returns what says what the relay lacks. It starts with the first keys retired,
// or not.
func (r *Relay) degraded(retired bool) func() string {
	return func() string {
		if why := r.registry.Degraded(); why != "" {
			return why
		}
		if err := r.people.Away(); err != nil {
			return fmt.Sprintf("the store of people is away (%v): who is in stays in, nobody else is let in", err)
		}
		if r.nats != nil && r.keys.FirstRetired() != retired {
			return "the first keys are retired, and a NATS server that runs cannot be told to take none of theirs: restart this relay once"
		}
		return ""
	}
}

// events are those of the connection to the account of a tenant, or of relays
// among themselves.
func (r *Relay) events(tenant string) broker.Events {
	log := r.log
	if tenant != "" {
		log = log.With("tenant", tenant)
	}
	return broker.Events{
		Disconnected: func(err error) { log.Warn("connection to NATS lost", "error", err) },
		Reconnected: func(string) {
			log.Info("connected to NATS again")
			r.resumed(tenant)
			if tenant == "" {
				r.missedProofs()
			}
		},
		Dropped: func(subject string) {
			log.Warn("messages lost here; host-agents send them again", "subject", subject)
			r.resumed(tenant)
			if subject == proofSubject {
				r.missedProofs()
			}
		},
		Error: func(err error) { log.Warn("NATS", "error", err) },
		Woke: func(slept time.Duration) {
			log.Info("machine has slept, or its clock was set: connecting to NATS anew", "slept", slept.Round(time.Second))
		},
	}
}

// resumed tells the links of a tenant that messages may have been lost.
func (r *Relay) resumed(tenant string) {
	if server := r.server.Load(); server != nil {
		server.Resumed(tenant)
	}
}

// Done returns a channel that is closed when the relay has lost NATS for good
// and must be started anew.
func (r *Relay) Done() <-chan struct{} { return r.conn.Done() }

// Keys returns the keys that tokens are signed with.
func (r *Relay) Keys() *auth.Keys { return r.keys }

// ReloadKeys takes the keys that are in the data directory now. That happens by itself
// within seconds.
func (r *Relay) ReloadKeys() { r.rolling.look() }

// Revocations returns what the relay knows to be revoked.
func (r *Relay) Revocations() *registry.Revocations { return r.registry.Revocations() }

// URL returns the base URL of the public listener.
func (r *Relay) URL() string {
	if r.certs != nil {
		return "https://" + r.public.Addr().String()
	}
	return "http://" + r.public.Addr().String()
}

// PublicURL returns the base URL of the relay as people reach it, as far as it is
// known.
func (r *Relay) PublicURL() string {
	if url := r.server.Load().cfg.PublicURL; url != "" {
		return strings.TrimSuffix(url, "/")
	}
	return r.URL()
}

// PeopleKnown returns a channel that is closed when the relay has taken what others know of
// people.
func (r *Relay) PeopleKnown() <-chan struct{} { return r.people.Ready() }

// SetupLink returns a link by which somebody comes to own the default tenant, or "" if
// somebody does. Each takes the place of this relay's one before. Subject is who that is: "" for
// "owner". Call it when PeopleKnown is closed.
func (r *Relay) SetupLink(subject string) (string, error) {
	directory := r.server.Load().cfg.People
	node, err := r.dir.node()
	if err != nil {
		return "", err
	}
	if owned, err := directory.HasOwner(auth.DefaultTenant); err != nil || owned {
		return "", err
	}
	secret, err := directory.Invite(people.Invite{
		Person: peopleapi.OwnerOf(auth.DefaultTenant, cmp.Or(subject, "owner")), Setup: true, Relay: node, Expires: time.Now().Add(peopleapi.InviteTTL),
	})
	if err != nil {
		return "", err
	}
	return peopleapi.SetupLink(r.PublicURL(), secret), nil
}

// AdminURL returns the base URL of the admin listener, "" if there is none.
func (r *Relay) AdminURL() string {
	if r.admin == nil {
		return ""
	}
	return "http://" + r.admin.Addr().String()
}

// NATSAddr returns the address of NATS over TCP, nil if there is none.
func (r *Relay) NATSAddr() net.Addr {
	if r.nats == nil {
		return nil
	}
	return r.nats.Addr()
}

// ClusterAddr returns the address for other relays of the cluster, "" if there
// is none.
func (r *Relay) ClusterAddr() string {
	if r.nats == nil {
		return ""
	}
	return r.nats.ClusterAddr()
}

// GatewayAddr returns the address for relays of other regions, "" if there is none.
func (r *Relay) GatewayAddr() string {
	if r.nats == nil {
		return ""
	}
	return r.nats.GatewayAddr()
}

// Drain closes all clients with the advice to reconnect, spread over the
// given time, and returns when none is left or ctx ends.
func (r *Relay) Drain(ctx context.Context, spread time.Duration) {
	r.server.Load().Drain(ctx, spread)
}

// Close ends everything, in the reverse order of dependence, and returns when
// nothing is left.
func (r *Relay) Close() {
	if server := r.server.Load(); server != nil {
		server.endStreams()
	}
	if r.public != nil {
		r.public.stop()
	}
	if server := r.server.Load(); server != nil {
		server.Close()
	}
	if r.admin != nil {
		r.admin.stop()
	}
	if r.endCerts != nil {
		r.endCerts()
	}
	r.stopNotify()
	if r.deaf != nil {
		r.deaf()
	}
	for _, s := range []*store.Store{r.people, r.records} {
		if s != nil {
			s.Close()
		}
	}
	if r.rolling != nil {
		r.rolling.close()
	}
	if r.registry != nil {
		r.registry.Close()
	}
	if r.tenants != nil {
		r.tenants.Close()
	}
	if r.conn != nil {
		r.conn.Close()
	}
	if r.nats != nil {
		r.nats.Close()
	}
	if r.dir != nil {
		if err := r.dir.close(); err != nil {
			r.log.Warn("data directory", "error", err)
		}
		r.dir = nil
	}
}

// A listener is a TCP listener and, once serve was called, its HTTP server.
type listener struct {
	net.Listener
	maxHeader int // of a request, in bytes; 0: maxHeader
	http      *http.Server
	done      sync.WaitGroup
}

// listen opens a listener; flag is what users call its address.
func listen(ctx context.Context, flag, address, byDefault string) (*listener, error) {
	if address == "" {
		address = byDefault
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w; choose another address with %s host:port", flag, address, unwrapOp(err), flag)
	}
	return &listener{Listener: l}, nil
}

// unwrapOp drops the address from an error of package net.
func unwrapOp(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// secure has the listener speak TLS.
func (l *listener) secure(config *tls.Config) { l.Listener = tlsListener{l.Listener, config} }

// A connection in HTTP/2 on which nothing was heard for so long is pinged, and ended if
// no answer comes in time.
const (
	http2Ping = 30 * time.Second
	http2Pong = 15 * time.Second
)

// serve serves requests; conns keeps their connections, if it is not nil.
func (l *listener) serve(handler http.Handler, conns *httpConns, times requestTimes, log *slog.Logger) {
	times = cmp.Or(times, defaultTimes)
	l.http = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: times.header,
		ReadTimeout:       times.body,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    cmp.Or(l.maxHeader, maxHeader),
		HTTP2:             &http.HTTP2Config{SendPingTimeout: http2Ping, PingTimeout: http2Pong},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if conns != nil {
		l.http.ConnState, l.http.ConnContext = conns.state, conns.context
	}
	l.done.Go(func() {
		if err := l.http.Serve(l.Listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("listener failed", "address", l.Addr().String(), "error", err)
		}
	})
}

// stop takes no more requests, and lets those under way come to their end.
// WebSockets are no requests any more: the Server ends them.
func (l *listener) stop() {
	if l.http == nil {
		_ = l.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if l.http.Shutdown(ctx) != nil {
		_ = l.http.Close()
	}
	l.done.Wait()
}
