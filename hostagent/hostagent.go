package hostagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/broker/notice"
	"ahprelay/broker/registry"
	"ahprelay/contentproxy"
	"ahprelay/hostagent/watch"
	"ahprelay/internal/coalesce"
	"ahprelay/internal/tracing"
	"ahprelay/routing"
)

// Config says how an [Agent] is to work. Durations and sizes of zero mean
// their defaults.
type Config struct {
	Relays      []string               // required; base URLs of the relays of one cluster, all http:// or all https://
	Token       func() (string, error) // required unless Credentials is set; the enrolment token, asked for before each use
	Credentials *CredentialFile        // in place of Token

	NATSURLs []string            // where NATS is, if not behind the relays' /nats
	Plain    bool                // relays and NATS may be elsewhere and without TLS
	Upstream Upstream            // required; the AHP host
	TakeOver bool                // serve the host even if another host-agent does, which then stops
	Version  string              // of the program
	Strict   bool                // MCP and capabilities of clients are gated strictly, whatever relays say; see package mcpgate
	Canvas   contentproxy.Config // what of the host's loopback interface canvases may show; the AHP host's own port is added

	CanvasLive    CanvasLive // what clients may do with canvases by URL; default: CanvasOn
	CanvasSockets bool       // clients that may only look may open WebSockets to them

	PreviewPorts []PortRange // of the loopback interface, that clients who may operate the host may open by URL; default: none

	HostFiles   HostFiles    // whether the host's files are this machine's; default: if the upstream is on it
	Allow       *gate.Policy // what clients may do at most, whatever relays say; nil: whatever they say
	ApproveOnly []string     // patterns of subjects: nobody else may approve what agents ask for, nor operate; none: whoever their tokens let
	NoReverse   bool         // the host may not ask clients for their files
	Notify      Notify       // of what people are told while they look at nothing; default: nothing

	NotifyAnswers NotifyAnswers // what may be answered from there; default: AnswersSafe

	StateDir string // where it is noted which instance runs, for the one that comes after a crash; "": nowhere

	Control string // path of the control socket; "": none

	MetricsListen string // address for metrics, as host:port; "": none. Whoever reaches it reads them

	MaxFrame  int           // bytes of the longest message, each way; default 128 MiB, or a quarter of MaxQueued if that is less
	MaxQueued int           // bytes that wait for all clients together before those that have most are closed; default 512 MiB
	Resume    time.Duration // how long relays, or the host's machine, may be out of reach unnoticed; default 15 s
	Compress  string        // how what goes to relays is compressed, if they know how: broker.Zstandard; default: not

	// PublishAll has notifications that only one client is sent published on their
	// channel's subject of NATS too, for who watches there. It costs.
	PublishAll bool

	Sentinel SentinelCommand // tells relays if this process crashes

	HTTP *http.Client // for the relays' base URLs; default: one that respects proxies in the environment
	Log  *slog.Logger // default: none

	// Tracer makes spans of clients' requests. Who has made it closes it after Run.
	// Default: none does.
	Tracer *tracing.Tracer
}

// clientPatience is how long stock clients wait for a silent connection.
const clientPatience = 25 * time.Second

// Times of stopping.
const (
	// settleTime is how long a host-agent that stops tries to get out what it
	// still has, to clients and to the host.
	settleTime = 5 * time.Second

	// releaseTime is how long it may then take to say that it is gone.
	releaseTime = 2 * time.Second
)

// An Agent makes one AHP host reachable through relays.
type Agent struct {
	*access
	cfg      Config
	dialFor  func(ctx context.Context, who *caller) (hostSocket, error)
	monitor  *monitor
	routing  *routing.AgentEnd
	canvases *contentproxy.Host
	live     *live
	audits   *coalesce.Table // of lines that may be many
	sentinel *sentinel

	clients    clientIndex
	frames     frameCache
	known      *view.Host // what the host has said
	subjects   *gate.Subjects
	rejections rejections
	barred     barredClients

	life  context.Context // of Run; the connections to the host end with it
	conns sync.WaitGroup  // the connections to the host

	presence presence

	ledger *notice.Ledger // of events that relays are to know
	watch  *watch.Watch   // nil: nobody is told of anything

	outcomes outcomes // of answers from notifications

	metrics *metrics
}

