package broker_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/test/faultproxy"
	"ahprelay/test/natssite"

	"github.com/nats-io/nats.go"
)

func TestDialRefusesConfiguration(t *testing.T) {
	s := natssite.New(t)
	agents := map[string]func(*broker.AgentDialConfig){
		"no URLs":                   func(c *broker.AgentDialConfig) { c.URLs = nil },
		"one of nats://":            func(c *broker.AgentDialConfig) { c.URLs = []string{"nats://a:1", "tls://b:1"} },
		"not a NATS server address": func(c *broker.AgentDialConfig) { c.URLs = []string{""} },
		"ws://, wss://":             func(c *broker.AgentDialConfig) { c.URLs = []string{"http://relay/nats"} },
		`URL "ann:" is not`:         func(c *broker.AgentDialConfig) { c.URLs = []string{"ann:secret@relay:4222"} },
		"contains a user":           func(c *broker.AgentDialConfig) { c.URLs = []string{"nats://ann:secret@relay:4222"} },
		"Tenant":                    func(c *broker.AgentDialConfig) { c.Tenant = "" },
		"Host":                      func(c *broker.AgentDialConfig) { c.Host = "a.b" },
		"Instance":                  func(c *broker.AgentDialConfig) { c.Instance = "*" },
		"no Credentials":            func(c *broker.AgentDialConfig) { c.Credentials = nil },
		"no Sign":                   func(c *broker.AgentDialConfig) { c.Sign = nil },
	}
	for want, spoil := range agents {
		cfg := s.AgentConfig(t, "acme", "laptop", 0)
		spoil(&cfg)
		_, err := broker.DialAgent(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("DialAgent = %v; want an error with %q", err, want)
		}
	}
	relays := map[string]broker.RelayDialConfig{
		"no Keys":                     {Server: s.Server, Instance: "r"},
		"Instance":                    {Server: s.Server, Keys: s.Keys},
		`URL "127.0.0.1:4222" is not`: {Keys: s.Keys, Instance: "r", URL: "127.0.0.1:4222"},
		"either Server or URL":        {Keys: s.Keys, Instance: "r"},
		"nats://, tls://":             {Keys: s.Keys, Instance: "r", URL: "nats://a:1,ws://b"},
		"not a NATS server address":   {Keys: s.Keys, Instance: "r", URL: "nats://a:1,"},
	}
	for want, cfg := range relays {
		if _, err := broker.DialRelay(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("DialRelay = %v; want an error with %q", err, want)
		}
	}
}

func TestDialRelaySaysWhyNot(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	url := s.URL()
	stranger := natssite.New(t)
	dial := func(cfg broker.RelayDialConfig, why func(error) bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
		defer cancel()
		var said atomic.Bool // Retrying got the reason
		cfg.Keys, cfg.Instance = stranger.Keys, "r"
		cfg.Events.Retrying = func(_ int, err error, _ time.Duration) {
			if why(err) {
				said.Store(true)
				cancel()
			}
		}
		_, err := broker.DialRelay(ctx, cfg)
		if err == nil || !said.Load() {
			t.Errorf("DialRelay = %v; want the error which Retrying reports", err)
		}
		return err
	}
	unauthorized := func(err error) bool { return errors.Is(err, nats.ErrAuthorization) }
	for _, cfg := range []broker.RelayDialConfig{{URL: url}, {Server: s.Server}} {
		if err := dial(cfg, unauthorized); !unauthorized(err) {
			t.Errorf("DialRelay with other keys = %v; want %v", err, nats.ErrAuthorization)
		}
	}
	s.Server.Close()
	nobody := func(err error) bool { return err != nil && strings.Contains(err.Error(), "connection refused") }
	if err := dial(broker.RelayDialConfig{URL: url}, nobody); !nobody(err) {
		t.Errorf("DialRelay without a server = %v; want connection refused", err)
	}
}

