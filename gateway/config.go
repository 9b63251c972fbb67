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
	Keys     *auth.Keys         // required; they verify tokens
	Bus      link.Bus           // required; the relay's connections to NATS
	Registry *registry.Registry // required
	Instance string             // required; the instance name of this run
	Version  string             // the program's version

	// Settings are the relay's start settings without secrets, for the admin listener.
	Settings map[string]string

	// Issuers verify the tokens of external issuers, by iss (package oidc). They
	// outlive the Server. Default: none.
	Issuers map[string]auth.Verifier

	// SignIn lists the identity providers for sign-in with a browser. Default: none.
	SignIn []*oidc.SignIn

	// People is the directory of people and their devices. Default: none, device keys
	// get no tokens.
	People *people.Directory

	// PublicURL is the relay's public base URL, for links and device proofs. Default:
	// the URL of the request.
	PublicURL string

	// OwnURL is the base URL at which clients reach exactly this relay of a cluster.
	// Default: unknown.
	OwnURL string

	// NATS opens a connection to the NATS server for a tenant's host-agent connected
	// over WebSocket, until ctx ends. Without it, /nats does not exist.
	NATS func(ctx context.Context, tenant, host string) (net.Conn, error)

	// Listens reports whether a subject in a tenant's account may have readers, and must
	// not block. Notifications of single viewers are then published there. Default: there
	// are no readers.
	Listens func(tenant, subject string) bool

	// Ready returns an error while new clients should not come, for /readyz. Default:
	// only draining counts. Inside permits addresses of relays in the error: it is
	// false at the public listener.
	Ready func(inside bool) error

	// Degraded describes a lack that does not stop the service, for /readyz; "" for
	// none. May be nil.
	Degraded func() string

	// Origins are patterns for web origins allowed to connect, beside the relay's own:
	// "app.example.com", "*.example.com", "https://example.com". Default:
	// DefaultOrigins.
	Origins []string

	// ConsoleOrigins are the origins of consoles that the relay does not serve. Their
	// pages may connect, and call the HTTP interfaces under /api/ with tokens.
	ConsoleOrigins []string

	MaxFrame      int           // longest message in bytes, each way; default 128 MiB, or a quarter of MaxQueued if that is less
	MaxFirstFrame int           // longest message before the host has answered initialize or reconnect; default 64 KiB, at most 256 KiB
	QueueLimit    int           // bytes queued for a client before it counts as too slow; default 8 MiB, at least 1 MiB
	MaxQueued     int           // bytes in use for all clients before the longest stalled are closed; default 1 GiB
	Ping          time.Duration // interval of pings; three unanswered pings end the connection; default 15 s
	Stall         time.Duration // longest time without any byte accepted by a client; default 40 s
	Resume        time.Duration // longest outage of a host-agent's link that goes unnoticed; default 15 s
	HoldTime      time.Duration // longest wait for the host by a client that resumes; default 10 min. Other clients wait 20 s at most
	AgentTTL      time.Duration // lifetime of NATS credentials for host-agents; default 15 min
	CredentialTTL time.Duration // lifetime of credentials issued for enrolment tokens; default 90 days

	// Strict are patterns of hosts, tenant/host, with strictly gated connections
	// (package mcpgate). "default/*" matches all hosts of a tenant.
	Strict []string

	// CanvasDomain is the domain below which each canvas has an origin:
	// "canvas.example.com", or with scheme and port "http://localhost:8484". Its names
	// must resolve to the public listener; a [Relay] replaces port 0 by that
	// listener's port. Default: none, canvases are read in band only.
	CanvasDomain string

	// A client behind ahp-connect may be away for ClientResume (default 10 min) and
	// miss ClientBacklog bytes (default 8 MiB). PersonBacklog (default 32 MiB) and
	// TotalBacklog (default an eighth of MaxQueued) bound the bytes held for the
	// absent clients of a person, and for all. A negative ClientResume turns it off.
	ClientResume                               time.Duration
	ClientBacklog, PersonBacklog, TotalBacklog int

	// Compress selects the clients that get compressed messages, if they offer
	// compression. Default: CompressFar.
	Compress wire.Compression

	// Place names the relay's region and zone. Host-agents keep a second connection to a
	// relay with a different value. Default: all relays are at one place.
	Place string

	// Minority is what the relay does while it is cut off from the majority of its
	// cluster for 15 s. Default: MinorityRead.
	Minority Minority

	// Limits bound the use per subject, tenant and address.
	Limits admission.Limits

	// Wake are the operator's commands to wake hosts that are away, by tenant/host. A shell
	// runs them with AHP_TENANT and AHP_HOST in its environment.
	Wake map[string]string

	// TrustProxy lists the proxies in front of the relay: their X-Forwarded-For header
	// names the client's address. Default: none.
	TrustProxy []netip.Prefix

	// AuditFile receives the audit log as JSON lines, in addition to Log. Default:
	// none.
	AuditFile io.Writer

	Log *slog.Logger // default: no log

	// Tracer records spans for clients' requests. The caller closes it after the
	// Server. Default: none.
	Tracer *tracing.Tracer
}

// DefaultOrigins are the origins of public clients not served by relays. Their
// connections still need a token.
var DefaultOrigins = []string{
	"vscode-file://vscode-app", // VS Code on the desktop
}