// New returns an Agent for the host that the token names. It asks nobody yet.
func New(cfg Config) (*Agent, error) {
	if cfg.Resume == 0 {
		cfg.Resume = link.DefaultResume
	}
	if cfg.MaxQueued == 0 {
		cfg.MaxQueued = 512 << 20
	}
	if cfg.MaxFrame == 0 {
		cfg.MaxFrame = min(128<<20, cfg.MaxQueued/4)
	}
	if cfg.HTTP == nil {
		cfg.HTTP = newHTTPClient()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Credentials != nil {
		cfg.Token = cfg.Credentials.Token
	}
	switch {
	case cfg.Token == nil:
		return nil, errors.New("host-agent: no Token given")
	case cfg.MaxFrame < 1:
		return nil, fmt.Errorf("host-agent: MaxFrame is %d; want at least 1", cfg.MaxFrame)
	case cfg.MaxQueued < 2*cfg.MaxFrame:
		return nil, fmt.Errorf("host-agent: MaxQueued is %d; want at least %d, for two of the longest messages", cfg.MaxQueued, 2*cfg.MaxFrame)
	case cfg.Resume < 0:
		return nil, fmt.Errorf("host-agent: Resume is %v; want a time above zero", cfg.Resume)
	}
	if err := cfg.CanvasLive.check(); err != nil {
		return nil, err
	}
	if err := checkListen(cfg.MetricsListen); err != nil {
		return nil, err
	}
	if err := checkRelays(cfg.Relays); err != nil {
		return nil, err
	}
	if err := checkPlain(cfg.Relays, cfg.NATSURLs); err != nil && !cfg.Plain {
		return nil, err
	}
	if err := cfg.Upstream.Check(); err != nil {
		return nil, err
	}
	access, err := newAccess(cfg.Relays, cfg.NATSURLs, cfg.Token, cfg.HTTP)
	if err != nil {
		return nil, err
	}
	if cfg.Credentials != nil {
		access.file, access.hostKey = cfg.Credentials, cfg.Credentials.Key
	}
	access.compress = cfg.Compress
	a := &Agent{access: access, cfg: cfg, audits: coalesce.New(auditEvery)}
	a.cfg.Log = cfg.Log.With("tenant", a.tenant, "host", a.host, "agent", a.instance)
	a.presence.init(cfg.Version)
	a.sentinel = newSentinel(cfg.Sentinel, a.cfg.Log, a.sentinelInput)
	a.fetched = func() { signal(a.sentinel.news) } // the token may be another
	a.subjects = gate.NewSubjects()
	a.dialFor = a.dialForClient
	a.monitor = newMonitor(cfg.Upstream.String(), a.dialForMonitor, cfg.Resume, a.cfg.Log, a.presence.hostChanged)
	a.monitor.gone, a.monitor.heard = a.hostGone, a.clients.lastHeard
	canvas := cfg.Canvas
	canvas.Own = cfg.Upstream.port
	a.canvases = contentproxy.NewHost(canvas)
	a.known = view.NewHost(gate.Key)
	a.ledger = notice.NewLedger(a.instance)
	a.watch = a.newWatch()
	a.live = newLive(a)
	a.metrics = newMetrics(a)
	shareFrom := 0 // the default
	if cfg.PublishAll {
		shareFrom = 1
	}
	a.routing = routing.NewAgentEnd(routing.AgentEndConfig{
		ShareFrom: shareFrom,
		Instance:  a.instance, Connect: a.connect, MaxFrame: cfg.MaxFrame, MaxQueued: cfg.MaxQueued, Stall: clientPatience + cfg.Resume,
		Delayed: func(d time.Duration) { a.metrics.delays.Observe(d.Seconds()) },
	})
	return a, nil
}

// Run serves the host until ctx ends, or for ever. An error says why it cannot
// go on: the token is refused, or another host-agent serves the host.
func (a *Agent) Run(ctx context.Context) error {
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	a.life = life
	run := a.enter()
	defer run.close()
	userJWT, err := a.credentials(ctx)
	if err != nil && !temporary(err) {
		return err // better now than in the background for ever
	}
	a.cfg.Log.Info("connecting", "relay", strings.Join(a.cfg.Relays, " "), "upstream", a.cfg.Upstream.String())

	var made atomic.Pointer[link.AgentLinks]
	conn, err := a.dial(ctx, userJWT, func() {
		if links := made.Load(); links != nil {
			links.Resumed()
		}
	})
	if err != nil {
		return ended(ctx, err)
	}
	defer conn.Close()
	a.metrics.conn.Store(conn)
	defer watchConn(conn, stop)()
	holder, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: conn, Tenant: a.tenant, Host: a.host, Instance: a.instance, TakeOver: a.cfg.TakeOver,
		Presence: a.presence.now(),
		Previous: run.former(),
		Gone:     func(relays []string) { made.Load().RelaysGone(relays) },
		Quiet:    func() bool { return !made.Load().Linked() },
		Trouble:  a.trouble,
	})
	if err != nil {
		return err
	}
	links := a.newLinks(conn, holder)
	made.Store(links)
	defer a.audits.Flush()
	defer a.canvases.Close()
	defer a.conns.Wait()
	var wg sync.WaitGroup
	defer wg.Wait() // from then on, no connections are made
	if a.cfg.MetricsListen != "" {
		wg.Go(func() { a.serveMetrics(life) })
	}
	wg.Go(func() { a.monitor.run(life) })
	wg.Go(func() { a.audits.Run(life) })
	wg.Go(func() { a.live.serve(life) })
	wg.Go(func() { a.live.watch(life) })
	wg.Go(func() { a.presence.announce(life, holder.Update) })
	wg.Go(func() { a.goHome(life, conn) })
	if a.file != nil {
		wg.Go(func() { a.renewLoop(life, conn.Redial, a.renewed) })
	}
	if len(a.cfg.Sentinel.Command) > 0 {
		wg.Go(func() { a.sentinel.run(life) })
		<-a.sentinel.ready // before there is anything to lose
	}
	serve := orDone(ctx, life)
	if err := holder.Acquire(serve); err != nil {
		stop(err)
		return ended(ctx, err)
	}
	run.holds()
	a.cfg.Log.Info("serving")
	if a.cfg.Control != "" {
		wg.Go(func() { a.serveControl(life) })
	}
	if a.watch != nil {
		wg.Go(func() { a.notices(life, conn) })
	}
	wg.Go(func() { stop(links.Run(life)) })
	if err = holder.Run(serve); err == nil {
		err = context.Cause(serve)
	}
	if a.goodbye(links, holder) {
		run.released()
	}
	stop(err)
	return ended(ctx, err)
}