// TestAgentComesBack starts a host-agent before its relay. It must connect when the relay starts,
// and reconnect after the relay's process was replaced, with its subscriptions.
func TestAgentComesBack(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	evs, cfg := natssite.Watched(s.AgentConfig(t, "acme", "laptop", 0))
	addr := s.Server.Addr().String()
	s.Server.Close()

	agent, err := broker.DialAgent(t.Context(), cfg)
	if err != nil {
		t.Fatalf("DialAgent: %v; want no error", err)
	}
	t.Cleanup(agent.Close)
	if err := natssite.Next(t, "retry", evs.Retrying); !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the error passed to Retrying is %v; want connection refused", err)
	}
	if err := agent.Publish("ahp.v1.acme.laptop.x", nil); err == nil {
		t.Error("Publish without a connection succeeded; want an error")
	}
	in := make(chan *nats.Msg, 10)
	if _, err := agent.Subscribe("ahp.v1.acme.laptop.down", in); err != nil {
		t.Fatalf("Subscribe without a connection: %v; want no error", err)
	}
	s.Start(t, addr)
	natssite.Next(t, "Connected", evs.Connected)
	natssite.WantPassage(t, s.Relay(t), agent, "ahp.v1.acme.laptop.ready")

	s.Restart(t)
	natssite.Next(t, "Disconnected", evs.Disconnected)
	natssite.Next(t, "Reconnected", evs.Reconnected)
	relay := s.Relay(t)
	natssite.Eventually(t, "the subscription is back", func() bool {
		_ = relay.Publish("ahp.v1.acme.laptop.down", nil)
		return len(in) > 0
	})
	if len(evs.Connected) > 0 {
		t.Error("Connected was called a second time; want once")
	}
}

// TestAgentGoesToTheNextServer gives a host-agent a list of three servers, the first of which is
// missing. It must connect to the next in the list each time its server ends, with a delay before
// each attempt. Redial must stay at the same server.
func TestAgentGoesToTheNextServer(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	first := s.Server
	second, err := embedded.Start(embedded.Config{Keys: s.Keys, Listen: "127.0.0.1:0", Tenants: natssite.Acme})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Close)
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = nobody.Close()
	firstURL, secondURL := "nats://"+first.Addr().String(), "nats://"+second.Addr().String()
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	cfg.URLs = []string{"nats://" + nobody.Addr().String(), firstURL, secondURL}
	connected := make(chan string, 10)
	waits := make(chan time.Duration, 1000)
	cfg.Events = broker.Events{
		Connected:   func(url string) { connected <- url },
		Reconnected: func(url string) { connected <- url },
		Retrying:    func(_ int, _ error, wait time.Duration) { waits <- wait },
	}
	agent := natssite.DialAgent(t, cfg)
	if got := natssite.Next(t, "connection", connected); got != firstURL {
		t.Errorf("the agent connected to %s; want the first server that runs, %s", got, firstURL)
	}
	first.Close()
	if got := natssite.Next(t, "connection", connected); got != secondURL {
		t.Errorf("the agent connected to %s; want the next server, %s", got, secondURL)
	}
	agent.Redial() // connects to the same server again
	if got := natssite.Next(t, "connection", connected); got != secondURL {
		t.Errorf("the agent connected to %s after Redial; want %s", got, secondURL)
	}
	second.Close()
	s.Start(t, strings.TrimPrefix(firstURL, "nats://"))
	if got := natssite.Next(t, "connection", connected); got != firstURL {
		t.Errorf("after its server's end, the agent connected to %s; want %s again", got, firstURL)
	}
	if len(waits) < 4 {
		t.Errorf("the agent waited %d times; want a wait before each attempt except the first and Redial's", len(waits))
	}
	for len(waits) > 0 {
		if wait := <-waits; wait < 100*time.Millisecond {
			t.Errorf("the agent waited %v before an attempt; want at least 100 ms", wait)
		}
	}
}