// defaultStall bounds the time without any byte accepted by a client. Stock clients
// give up a connection after 25 s of silence. But after an outage of 14 s, the kernel
// may send the next byte 13 s late, and the client then waits another 25 s.
const defaultStall = 40 * time.Second

// Bounds of limits.
const (
	// maxFirst is the size of a first message that a host connection takes without
	// waiting.
	maxFirst = 256 << 10

	// minQueue is the data that a host-agent sends ahead of the client's progress.
	// With a smaller queue, any large message could end the connection of a client
	// that is not slow.
	minQueue = 1 << 20
)

func (cfg Config) withDefaults() Config {
	size := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	duration := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	size(&cfg.QueueLimit, 8<<20)
	size(&cfg.MaxQueued, 1<<30)
	size(&cfg.MaxFrame, min(128<<20, max(1, (cfg.MaxQueued-cfg.QueueLimit)/4)))
	size(&cfg.MaxFirstFrame, min(64<<10, cfg.MaxFrame))
	duration(&cfg.Ping, 15*time.Second)
	duration(&cfg.Stall, defaultStall)
	duration(&cfg.Resume, link.DefaultResume)
	duration(&cfg.HoldTime, 10*time.Minute)
	duration(&cfg.ClientResume, resume.DefaultTime)
	size(&cfg.ClientBacklog, resume.DefaultWindow)
	size(&cfg.PersonBacklog, 32<<20)
	size(&cfg.TotalBacklog, cfg.MaxQueued/8)
	cfg.Limits = cfg.Limits.WithDefaults()
	duration(&cfg.CredentialTTL, auth.DefaultCredentialTTL)
	cfg.CredentialTTL = min(cfg.CredentialTTL, auth.MaxDerivedTTL) // revocations are kept no longer than that
	cfg.Minority = cmp.Or(cfg.Minority, MinorityRead)
	if cfg.Compress == "" {
		cfg.Compress = wire.CompressFar
	}
	if cfg.Origins == nil {
		cfg.Origins = DefaultOrigins
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// leastHeld is the minimum in bytes kept for the bodies, and for the chunks, of each
// host, even when memory is short.
const leastHeld = 4 << 20

// ofMemory returns the n-th part of MaxQueued, at least leastHeld and at most the
// given maximum.
func (cfg *Config) ofMemory(n, most int) int { return min(max(cfg.MaxQueued/n, leastHeld), most) }

// A new client may have as much in flight from its host as firstCredit returns. A client
// that stops reading at once thus keeps little of the memory in use: a thousand of them
// fit. The amount grows to mostCredit as a client reads.
const (
	creditShare = 1024 // of MaxQueued
	leastCredit = 64 << 10
	mostCredit  = 1 << 20
)

func (cfg *Config) firstCredit() int {
	return min(max(cfg.MaxQueued/creditShare, leastCredit), mostCredit)
}

// check returns the first invalid field. Each field has its branch and its words.
func (cfg *Config) check() error {
	switch {
	case cfg.Keys == nil:
		return errors.New("no Keys given")
	case cfg.Bus == nil:
		return errors.New("no Bus given")
	case cfg.OwnURL != "" && !strings.HasPrefix(cfg.OwnURL, "http://") && !strings.HasPrefix(cfg.OwnURL, "https://"):
		return fmt.Errorf("OwnURL %q: want http://host or https://host", cfg.OwnURL)
	case cfg.Registry == nil:
		return errors.New("no Registry given")
	case cfg.MaxFrame < 1:
		return fmt.Errorf("MaxFrame is %d; want at least 1", cfg.MaxFrame)
	case cfg.MaxFirstFrame < 1 || cfg.MaxFirstFrame > min(cfg.MaxFrame, maxFirst):
		return fmt.Errorf("MaxFirstFrame is %d; want 1 to %d", cfg.MaxFirstFrame, min(cfg.MaxFrame, maxFirst))
	case cfg.QueueLimit < minQueue:
		return fmt.Errorf("QueueLimit is %d; want at least %d", cfg.QueueLimit, minQueue)
	}
	if least := cfg.QueueLimit + 2*cfg.MaxFrame; cfg.MaxQueued < least {
		return fmt.Errorf("MaxQueued is %d; want at least %d, for one client with the longest message", cfg.MaxQueued, least)
	}
	if err := cfg.Compress.Check(); err != nil {
		return err
	}
	if err := errors.Join(cfg.checkTimes(), cfg.Minority.check()); err != nil {
		return err
	}
	for _, pattern := range cfg.Origins {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("%q in Origins is not a pattern; want for example *.example.com", pattern)
		}
	}
	if err := errors.Join(cfg.checkConsoles(), cfg.checkStrict()); err != nil {
		return err
	}
	return ahp.CheckName("Instance", cfg.Instance)
}

// canvasOrigin parses CanvasDomain.
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
		{"Ping", cfg.Ping}, {"Stall", cfg.Stall}, {"Resume", cfg.Resume}, {"HoldTime", cfg.HoldTime}, {"CredentialTTL", cfg.CredentialTTL},
	} {
		if d.value < 0 {
			return fmt.Errorf("%s is %v; want a time above zero", d.field, d.value)
		}
	}
	return nil
}

// clientShare is the part of all processors for clients' messages while tenants
// compete. It covers reading a message and passing it on, about a quarter of the work
// for a request and its answer.
const clientShare = 1.0 / 16
