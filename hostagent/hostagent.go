package hostagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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
	"ahprelay/hostagent/remembering"
	"ahprelay/hostagent/watch"
	"ahprelay/internal/awake"
	"ahprelay/internal/coalesce"
	"ahprelay/internal/fair"
	"ahprelay/internal/signal"
	"ahprelay/internal/tracing"
	"ahprelay/routing"
)

// Config configures an [Agent]. A zero duration or size means the default.
type Config struct {
	Relays      []string               // required; base URLs of one cluster's relays, all http:// or all https://
	Token       func() (string, error) // required unless Credentials is set; returns the enrolment token, called before each use
	Credentials *CredentialFile        // used in place of Token

	NATSURLs []string            // NATS URLs to use instead of the relays' /nats
	Plain    bool                // permits http:// and nats:// beyond this machine
	Upstream Upstream            // required; the AHP host
	TakeOver bool                // takes the host over from a running host-agent, which then stops
	Version  string              // version of this program
	Strict   bool                // strict gates for MCP and client capabilities, whatever relays request; see package mcpgate
	Canvas   contentproxy.Config // loopback ports that canvases may show; New adds the AHP host's own port to the denied ports

	CanvasLive    CanvasLive // bounds the use of canvases by URL; default: CanvasOn
	CanvasSockets bool       // viewers at level look may open WebSockets to canvases

	PreviewPorts []PortRange // loopback ports that clients at level operate may open by URL; default: none

	HostFiles   HostFiles    // whether the host shares this machine's files; default: if the upstream is on this machine
	Allow       *gate.Policy // upper bound of clients' permissions; nil: no bound
	ApproveOnly []string     // patterns of the only subjects that may approve or operate; empty: all whose tokens permit it
	NoReverse   bool         // the host may not request files from clients
	Notify      Notify       // events for notifications; default: none

	NotifyAnswers NotifyAnswers // answers permitted from notifications; default: AnswersSafe

	KeepAwake awake.Mode // what keeps the machine from idle sleep; default: nothing, and sleep is not announced
	OnBattery bool       // KeepAwake also without mains power

	Waking Waking // orders to wake machines; default: none

	Remember remembering.Mode // what relays keep, sealed, for people to read while the host is away; default: nothing

	Sealed *Sealing // seals the host, with keys and devices in StateDir; nil: not sealed

	StateDir string // directory for state that outlives this process: the run file, keys, waiting items; "": none

	Control string // path of the control socket; "": none

	MetricsListen string // address for metrics, as host:port; "": none. Metrics are readable without authentication

	MaxFrame  int           // bytes of the longest message in each direction; default 128 MiB, or a quarter of MaxQueued if less
	MaxQueued int           // bytes queued for all clients and the host, above which the connection that has stalled for longest is closed; default 512 MiB
	Resume    time.Duration // how long relays, or the host's machine, may be unreachable without effect; default 15 s
	Compress  string        // compression towards relays that support it: broker.Zstandard; default: none

	Sentinel SentinelCommand // command that starts the sentinel

	HTTP *http.Client // sends requests to the relays; default: a client that uses the environment's proxies
	Log  *slog.Logger // default: none

	// Tracer makes spans of client requests. The caller closes it after Run. Default:
	// no spans.
	Tracer *tracing.Tracer
}

// clientPatience is how long common clients wait for a message before they consider a
// connection dead.
const clientPatience = 25 * time.Second

// Times for stopping.
const (
	// settleTime is how long a stopping host-agent delivers queued messages to clients
	// and to the host.
	settleTime = 5 * time.Second

	// releaseTime is how long a stopping host-agent then takes to release the host.
	releaseTime = 2 * time.Second
)

// An Agent makes one AHP host reachable through relays.
type Agent struct {
	*access
	cfg Config

	givesUpAfter time.Duration // see refusedFor

	dialFor  func(ctx context.Context, who *caller) (hostSocket, error)
	monitor  *monitor
	routing  *routing.AgentEnd
	canvases *contentproxy.Host
	live     *live
	audits   *coalesce.Table // coalesces repeated audit lines
	sentinel *sentinel

	seals *seals // state of a sealed host; nil if the host is not sealed

	clients    clientIndex
	moves      *moves
	frames     frameCache
	known      *view.Host // the host's state, from its messages
	subjects   *gate.Subjects
	rejections *rejections
	blocked    blocklist

	run   run             // set by Run
	life  context.Context // from Run; ends the connections to the host
	conns sync.WaitGroup  // the connections to the host

	presence presence
	awake    *awake.Keeper

	ledger *notice.Ledger // events to report to relays
	watch  *watch.Watch   // detects events and working agents; nil: see newWatch

	last    lastStates
	waiting *waitingItems

	outcomes outcomes // outcomes of answers that people gave in notifications
	given    givenAnswers
	private  privateSessions

	signInRate *fair.Buckets                // limits requests to sign in, by subject
	listenBack func() (net.Listener, error) // listens at the port to which a sign-in redirects browsers on this machine

	metrics *metrics
}