// TestAgentWithoutCredentials lets the request for credentials fail. The host-agent must repeat it,
// pass the reason to Retrying, and connect when the request succeeds.
func TestAgentWithoutCredentials(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	fetch := cfg.Credentials
	var away atomic.Bool
	away.Store(true)
	cfg.Credentials = func(ctx context.Context) (string, error) {
		if away.Load() {
			return "", errors.New("relay is away")
		}
		return fetch(ctx)
	}
	evs, cfg := natssite.Watched(cfg)
	agent, err := broker.DialAgent(t.Context(), cfg)
	if err != nil {
		t.Fatalf("DialAgent: %v; want no error", err)
	}
	t.Cleanup(agent.Close)
	for err := range evs.Retrying {
		if strings.Contains(err.Error(), "relay is away") {
			break
		}
	}
	away.Store(false)
	natssite.Next(t, "Connected", evs.Connected)
	natssite.WantPassage(t, agent, s.Relay(t), "ahp.v1.acme.laptop.x")
}

// TestCredentialsAreRenewed gives a host-agent credentials that last for 4 s, and sends messages
// all the time. The host-agent must fetch new ones in time: no server may cut it off.
func TestCredentialsAreRenewed(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	cfg := s.AgentConfig(t, "acme", "laptop", 4*time.Second)
	var fetched atomic.Int32
	fetch := cfg.Credentials
	cfg.Credentials = func(ctx context.Context) (string, error) {
		fetched.Add(1)
		return fetch(ctx)
	}
	evs, cfg := natssite.Watched(cfg)
	agent := natssite.DialAgent(t, cfg)
	relay := s.Relay(t)
	in := natssite.Subscribe(t, relay, "ahp.v1.acme.laptop.tick")
	var last time.Time
	var gap time.Duration
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for fetched.Load() < 3 || len(evs.Reconnected) < 2 {
		<-tick.C
		_ = agent.Publish("ahp.v1.acme.laptop.tick", nil)
		select {
		case <-in:
			now := time.Now()
			if !last.IsZero() {
				gap = max(gap, now.Sub(last))
			}
			last = now
		default:
		}
	}
	t.Logf("longest gap around %d renewals: %v", len(evs.Reconnected), gap)
	for len(evs.Disconnected) > 0 {
		if err := <-evs.Disconnected; err != nil {
			t.Errorf("the connection broke with %v; want only the agent's own reconnects to renew credentials", err)
		}
	}
}

