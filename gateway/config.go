package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/device"
	"ahprelay/auth/oidc"
	"ahprelay/auth/people"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/broker/resume"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/canvas"
	"ahprelay/gateway/wire"
	"ahprelay/internal/tracing"
)

// Config configures a [Server]. Zero durations and sizes mean their defaults.
type Config struct {
	Keys     *auth.Keys         // required; they sign and verify tokens
	Bus      link.Bus           // required; connects to NATS
	Registry *registry.Registry // required
	Instance string             // required; names this process
	Version  string             // the program's version

	// Settings are the relay's start settings without secrets, for the admin listener.
	Settings map[string]string

	// Issuers verify tokens from external issuers, by iss (package oidc). The Server does
	// not close them. Default: none.
	Issuers map[string]auth.Verifier

	// SignIn lists the identity providers for sign-in with a browser. Default: none.
	SignIn []*oidc.SignIn

	// People is the directory of people and their devices. Default: none, so device keys
	// cannot get tokens.
	People *people.Directory

	// PublicURL is the relay's public base URL, for links and device proofs. Default: the
	// URL in each request.
	PublicURL string

	// OwnURL is a base URL that leads clients to this relay and not to another one of the
	// cluster. Default: unknown.
	OwnURL string

	// NATS connects a host-agent that uses WebSocket to its tenant's account at the NATS
	// server. The connection ends with ctx. If nil, /nats does not exist.
	NATS func(ctx context.Context, tenant, host string) (net.Conn, error)

	// Listens reports whether a tenant's NATS account may have subscriptions to a subject.
	// The relay publishes notifications for single viewers only on such subjects. Listens
	// must not block. Default: no subscriptions.
	Listens func(tenant, subject string) bool

	// Ready returns an error while the relay should get no new clients; /readyz reports
	// it. If inside is false, the error must not contain addresses of relays, because the
	// public listener shows it. Default: ready unless draining.
	Ready func(inside bool) error

	// Degraded describes a fault that reduces redundancy but not service, for /readyz; ""
	// means none. May be nil.
	Degraded func() string

	// Origins are patterns for web origins that may connect, in addition to the relay's
	// own: "app.example.com", "*.example.com", "https://example.com". Default:
	// DefaultOrigins.
	Origins []string

	// ConsoleOrigins are the origins of consoles that are served elsewhere. Their pages
	// may connect, sign in, and call the HTTP interfaces under /api/ with tokens.
	ConsoleOrigins []string

	MaxFrame      int           // longest message in bytes, in either direction; default 128 MiB or, if less, (MaxQueued-QueueLimit)/4
	MaxFirstFrame int           // longest message before the host has answered initialize or reconnect; default 64 KiB, at most 256 KiB
	QueueLimit    int           // bytes queued for a client before it counts as too slow; default 8 MiB, at least 1 MiB
	MaxQueued     int           // limit for the bytes in use for all clients; above 3/4 of it, clients that stall are closed; default 1 GiB
	Ping          time.Duration // interval of pings; three unanswered pings end the connection; default 15 s
	Stall         time.Duration // longest time without any byte accepted by a client; default 40 s
	Resume        time.Duration // longest outage of a host-agent's link that goes unnoticed; default 15 s
	HoldTime      time.Duration // longest wait for the host by a client that resumes; default 10 min. Other clients wait 20 s at most
	AgentTTL      time.Duration // lifetime of NATS credentials for host-agents; default 15 min
	CredentialTTL time.Duration // lifetime of host-agents' credentials; default 90 days, at most [auth.MaxDerivedTTL]

	// Strict are patterns for hosts, as tenant/host, whose connections are gated strictly
	// (package mcpgate). "default/*" matches all hosts in tenant default.
	Strict []string

	// CanvasDomain is the domain for canvases, each of which has a subdomain:
	// "canvas.example.com", or with scheme and port "http://localhost:8484". Its names
	// must resolve to the public listener. A [Relay] replaces port 0 by the listener's
	// port. Default: none, so canvases can only be read over AHP.
	CanvasDomain string

	// ClientResume is how long a client behind ahp-connect may lose its network
	// connection (default 10 min), and ClientBacklog the bytes that are kept for it
	// meanwhile (default 8 MiB). PersonBacklog (default 32 MiB) and TotalBacklog (default
	// MaxQueued/8) limit the bytes kept for all clients of a person and of the relay. A
	// negative ClientResume disables resuming.
	ClientResume                               time.Duration
	ClientBacklog, PersonBacklog, TotalBacklog int

	// Compress selects the clients that get compressed messages if they offer
	// compression. Default: CompressFar.
	Compress wire.Compression

	// Place names the relay's region and zone. Host-agents connect to relays at two
	// places if they can. Default: all relays have the same place.
	Place string

	// Minority selects the behaviour while the relay is cut off from its cluster's
	// majority. Default: MinorityRead.
	Minority Minority

	// Limits limit clients, by address, subject, token, host and tenant.
	Limits admission.Limits

	// Wake are the operator's commands that wake sleeping hosts, by tenant/host. A shell
	// runs them with AHP_TENANT and AHP_HOST in its environment.
	Wake map[string]string

	// TrustProxy lists the proxies in front of the relay. In requests from them,
	// X-Forwarded-For names the client's address. Default: none.
	TrustProxy []netip.Prefix

	// AuditFile receives the audit log as JSON lines, in addition to Log. Default: none.
	AuditFile io.Writer

	Log *slog.Logger // default: no log

	// Tracer records spans for clients' requests. The caller closes it after the
	// Server. Default: none.
	Tracer *tracing.Tracer
}

