package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"ahprelay/auth/oidc"
	"ahprelay/cmd/internal/cli"
	"ahprelay/cmd/internal/tracer"
	"ahprelay/gateway"
	"ahprelay/gateway/api/hosts"
	"ahprelay/gateway/wire"
	"ahprelay/internal/memory"
)

type dataFlag struct {
	DataDir string `help:"The relay's directory for keys and state, created by relay serve. It is the relay's identity: keep it, and keep it secret." required:"" type:"path" placeholder:"DIR"`
}

type serveCmd struct {
	dataFlag
	Listen           string   `help:"Public listener's address." default:"${listen}" placeholder:"HOST:PORT"`
	AdminListen      string   `help:"Admin listener's address (metrics, connections, profiles), or none." default:"${admin_listen}" placeholder:"HOST:PORT"`
	MetricsListen    string   `help:"Listener for metrics alone, such as 0.0.0.0:8486, without TLS. Every process that can connect can read them. Default: the admin listener only." placeholder:"HOST:PORT"`
	NATSListen       string   `help:"NATS listener for host-agents. Without it, they use the public listener." placeholder:"HOST:PORT" name:"nats-listen"`
	NATSURL          string   `help:"External NATS cluster, instead of the embedded server." placeholder:"URL" name:"nats-url"`
	ClusterListen    string   `help:"Address for other relays with the same keys: their embedded NATS servers form a cluster with this relay's." placeholder:"HOST:PORT"`
	ClusterRoute     []string `help:"Cluster address of another relay. Repeatable; this relay's own address may be included." placeholder:"nats://HOST:PORT"`
	ClusterSize      int      `help:"Number of relays in the complete cluster, including witnesses. The cluster's first start needs a majority of this number, even if --cluster-route names fewer relays. Default: this relay and the others that --cluster-route names." placeholder:"N"`
	Region           string   `help:"This relay's region, if gateways join several regions. With --nats-url: the name of that NATS cluster." placeholder:"NAME"`
	Zone             string   `help:"The failure domain of this relay, such as its data centre. Each host-agent opens its second connection to a relay in a different zone or region, if there is one." placeholder:"NAME"`
	GatewayListen    string   `help:"Address for relays in other regions with the same keys: their embedded NATS servers connect here as gateways." placeholder:"HOST:PORT"`
	GatewayAdvertise string   `help:"Address at which other regions reach --gateway-listen, if it differs." placeholder:"HOST:PORT" with:"gateway-listen"`
	Gateway          []string `help:"Gateway address of a relay in a different region. Repeatable; name every relay of every region. Addresses in this relay's own region are ignored." placeholder:"REGION=HOST:PORT"`
	Minority         string   `help:"Service while this relay has no connection to the majority of its cluster for more than 15s: serve (all requests), read (clients receive and read; a client that requests a change is closed with code 4100) or stop (no client is served)." enum:"serve,read,stop" default:"read"`
	Witness          bool     `help:"Serve no clients; only keep a copy of the cluster's shared store. Two relays with a witness keep working while one of the three is down."`
	AllowOrigin      []string `help:"Additional web origins that may connect, as patterns such as *.example.com." placeholder:"PATTERN"`
	ConsoleOrigin    []string `help:"Origin of a console that this relay does not serve: a site made by make console-site, or a different relay whose users add accounts of this one. Its pages may sign in, connect, and call /api/ with tokens. Repeatable." placeholder:"URL"`
	OIDC             issuers  `help:"Accepted OpenID Connect providers, with the access that their tokens grant: a YAML file with a list; in the --config file, the list itself." placeholder:"FILE" name:"oidc"`
	Compress         string   `help:"Which clients get compressed messages, if they offer compression: far (2 ms away or more, or behind a proxy), all or off." enum:"far,all,off" default:"far" name:"compress-clients"`
	CanvasDomain     string   `help:"Domain for canvases by URL, such as canvas.example.com, or with scheme and port http://localhost:8484. In DNS, all names below it must resolve to this relay. Without it, clients read canvases only through their AHP connection." placeholder:"DOMAIN"`
	Strict           []string `help:"Hosts at which a request is refused if client or host did not declare its capability, as patterns TENANT/HOST: default/laptop, default/*. At all other hosts, the host-agent's --mcp applies." placeholder:"TENANT/HOST"`
	OwnURL           string   `help:"Base URL of this relay alone, not of its cluster. /api/hosts/HOST returns it for each host connected to this relay. Default: no URL is returned." placeholder:"URL" name:"own-url"`
	PublicURL        string   `help:"The relay's base URL for people and host-agents, without a path, used in links and device proofs: https://relay.example.com. Default: from --acme-domain; otherwise each request's own address, and in printed links a name in --tls-cert, or the address of --listen." placeholder:"URL" name:"public-url"`
	edgeFlags
	notifyFlags
	cli.FrameLimit
	Resume        time.Duration `help:"How long a host-agent may be unreachable before its clients are closed." default:"${resume}" least:"1s"`
	Hold          time.Duration `help:"How long a client that reconnects waits for an absent host. A new client waits at most 20s." default:"10m" least:"1s"`
	ClientResume  time.Duration `help:"How long the relay keeps the session of a disconnected ahp-connect, so that its programs do not notice the interruption. 0: their connections end at once." default:"10m" least:"0s"`
	ClientBacklog int           `help:"Most bytes that the relay queues for one client of a disconnected ahp-connect." default:"8388608" least:"1" placeholder:"BYTES"`
	PersonBacklog int           `help:"Most bytes that the relay queues for all such clients of a person." default:"33554432" least:"1" placeholder:"BYTES"`
	TotalBacklog  int           `help:"Most bytes that the relay queues for all such clients together. Default: an eighth of --max-queued." least:"1" placeholder:"BYTES"`

	WakeCommand map[string]string `help:"Command that wakes a host's machine, for example in a cloud: default/laptop=/etc/ahp/wake. A shell runs it with AHP_TENANT and AHP_HOST set, when a signed-in person with the level operate asks for it. Repeatable." placeholder:"TENANT/HOST=COMMAND" mapsep:"none"`

	RememberHost   int64 `help:"Quota for the sealed last state of a host's sessions. Above it, the host's oldest records are removed." default:"67108864" least:"1" placeholder:"BYTES"`
	RememberTenant int64 `help:"Quota for the sealed last states of all hosts in a tenant together." default:"1073741824" least:"1" placeholder:"BYTES"`

	Drain time.Duration `help:"Time limit for stopping. During its first half, the relay asks its clients, a few at a time, to reconnect." default:"10s" least:"0s"`

	Ping          time.Duration `help:"Interval between pings to a client; three unanswered pings end a connection." default:"15s" least:"1s"`
	CredentialTTL time.Duration `help:"Lifetime of credentials from host-agent enroll; host-agents renew them after a third of it." default:"2160h" least:"1m" name:"credential-ttl"`
	ForgetAfter   time.Duration `help:"Forget a host that was absent for this long. Default: never." least:"1m" placeholder:"DURATION"`
	MaxQueued     int           `help:"Most memory for the messages of all clients, in bytes. Above three quarters of it, the relay closes clients that do not read, those stalled longest first. Default: a quarter of this process's cgroup memory, or an eighth (at most 1073741824) of the machine's memory." placeholder:"BYTES"`
}