// TestExpiredCredentialsAreCutOff connects without renewing credentials. The server must end the
// connection at their expiry, at most a second early, and refuse them afterwards.
func TestExpiredCredentialsAreCutOff(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	cfg := s.AgentConfig(t, "acme", "laptop", 6*time.Second)
	userJWT, err := cfg.Credentials(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	life, err := auth.UserLifetime(userJWT)
	if err != nil {
		t.Fatal(err)
	}
	ends := time.Now().Add(life)
	gone := make(chan time.Time, 1)
	nc, err := natssite.Connect(s.URL(), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { gone <- time.Now() }),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
		nats.UserJWT(func() (string, error) { return userJWT, nil }, cfg.Sign))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if early := ends.Sub(natssite.Next(t, "end of the connection", gone)); early > time.Second {
		t.Errorf("the connection was closed %v before the credentials expired; want at most 1 s before", early)
	}
	// NATS counts in seconds: it still accepts credentials during the second in which they expire.
	natssite.Eventually(t, "expired credentials are refused", func() bool {
		nc, err := natssite.Connect(s.URL(), nats.NoReconnect(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
			nats.UserJWT(func() (string, error) { return userJWT, nil }, cfg.Sign))
		if err == nil {
			nc.Close()
		}
		return errors.Is(err, nats.ErrAuthorization)
	})
}

// TestCredentialsComeTooLate makes new credentials unavailable. The server must cut the host-agent
// off when the old ones expire, and the host-agent must reconnect once it gets new ones.
func TestCredentialsComeTooLate(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	cfg := s.AgentConfig(t, "acme", "laptop", 2*time.Second)
	fetch := cfg.Credentials
	var away atomic.Bool
	cfg.Credentials = func(ctx context.Context) (string, error) {
		if away.Load() {
			return "", errors.New("relay is away")
		}
		return fetch(ctx)
	}
	evs, cfg := natssite.Watched(cfg)
	agent := natssite.DialAgent(t, cfg)
	away.Store(true)
	natssite.Next(t, "Disconnected", evs.Disconnected)
	for err := range evs.Retrying {
		if strings.Contains(err.Error(), "relay is away") {
			break
		}
	}
	away.Store(false)
	natssite.Next(t, "Reconnected", evs.Reconnected)
	natssite.WantPassage(t, agent, s.Relay(t), "ahp.v1.acme.laptop.x")
}

// TestRefusedCredentialsAreFetchedAnew gives a host-agent credentials from foreign keys, then no
// JWT at all. It must fetch again each time, and connect with the third, valid ones.
func TestRefusedCredentialsAreFetchedAnew(t *testing.T) {
	t.Parallel()
	s, stranger := natssite.New(t), natssite.New(t)
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	fetch := cfg.Credentials
	var calls atomic.Int32
	cfg.Credentials = func(ctx context.Context) (string, error) {
		switch calls.Add(1) {
		case 1:
			key, err := auth.NewAgentKey()
			if err != nil {
				return "", err
			}
			userJWT, _, err := stranger.Keys.Authority().AgentUser("acme", "laptop", key.Public(), 0)
			return userJWT, err
		case 2:
			return "no JWT", nil
		}
		return fetch(ctx)
	}
	evs, cfg := natssite.Watched(cfg)
	natssite.DialAgent(t, cfg)
	if err := natssite.Next(t, "retry", evs.Retrying); err == nil {
		t.Error("Retrying was called without an error; want the reason")
	}
	if n := calls.Load(); n != 3 {
		t.Errorf("credentials fetched %d times; want 3", n)
	}
}

// TestGoodCredentialsAreKept breaks a host-agent's first connections before the server has
// answered. The host-agent must use the same credentials for the next attempts, and fetch others
// only after three.
func TestGoodCredentialsAreKept(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	var fetched, dials atomic.Int32
	fetch := cfg.Credentials
	cfg.Credentials = func(ctx context.Context) (string, error) {
		fetched.Add(1)
		return fetch(ctx)
	}
	const hangUps = 2
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, address)
		if dials.Add(1) <= hangUps && err == nil {
			c = &mute{Conn: c}
		}
		return c, err
	}
	natssite.DialAgent(t, cfg)
	// The host-agent fetches credentials again after three dials without an answer. This test makes
	// two such dials, unless further ones fail because the machine is busy.
	if n, want := fetched.Load(), (dials.Load()+hangUps)/(hangUps+1); n < 1 || n > want {
		t.Errorf("credentials fetched %d times for %d dials; want %d", n, dials.Load(), want)
	}
}

// A mute is a connection that closes at the first write.
type mute struct{ net.Conn }

func (c *mute) Write([]byte) (int, error) {
	_ = c.Close()
	return 0, errors.New("cut off")
}

