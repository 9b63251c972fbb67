package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"

	"github.com/nats-io/nats.go"
)

// When nats.go gives a connection up that still brings bytes but no answers to its pings: it
// asks each minute, and forgives two. A silent one is given up sooner, see netConn.
const (
	libraryPing        = time.Minute
	maxUnansweredPings = 2
)

// A Server is a NATS server within this process: see package embedded.
type Server interface {
	nats.InProcessConnProvider

	// RelayConn opens a connection of the relay itself to a tenant's account; an empty
	// tenant is the account of relays among themselves.
	RelayConn(tenant string) (net.Conn, error)

	// SetTenant has the server accept users of a tenant's account, except those
	// that are revoked: see [auth.Keys.TenantAccountJWT].
	SetTenant(tenant string, revoked map[string]time.Time) error

	// DropTenant has the server forget that. The next user that comes is asked for.
	DropTenant(tenant string) error

	// Resolve has the server ask for accounts that it does not know when a user of one
	// comes. It is called by the name of the account, and must not wait for anybody.
	Resolve(others func(account string) (claim string, err error))

	// Connections returns how many there are in a tenant's account at this server.
	Connections(tenant string) int
}

// RelayDialConfig says how a relay connects to NATS.
type RelayDialConfig struct {
	Keys     *auth.Keys  // required; the relay makes its own credentials
	Instance string      // required; the name of this run of the relay
	Tenant   string      // whose account to be in; default: that of relays among themselves
	Server   Server      // connect to this server, within the process
	URL      string      // or to these, separated by commas: nats://host:port, tls://host:port
	TLS      *tls.Config // for URL; default: the system's authorities

	// WallClock tells the time, for URL; default: time.Now.
	WallClock func() time.Time

	Events Events
}

