package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/internal/clock"

	"github.com/nats-io/nats.go"
)

// The NATS library pings rarely, and closes a connection after two pings without a pong, even
// while other bytes arrive. A silent connection ends sooner, see netConn. A ping costs the relay
// five hand-overs between goroutines, for each host-agent.
const (
	libraryPing        = 5 * time.Minute
	maxUnansweredPings = 2
)

// A Server is a NATS server within this process: see package embedded.
type Server interface {
	nats.InProcessConnProvider

	// RelayConn opens the relay's own connection to a tenant's account, or, if tenant
	// is empty, to the account that relays share.
	RelayConn(tenant string) (net.Conn, error)

	// SetTenant loads a tenant's account and its revoked users, see
	// [auth.Authority.TenantAccountJWT].
	SetTenant(tenant string, revoked map[string]time.Time) error

	// DropTenant unloads a tenant's account. The next login of a user requests it
	// again (Resolve).
	DropTenant(tenant string) error

	// Resolve sets the function that returns the claim of an unknown account when a
	// user logs in. It is called with the account's name, and must not block.
	Resolve(others func(account string) (claim string, err error))

	// Connections returns the number of connections at this server in a tenant's
	// account.
	Connections(tenant string) int
}

// A RelayDialConfig describes a relay's connection to NATS.
type RelayDialConfig struct {
	Keys     *auth.Keys  // required; they sign the relay's credentials
	Instance string      // required; instance name of the relay process
	Tenant   string      // the account to connect to; default: the account that relays share
	Server   Server      // connect to this server, within the process
	URL      string      // or one or more of these, separated by commas: nats://host:port, tls://host:port
	TLS      *tls.Config // for URL; default: the system's authorities

	// WallClock returns the time, for URL; default: time.Now.
	WallClock func() time.Time

	Events Events
}