// TestFrozenLinkIsGivenUp freezes a host-agent's network without closing the connection. The
// host-agent and the server must each give the connection up, after about 7 s on an idle machine,
// and the host-agent must reconnect. TestSilentLineIsAsked has the exact times.
func TestFrozenLinkIsGivenUp(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	var f natssite.Freezer
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	cfg.Dial = f.Dial
	evs, cfg := natssite.Watched(cfg)
	agent := natssite.DialAgent(t, cfg)
	system, err := s.Keys.Authority().SystemUser()
	if err != nil {
		t.Fatal(err)
	}
	account, err := s.Keys.Authority().TenantAccount("acme")
	if err != nil {
		t.Fatal(err)
	}
	sys, err := natssite.Connect(s.URL(), nats.UserJWT(func() (string, error) { return system.JWT, nil }, system.Sign))
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	cut := make(chan *nats.Msg, 10)
	if _, err := sys.ChanSubscribe("$SYS.ACCOUNT."+account+".DISCONNECT", cut); err != nil {
		t.Fatal(err)
	}
	if err := sys.Flush(); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	f.Freeze()
	if err := natssite.Next(t, "Disconnected", evs.Disconnected); !strings.Contains(err.Error(), "nothing received") {
		t.Errorf("the error passed to Disconnected is %v; want nothing received", err)
	}
	back := natssite.Next(t, "Reconnected", evs.Reconnected).Sub(frozen)
	t.Logf("back after %v", back)
	natssite.WantPassage(t, agent, s.Relay(t), "ahp.v1.acme.laptop.x")
	for !strings.Contains(string(natssite.Next(t, "end of the connection at the server", cut).Data), cfg.Instance) {
	}
	t.Logf("the server gave up after %v", time.Since(frozen))
}

// TestFrozenNetworkIsGivenUp freezes the network of a host-agent at a relay's public port, and of a
// relay at an external NATS server. Each must give the connection up and reconnect.
func TestFrozenNetworkIsGivenUp(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { natssite.Pipe(w, r, s.Server) }))
	t.Cleanup(front.Close)
	wantRedial := func(t *testing.T, network *faultproxy.Proxy, evs *natssite.EventChannels) {
		t.Helper()
		frozen := time.Now()
		network.FreezeOpen()
		if err := natssite.Next(t, "Disconnected", evs.Disconnected); !strings.Contains(err.Error(), "nothing received") {
			t.Errorf("the error passed to Disconnected is %v; want nothing received", err)
		}
		t.Logf("back after %v", natssite.Next(t, "Reconnected", evs.Reconnected).Sub(frozen))
	}
	t.Run("host-agent over WebSocket", func(t *testing.T) {
		t.Parallel()
		network := newNetwork(t, front.Listener.Addr())
		cfg := s.AgentConfig(t, "acme", "laptop", 0)
		cfg.URLs = []string{"ws://" + network.Addr() + "/nats"}
		evs, cfg := natssite.Watched(cfg)
		agent := natssite.DialAgent(t, cfg)
		wantRedial(t, network, evs)
		natssite.WantPassage(t, agent, s.Relay(t), "ahp.v1.acme.laptop.x")
	})
	t.Run("relay", func(t *testing.T) {
		t.Parallel()
		network := newNetwork(t, s.Server.Addr())
		evs, events := natssite.NewEvents()
		relay := natssite.DialRelay(t, broker.RelayDialConfig{URL: "nats://" + network.Addr(), Keys: s.Keys, Instance: "r", Tenant: "acme", Events: events})
		wantRedial(t, network, evs)
		natssite.WantPassage(t, relay, natssite.DialAgent(t, s.AgentConfig(t, "acme", "desktop", 0)), "ahp.v1.acme.desktop.x")
	})
}