// DialRelay connects a relay to NATS. It returns when the connection is there,
// or when ctx ends, with the reason of the last failure. From then on the
// connection comes back by itself.
func DialRelay(ctx context.Context, cfg RelayDialConfig) (*Conn, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("connect relay to NATS: %w", err)
	}
	whole := context.WithoutCancel(ctx) // an attempt that is over says why it failed
	c, err := startRelay(whole, cfg, func() (*auth.User, error) { return cfg.Keys.RelayUser(cfg.Tenant) })
	if err != nil {
		return nil, err
	}
	if err := c.AwaitConnected(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// startRelay begins to connect a relay to NATS, as the given user, made anew
// for each login. It makes one attempt, which ends with ctx. Within the process the
// connection is there at once.
func startRelay(ctx context.Context, cfg RelayDialConfig, user func() (*auth.User, error)) (*Conn, error) {
	c := newConn(cfg.Events)
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	show, sign := freshUser(user)
	opts := []nats.Option{nats.Name(cfg.Instance), nats.UserJWT(show, sign)}
	if cfg.Server != nil {
		// No time limits within the process: after a pause of all of it, they
		// would be over at once.
		dial := inProcess(func() (net.Conn, error) { return cfg.Server.RelayConn(cfg.Tenant) })
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

// freshUser returns the login of a user that is made anew for each login.
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

// AgentDialConfig says how a host-agent connects to NATS.
type AgentDialConfig struct {
	URLs     []string    // required; nats://host:port, tls://host:port, ws://host:port/path or wss://host:port/path, all of one scheme
	Tenant   string      // required
	Host     string      // required
	Instance string      // required; the name of this run of the host-agent
	TLS      *tls.Config // for tls and wss; default: the system's authorities

	// Credentials fetches a user JWT (required). It is called before the old
	// one expires and whenever a server has refused one, never twice at a
	// time, and may take credentialsTimeout.
	Credentials func(ctx context.Context) (userJWT string, err error)

	// Sign signs a nonce with the nkey that the JWT is for (required). It must
	// not block.
	Sign func(nonce []byte) ([]byte, error)

	// Compress is the method by which what goes to a relay over WebSocket is
	// compressed, if the relay knows it: Zstandard. Default: none.
	Compress string

	// Headers returns the headers of a WebSocket handshake; default: none. It
	// is called for each, and must not block.
	Headers func() (http.Header, error)

	// Proxy returns the HTTP proxy for an http or https URL, nil for none. It
	// is asked for ws and wss. Default: HTTP_PROXY, HTTPS_PROXY and NO_PROXY
	// in the environment.
	Proxy func(*url.URL) (*url.URL, error)

	// Dial makes network connections, those to proxies included; default: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// WallClock tells the time; default: time.Now.
	WallClock func() time.Time

	Events Events
}

// DialAgent connects a host-agent to NATS. It makes one attempt and returns
// whether or not that succeeded: the connection is made, and made anew, in the
// background until Close. An error means that the configuration can never
// work, or that ctx ended during the attempt.
//
// Of several URLs, all lead to the same NATS servers. The first is tried first;
// after each failure, and after a connection was lost, the next one is.
//
// A connection on which nothing arrives for idleTimeout, or that takes no byte
// for writeTimeout, is given up. Credentials are renewed before they expire.
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
	c.urls = cfg.URLs
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
	return c, nil
}

func (cfg *AgentDialConfig) options(life context.Context, c *Conn) []nats.Option {
	dial := dialFunc(cfg.Dial)
	if dial == nil {
		dial = dialTCP
	}
	var network []nats.Option
	if strings.HasPrefix(cfg.URLs[0], "ws") {
		through := &wsDialer{tls: clientTLS(cfg.TLS), headers: cfg.Headers, compress: cfg.Compress, instance: cfg.Instance}
		direct := proxied(dial, cfg.proxy)
		network = networkOptions(newDialer(life, func(ctx context.Context, _, _ string) (net.Conn, error) {
			at := c.urls[c.turn.Load()]
			c.through.Store(&at)
			return through.dial(ctx, life, at, direct)
		}, c), "", nil)
	} else {
		network = networkOptions(newDialer(life, live(life, dial), c), cfg.URLs[0], cfg.TLS)
	}
	return append(network,
		nats.Name(cfg.Instance),
		login(c.creds.show, cfg.Sign),
		nats.CustomInboxPrefix(link.HostPrefix(cfg.Tenant, cfg.Host)+"inbox."+cfg.Instance),
		nats.IgnoreDiscoveredServers(), // their addresses are those of the inside
	)
}

// login is nats.UserJWT without its trial call, which would refuse to start
// when there are no credentials yet: the relay that gives them may come later.
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

// checkURLs reports why these are not addresses of the same NATS servers.
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

// CheckURL reports why rawURL is not the address of a NATS server.
func CheckURL(rawURL string, schemes ...string) error {
	want := strings.Join(schemes, "://, ") + "://"
	u, err := url.Parse(rawURL)
	if err != nil || u.Hostname() == "" {
		return fmt.Errorf("URL %q is no address of a NATS server; want one that starts with %s", redact(u), want)
	}
	if u.User != nil {
		return fmt.Errorf("URL %s has a user in it; credentials come from the relay's keys", redact(u))
	}
	for _, s := range schemes {
		if u.Scheme == s {
			return nil
		}
	}
	return fmt.Errorf("URL %s: scheme %q is not one of %s", redact(u), u.Scheme, want)
}

// redact returns a URL for messages, without secrets.
func redact(u *url.URL) string {
	if u == nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// isTLS reports whether connections to a URL are encrypted.
func isTLS(rawURL string) bool {
	return strings.HasPrefix(rawURL, "tls://") || strings.HasPrefix(rawURL, "wss://")
}

// networkOptions are the options of a connection that leaves the process.
func networkOptions(d dialer, rawURL string, tlsConfig *tls.Config) []nats.Option {
	opts := []nats.Option{
		nats.SetCustomDialer(d),
		nats.SkipHostLookup(), // the dialer does it, off the library's lock
		nats.FlusherTimeout(writeTimeout),
		nats.PingInterval(libraryPing),
		nats.MaxPingsOutstanding(maxUnansweredPings),
	}
	if isTLS(rawURL) {
		opts = append(opts, nats.Secure(clientTLS(tlsConfig)))
	}
	return opts
}

// clientTLS returns how to be a client of TLS, if nothing else is said.
func clientTLS(given *tls.Config) *tls.Config {
	if given == nil {
		return &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return given
}
