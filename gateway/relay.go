package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
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
	"ahprelay/gateway/remembered"
	"ahprelay/gateway/waiting"
)

// requestTimes limit how long a request's header and body may take to arrive.
type requestTimes struct{ header, body time.Duration }

var defaultTimes = requestTimes{header: 10 * time.Second, body: 30 * time.Second}

// Timeouts of a relay and its HTTP servers.
const (
	startTimeout  = 45 * time.Second
	answerTimeout = 2 * time.Minute // a profile takes up to a minute
	idleTimeout   = 2 * time.Minute
	stopTimeout   = time.Second

	// accountWait is how long a host-agent that connects during the relay's start waits
	// until its account is known. It is shorter than the host-agent's login timeout.
	accountWait = 4 * time.Second

	// routeTimeout is how long a starting relay waits for another relay in its cluster
	// before it starts alone.
	routeTimeout = 2 * time.Second
)

// maxHeader is the longest request header in bytes, without the cookies of canvases. A
// header may contain several tokens.
const maxHeader = 64 << 10

// A Relay is a complete relay: NATS, the registry, a [Server] and its listeners.
type Relay struct {
	log       *slog.Logger
	keys      *auth.Keys
	dir       *dataDir
	nats      *embedded.Server // nil with an external cluster
	conn      *broker.Conn     // for messages between relays
	tenants   *broker.Tenants
	revoked   *registry.Revocations
	registry  *registry.Registry
	awaiting  *awaiting // nil: no cluster
	cuts      *cutWatch // nil: no cluster
	people    *store.Store
	endProofs func() // ends the subscription to proofs
	server    atomic.Pointer[Server]
	receiver  *notify.Receiver
	teller    *notify.Notifier
	exchange  *notify.Exchange
	records   *store.Store
	kept      *store.Store // sealed last states of sessions
	keeper    *remembered.Keeper
	waits     *store.Store // items for hosts that are away
	waiting   *waiting.Keeper
	certs     certificates // nil: no TLS
	named     certificates // certificates from files; nil: none
	local     []byte       // see Addresses.Certificate
	endCerts  func()       // stops the renewal of certs
	public    *listener
	admin     *listener // nil: none
	metrics   *listener // nil: none
	rolling   *keyRoll  // nil: not started yet
}

// StartRelay starts a relay, and returns when it accepts connections. Errors name the
// address, file or server that cannot be used.
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
	if err := cfg.Check(ctx); err != nil {
		return nil, err
	}
	if err := r.listen(ctx, &cfg); err != nil {
		return nil, err
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
	if err = r.shareProofs(server); err != nil {
		return nil, err
	}
	if err = r.dir.note(cfg.Gateway.Instance); err != nil {
		return nil, err
	}
	r.server.Store(server)
	if cfg.ClusterListen != "" {
		r.cuts = startCutWatch(&cutWatch{cutOff: r.nats.CutOff, members: r.nats.Members, advise: server.leave, changed: server.setCutOff, seen: &server.cutSeen, log: r.log})
	}
	r.rolling = rollKeys(r.keys, r.keysChanged(&cfg), r.log)
	if err = r.startNotify(&cfg, server); err != nil {
		return nil, err
	}
	r.serve(server, cfg.times)
	r.publish()
	return r, nil
}

func (r *Relay) serve(server *Server, times requestTimes) {
	r.public.serve(server.Handler(), server.httpConns, times, r.log)
	if r.admin != nil {
		r.admin.serve(server.AdminHandler(), nil, times, r.log)
	}
	if r.metrics != nil {
		r.metrics.serve(server.MetricsHandler(r.metrics.Addr()), nil, times, r.log)
	}
}

// listen opens the HTTP listeners. If the canvas domain has port 0, it gets the public
// listener's port.
func (r *Relay) listen(ctx context.Context, cfg *RelayConfig) (err error) {
	if r.public, err = listen(ctx, "--listen", cfg.Listen, DefaultListen); err != nil {
		return err
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
			return err
		}
	}
	if cfg.MetricsListen != "" {
		if r.metrics, err = listen(ctx, "--metrics-listen", cfg.MetricsListen, ""); err != nil {
			return err
		}
	}
	return nil
}

