package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
)

// newAgent returns the result of New for the host laptop, with a valid token and a relay where no
// program listens. change may change the Config.
func newAgent(t testing.TB, change func(*Config)) (*Agent, error) {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: "laptop", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Relays: []string{"http://127.0.0.1:1"}, Token: func() (string, error) { return token, nil },
		Upstream: Upstream{URL: "ws://127.0.0.1:1"},
		HTTP:     newHTTPClient(),
	}
	transport := &http.Transport{}
	cfg.HTTP.Transport = transport
	t.Cleanup(transport.CloseIdleConnections)
	if change != nil {
		change(&cfg)
	}
	return New(cfg)
}

// TestPlainIsNamed lists permitted configurations: relays and NATS without TLS on this machine, and
// elsewhere only with Plain.
func TestPlainIsNamed(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Relays = []string{"http://localhost:1", "http://127.3.2.1", "http://[::1]:8484"} },
		func(c *Config) {
			c.Relays, c.NATSURLs = []string{"https://relay.example.com"}, []string{"tls://nats.example.com"}
		},
		func(c *Config) { c.NATSURLs = []string{"nats://127.0.0.1:4222", "nats://localhost"} },
		func(c *Config) {
			c.Relays, c.NATSURLs = []string{"https://relay.example.com"}, []string{"wss://nats.example.com"}
		},
		func(c *Config) {
			c.Relays, c.NATSURLs, c.Plain = []string{"http://relay.example.com"}, []string{"nats://nats.example.com"}, true
		},
	} {
		if _, err := newAgent(t, change); err != nil {
			t.Error(err)
		}
	}
}

func TestInvalidConfigurationsAreRefused(t *testing.T) {
	broken := errors.New("--token-file: no such file")
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"no relays", func(c *Config) { c.Relays = nil }, "relay: no URL given"},
		{"one relay without TLS", func(c *Config) { c.Relays = []string{"https://a.example.com", "http://b.example.com"} },
			"either http:// or https://"},
		{"one bad relay", func(c *Config) { c.Relays = []string{"https://a.example.com", "b.example.com"} },
			`relay "b.example.com"`},
		{"no relay", func(c *Config) { c.Relays = []string{""} }, `relay "": want http://host:port or https://host`},
		{"no scheme", func(c *Config) { c.Relays = []string{"relay.example.com"} }, `relay "relay.example.com": want http://host:port`},
		{"another scheme", func(c *Config) { c.Relays = []string{"ws://relay.example.com"} }, `want http://host:port`},
		{"capitals", func(c *Config) { c.Relays = []string{"HTTP://relay.example.com"} }, `want http://host:port`},
		{"no host", func(c *Config) { c.Relays = []string{"http://:8484"} }, "want http://host:port"},
		{"a path", func(c *Config) { c.Relays = []string{"https://example.com/relay"} }, `relay "https://example.com/relay": want http://host:port or https://host, without a path`},
		{"plain", func(c *Config) { c.Relays = []string{"http://relay.example.com"} }, "relay http://relay.example.com: the connection, including the token, would not be encrypted"},
		{"plain, by number", func(c *Config) { c.Relays = []string{"http://10.1.2.3:8484"} }, "want https://, or --relay-plain"},
		{"plain, the second", func(c *Config) { c.Relays = []string{"http://127.0.0.1:1", "http://[fe80::1]:2"} }, "relay http://[fe80::1]:2: the connection"},
		{"plain, a name like ours", func(c *Config) { c.Relays = []string{"http://localhost.example.com"} }, "would not be encrypted"},
		{"plain NATS", func(c *Config) { c.NATSURLs = []string{"nats://127.0.0.1", "nats://me:secret@nats.example.com"} },
			"NATS nats://nats.example.com: the connection, including the token, would not be encrypted; want tls:// or wss://"},
		{"plain NATS over WebSocket", func(c *Config) { c.NATSURLs = []string{"ws://nats.example.com/nats"} }, "NATS ws://nats.example.com"},
		{"password", func(c *Config) { c.Relays = []string{"https://me:secret@relay.example.com"} }, "without a path, user, query or fragment"},
		{"token", func(c *Config) { c.Relays = []string{"https://relay.example.com?token=secret"} }, "without a path, user, query or fragment"},
		{"malformed", func(c *Config) { c.Relays = []string{"http://relay:port"} }, "want http://host:port or https://host"},
		{"no token", func(c *Config) { c.Token = nil }, "Token is missing"},
		{"no token file", func(c *Config) { c.Token = func() (string, error) { return "", broken } }, broken.Error()},
		{"no host token", func(c *Config) { c.Token = func() (string, error) { return "secret", nil } }, "want what relay token host prints"},
		{"no upstream", func(c *Config) { c.Upstream = Upstream{} }, "upstream: want either"},
		{"limit", func(c *Config) { c.MaxFrame = -1 }, "--max-frame is -1; want at least 1"},
		{"resume", func(c *Config) { c.Resume = -time.Second }, "--resume is -1s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := newAgent(t, test.change)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("New: %v; want %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret@") {
				t.Errorf("New's error contains the secret: %v; want it hidden", err)
			}
		})
	}
}