// DialRelay connects a relay to NATS. It returns when connected. When ctx ends first,
// it returns the last failure. The Conn later reconnects by itself.
func DialRelay(ctx context.Context, cfg RelayDialConfig) (*Conn, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("connect relay to NATS: %w", err)
	}
	whole := context.WithoutCancel(ctx) // a late attempt must still be able to return its error
	c, err := startRelay(whole, cfg, func() (*auth.User, error) { return cfg.Keys.Authority().RelayUser(cfg.Tenant) })
	if err != nil {
		return nil, err
	}
	if err := c.AwaitConnected(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// startRelay starts a relay's connection to NATS. It calls user for the credentials of
// each login. It makes one attempt, which ends with ctx. An in-process connection is
// connected on return.
func startRelay(ctx context.Context, cfg RelayDialConfig, user func() (*auth.User, error)) (*Conn, error) {
	c := newConn(cfg.Events)
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	show, sign := freshUser(user)
	opts := []nats.Option{nats.Name(cfg.Instance), nats.UserJWT(show, sign)}
	if cfg.Server != nil {
		// No time limits within the process: if the process pauses, all of them would
		// have expired afterwards.
		dial := inProcess(func() (net.Conn, error) { return loginConnOf(cfg.Server.RelayConn(cfg.Tenant)) })
		opts = append(opts, nats.InProcessServer(dial), nats.FlusherTimeout(0))
	} else {
		d := newDialer(life, live(life, dialTCP), c)
		opts = append(opts, networkOptions(d, cfg.URL, cfg.TLS)...)
	}
	attempt := context.AfterFunc(ctx, cancel)
	if err := c.start(cfg.URL, opts...); err != nil {
		cancel()
		return nil, fmt.Errorf("connect relay to NATS: %w", err)
	}
	if !attempt() {
		c.Close()
		return nil, fmt.Errorf("connect relay to NATS: %w", context.Cause(ctx))
	}
	if cfg.Server == nil {
		c.running.Go(func() { c.redialAfterSleep(life, cfg.WallClock) })
		c.running.Go(func() { c.askWhenSilent(life) })
	}
	return c, nil
}

func (cfg *RelayDialConfig) check() error {
	if cfg.Keys == nil {
		return errors.New("no Keys given")
	}
	if err := ahp.CheckName("Instance", cfg.Instance); err != nil {
		return err
	}
	if cfg.Tenant != "" {
		if err := ahp.CheckName("Tenant", cfg.Tenant); err != nil {
			return err
		}
	}
	if (cfg.Server == nil) == (cfg.URL == "") {
		return errors.New("want either Server or URL")
	}
	if cfg.URL == "" {
		return nil
	}
	for u := range strings.SplitSeq(cfg.URL, ",") {
		if err := CheckURL(u, "nats", "tls"); err != nil {
			return err
		}
	}
	return nil
}

// freshUser returns login functions that create a new user for each login.
func freshUser(user func() (*auth.User, error)) (show func() (string, error), sign func([]byte) ([]byte, error)) {
	var current atomic.Pointer[auth.User]
	show = func() (string, error) {
		u, err := user()
		if err != nil {
			return "", err
		}
		current.Store(u)
		return u.JWT, nil
	}
	sign = func(nonce []byte) ([]byte, error) { return current.Load().Sign(nonce) }
	return show, sign
}

// An AgentDialConfig describes a host-agent's connection to NATS.
type AgentDialConfig struct {
	URLs     []string    // required; nats://host:port, tls://host:port, ws://host:port/path or wss://host:port/path, all of one scheme
	Tenant   string      // required
	Host     string      // required
	Instance string      // required; instance name of the host-agent process
	TLS      *tls.Config // for tls and wss; default: the system's authorities

	// Credentials fetches a user JWT (required). It is called before the old JWT
	// expires and after each refusal, never concurrently. It may take up to
	// credentialsTimeout.
	Credentials func(ctx context.Context) (userJWT string, err error)

	// Sign signs a nonce with the nkey of the JWT (required). It must not block.
	Sign func(nonce []byte) ([]byte, error)

	// Compress is the compression method to request from relays over WebSocket, such
	// as Zstandard. Default: none.
	Compress string

	// Headers returns the headers for a WebSocket handshake; default: none. It is
	// called for each handshake, and must not block.
	Headers func() (http.Header, error)

	// Proxy returns the HTTP proxy for an http or https URL, or nil. It is called for
	// ws and wss URLs. Default: HTTP_PROXY, HTTPS_PROXY and NO_PROXY in the
	// environment.
	Proxy func(*url.URL) (*url.URL, error)

	// Dial makes network connections, including those to proxies; default: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// WallClock returns the time; default: time.Now.
	WallClock func() time.Time

	Events Events
}

// DialAgent connects a host-agent to NATS. It makes one attempt, and returns a Conn
// even if the attempt fails: the Conn connects and reconnects in the background until
// Close. An error means that the configuration can never work, or that ctx ended
// during the attempt.
//
// All URLs must lead to the same NATS servers. The first URL is tried first; each
// failure or loss selects the next. With several WebSocket URLs, the Conn keeps an
// idle second connection to a different URL, and uses it after a loss (see
// standby.go).
//
// A connection ends after idleTimeout without received bytes, or after writeTimeout
// without sent bytes while bytes wait. Credentials are renewed before they expire.
func DialAgent(ctx context.Context, cfg AgentDialConfig) (*Conn, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("connect host-agent to NATS: %w", err)
	}
	c := newConn(cfg.Events)
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	attempt := context.AfterFunc(ctx, cancel)
	c.creds = newCredentials(life, cfg.Credentials)
	c.creds.ready(false)
	c.urls, c.after = cfg.URLs, make([]clock.Time, len(cfg.URLs))
	if err := c.start(libraryURL(cfg.URLs[0]), cfg.options(life, c)...); err != nil {
		cancel()
		return nil, fmt.Errorf("connect host-agent to NATS: %w", err)
	}
	if !attempt() {
		c.Close()
		return nil, fmt.Errorf("connect host-agent to NATS: %w", context.Cause(ctx))
	}
	c.running.Go(func() { c.renewLoop(life) })
	c.running.Go(func() { c.redialAfterSleep(life, cfg.WallClock) })
	c.running.Go(func() { c.askWhenSilent(life) })
	if c.standbys != nil {
		c.running.Go(func() { c.standbys.run(life) })
	}
	return c, nil
}