// useTLS adds TLS to the public listener, if configured.
func (r *Relay) useTLS(cfg *RelayConfig) error {
	if !cfg.TLS.on() {
		return nil
	}
	canvases, err := cfg.Gateway.canvasOrigin()
	if err != nil {
		return err
	}
	certs, end, err := cfg.TLS.certificates(cfg.DataDir, canvases, r.log)
	if err != nil {
		return err
	}
	r.endCerts = end
	if cfg.TLS.CertFile != "" {
		r.named = certs
	}
	if r.certs, r.local, err = withLocal(certs); err != nil {
		return err
	}
	r.public.secure(withHTTP2(r.certs.tlsConfig(len(cfg.TLS.ACMEDomains) > 0 && cfg.TLS.ACMEDNS == nil), canvases))
	return nil
}

// natsTLS returns the TLS configuration for the NATS listener, or nil if the address is a
// loopback address or there is no certificate.
func (r *Relay) natsTLS(ctx context.Context, address string) *tls.Config {
	if r.certs == nil {
		return nil
	}
	if local, err := isLocal(ctx, address); err != nil || local {
		return nil
	}
	return r.certs.tlsConfig(false)
}

// startNATS starts the embedded NATS server or connects to an external one.
func (r *Relay) startNATS(ctx context.Context, cfg *RelayConfig) (err error) {
	g := &cfg.Gateway
	dial := broker.RelayDialConfig{Keys: r.keys, Instance: g.Instance, URL: cfg.NATSURL, Events: r.events("")}
	trust := filepath.Join(cfg.DataDir, TrustFile)
	switch {
	case cfg.NATSURL != "" || cfg.NATSListen != "" && cfg.several(): // subscribers may be at another server
		g.Listens = func(string, string) bool { return true }
	case cfg.NATSListen != "":
		g.Listens = func(tenant, subject string) bool { return r.nats.Listens(tenant, subject) }
	}
	if cfg.NATSURL == "" {
		if err := r.startServer(ctx, cfg); err != nil {
			return err
		}
		dial.Server = r.nats
		g.NATS = r.nats.HostConn
	} else if err := r.keys.Authority().WriteTrustConfig(trust); err != nil {
		return err
	}
	if cfg.NATSURL != "" {
		defer r.reportAbsence(&dial.Events, cfg.NATSURL, trust)()
	}
	if r.conn, err = broker.DialRelay(ctx, dial); err == nil {
		r.tenants, err = broker.StartTenants(ctx, broker.TenantsConfig{Relay: dial, Events: r.events, Log: r.log})
	}
	if err != nil && cfg.NATSURL != "" {
		err = fmt.Errorf("%w; does that server include %s in its configuration?", err, trust)
	}
	return err
}

// startServer starts the embedded NATS server. In a cluster it waits up to routeTimeout
// for another relay.
func (r *Relay) startServer(ctx context.Context, cfg *RelayConfig) (err error) {
	cluster := embedded.Cluster{Listen: cfg.ClusterListen, Routes: cfg.ClusterRoutes, Advertise: cfg.ClusterAdvertise, Size: cfg.ClusterSize}
	node, err := r.dir.node(cluster.Place)
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
		Cluster:  cluster,
		Gateways: gateways,
		Wait:     accountWait,
	})
	if err != nil || len(r.nats.Others()) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, routeTimeout)
	defer cancel()
	if r.nats.AwaitRoute(ctx) != nil {
		r.log.Warn("relay started alone", "reason", "no other relay of the cluster reachable", "routes", r.nats.Others())
	}
	return nil
}

// startStores starts the stores that relays share. Those of people and notification
// records have a common deadline.
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