// TestRelayAnswers requests credentials from servers that are no relay, and from relays that
// refuse. The error must name the remedy, and temporary must return whether another attempt is
// useful.
func TestRelayAnswers(t *testing.T) {
	text := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(text))
		}
	}
	challenge := `{"challenge":"x","tenant":"default","host":"laptop"}`
	twoSteps := func(first string, second http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/agent/challenge") {
				text(http.StatusOK, first)(w, r)
				return
			}
			second(w, r)
		}
	}
	page := "<html>\n<body>" + strings.Repeat("<p>é</p>\n", 5000) + "</body></html>"
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		want    string // a part of the error, in which %s is the relay's URL
		again   bool
	}{
		{"no relay", http.NotFound, "no relay at that URL (HTTP 404); check --relay", false},
		{"web server", text(http.StatusMethodNotAllowed, page), "no relay at that URL (HTTP 405); check --relay", false},
		{"wrong token", text(http.StatusUnauthorized, "token invalid: not a JWT\n"),
			"the relay refuses the enrolment token: token invalid: not a JWT; get a new one with \"relay token host\"", false},
		{"other keys", text(http.StatusUnauthorized, "token invalid: signed with a key unknown to this relay"),
			"signed with a key unknown to this relay; get a new one with \"relay token host\"", false},
		{"challenge refused", twoSteps(challenge, text(http.StatusForbidden, `{"error":"challenge: made with other keys"}`)),
			"the relay refuses (HTTP 403): challenge: made with other keys", false},
		{"page", text(http.StatusBadRequest, page), "the relay refuses (HTTP 400): <html> <body><p>é</p> <p>", false},
		{"moved", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://relay.example.com/base"+r.URL.Path+"?x=1", http.StatusMovedPermanently)
		}, "the relay is at another URL: https://relay.example.com/base; change --relay", false},
		{"busy", text(http.StatusTooManyRequests, "later"), "relay %s: HTTP 429: later", true},
		{"broken", text(http.StatusBadGateway, page), "relay %s: HTTP 502: <html>", true},
		{"no JSON", text(http.StatusOK, page), "relay %s: the response is not that of a relay: invalid character", true},
		{"other JSON", text(http.StatusOK, `{}`), "relay %s: the response is not that of a relay: no challenge in it", true},
		{"another host", text(http.StatusOK, `{"challenge":"x","tenant":"default","host":"desktop"}`),
			"the token is now for default/desktop; this host-agent serves default/laptop: restart it", false},
		{"NATS elsewhere", twoSteps(challenge, text(http.StatusOK, `{"jwt":"x","nats":false}`)),
			"the relay does not serve /nats; set the NATS cluster's address with --nats-url", false},
		{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "relay %s cannot be reached: EOF", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			a, err := newAgent(t, func(c *Config) { c.Relays = []string{server.URL + "/"} })
			if err != nil {
				t.Fatal(err)
			}
			_, err = a.credentials(t.Context())
			want := strings.ReplaceAll(test.want, "%s", server.URL+"/")
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("credentials: %v; want %q", err, want)
			}
			if len(err.Error()) > 400 {
				t.Errorf("the error is %d bytes long; want at most 400", len(err.Error()))
			}
			if temporary(err) != test.again {
				t.Errorf("temporary = %v; want %v", temporary(err), test.again)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := a.Check(ctx, func(string) {}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Check: %v; want %q", err, want)
			}
			if !test.again { // Run returns the error, too
				if err := a.Run(ctx); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Run: %v; want %q", err, want)
				}
			}
		})
	}
}

