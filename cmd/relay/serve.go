package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ahprelay/auth/oidc"
	"ahprelay/cmd/internal/cli"
	"ahprelay/gateway"
	"ahprelay/internal/memory"
)

type dataFlag struct {
	DataDir string `help:"The relay's directory for keys and state, which relay serve makes. It is the relay's identity: keep it, and keep it secret." required:"" type:"path" placeholder:"DIR"`
}

type serveCmd struct {
	dataFlag
	Listen           string   `help:"Address of the public listener." default:"${listen}" placeholder:"HOST:PORT"`
	AdminListen      string   `help:"Address of the admin listener (metrics, connections, profiles), or none." default:"${admin_listen}" placeholder:"HOST:PORT"`
	NATSListen       string   `help:"Address of a NATS listener for host-agents. Without it they come through the public listener." placeholder:"HOST:PORT" name:"nats-listen"`
	NATSURL          string   `help:"External NATS cluster to use instead of the embedded server." placeholder:"URL" name:"nats-url"`
	ClusterListen    string   `help:"Address for other relays with the same keys, whose embedded NATS servers join this one's." placeholder:"HOST:PORT"`
	ClusterRoute     []string `help:"Such addresses of other relays, of one or all. This relay's own may be among them." placeholder:"nats://HOST:PORT"`
	Region           string   `help:"Region of this relay, one of several that gateways join: with --nats-url, the name of the NATS cluster there." placeholder:"NAME"`
	GatewayListen    string   `help:"Address for relays of other regions with the same keys, whose embedded NATS servers are gateways to this one's." placeholder:"HOST:PORT"`
	GatewayAdvertise string   `help:"Where those reach it, if that is another address." placeholder:"HOST:PORT"`
	Gateway          []string `help:"Such addresses of relays of other regions, of one or more of each." placeholder:"REGION=HOST:PORT"`
	Witness          bool     `help:"Serve nobody: only have a copy of what the relays of the cluster know together. With one, two relays lose nothing when one of them is away."`
	AllowOrigin      []string `help:"Origins of web pages that may connect beside the relay's own, as patterns such as *.example.com." placeholder:"PATTERN"`
	OIDC             issuers  `help:"OpenID Connect providers whose tokens are accepted, and what they allow: a YAML file with a list; in the file of --config, the list itself." placeholder:"FILE" name:"oidc"`
	Compress         string   `help:"For whom what clients are sent is compressed, of those that offer it: far (those 2 ms and more away), all, off." enum:"far,all,off" default:"far" name:"compress-clients"`
	CanvasDomain     string   `help:"Domain whose names below it all lead here, for canvases by URL: canvas.example.com, or with scheme and port http://localhost:8484. Without it, canvases are read in band only." placeholder:"DOMAIN"`
	Strict           []string `help:"Hosts, as patterns tenant/host such as default/laptop or default/*, where requests that host or client have not declared are refused. Elsewhere their host-agents decide." placeholder:"TENANT/HOST"`
	OwnURL           string   `help:"Base URL at which clients reach this relay and no other of its cluster: /api/hosts/HOST names the one that a host is connected to. Default: none is named." placeholder:"URL" name:"own-url"`
	PublicURL        string   `help:"Base URL of the relay as people and host-agents reach it, for links and the proofs of devices. Default: of --acme-domain, or of where a request came to." placeholder:"URL" name:"public-url"`
	edgeFlags
	notifyFlags
	cli.FrameLimit
	Resume time.Duration `help:"How long a host-agent may be out of reach before clients are told." default:"15s"`
	Hold   time.Duration `help:"How long a client that resumes waits for a host that is away. One that begins anew: 20s at most." default:"10m"`
	Drain  time.Duration `help:"How long stopping may take: clients are told to reconnect, spread over half of it." default:"10s"`

	Ping          time.Duration `help:"How often clients are pinged; one that does not answer three times is given up." default:"15s"`
	CredentialTTL time.Duration `help:"How long the credentials are good that host-agents get with host-agent enroll; they renew them after a third of it." default:"2160h" name:"credential-ttl"`
	ForgetAfter   time.Duration `help:"How long a host may not be seen until it is forgotten. Default: for ever." placeholder:"DURATION"`
	MaxQueued     int           `help:"Bytes that may be in use for all clients together; above, those are closed that have stood still for longest. Default: a quarter of the memory of this process's cgroup, or an eighth of the machine's and at most 1073741824." placeholder:"BYTES"`
}

// mostQueued is how much of a machine's memory clients get by default at most,
// in bytes.
const mostQueued = 1 << 30