// startRegistry starts the registry, and sets the fields in the gateway's configuration
// that depend on it.
func (r *Relay) startRegistry(ctx context.Context, cfg *RelayConfig) (err error) {
	g := &cfg.Gateway
	var neighbours registry.Neighbours
	var revive, room func() error
	if cfg.ClusterListen != "" {
		neighbours = r.nats
	}
	if r.nats != nil {
		revive, room = r.nats.ReviveStore, r.nats.StoreRoom
	}
	r.registry, err = registry.Start(ctx, registry.Config{
		Conn: r.conn, Tenants: r.tenants, Instance: g.Instance, Version: g.Version, Log: r.log,
		Keys: r.keys.SetIDs, URL: g.OwnURL,
		LeaseTTL: max(g.Resume, registry.DefaultLeaseTTL), // host-agents renew accordingly
		File:     filepath.Join(cfg.DataDir, hostsName), Previous: r.dir.crashed,
		Revocations: r.revoked, ForgetAfter: cfg.ForgetAfter, HostLimits: cfg.HostLimits,
		Cluster: cfg.several(), Region: cfg.Region, Neighbours: neighbours, Revive: revive, Room: room,
	})
	if err != nil {
		return err
	}
	g.Keys, g.Bus, g.Registry = r.keys, r.tenants, r.registry
	g.Ready = func(inside bool) error {
		if !r.conn.Connected() {
			return errors.New("no connection to NATS")
		}
		if r.awaiting != nil {
			return r.awaiting.lack.Load().err(inside)
		}
		return r.registry.Unread()
	}
	if cfg.ClusterListen == "" {
		return nil
	}
	js, err := r.conn.JetStream()
	if err != nil {
		return err
	}
	r.awaiting = startAwaiting(&awaiting{nats: r.nats, js: js, cluster: cfg.Region, unread: r.registry.Unread, log: r.log})
	return nil
}

// startPeople waits for the shared directory of people. At the limit, a single relay fails;
// others start with their local copy.
func (r *Relay) startPeople(ctx context.Context, cfg *RelayConfig, limit time.Time) error {
	in, err := r.awaitRecords(ctx, r.people, limit)
	if err == nil && !in && !cfg.several() {
		err = fmt.Errorf("store of people and devices unavailable: %w", r.people.Away())
	}
	if err != nil {
		return err
	}
	cfg.Gateway.People = people.NewDirectory(sharedPeople{r.people})
	cfg.Gateway.Degraded = r.degraded(r.keys.FirstRetired())
	return nil
}

// degraded returns a function that describes what this relay lacks, for Config.Degraded.
// retired tells whether the first key set was retired when the relay started.
func (r *Relay) degraded(retired bool) func() string {
	return func() string {
		if why := r.registry.Degraded(); why != "" {
			if r.cuts != nil {
				why += missingMajority(r.nats.Members())
			}
			return why
		}
		if err := r.people.Away(); err != nil {
			return fmt.Sprintf("the store of people is unavailable (%v): signed-in devices stay signed in, new sign-ins fail", err)
		}
		if r.nats != nil && r.keys.FirstRetired() != retired {
			return "the first keys are retired, but the running NATS server still accepts them: restart this relay once"
		}
		return ""
	}
}

// events returns the event handlers for a tenant's connection to NATS. "" means the
// connection that relays share.
func (r *Relay) events(tenant string) broker.Events {
	log := r.log
	if tenant != "" {
		log = log.With("tenant", tenant)
	}
	return broker.Events{
		Disconnected: func(err error) { log.Warn("connection to NATS lost", "error", err) },
		Reconnected: func(string) {
			log.Info("connection to NATS restored")
			r.resumed(tenant)
			if tenant == "" {
				r.missedProofs()
			}
		},
		Dropped: func(subject string) {
			log.Warn("NATS messages dropped", "effect", "host-agents send them again", "subject", subject)
			r.resumed(tenant)
			if subject == proofSubject {
				r.missedProofs()
			}
		},
		Error: func(err error) { log.Warn("NATS error", "error", err) },
		Woke: func(slept time.Duration) {
			log.Info("sleep or clock change detected", "slept", slept.Round(time.Second))
		},
	}
}

// resumed tells a tenant's links that NATS messages may have been lost.
func (r *Relay) resumed(tenant string) {
	if server := r.server.Load(); server != nil {
		server.Resumed(tenant)
	}
}

// Unready returns the reason why /readyz answers 503, or nil. The reason may name other
// relays.
func (r *Relay) Unready() error { return r.server.Load().unready(true) }

// Done returns a channel that is closed after Close, or when the connection to NATS has
// failed permanently. In that case the relay must be restarted.
func (r *Relay) Done() <-chan struct{} { return r.conn.Done() }

// Keys returns the keys for signing tokens.
func (r *Relay) Keys() *auth.Keys { return r.keys }