// TestCredentialsOfRelay fails unless the host-agent sends a valid proof of its NATS key, and
// returns the relay's JWT.
func TestCredentialsOfRelay(t *testing.T) {
	var got struct {
		Challenge, NKey string
		Signature       []byte
	}
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ey") {
			t.Errorf("the header Authorization is %.20q; want Bearer, and a JWT", r.Header.Get("Authorization"))
		}
		switch r.URL.Path {
		case "/agent/challenge":
			_ = json.NewEncoder(w).Encode(map[string]string{"challenge": keys.NewChallenge(), "tenant": "default", "host": "laptop"})
		case "/agent/credentials":
			if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
				t.Error(err)
			}
			_, _ = w.Write([]byte(`{"jwt":"the JWT","later":"field"}`))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	a, err := newAgent(t, func(c *Config) { c.Relays = []string{server.URL + "/"} })
	if err != nil {
		t.Fatal(err)
	}
	if jwt, err := a.credentials(t.Context()); err != nil || jwt != "the JWT" {
		t.Fatalf("credentials = %q, %v; want the JWT", jwt, err)
	}
	if err := keys.CheckChallenge(got.Challenge, "default", "laptop", got.NKey, got.Signature); err != nil {
		t.Error(err)
	}
	if want := "ws" + server.URL[len("http"):] + "/nats"; a.natsURLs()[0] != want {
		t.Errorf("NATS at %s; want %s", a.natsURLs()[0], want)
	}
}

// TestUnreachableRelayIsTriedAgain runs a host-agent whose relay cannot be reached. Run must
// continue until it is stopped, and then return nil.
func TestUnreachableRelayIsTriedAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	a, err := newAgent(t, func(c *Config) { c.Relays = []string{"http://" + l.Addr().String()} })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.credentials(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be reached: dial tcp") || !temporary(err) {
		t.Errorf("credentials: %v; want a temporary error that says why", err)
	}
	for _, patience := range []time.Duration{0, 50 * time.Millisecond, time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := a.Run(ctx); err != nil {
			t.Errorf("Run, stopped after %v: %v; want nil", patience, err)
		}
		cancel()
	}
}

func TestOnlyUnaskedEndsAreErrors(t *testing.T) {
	asked, cancel := context.WithCancel(context.Background())
	cancel()
	if err := ended(asked, context.Canceled); err != nil {
		t.Errorf("Run after its context was cancelled = %v; want nil", err)
	}
	for _, ctx := range []context.Context{asked, context.Background()} {
		if err := ended(ctx, errNATS); !errors.Is(err, errNATS) {
			t.Errorf("Run after the NATS connection has ended = %v; want %v", err, errNATS)
		}
	}
}

// relaysByURL answers requests in memory, by the URL of their relay. Without a handler for a URL,
// connections are refused.
type relaysByURL map[string]http.HandlerFunc

// RoundTrip implements [http.RoundTripper].
func (r relaysByURL) RoundTrip(request *http.Request) (*http.Response, error) {
	handler := r[request.URL.Scheme+"://"+request.URL.Host]
	if handler == nil {
		return nil, syscall.ECONNREFUSED
	}
	answer := httptest.NewRecorder()
	handler(answer, request)
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	return answer.Result(), nil
}

// TestRelaysAreTriedInTurn lists relays, of which some fail. The host-agent must use the next relay
// after a failure, unless a relay refuses its token.
func TestRelaysAreTriedInTurn(t *testing.T) {
	all := relaysByURL{}
	serve := func(handler http.HandlerFunc) string {
		url := fmt.Sprintf("http://127.0.0.1:%d", len(all)+1)
		all[url] = handler
		return url
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	good := serve(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/agent/challenge" {
			_, _ = w.Write([]byte(`{"challenge":"x","tenant":"default","host":"laptop"}`))
			return
		}
		_, _ = w.Write([]byte(`{"jwt":"the JWT"}`))
	})
	silent := serve(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	refusing, busy := serve(status(http.StatusUnauthorized)), serve(status(http.StatusBadGateway))
	page, form := serve(http.NotFound), serve(status(http.StatusMethodNotAllowed))
	nobody := serve(nil)
	for _, test := range []struct {
		name   string
		relays []string
		want   []string // parts of the error; nil for success
		again  bool
		first  string // the relay that the next attempt uses first
	}{
		{"nobody there", []string{nobody, good}, nil, false, good},
		{"says nothing", []string{silent, nobody, good}, nil, false, good},
		{"in trouble", []string{busy, good, nobody}, nil, false, good},
		{"a web server", []string{page, good}, nil, false, good},
		{"the first is good", []string{good, refusing}, nil, false, good},
		{"token refused", []string{nobody, refusing, good}, []string{"refuses the enrolment token"}, false, nobody},
		{"none there", []string{nobody, busy}, []string{"cannot be reached", "502"}, true, nobody},
		{"one to come back", []string{page, nobody}, []string{"no relay at that URL", "cannot be reached"}, true, page},
		{"another to come back", []string{nobody, page}, []string{"cannot be reached", "no relay at that URL"}, true, nobody},
		{"nothing but web servers", []string{page, form}, []string{"404", "405", "--relay"}, false, page},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, err := newAgent(t, func(c *Config) { c.Relays, c.HTTP.Transport = test.relays, all })
				if err != nil {
					t.Fatal(err)
				}
				a.relays.urls = test.relays                                     // the order of this test
				ctx, cancel := context.WithTimeout(t.Context(), relayTimeout/2) // a silent relay gets a third of this time
				defer cancel()
				jwt, err := a.credentials(ctx)
				if test.want == nil && (jwt != "the JWT" || err != nil) {
					t.Errorf("credentials = %q, %v; want the JWT", jwt, err)
				}
				for _, want := range test.want {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("credentials: %v; want %q", err, want)
					}
				}
				if err != nil && temporary(err) != test.again {
					t.Errorf("temporary(%v) = %v; want %v", err, temporary(err), test.again)
				}
				if got := a.natsURLs(); len(got) != len(test.relays) || got[0] != natsURL(test.first) {
					t.Errorf("the addresses of NATS are %v; want %s first", got, natsURL(test.first))
				}
			})
		})
	}
}

