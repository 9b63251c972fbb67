package agents

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/authn"
)

// TestLoginCountsUntilItsAnswer: a login counts until the NATS server's first line
// PONG, however the line is divided into reads, or until the connection ends. A PONG
// inside a longer line does not end it.
func TestLoginCountsUntilItsAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server []string
		before int // the server's writes after which the login still counts
	}{
		"one read":      {[]string{"INFO {}\r\n", "INFO {}\r\nPONG\r\n"}, 1},
		"divided":       {[]string{"INFO {}\r\n", "PO", "NG", "\r", "\n"}, 4},
		"in the middle": {[]string{"INFO {}\r\nPI", "NG\r\nPONG\r\nMSG"}, 1},
		"in a text":     {[]string{"INFO {\"nonce\":\"PONG\"}\r\n", "+OK\r\nPONG\r\n"}, 1},
		"refused":       {[]string{"INFO {}\r\n", "-ERR 'Authorization Violation'\r\n", ""}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, ours := net.Pipe()
			ended := 0
			l := newLogin(ours, func(bool) { ended++ })
			p := make([]byte, 512)
			for i, text := range test.server {
				go func() {
					if text == "" {
						_ = server.Close()
						return
					}
					_, _ = io.WriteString(server, text)
				}()
				_, _ = l.Read(p)
				if counts := i < test.before; counts == (ended > 0) {
					t.Errorf("after the server's %q, the login is still in progress: %v; want %v", text, !counts, counts)
				}
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBusyRelayTellsWhenToReturn: while the relay works on as many logins as it admits,
// it answers further host-agents with 503 and the seconds until their return. These
// spread their returns at the rate at which logins complete.
func TestBusyRelayTellsWhenToReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		perSecond := 100 * runtime.GOMAXPROCS(0) // logins per second assumed before any has completed
		relay := &registry.Registry{}
		a := &API{Config: Config{Registry: relay}, arrivals: admission.NewArrivals()}
		for i := 0; ; i++ {
			if a.arrivals.Crowded() {
				break
			}
			_, _ = a.arrivals.Enter(t.Context(), "acme", strconv.Itoa(i))
		}
		answers := make(chan *httptest.ResponseRecorder, 20*perSecond)
		for i := range cap(answers) {
			go func() {
				host := auth.Enrolment{Tenant: "acme", Host: "laptop-" + strconv.Itoa(i)}
				w := httptest.NewRecorder()
				if server := a.arrive(w, httptest.NewRequest(http.MethodGet, "/nats", nil), host); server != nil {
					t.Error("arrive gives a server to a host-agent without a turn; want a refusal")
				}
				answers <- w
			}()
		}
		last := 0
		for range cap(answers) {
			w := <-answers
			seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
			if w.Code != http.StatusServiceUnavailable || err != nil || seconds < 1 {
				t.Fatalf("HTTP %d, Retry-After %q; want 503 and a number", w.Code, w.Header().Get("Retry-After"))
			}
			last = max(last, seconds)
		}
		if last < 8 || last > 13 {
			t.Errorf("the last refused host-agent is told to return in %d s; want about half of the 20 s until its turn", last)
		}
		time.Sleep(time.Duration(last-1) * time.Second)
		if !relay.Arrivals.Expected() {
			t.Error("before the last return time, the registry expects no host-agent; want one")
		}
	})
}