func (cfg *AgentDialConfig) options(life context.Context, c *Conn) []nats.Option {
	dial := dialFunc(cfg.Dial)
	if dial == nil {
		dial = dialTCP
	}
	var network []nats.Option
	if strings.HasPrefix(cfg.URLs[0], "ws") {
		through := &wsDialer{tls: clientTLS(cfg.TLS), headers: cfg.Headers, compress: cfg.Compress, instance: cfg.Instance, closing: &c.closing}
		direct := proxied(dial, cfg.proxy)
		if len(cfg.URLs) > 1 {
			c.standbys = newStandbys(c, func(ctx context.Context, url string) (*wsConn, error) {
				return through.handshake(ctx, life, url, direct, true)
			}, cfg.Events.Standby)
			through.advised, through.learn = c.standbys.advise, c.standbys.learn
		}
		network = networkOptions(newDialer(life, func(ctx context.Context, _, _ string) (net.Conn, error) {
			at := c.urls[c.turn.Load()]
			c.through.Store(&at)
			if c.standbys != nil {
				if ready := c.standbys.take(at); ready != nil {
					return ready, nil
				}
			}
			return through.dial(ctx, life, at, direct)
		}, c), "", nil)
	} else {
		network = networkOptions(newDialer(life, live(life, dial), c), cfg.URLs[0], cfg.TLS)
	}
	return append(network,
		nats.Name(cfg.Instance),
		login(c.creds.show, cfg.Sign),
		nats.CustomInboxPrefix(link.HostPrefix(cfg.Tenant, cfg.Host)+"inbox."+cfg.Instance),
		nats.IgnoreDiscoveredServers(), // their addresses are internal
	)
}

// login is nats.UserJWT without the trial call, which would fail without credentials. At
// first, credentials may be missing: the relay that issues them may start later.
func login(show func() (string, error), sign func([]byte) ([]byte, error)) nats.Option {
	return func(o *nats.Options) error {
		o.UserJWT, o.SignatureCB = show, sign
		return nil
	}
}

func (cfg *AgentDialConfig) check() error {
	if err := checkURLs(cfg.URLs); err != nil {
		return err
	}
	for _, name := range []struct{ what, value string }{
		{"Tenant", cfg.Tenant}, {"Host", cfg.Host}, {"Instance", cfg.Instance},
	} {
		if err := ahp.CheckName(name.what, name.value); err != nil {
			return err
		}
	}
	if cfg.Credentials == nil {
		return errors.New("no Credentials given")
	}
	if cfg.Sign == nil {
		return errors.New("no Sign given")
	}
	return nil
}

// checkURLs rejects invalid URLs, and URLs of different schemes.
func checkURLs(rawURLs []string) error {
	if len(rawURLs) == 0 {
		return errors.New("no URLs given")
	}
	schemes := []string{"nats", "tls", "ws", "wss"}
	for _, u := range rawURLs {
		if err := CheckURL(u, schemes...); err != nil {
			return err
		}
		scheme, _, _ := strings.Cut(u, "://")
		schemes = []string{scheme}
	}
	return nil
}

// CheckURL rejects URLs that are no address of a NATS server.
func CheckURL(rawURL string, schemes ...string) error {
	want := strings.Join(schemes, "://, ") + "://"
	u, err := url.Parse(rawURL)
	if err != nil || !HasAddress(u) {
		if strings.ContainsAny(rawURL, "@?") { // it may contain a password
			rawURL = redact(u)
		}
		return fmt.Errorf("URL %q is not a NATS server address; want one starting with %s", rawURL, want)
	}
	if u.User != nil {
		return fmt.Errorf("URL %s contains a user; credentials come from the relay's keys", redact(u))
	}
	if !slices.Contains(schemes, u.Scheme) {
		return fmt.Errorf("URL %s: scheme %q is not one of %s", redact(u), u.Scheme, want)
	}
	return nil
}

// HasAddress reports whether a URL has a host. A port must be a number up to 65535, and an IPv6 address be in brackets.
func HasAddress(u *url.URL) bool {
	_, err := strconv.ParseUint(cmp.Or(u.Port(), "0"), 10, 16)
	return err == nil && u.Hostname() != "" && (!strings.Contains(u.Hostname(), ":") || strings.HasPrefix(u.Host, "["))
}

// redact returns a URL without user and query, for messages.
func redact(u *url.URL) string {
	if u == nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

func isTLS(rawURL string) bool {
	return strings.HasPrefix(rawURL, "tls://") || strings.HasPrefix(rawURL, "wss://")
}

func networkOptions(d dialer, rawURL string, tlsConfig *tls.Config) []nats.Option {
	opts := []nats.Option{
		nats.SetCustomDialer(d),
		nats.SkipHostLookup(), // the dialer resolves names, outside the library's lock
		nats.FlusherTimeout(writeTimeout),
		nats.PingInterval(libraryPing),
		nats.MaxPingsOutstanding(maxUnansweredPings),
	}
	if isTLS(rawURL) {
		opts = append(opts, nats.Secure(clientTLS(tlsConfig)))
	}
	return opts
}

func clientTLS(given *tls.Config) *tls.Config {
	if given == nil {
		return &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return given
}