// trouble tells of what keeps clients away though there is a connection.
func (a *Agent) trouble(err error) {
	if errors.Is(err, link.ErrIncompatible) {
		a.cfg.Log.Error("clients cannot reach the host", "error", err)
		return
	}
	a.cfg.Log.Warn("relays do not confirm this host-agent", "error", err)
}

// goodbye tells clients and relays that the host cannot be reached any more:
// clients behind what the host has said. What they have sent goes to the host.
// It reports whether relays know.
func (a *Agent) goodbye(links *link.AgentLinks, holder *registry.LeaseHolder) bool {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	none := a.clients.close()
	a.routing.CloseAll(ahp.CloseHostOffline, stoppedReason)
	select {
	case <-none: // each ends when its relay has got all, and said so
	case <-ctx.Done():
	}
	links.Settle(ctx)
	ctx, cancel = context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	err := holder.Release(ctx)
	if err != nil {
		a.cfg.Log.Warn("could not say goodbye to the relays", "error", err)
	}
	return err == nil
}

// stoppedReason is why the host is away when its host-agent was told to stop.
const stoppedReason = "host-agent stopped"

// dial connects to NATS, at first with the given credentials, if there are any.
// The connection comes back by itself; resumed is called when it has been away.
func (a *Agent) dial(ctx context.Context, userJWT string, resumed func()) (*broker.Conn, error) {
	return broker.DialAgent(ctx, a.natsConfig(a.natsURLs(), userJWT, broker.Events{
		Connected: func(url string) { a.cfg.Log.Info("connected to the relay", "nats", url) },
		Disconnected: func(err error) {
			a.metrics.lost.Inc()
			a.cfg.Log.Warn("connection to the relay lost", "error", err)
		},
		Reconnected: func(url string) {
			a.metrics.back.Inc()
			a.cfg.Log.Info("connected to the relay again", "nats", url)
			resumed()
		},
		Dropped: func(subject string) {
			a.cfg.Log.Warn("messages lost here; relays send them again", "subject", subject)
			resumed()
		},
		Error: func(err error) { a.cfg.Log.Warn("NATS", "error", err) },
		Woke: func(slept time.Duration) {
			a.cfg.Log.Info("machine has slept, or its clock was set: connecting anew", "slept", slept.Round(time.Second))
		},
		Retrying: func(attempt int, err error, wait time.Duration) {
			if attempt > 5 && attempt%10 != 0 {
				return // it has been said
			}
			a.cfg.Log.Info("connecting again", "attempt", attempt, "in", wait.Round(time.Millisecond), "because", err)
		},
	}))
}

// newLinks are the links to relays, while a lease says that this instance serves the
// host.
func (a *Agent) newLinks(conn *broker.Conn, lease link.Lease) *link.AgentLinks {
	hello := a.routing.Hello()
	hello.Version = a.cfg.Version
	hello.Features = []string{link.FeatureAuthority, link.FeatureCanvas, link.FeaturePreview}
	return link.NewAgentLinks(conn, link.AgentLinksConfig{
		Tenant: a.tenant, Host: a.host, Agent: a.instance, Lease: lease,
		Linked: lease.Recheck, // from now on answers tell of relays that are gone
		Hello:  hello, Trust: a.trusted, Link: link.Config{Resume: a.cfg.Resume}, Log: a.cfg.Log,
	}, a.routing)
}

// errNATS reports a connection to NATS that does not come back.
var errNATS = errors.New("the NATS server broke the protocol; see the log")

// watchConn calls fail if the connection is gone for good, until stopped.
func watchConn(conn *broker.Conn, fail func(error)) (stop func()) {
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-stopped:
		case <-conn.Done():
			fail(errNATS)
		}
	})
	return func() {
		close(stopped)
		wg.Wait()
	}
}

// orDone returns a context that ends with either.
func orDone(ctx, other context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx
}

// ended returns why Run ended: being asked to is no error.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return fmt.Errorf("host-agent: %w", err)
}