// DefaultOrigins are the web origins of well-known clients. Their connections need a
// token like all others.
var DefaultOrigins = []string{
	"vscode-file://vscode-app", // VS Code on the desktop
}

// defaultStall is how long a client may accept no byte. It exceeds 38 s because stock
// clients wait 25 s for data, and TCP may take up to 13 s to retransmit the next byte
// after an outage of 14 s has ended.
const defaultStall = 40 * time.Second

// Bounds for configured limits.
const (
	// maxFirst is the largest first message that a host connection accepts without
	// blocking.
	maxFirst = 256 << 10

	// minQueue is the amount that a host-agent may send ahead of the client. In a smaller
	// queue, any large message could exceed the limit although the client reads quickly.
	minQueue = 1 << 20
)

func (cfg Config) withDefaults() Config {
	cfg.QueueLimit = cmp.Or(cfg.QueueLimit, 8<<20)
	cfg.MaxQueued = cmp.Or(cfg.MaxQueued, 1<<30)
	cfg.MaxFrame = cmp.Or(cfg.MaxFrame, min(128<<20, max(1, (cfg.MaxQueued-cfg.QueueLimit)/4)))
	cfg.MaxFirstFrame = cmp.Or(cfg.MaxFirstFrame, min(64<<10, cfg.MaxFrame))
	cfg.Ping = cmp.Or(cfg.Ping, 15*time.Second)
	cfg.Stall = cmp.Or(cfg.Stall, defaultStall)
	cfg.Resume = cmp.Or(cfg.Resume, link.DefaultResume)
	cfg.HoldTime = cmp.Or(cfg.HoldTime, 10*time.Minute)
	cfg.ClientResume = cmp.Or(cfg.ClientResume, resume.DefaultTime)
	cfg.ClientBacklog = cmp.Or(cfg.ClientBacklog, resume.DefaultWindow)
	cfg.PersonBacklog = cmp.Or(cfg.PersonBacklog, 32<<20)
	cfg.TotalBacklog = cmp.Or(cfg.TotalBacklog, cfg.MaxQueued/8)
	cfg.Limits = cfg.Limits.WithDefaults()
	cfg.CredentialTTL = cmp.Or(cfg.CredentialTTL, auth.DefaultCredentialTTL)
	cfg.CredentialTTL = min(cfg.CredentialTTL, auth.MaxDerivedTTL) // revocations are kept no longer than that
	cfg.Minority = cmp.Or(cfg.Minority, MinorityRead)
	cfg.Compress = cmp.Or(cfg.Compress, wire.CompressFar)
	if cfg.Origins == nil {
		cfg.Origins = DefaultOrigins
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.PublicURL, cfg.OwnURL = strings.TrimRight(cfg.PublicURL, "/"), strings.TrimRight(cfg.OwnURL, "/")
	return cfg
}

// leastHeld is the lowest limit in bytes for the bodies that the relay stores for a host,
// and for its chunks.
const leastHeld = 4 << 20

// ofMemory returns MaxQueued/n, but at least leastHeld and at most most.
func (cfg *Config) ofMemory(n, most int) int { return min(max(cfg.MaxQueued/n, leastHeld), most) }

// A host may send firstCredit bytes ahead of a new client. firstCredit is a small part of
// MaxQueued, so a thousand clients that never read cannot exhaust memory. While a client
// reads, its credit grows to mostCredit.
const (
	creditShare = 1024 // divides MaxQueued
	leastCredit = 64 << 10
	mostCredit  = 1 << 20
)

func (cfg *Config) firstCredit() int {
	return min(max(cfg.MaxQueued/creditShare, leastCredit), mostCredit)
}

// check returns an error for an invalid field.
func (cfg *Config) check() error {
	switch {
	case cfg.Keys == nil:
		return errors.New("no Keys given")
	case cfg.Bus == nil:
		return errors.New("no Bus given")
	case cfg.Registry == nil:
		return errors.New("no Registry given")
	}
	return errors.Join(cfg.checkSettings(), ahp.CheckName("Instance", cfg.Instance))
}

// checkSettings is the part of check that a relay needs before NATS starts. An error names a setting by its flag of relay serve; a setting
// without a flag has the name of its field, as in Config.Stall.
func (cfg *Config) checkSettings() error {
	return errors.Join(cfg.checkLimits(), cfg.checkTimes(), cfg.Minority.check(), cfg.Compress.Check(), cfg.checkOrigins(), cfg.checkStrict())
}

func (cfg *Config) checkLimits() error {
	switch {
	case cfg.MaxFrame < 1:
		return fmt.Errorf("--max-frame is %d; want at least 1", cfg.MaxFrame)
	case cfg.MaxFirstFrame < 1 || cfg.MaxFirstFrame > min(cfg.MaxFrame, maxFirst):
		return fmt.Errorf("Config.MaxFirstFrame is %d; want 1 to %d", cfg.MaxFirstFrame, min(cfg.MaxFrame, maxFirst))
	case cfg.QueueLimit < minQueue:
		return fmt.Errorf("Config.QueueLimit is %d; want at least %d", cfg.QueueLimit, minQueue)
	}
	if least := cfg.QueueLimit + 2*cfg.MaxFrame; cfg.MaxQueued < least {
		return fmt.Errorf("--max-queued is %d; want at least %d, for one client with the longest message", cfg.MaxQueued, least)
	}
	return nil
}

// checkOrigins returns an error for an address that is none, or for a malformed pattern of addresses.
func (cfg *Config) checkOrigins() error {
	for _, base := range []struct{ flag, url string }{{"--public-url", cfg.PublicURL}, {"--own-url", cfg.OwnURL}} {
		if _, err := device.BaseURL(base.url); base.url != "" && err != nil {
			return fmt.Errorf("%s %w", base.flag, err)
		}
	}
	for _, pattern := range cfg.Origins {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("--allow-origin %q is not a pattern; want for example *.example.com", pattern)
		}
	}
	for _, origin := range cfg.ConsoleOrigins {
		if base, err := device.BaseURL(origin); err != nil || base != origin {
			return fmt.Errorf("--console-origin %q: want a scheme and a host, such as https://console.example.com", origin)
		}
	}
	_, err := cfg.canvasOrigin()
	return err
}

func (cfg *Config) canvasOrigin() (canvas.Origin, error) {
	if cfg.CanvasDomain == "" {
		return canvas.Origin{}, nil
	}
	return canvas.ParseDomain(cfg.CanvasDomain)
}

func (cfg *Config) checkTimes() error {
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"--ping", cfg.Ping}, {"Config.Stall", cfg.Stall}, {"--resume", cfg.Resume}, {"--hold", cfg.HoldTime}, {"--credential-ttl", cfg.CredentialTTL},
	} {
		if d.value < 0 {
			return fmt.Errorf("%s is %v; want a time above zero, or 0 for the default", d.field, d.value)
		}
	}
	return nil
}

// clientShare is the part of all processors that clients' messages may use while tenants
// compete. It counts reading and forwarding a message, which is about a quarter of the
// work for a request and its response.
const clientShare = 1.0 / 16