func (c *serveCmd) config(s *streams) gateway.RelayConfig {
	origins := append([]string{}, gateway.DefaultOrigins...)
	return gateway.RelayConfig{
		DataDir: c.DataDir, Listen: c.Listen, AdminListen: c.AdminListen,
		NATSListen: c.NATSListen, NATSURL: c.NATSURL, ClusterListen: c.ClusterListen, ClusterRoutes: c.ClusterRoute,
		Region: c.Region, GatewayListen: c.GatewayListen, GatewayAdvertise: c.GatewayAdvertise, Gateways: c.Gateway,
		ForgetAfter: c.ForgetAfter,
		Gateway: gateway.Config{
			Version: cli.BuildVersion(), Settings: s.settings, Origins: append(origins, c.AllowOrigin...),
			MaxFrame: c.MaxFrame, Resume: c.Resume, HoldTime: c.Hold, Log: s.log,
			Ping: c.Ping, CanvasDomain: c.CanvasDomain, Strict: c.Strict, Compress: gateway.Compression(c.Compress),
			CredentialTTL: c.CredentialTTL, PublicURL: c.publicURL(), OwnURL: c.OwnURL,
		},
	}
}

// Run runs a relay until ctx ends, and then lets its clients go.
func (c *serveCmd) Run(ctx context.Context, s *streams) error {
	defer memory.Start()()
	cfg := c.config(s)
	if c.Witness {
		return witness(ctx, s, cfg)
	}
	var err error
	if cfg.Gateway.MaxQueued, err = cli.UseMemory(s.log).Queued(c.MaxQueued, mostQueued); err != nil {
		return err
	}
	closeAudit, err := c.apply(&cfg)
	if err != nil {
		return err
	}
	defer func() {
		if err := closeAudit(); err != nil {
			s.log.Error("audit file", "error", err)
		}
	}()
	if cfg.Notify, err = c.notifyFlags.config(); err != nil {
		return err
	}
	others, endOthers, err := c.OIDC.verifiers(oidc.Options{Log: s.log})
	if err != nil {
		return err
	}
	defer endOthers()
	cfg.Gateway.Issuers = others
	if cfg.Gateway.SignIn, err = c.OIDC.signIns(); err != nil {
		return err
	}
	tracer, endTraces, err := cli.Tracer(ctx, "ahp-relay", s.log)
	if err != nil {
		return err
	}
	defer endTraces()
	cfg.Gateway.Tracer = tracer
	relay, err := gateway.StartRelay(ctx, cfg)
	if err != nil {
		return err
	}
	defer relay.Close()
	s.log.Info("relay ready", "url", relay.URL(), "admin", relay.AdminURL(), "nats", fmt.Sprint(relay.NATSAddr()),
		"cluster", relay.ClusterAddr(), "gateway", relay.GatewayAddr(), "data_dir", c.DataDir)
	if err := await(ctx, s, relay); err != nil {
		return err
	}
	s.log.Info("stopping", "within", c.Drain)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Drain-c.Drain/closeShare)
	defer cancel()
	relay.Drain(drain, c.Drain/2)
	return nil
}

// await returns when ctx ends. Meanwhile it welcomes the owner, as soon as it is known that there is
// none.
func await(ctx context.Context, s *streams, relay *gateway.Relay) error {
	known := relay.PeopleKnown()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-relay.Done():
			return errors.New("the connection to NATS ended for good; see the log")
		case <-known:
			known = nil
			if err := welcomeOwner(s, relay); err != nil {
				s.log.Error("no setup link could be made; ask for one with relay setup-link", "error", err)
			}
		}
	}
}

// witness runs a witness until ctx ends.
func witness(ctx context.Context, s *streams, cfg gateway.RelayConfig) error {
	w, err := gateway.StartWitness(ctx, cfg)
	if err != nil {
		return err
	}
	defer w.Close()
	s.log.Info("witness ready", "cluster", w.ClusterAddr(), "data_dir", cfg.DataDir)
	<-ctx.Done()
	return nil
}

// publicURL is where people reach the relay, as far as it is known.
func (c *serveCmd) publicURL() string {
	if c.PublicURL == "" && len(c.ACMEDomain) > 0 {
		return "https://" + c.ACMEDomain[0]
	}
	return c.PublicURL
}

// welcomeOwner prints the link by which somebody comes to own the relay, while nobody
// does.
func welcomeOwner(s *streams, relay *gateway.Relay) error {
	link, err := relay.SetupLink("")
	if err != nil || link == "" {
		return err
	}
	fmt.Fprintf(s.err, "Nobody owns this relay yet. Whoever opens this link first does; it is good for a day, or until the next start:\n\n  %s\n\n", link)
	return cli.PrintQR(s.err, s.err, link)
}

// closeShare is the part of --drain, one of so many, that is kept for closing
// what is left.
const closeShare = 5