// TestCrowdIsRefusedBeforeVerification: too many host-agents of a tenant request credentials, and the
// relay has refused one. It must refuse this one's further requests for a challenge, a login and an
// idle connection without verifying its token. It must work on those of others, except for idle
// connections.
func TestCrowdIsRefusedBeforeVerification(t *testing.T) {
	t.Parallel()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	request := func(tenant string) *http.Request {
		token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: tenant, Host: "laptop", Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "/agent/challenge", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		return r
	}
	crowd, calm := request("crowd"), request("calm")
	synctest.Test(t, func(t *testing.T) {
		a := &API{Config: Config{Registry: &registry.Registry{}}, arrivals: admission.NewArrivals()} // has no keys, so verification would panic
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 4000 * runtime.GOMAXPROCS(0) {
			go func() { _, _ = a.arrivals.Enter(ctx, "crowd", strconv.Itoa(i)) }()
		}
		synctest.Wait()
		if _, after := a.arrivals.Enter(ctx, "crowd", "laptop"); after == 0 {
			t.Error("a host-agent behind a crowd gets a place; want it refused")
		}
		refused := func(what string, serve http.HandlerFunc, r *http.Request) {
			w := httptest.NewRecorder()
			serve(w, r)
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
				t.Errorf("%s: HTTP %d, Retry-After %q; want 503 and a number", what, w.Code, w.Header().Get("Retry-After"))
			}
		}
		refused("challenge", a.serveChallenge, crowd)
		refused("login", a.serveNATS, crowd)
		idle := calm.Clone(t.Context())
		idle.Header.Set(broker.StandbyHeader, "1")
		refused("idle connection", a.serveNATS, idle)
		if after := a.full(calm); after != 0 {
			t.Errorf("a different tenant's host-agent is told to return in %v; want no wait", after)
		}
		cancel()
	})
}

// TestRefusedIdleConnectionIsNotExpected requests an idle connection without a token in a crowd. The
// registry must not expect the host-agent: it is online, and anybody can send such requests.
func TestRefusedIdleConnectionIsNotExpected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &API{Config: Config{Registry: &registry.Registry{}}, arrivals: admission.NewArrivals()}
		for i := 0; !a.arrivals.Crowded(); i++ {
			_, _ = a.arrivals.Enter(t.Context(), "crowd", strconv.Itoa(i))
		}
		r := httptest.NewRequest(http.MethodGet, "/nats", nil)
		r.Header.Set(broker.StandbyHeader, "1")
		w := httptest.NewRecorder()
		a.serveNATS(w, r)
		if w.Code != http.StatusServiceUnavailable || a.Registry.Arrivals.Expected() {
			t.Errorf("HTTP %d, and a host-agent is expected: %v; want 503, and none expected", w.Code, a.Registry.Arrivals.Expected())
		}
	})
}

// TestChallengeBeforeALoginTakesAPlace has many host-agents request challenges. Only requests that
// announce a login take places. A repeated request must find the place of its host-agent. Without
// further steps, the places must be free again.
func TestChallengeBeforeALoginTakesAPlace(t *testing.T) {
	t.Parallel()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	revoked, err := registry.LoadRevocations("", nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var requests []*http.Request
		for i := range 64 * runtime.GOMAXPROCS(0) {
			token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: "acme", Host: "laptop-" + strconv.Itoa(i), Expires: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest(http.MethodPost, "/agent/challenge", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			requests = append(requests, r)
		}
		ask := func(a *API, header string) {
			for _, r := range requests {
				r.Header.Set(broker.InstanceHeader, header)
				w := httptest.NewRecorder()
				if a.serveChallenge(w, r); w.Code != http.StatusOK {
					t.Fatalf("a challenge is answered with HTTP %d: %s; want 200", w.Code, w.Body)
				}
			}
		}
		a := &API{Config: Config{
			Caller: authn.New(authn.Config{Keys: keys, Revoked: revoked, Proved: func(*http.Request) {}, Count: func(string) {}}),
			NATS:   func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF },
		}, arrivals: admission.NewArrivals()}
		if ask(a, ""); a.arrivals.Crowded() {
			t.Error("requests that announce no login have taken all places; want none taken")
		}
		if ask(a, "agent-1"); !a.arrivals.Crowded() {
			t.Error("places are free although as many host-agents as fit have announced logins; want none free")
		}
		ask(a, "agent-1") // the same host-agents keep their places
		time.Sleep(time.Minute)
		if a.arrivals.Crowded() {
			t.Error("all places are taken a minute after the last step; want them free")
		}
	})
}