// New returns an Agent for the host named by the token. It opens no connection.
func New(cfg Config) (*Agent, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
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
	a := &Agent{access: access, cfg: cfg, givesUpAfter: refusedFor, moves: newMoves(), audits: coalesce.New(auditEvery), rejections: newRejections(), signInRate: fair.NewBuckets(signInEvery, signInAtOnce), listenBack: listenLoopback}
	a.cfg.Log = cfg.Log.With("tenant", a.tenant, "host", a.host, "agent", a.instance)
	a.presence.init(cfg.Version, cfg.Sealed != nil, a.cfg.Waking.terms)
	a.sentinel = newSentinel(cfg.Sentinel, a.cfg.Log, a.sentinelInput)
	a.fetched = func() { signal.Send(a.sentinel.news) } // the token may have changed
	a.subjects = gate.NewSubjects()
	a.dialFor = a.dialForClient
	a.monitor = newMonitor(cfg.Upstream.String(), a.dialForMonitor, cfg.Resume, a.cfg.Log, a.presence.hostChanged)
	a.monitor.gone, a.monitor.heard = a.hostGone, a.clients.lastHeard
	canvas := cfg.Canvas
	canvas.Own = cfg.Upstream.port
	a.canvases = contentproxy.NewHost(canvas)
	a.known = view.NewHost(gate.Key)
	a.ledger = notice.NewLedger(a.instance)
	a.ledger.Limit(a.private.owner)
	if err = openState(a); err != nil {
		return nil, fmt.Errorf("host-agent: %w", err)
	}
	a.watch = a.newWatch()
	a.live = newLive(a)
	a.metrics = newMetrics(a)
	a.routing = routing.NewAgentEnd(routing.AgentEndConfig{
		Instance: a.instance, Connect: a.connect, MaxFrame: cfg.MaxFrame, MaxQueued: cfg.MaxQueued, Stall: clientPatience + cfg.Resume, Sealed: cfg.Sealed != nil,
		Delayed: func(d time.Duration) { a.metrics.delays.Observe(d.Seconds()) },
	})
	return a, nil
}

// withDefaults returns a copy with defaults for missing fields.
func (cfg Config) withDefaults() Config {
	cfg.Resume = cmp.Or(cfg.Resume, link.DefaultResume)
	cfg.MaxQueued = cmp.Or(cfg.MaxQueued, 512<<20)
	cfg.MaxFrame = cmp.Or(cfg.MaxFrame, min(128<<20, cfg.MaxQueued/4))
	cfg.HTTP = cmp.Or(cfg.HTTP, newHTTPClient())
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Credentials != nil {
		cfg.Token = cfg.Credentials.Token
	}
	return cfg
}

// check returns the first error in a configuration with defaults.
func (cfg *Config) check() error {
	switch {
	case cfg.Token == nil:
		return errors.New("host-agent: Token is missing")
	case cfg.MaxFrame < 1:
		return fmt.Errorf("--max-frame is %d; want at least 1", cfg.MaxFrame)
	case cfg.MaxQueued < 2*cfg.MaxFrame:
		return fmt.Errorf("--max-queued is %d; want at least %d, room for two messages of --max-frame", cfg.MaxQueued, 2*cfg.MaxFrame)
	case cfg.Resume < 0:
		return fmt.Errorf("--resume is %v; want a time above zero, or 0 for the default", cfg.Resume)
	}
	if err := cfg.CanvasLive.check(); err != nil {
		return err
	}
	if err := checkListen(cfg.MetricsListen); err != nil {
		return err
	}
	if err := checkRelays(cfg.Relays, cfg.NATSURLs, cfg.Plain); err != nil {
		return err
	}
	if err := cfg.Waking.check(); err != nil {
		return err
	}
	return cfg.Upstream.Check()
}