// mostQueued is the default for --max-queued on a machine with enough memory, in
// bytes.
const mostQueued = 1 << 30

func (c *serveCmd) config(s *streams) gateway.RelayConfig {
	origins := append([]string{}, gateway.DefaultOrigins...)
	return gateway.RelayConfig{
		DataDir: c.DataDir, Listen: c.Listen, AdminListen: c.AdminListen, MetricsListen: c.MetricsListen,
		NATSListen: c.NATSListen, NATSURL: c.NATSURL, ClusterListen: c.ClusterListen, ClusterRoutes: c.ClusterRoute, ClusterSize: c.ClusterSize,
		Region: c.Region, GatewayListen: c.GatewayListen, GatewayAdvertise: c.GatewayAdvertise, Gateways: c.Gateway,
		ForgetAfter: c.ForgetAfter, RememberHost: c.RememberHost, RememberTenant: c.RememberTenant,
		Gateway: gateway.Config{
			Version: cli.BuildVersion(), Settings: s.settings, Place: c.Region + "/" + c.Zone, Origins: append(origins, c.AllowOrigin...), ConsoleOrigins: c.ConsoleOrigin,
			Wake: c.WakeCommand, MaxFrame: c.MaxFrame, Resume: c.Resume, HoldTime: c.Hold, Log: s.log,
			ClientResume: c.clientResume(), ClientBacklog: c.ClientBacklog, PersonBacklog: c.PersonBacklog, TotalBacklog: c.TotalBacklog,
			Ping: c.Ping, CanvasDomain: c.CanvasDomain, Strict: c.Strict, Compress: wire.Compression(c.Compress),
			Minority: gateway.Minority(c.Minority), CredentialTTL: c.CredentialTTL, PublicURL: c.publicURL(), OwnURL: c.OwnURL,
		},
	}
}

// prepare returns the whole configuration. The caller calls end after the relay's end.
func (c *serveCmd) prepare(s *streams) (cfg gateway.RelayConfig, end func(), err error) {
	cfg = c.config(s)
	for name := range c.WakeCommand {
		if err := hosts.CheckWake(name); err != nil {
			return cfg, nil, fmt.Errorf("--wake-command: %w", err)
		}
	}
	if cfg.Gateway.MaxQueued, err = cli.UseMemory(s.log).Queued(c.MaxQueued, mostQueued); err != nil {
		return cfg, nil, err
	}
	if cfg.Notify, err = c.notifyFlags.config(); err != nil {
		return cfg, nil, err
	}
	if cfg.Gateway.SignIn, err = c.OIDC.signIns(); err != nil {
		return cfg, nil, err
	}
	closeAudit, err := c.apply(&cfg)
	if err != nil {
		return cfg, nil, err
	}
	others, endOthers, err := c.OIDC.verifiers(oidc.Options{Log: s.log})
	if err != nil {
		return cfg, nil, errors.Join(err, closeAudit())
	}
	cfg.Gateway.Issuers = others
	return cfg, func() {
		endOthers()
		if err := closeAudit(); err != nil {
			s.log.Error("audit file not closed", "error", err)
		}
	}, nil
}