// newNetwork returns a proxy to an address, which can break the network between.
func newNetwork(t *testing.T, to net.Addr) *faultproxy.Proxy {
	t.Helper()
	network, err := faultproxy.New("", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	return network
}

// TestAgentOverWebSocket connects a host-agent through a relay's public port: with WebSocket, with
// and without TLS, and with and without an HTTP proxy. Messages must pass in both directions, and
// the port get the configured headers.
func TestAgentOverWebSocket(t *testing.T) {
	s := natssite.New(t)
	var authorization atomic.Value
	mux := http.NewServeMux()
	mux.HandleFunc("/nats", func(w http.ResponseWriter, r *http.Request) {
		authorization.Store(r.Header.Get("Authorization"))
		natssite.Pipe(w, r, s.Server)
	})
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	roots := secure.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	relay := s.Relay(t)

	tests := []struct {
		name  string
		front *httptest.Server
		proxy bool
	}{
		{"ws", plain, false},
		{"wss", secure, false},
		{"ws through a proxy", plain, true},
		{"wss through a proxy", secure, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg := s.AgentConfig(t, "acme", "laptop", 0)
			cfg.URLs = []string{"ws" + strings.TrimPrefix(test.front.URL, "http") + "/nats"}
			cfg.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
			cfg.Headers = func() (http.Header, error) {
				return http.Header{"Authorization": {"Bearer " + test.name}}, nil
			}
			p := newProxy(t)
			cfg.Proxy = func(u *url.URL) (*url.URL, error) {
				if u.String() != test.front.URL {
					t.Errorf("Proxy was called with %v; want %v", u, test.front.URL)
				}
				if !test.proxy {
					return nil, nil
				}
				return p.url, nil
			}
			agent := natssite.DialAgent(t, cfg)
			natssite.WantPassage(t, agent, relay, "ahp.v1.acme.laptop.up")
			natssite.WantPassage(t, relay, agent, "ahp.v1.acme.laptop.down")
			if got := authorization.Load(); got != "Bearer "+test.name {
				t.Errorf("Authorization = %q; want Bearer %s", got, test.name)
			}
			if got := p.tunnels.Load() > 0; got != test.proxy {
				t.Errorf("the connection went through the proxy: %v; want %v", got, test.proxy)
			}
		})
	}
}

func TestRefusalOfAProxyHidesThePassword(t *testing.T) {
	s := natssite.New(t)
	p := newProxy(t)
	p.url.User = url.UserPassword("ann", "wrong")
	for want, proxy := range map[string]*url.URL{
		"407":        p.url,
		"not http":   {Scheme: "socks5", Host: p.url.Host},
		"for 127.0.": nil,
	} {
		cfg := s.AgentConfig(t, "acme", "laptop", 0)
		cfg.URLs = []string{"ws://127.0.0.1:1/nats"}
		cfg.Proxy = func(*url.URL) (*url.URL, error) {
			if proxy == nil {
				return nil, errors.New("no idea")
			}
			return proxy, nil
		}
		evs, cfg := natssite.Watched(cfg)
		agent, err := broker.DialAgent(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := natssite.Next(t, "retry", evs.Retrying); !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "wrong") {
			t.Errorf("the error passed to Retrying is %v; want one with %q and no password", err, want)
		}
		agent.Close()
	}
}

// TestFailedHandshakesAreClosed connects to a relay that refuses each handshake. The host-agent
// must close these connections, because the NATS library leaves them open.
func TestFailedHandshakesAreClosed(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	var open, made atomic.Int32
	away := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
	}))
	away.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			made.Add(1)
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
	away.Start()
	t.Cleanup(away.Close)
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	cfg.URLs = []string{"ws" + strings.TrimPrefix(away.URL, "http") + "/nats"}
	agent, err := broker.DialAgent(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(agent.Close)
	for made.Load() < 6 {
		agent.Redial() // try again without waiting
		time.Sleep(5 * time.Millisecond)
	}
	natssite.Eventually(t, "all but the last connection are closed", func() bool { return open.Load() <= 1 })
}

// TestCloseEndsAttempt dials a server that accepts connections and says nothing. DialAgent must
// return when its context ends, long before the attempt would.
func TestCloseEndsAttempt(t *testing.T) {
	t.Parallel()
	hole, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	s := natssite.New(t)
	for _, scheme := range []string{"nats", "tls", "ws", "wss"} {
		cfg := s.AgentConfig(t, "acme", "laptop", 0)
		cfg.URLs = []string{scheme + "://" + hole.Addr().String()}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		start := time.Now()
		_, err := broker.DialAgent(ctx, cfg)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) >= broker.DialTimeout { // an attempt takes that long
			t.Errorf("%s: DialAgent = %v after %v; want the end of ctx soon", scheme, err, time.Since(start))
		}
	}
}