// openState opens the parts that keep state.
func openState(a *Agent) (err error) {
	keptAwake := a.presence.keptAwake
	if a.cfg.Sealed != nil {
		keptAwake = nil // relays must not learn how many sessions run
		a.seals = &seals{agent: a}
		if a.seals.vault, err = openVault(a.cfg.StateDir, a.tenant, a.host); err != nil {
			return err
		}
		a.seals.vault.fence = a.run.fence
		a.ledger.Seal()
	}
	a.awake = awake.New(awake.Config{Mode: cmp.Or(a.cfg.KeepAwake, awake.Never), OnBattery: a.cfg.OnBattery, Log: a.cfg.Log, Changed: keptAwake})
	if a.last, err = newLastStates(a); err != nil {
		return err
	}
	a.waiting, err = newWaitingItems(a)
	return err
}

// acquire waits until this host-agent has the host, and then calls got.
func acquire(ctx context.Context, holder *registry.LeaseHolder, a *Agent) error {
	if err := holder.Acquire(ctx); err != nil {
		return err
	}
	return got(a)
}

// reread reads the files of the state directory again: a host-agent that had the host until now may
// have changed them since New.
func reread(a *Agent) (err error) {
	if a.seals != nil {
		err = a.seals.reread()
	}
	if err == nil && a.last.keeper != nil {
		err = a.last.keeper.Reread()
	}
	if err == nil && a.waiting.book != nil {
		err = a.waiting.book.Reread()
	}
	if err == nil {
		err = a.private.open(a.cfg.StateDir, a.tenant, a.host)
	}
	if err != nil {
		err = fmt.Errorf("host-agent: %w", err)
	}
	return err
}

// Run serves the host until ctx ends. It returns an error if it cannot continue, such as
// when the token is refused or a different host-agent has taken over the host.
func (a *Agent) Run(ctx context.Context) error {
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	a.life = life
	if err := a.enter(); err != nil {
		return fmt.Errorf("host-agent: %w", err)
	}
	defer func() { a.run.close() }()
	userJWT, err := a.credentials(ctx)
	if err != nil && !temporary(err) {
		return err // fails at the start rather than repeatedly in the background
	}
	refused := &refusals{after: a.givesUpAfter, report: a.tokenRefused, fail: func(err error) { stop(err) }}
	a.cfg.Log.Info("connecting", "relay", strings.Join(a.cfg.Relays, " "), "upstream", a.cfg.Upstream.String())

	var made atomic.Pointer[link.AgentLinks]
	conn, err := a.dial(ctx, userJWT, refused.answered, func() {
		if links := made.Load(); links != nil {
			links.Resumed()
		}
	})
	if err != nil {
		return ended(ctx, err)
	}
	defer conn.Close()
	a.metrics.conn.Store(conn)
	holder, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: conn, Tenant: a.tenant, Host: a.host, Instance: a.instance, TakeOver: a.cfg.TakeOver,
		Presence: a.presence.now(),
		Previous: a.run.previous,
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
	defer wg.Wait() // no connections are made after this
	wg.Go(func() { a.metrics.serve(life, a.cfg.MetricsListen, a.cfg.Log) })
	for _, task := range []func(context.Context){a.monitor.run, a.awake.Run, a.audits.Run, a.live.serve, a.live.watch} {
		wg.Go(func() { task(life) })
	}
	wg.Go(func() { watchConn(life, conn, stop) })
	wg.Go(func() { a.presence.announce(life, holder.Update) })
	wg.Go(func() { a.goHome(life, conn) })
	if a.cfg.KeepAwake != "" {
		wg.Go(func() { a.announceSleep(life, holder.Settled) })
	}
	if a.file != nil {
		wg.Go(func() { a.renewLoop(life, conn.Redial, a.renewed) })
	}
	if len(a.cfg.Sentinel.Command) > 0 {
		wg.Go(func() { a.sentinel.run(life) })
		<-a.sentinel.ready // before any client connects
	}
	serve := orDone(ctx, life)
	if err := acquire(serve, holder, a); err != nil {
		stop(err)
		return ended(ctx, err)
	}
	a.cfg.Log.Info("lease acquired")
	a.seals.showFirstCode()
	wg.Go(func() { a.serveControl(life) })
	wg.Go(func() { a.notices(life, conn) })
	wg.Go(func() { stop(links.Run(life)) })
	if err = holder.Run(serve); err == nil {
		err = context.Cause(serve)
	}
	if a.goodbye(links, holder) {
		a.run.released()
	}
	stop(err)
	return ended(ctx, err)
}

// tokenRefused logs that relays refuse the running host-agent's token.
func (a *Agent) tokenRefused(err error) {
	a.cfg.Log.Error("token refused", "effect", "this host-agent stops in a minute unless it gets a valid token", "error", err)
}