// ReloadKeys loads changed keys from the data directory at once. Without a call, the
// relay loads them within seconds.
func (r *Relay) ReloadKeys() { r.rolling.reload() }

// Revocations returns the known revocations.
func (r *Relay) Revocations() *registry.Revocations { return r.registry.Revocations() }

// PeopleKnown returns a channel that is closed when the relay has loaded the shared
// directory of people.
func (r *Relay) PeopleKnown() <-chan struct{} { return r.people.Ready() }

// SetupLink returns a link that makes its user the owner of the default tenant, or "" if
// that tenant has an owner. It replaces this relay's previous setup link. subject is the
// owner's name; "" means "owner". Call SetupLink after PeopleKnown is closed. It returns
// ErrNoPublicURL if there is no base URL for links.
func (r *Relay) SetupLink(subject string) (string, error) {
	directory := r.server.Load().cfg.People
	node, err := r.dir.node(func() string { return "" }) // makes the name if NATS is external
	if err != nil {
		return "", err
	}
	if owned, err := directory.HasOwner(auth.DefaultTenant); err != nil || owned {
		return "", err
	}
	base := r.PublicURL()
	if base == "" {
		return "", ErrNoPublicURL
	}
	secret, err := directory.Invite(people.Invite{
		Person: peopleapi.OwnerOf(auth.DefaultTenant, cmp.Or(subject, "owner")), Setup: true, Relay: node, Expires: time.Now().Add(peopleapi.InviteTTL),
	})
	if err != nil {
		return "", err
	}
	return peopleapi.SetupLink(base, secret), nil
}

// AdminURL returns the admin listener's base URL, or "".
func (r *Relay) AdminURL() string {
	if r.admin == nil {
		return ""
	}
	return "http://" + reached(r.admin.Addr())
}

// NATSAddr returns the address for NATS over TCP, or nil.
func (r *Relay) NATSAddr() net.Addr {
	if r.nats == nil {
		return nil
	}
	return r.nats.Addr()
}

// ClusterAddr returns the address for other relays in the cluster, or "".
func (r *Relay) ClusterAddr() string {
	if r.nats == nil {
		return ""
	}
	return r.nats.ClusterAddr()
}

// GatewayAddr returns the address for relays in other regions, or "".
func (r *Relay) GatewayAddr() string {
	if r.nats == nil {
		return ""
	}
	return r.nats.GatewayAddr()
}

// Drain closes all clients, spread over the given time, with the advice to reconnect: see
// [Server.Drain].
func (r *Relay) Drain(ctx context.Context, spread time.Duration) {
	r.server.Load().Drain(ctx, spread)
}

// Close stops everything: first the parts that serve clients, then the parts that those use,
// and last NATS and the data directory. A part is nil if StartRelay failed before its start.
func (r *Relay) Close() {
	server := r.server.Load()
	end(server, (*Server).endStreams)
	end(r.cuts, (*cutWatch).close)
	end(r.public, (*listener).stop)
	end(server, (*Server).Close)
	end(r.admin, (*listener).stop)
	end(r.metrics, (*listener).stop)
	if r.endCerts != nil {
		r.endCerts()
	}
	end(r.waiting, (*waiting.Keeper).Close)
	end(r.keeper, (*remembered.Keeper).Close)
	end(r.receiver, (*notify.Receiver).Close)
	end(r.teller, (*notify.Notifier).Close)
	end(r.exchange, (*notify.Exchange).Close)
	if r.endProofs != nil {
		r.endProofs()
	}
	for _, s := range []*store.Store{r.people, r.records, r.kept, r.waits} {
		end(s, (*store.Store).Close)
	}
	end(r.rolling, (*keyRoll).close)
	end(r.awaiting, (*awaiting).close)
	end(r.registry, (*registry.Registry).Close)
	end(r.tenants, (*broker.Tenants).Close)
	end(r.conn, (*broker.Conn).Close)
	end(r.nats, (*embedded.Server).Close)
	if r.dir != nil {
		if err := r.dir.close(); err != nil {
			r.log.Warn("data directory not closed", "error", err)
		}
		r.dir = nil
	}
}

// end ends a part of a relay, unless it is nil.
func end[T any](part *T, end func(*T)) {
	if part != nil {
		end(part)
	}
}