// TestPublishWhileAttemptHangs publishes while the host-agent tries to connect to a server that
// says nothing. Publish must return an error at once.
func TestPublishWhileAttemptHangs(t *testing.T) {
	t.Parallel()
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	s := natssite.New(t)
	cfg := s.AgentConfig(t, "acme", "laptop", 0)
	made := make(chan net.Conn, 1) // the first connection; later ones get no answer
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, address)
		if err == nil {
			select {
			case made <- c:
				return c, nil
			default:
				_ = c.Close()
			}
		}
		return d.DialContext(ctx, network, hole.Addr().String())
	}
	evs, cfg := natssite.Watched(cfg)
	agent := natssite.DialAgent(t, cfg)
	_ = (<-made).Close()
	made <- nil
	natssite.Next(t, "Disconnected", evs.Disconnected)
	attempt, err := hole.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer attempt.Close()
	published := make(chan error, 1)
	go func() { published <- agent.Publish("ahp.v1.acme.laptop.x", nil) }()
	select {
	case err := <-published:
		if err == nil {
			t.Error("Publish without a connection succeeded; want an error")
		}
	case <-time.After(broker.DialTimeout): // the attempt takes DialTimeout
		t.Error("Publish waits for the dial attempt; want it to return at once")
		<-published
	}
}

func TestClosedConnectionDoesNothing(t *testing.T) {
	s := natssite.New(t)
	evs, cfg := natssite.Watched(s.AgentConfig(t, "acme", "laptop", 0))
	agent := natssite.DialAgent(t, cfg)
	relay := s.Relay(t)
	in := natssite.Subscribe(t, relay, "ahp.v1.acme.laptop.last")
	natssite.WantPassage(t, agent, relay, "ahp.v1.acme.laptop.x")
	if err := agent.Publish("ahp.v1.acme.laptop.last", nil); err != nil {
		t.Fatal(err)
	}
	agent.Close()
	agent.Close()
	<-agent.Done()
	natssite.Next(t, "the last message", in)
	if err := agent.Publish("ahp.v1.acme.laptop.x", nil); err == nil {
		t.Error("Publish after Close succeeded; want an error")
	}
	if err := agent.AwaitConnected(t.Context()); err == nil {
		t.Error("AwaitConnected after Close succeeded; want an error")
	}
	if len(evs.Disconnected) > 0 {
		t.Error("Close called Disconnected; want no call")
	}
}