// trouble logs an error that affects clients although NATS is connected.
func (a *Agent) trouble(err error) {
	if errors.Is(err, link.ErrIncompatible) {
		a.cfg.Log.Error("host unavailable to clients", "error", err)
		return
	}
	a.cfg.Log.Warn("lease not confirmed by relays", "error", err)
}

// goodbye closes the clients after the host's last messages, waits until the
// clients' messages have reached the host, and releases the host. It reports
// whether relays have confirmed the release.
func (a *Agent) goodbye(links *link.AgentLinks, holder *registry.LeaseHolder) bool {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	none := a.dismiss()
	select {
	case <-none: // each connection ends when its relay has confirmed all messages
	case <-ctx.Done():
	}
	links.Settle(ctx)
	ctx, cancel = context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	err := holder.Release(ctx)
	if err != nil {
		a.cfg.Log.Warn("release not confirmed by relays", "error", err)
	}
	return err == nil
}

// dismiss closes all clients, and ends the connections that are kept for
// clients on the move. The returned channel is closed when all have ended.
func (a *Agent) dismiss() (none <-chan struct{}) {
	none = a.clients.close()
	a.moves.endAll()
	a.routing.CloseAll(ahp.CloseHostOffline, stoppedReason)
	return none
}

// stoppedReason is the close reason when the host-agent stops.
const stoppedReason = "host-agent stopped"

// dial connects to NATS, first with userJWT if it is not empty. The returned
// connection reconnects by itself: answered receives the result of each request
// for credentials. resumed is called after each interruption, and after messages
// were dropped.
func (a *Agent) dial(ctx context.Context, userJWT string, answered func(error), resumed func()) (*broker.Conn, error) {
	return broker.DialAgent(ctx, a.natsConfig(a.natsURLs(), userJWT, answered, broker.Events{
		Connected: func(url string) { a.cfg.Log.Info("relay connected", "nats", url) },
		Disconnected: func(err error) {
			a.metrics.lost.Inc()
			a.cfg.Log.Warn("relay connection lost", "error", err)
		},
		Reconnected: func(url string) {
			a.metrics.back.Inc()
			a.cfg.Log.Info("relay reconnected", "nats", url)
			resumed()
		},
		Dropped: func(subject string) {
			a.cfg.Log.Warn("NATS messages dropped", "effect", "relays send them again", "subject", subject)
			resumed()
		},
		Error: func(err error) { a.cfg.Log.Warn("NATS error", "error", err) },
		Standby: func(url string) {
			a.metrics.standby.Store(url != "")
			if url != "" {
				a.cfg.Log.Info("second connection opened", "nats", url)
			}
		},
		Woke: func(slept time.Duration) {
			a.cfg.Log.Info("sleep or clock change detected", "slept", slept.Round(time.Second))
		},
		Retrying: func(attempt int, err error, wait time.Duration) {
			if attempt > 5 && attempt%10 != 0 {
				return // only every tenth is logged
			}
			a.cfg.Log.Info("reconnecting", "attempt", attempt, "after", wait.Round(time.Millisecond), "reason", err)
		},
	}))
}

// newLinks returns the links to relays. The links exist while this instance holds
// the lease.
func (a *Agent) newLinks(conn *broker.Conn, lease link.Lease) *link.AgentLinks {
	hello := a.routing.Hello()
	hello.Version = a.cfg.Version
	hello.Features = []string{link.FeatureAuthority, link.FeatureCanvas, link.FeaturePreview, link.FeatureMove}
	if a.seals != nil {
		hello.Features = []string{link.FeatureAuthority, link.FeatureSealed, link.FeatureTags, link.FeatureMove}
	}
	return link.NewAgentLinks(conn, link.AgentLinksConfig{
		Tenant: a.tenant, Host: a.host, Agent: a.instance, Lease: lease,
		Linked: lease.Recheck, // after each new link, check again which relays have gone
		Hello:  hello, Trust: a.trusted, Link: link.Config{Resume: a.cfg.Resume}, Log: a.cfg.Log,
	}, a.routing)
}

// errNATS reports that NATS has ended the connection for good.
var errNATS = errors.New("the NATS server broke the protocol; see the log")

// watchConn calls fail if the NATS connection ends for good, until ctx ends.
func watchConn(ctx context.Context, conn *broker.Conn, fail func(error)) {
	select {
	case <-ctx.Done():
	case <-conn.Done():
		fail(errNATS)
	}
}

// orDone returns a context that ends with either context.
func orDone(ctx, other context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx
}

// ended returns why Run ended: nil if err is the end of ctx.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return fmt.Errorf("host-agent: %w", err)
}