// Run runs a relay until ctx ends, and then drains its clients.
func (c *serveCmd) Run(ctx context.Context, s *streams) error {
	defer memory.Start()()
	if c.Witness {
		return witness(ctx, s, c.config(s))
	}
	cfg, end, err := c.prepare(s)
	if err != nil {
		return err
	}
	defer end()
	traces, endTraces, err := tracer.Start(ctx, "ahp-relay", s.log)
	if err != nil {
		return err
	}
	defer endTraces()
	cfg.Gateway.Tracer = traces
	relay, err := gateway.StartRelay(ctx, cfg)
	if err != nil {
		return unlessStopped(ctx, s, err)
	}
	defer relay.Close()
	log := s.log.With("url", relay.URL(), "admin", relay.AdminURL(), "nats", fmt.Sprint(relay.NATSAddr()),
		"cluster", relay.ClusterAddr(), "gateway", relay.GatewayAddr(), "data_dir", c.DataDir)
	if err := await(ctx, s, relay, log); err != nil {
		return err
	}
	s.log.Info("stopping", "within", c.Drain)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Drain-c.Drain/closeShare)
	defer cancel()
	relay.Drain(drain, c.Drain/2)
	return nil
}

// unlessStopped returns the error of a start, unless an operator has ended the start.
func unlessStopped(ctx context.Context, s *streams, err error) error {
	if ctx.Err() == nil {
		return err
	}
	s.log.Info("stopped during the start", "reason", err)
	return nil
}

// readyLook is the interval in which await asks whether the relay is ready.
const readyLook = 100 * time.Millisecond

// await returns when ctx ends, or returns an error when the connection to NATS has failed
// permanently. It logs when the relay is ready, with the relay's addresses. Once the
// people are known, it prints a setup link if the relay has no owner.
func await(ctx context.Context, s *streams, relay *gateway.Relay, log *slog.Logger) error {
	known := relay.PeopleKnown()
	look := time.NewTicker(readyLook)
	defer look.Stop()
	if err := relay.Unready(); err != nil {
		log.Info("relay start incomplete", "reason", err)
	} else {
		log.Info("relay ready")
		look.Stop()
	}
	for {
		select {
		case <-look.C:
			if relay.Unready() == nil {
				log.Info("relay ready")
				look.Stop()
			}
		case <-ctx.Done():
			return nil
		case <-relay.Done():
			return errors.New("the connection to NATS has ended and cannot be restored; see the log")
		case <-known:
			known = nil
			if err := welcomeOwner(s, relay); err != nil {
				s.log.Error("setup link unavailable", "hint", "request a link with relay setup-link", "error", err)
			}
		}
	}
}

func witness(ctx context.Context, s *streams, cfg gateway.RelayConfig) error {
	w, err := gateway.StartWitness(ctx, cfg)
	if err != nil {
		return unlessStopped(ctx, s, err)
	}
	defer w.Close()
	s.log.Info("witness ready", "cluster", w.ClusterAddr(), "data_dir", cfg.DataDir)
	<-ctx.Done()
	return nil
}

// publicURL returns the relay's address for people, as far as it is known.
func (c *serveCmd) publicURL() string {
	if c.PublicURL == "" && len(c.ACMEDomain) > 0 {
		return "https://" + c.ACMEDomain[0]
	}
	return c.PublicURL
}

// welcomeOwner prints a setup link while the relay has no owner.
func welcomeOwner(s *streams, relay *gateway.Relay) error {
	link, err := relay.SetupLink("")
	switch {
	case errors.Is(err, gateway.ErrNoPublicURL):
		s.log.Warn("relay without an owner", "hint", "for a link for its first owner, start it with --public-url, or run relay setup-link --url", "error", err)
		return nil
	case err != nil || link == "":
		return err
	case s.logs.LogFormat == "json":
		s.log.Warn("relay without an owner", "hint", "the first visitor of the link becomes its owner; it is valid for a day, or until the next start", "link", link)
		return nil
	}
	fmt.Fprintf(s.err, "This relay has no owner yet. The first visitor of this link becomes its owner; it is valid for a day, or until the next start:\n\n  %s\n\n", link)
	return showSetup(s, s.err, link, relay.URL())
}

// closeShare is the divisor for the part of --drain that is reserved for closing the
// last connections.
const closeShare = 5

// clientResume returns gateway.Config.ClientResume: for the flag's 0 a negative value, because
// 0 means the default there.
func (c *serveCmd) clientResume() time.Duration {
	if c.ClientResume == 0 {
		return -1
	}
	return c.ClientResume
}