// TestRelaysAreShared orders the relays for 1,200 hosts. Each host must have a fixed order. The
// hosts must be spread over all relays, and those of a failed relay over all others.
func TestRelaysAreShared(t *testing.T) {
	all := []string{"a", "b", "c", "d"}
	first, second := map[string]int{}, map[string]int{}
	for i := range 1200 {
		host := fmt.Sprintf("host-%d", i)
		order := newRelays(all, "acme", host).inOrder()
		if again := newRelays([]string{"c", "a", "d", "b"}, "acme", host); !slices.Equal(again.inOrder(), order) || again.home != order[0] {
			t.Fatalf("%s tries the relays in the order %v, and in the order %v for a shuffled list; want the same", host, order, again.inOrder())
		}
		first[order[0]]++
		if order[0] == "a" {
			second[order[1]]++
		}
	}
	for _, relay := range all {
		if first[relay] < 250 || relay != "a" && second[relay] < 60 {
			t.Errorf("relay %s is first for %d of 1200 hosts, and second for %d of the %d whose first is a; want even shares", relay, first[relay], second[relay], first["a"])
		}
	}
}

// TestHostAgentReturnsToItsFirstRelay has a host-agent at another relay than its first. The
// host-agent must return once, after two successful checks of the first relay in a row.
func TestHostAgentReturnsToItsFirstRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		away, looks, moves := true, 0, 0
		there := []bool{false, true, false, true, true, true}
		go goHome(ctx, func() bool { return away }, func() bool { looks++; return there[looks-1] }, func() { moves++; away = false })
		time.Sleep(20 * homeEvery)
		synctest.Wait()
		if looks != 5 || moves != 1 {
			t.Errorf("the host-agent returned to its first relay %d times after %d checks; want once, after five", moves, looks)
		}
	})
}

// TestManyLinksAreListed lists 256 links with 64 viewers each.
func TestManyLinksAreListed(t *testing.T) {
	viewers := strings.Repeat(`{"conn":"0123456789","address":"[2001:db8:1234:5678:9abc:def0:1234:5678]:12345","since":"2026-01-01T00:00:00.000000000Z"},`, 64)
	link := `{"id":"abcdefghij","by":"host-agent of laptop","session":"ahp-session:/1","level":"look","people":64,"expires":"2026-01-01T00:00:00Z","watching":[` + strings.TrimSuffix(viewers, ",") + `]},`
	list := `{"shares":[` + strings.TrimSuffix(strings.Repeat(link, 256), ",") + `]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/agent/challenge" {
			_ = json.NewEncoder(w).Encode(map[string]string{"challenge": "c", "tenant": "default", "host": "laptop"})
			return
		}
		_, _ = w.Write([]byte(list))
	}))
	defer server.Close()
	a, err := newAgent(t, func(*Config) {})
	if err != nil {
		t.Fatal(err)
	}
	links, err := (&Sharing{Relays: []string{server.URL}, Token: a.cfg.Token}).List(t.Context())
	if err != nil || len(links) != 256 || len(links[255].Watching) != 64 {
		t.Errorf("List returns %d links, %v; want 256 with 64 viewers", len(links), err)
	}
}

// TestLongRefusalNeedsLittleMemory shortens a refusal of many words, as long as a relay's longest response.
func TestLongRefusalNeedsLittleMemory(t *testing.T) {
	text := strings.Repeat("a ", maxResponse/2)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	short := shorten(text)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; len(short) > maxText+3 || took > 1<<20 {
		t.Errorf("a refusal becomes %d bytes long with %d bytes of memory; want at most %d with less than 1 MiB", len(short), took, maxText+3)
	}
}