// TestFullReceiverReportsItsLosses publishes more messages than a subscriber's channel holds. The
// host-agent must drop them and call Dropped.
func TestFullReceiverReportsItsLosses(t *testing.T) {
	s := natssite.New(t)
	evs, cfg := natssite.Watched(s.AgentConfig(t, "acme", "laptop", 0))
	agent := natssite.DialAgent(t, cfg)
	relay := s.Relay(t)
	small := make(chan *nats.Msg, 1)
	if _, err := agent.Subscribe("ahp.v1.acme.laptop.down", small); err != nil {
		t.Fatal(err)
	}
	natssite.WantPassage(t, relay, agent, "ahp.v1.acme.laptop.ready")
	for range 10 {
		if err := relay.Publish("ahp.v1.acme.laptop.down", nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := natssite.Next(t, "Dropped", evs.Dropped); got != "ahp.v1.acme.laptop.down" {
		t.Errorf("Dropped was called with the subject %q; want ahp.v1.acme.laptop.down", got)
	}
}

func TestRedialReplacesTheConnection(t *testing.T) {
	s := natssite.New(t)
	evs, cfg := natssite.Watched(s.AgentConfig(t, "acme", "laptop", 0))
	agent := natssite.DialAgent(t, cfg)
	agent.Redial()
	if err := natssite.Next(t, "Disconnected", evs.Disconnected); err != nil {
		t.Errorf("the error passed to Disconnected after a Redial is %v; want nil", err)
	}
	natssite.Next(t, "Reconnected", evs.Reconnected)
}

// TestRedialAfterSleep lets the wall clock jump, as when a machine wakes up. Host-agent and relay
// must both reconnect.
func TestRedialAfterSleep(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	var slept atomic.Int64
	wall := func() time.Time { return time.Now().Add(time.Duration(slept.Load())) }
	agentEvents, agent := natssite.Watched(s.AgentConfig(t, "acme", "laptop", 0))
	agent.WallClock = wall
	a := natssite.DialAgent(t, agent)
	relayEvents, relay := natssite.NewEvents()
	r := natssite.DialRelay(t, broker.RelayDialConfig{URL: s.URL(), Keys: s.Keys, Instance: "r", Tenant: "acme", WallClock: wall, Events: relay})
	natssite.Eventually(t, "both connections are given up", func() bool {
		slept.Add(int64(time.Minute)) // repeated, in case a first look came later
		return len(agentEvents.Disconnected) > 0 && len(relayEvents.Disconnected) > 0
	})
	for _, evs := range []*natssite.EventChannels{agentEvents, relayEvents} {
		if err := natssite.Next(t, "Disconnected", evs.Disconnected); err != nil {
			t.Errorf("the error passed to Disconnected after a sleep is %v; want nil, because the agent itself has reconnected", err)
		}
		natssite.Next(t, "Reconnected", evs.Reconnected)
	}
	natssite.WantPassage(t, a, r, "ahp.v1.acme.laptop.x")
}

// A proxy is an HTTP proxy that accepts only the user ann with the password right.
type proxy struct {
	url     *url.URL
	tunnels atomic.Int32
}

func newProxy(t *testing.T) *proxy {
	p := &proxy{}
	front := httptest.NewServer(http.HandlerFunc(p.connect))
	t.Cleanup(front.Close)
	u, err := url.Parse(front.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("ann", "right")
	p.url = u
	return p
}

func (p *proxy) connect(w http.ResponseWriter, r *http.Request) {
	// Basic YW5uOnJpZ2h0 is ann:right.
	if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") != "Basic YW5uOnJpZ2h0" {
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	there, err := net.Dial("tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer there.Close()
	p.tunnels.Add(1)
	w.WriteHeader(http.StatusOK)
	here, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(here, there)
		here.Close()
	}()
	_, _ = io.Copy(there, here)
	there.Close()
	<-done
}

// TestBusyRelayIsObeyed gives a host-agent two busy relays, which ask for 60 s and 2 s with
// Retry-After. The host-agent must wait that long for each, and try the second again while it waits
// for the first.
func TestBusyRelayIsObeyed(t *testing.T) {
	t.Parallel()
	var asked [2][]time.Time
	var mu sync.Mutex
	both := make(chan struct{})
	var urls []string
	for i, after := range []string{"60", "2"} {
		relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			asked[i] = append(asked[i], time.Now())
			if i == 1 && len(asked[i]) == 2 {
				close(both)
			}
			w.Header().Set("Retry-After", after)
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		t.Cleanup(relay.Close)
		urls = append(urls, "ws"+strings.TrimPrefix(relay.URL, "http")+"/nats")
	}
	s := natssite.New(t)
	cfg := inProcess(t, s, "acme", "laptop")
	cfg.URLs, cfg.Dial = urls, nil
	c, err := broker.DialAgent(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	select {
	case <-both:
	case <-time.After(time.Minute):
		t.Fatal("the second relay got no further attempt within a minute; want one")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked[0]) != 1 {
		t.Errorf("the first relay got %d attempts within its 60 s; want 1", len(asked[0]))
	}
	if pause := asked[1][1].Sub(asked[1][0]); pause < 900*time.Millisecond {
		t.Errorf("a host-agent tried the second relay again after %v; want 1 to 2 s", pause)
	}
}
