package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
	"ahprelay/routing"
	"ahprelay/test/locked"
)

// A subject has as many connections as its limit permits. The relay refuses its next
// handshake with 429 and Retry-After, until a connection ends.
func TestHandshakeAboveTheLimitIsRefused(t *testing.T) {
	inWorld(t, Config{Limits: admission.Limits{Subject: admission.Limit{Connections: 2}}}, func(w *world) {
		token := w.token(nil)
		first := w.dial(token)
		w.dial(token)
		synctest.Wait()
		w.wantTooMany(token, "limit of 2 connections of this subject")
		if status, _ := w.handshakeStatus(w.token(func(c *auth.Client) { c.Subject = "bob" })); status != http.StatusUpgradeRequired {
			t.Errorf("a handshake of a different subject: HTTP %d; want 426", status)
		}
		_ = first.ws.Close(1000, "")
		synctest.Wait()
		if status, said := w.handshakeStatus(token); status != http.StatusUpgradeRequired {
			t.Errorf("a handshake after one connection has left: HTTP %d %s; want 426", status, said)
		}
		w.dial(token).wantOpen() // the failed handshake has returned its admission
	})
}

// A client with a link's token connects and disconnects continuously. The relay refuses
// it before the handshake, writes few lines to the audit log, and admits a client with
// a different token.
func TestFrequentReconnectsAreRefused(t *testing.T) {
	var written locked.Buffer
	inWorld(t, Config{AuditFile: &written}, func(w *world) {
		guest := w.token(func(c *auth.Client) { c.Subject, c.MaxConnections = "guest", 10 })
		in := 0
		for range 1000 {
			if status, _ := w.handshakeStatus(guest); status == http.StatusUpgradeRequired {
				in++
			}
		}
		if want := admission.DefaultLimits.Token.Opens * int(admission.RateWindow/time.Second); in != want {
			w.Errorf("%d handshakes were admitted; want %d", in, want)
		}
		w.wantTooMany(guest, "limit of 10 connections made in a second of this token")
		w.dial(w.token(func(c *auth.Client) { c.Subject = "ada" })).wantOpen()
		time.Sleep(2 * audit.Every)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(written.String()), "\n")
		if len(lines) != 5 || !strings.Contains(written.String(), `"count":900}`) { // the fifth line is ada's
			w.Errorf("the audit has %d lines; want for handshakes and for limits the first event and a count, and one more line:\n%s", len(lines), written.String())
		}
	})
}

// The limit permits one pending connection. The relay refuses the second handshake
// until the host has accepted the first connection.
func TestOpenedConnectionIsNotPending(t *testing.T) {
	inWorld(t, Config{Limits: admission.Limits{Subject: admission.Limit{Pending: 1}}}, func(w *world) {
		token := w.token(nil)
		first := w.dial(token)
		synctest.Wait()
		w.wantTooMany(token, "limit of 1 connections waiting for a host of this subject")
		w.startAgent(routing.AgentEndConfig{})
		first.wantOpen()
		w.hostConn(1)
		w.dial(token).wantOpen()
		w.hostConn(2)
	})
}

// wantTooMany sends a handshake, and fails unless the relay answers with 429,
// Retry-After and the limit's name.
func (w *world) wantTooMany(token, limit string) {
	w.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://relay/ahp/"+testHost, nil)
	if err != nil {
		w.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer := &hijackable{header: http.Header{}}
	w.server.Handler().ServeHTTP(answer, r)
	retry, err := strconv.Atoi(answer.header.Get("Retry-After"))
	if answer.status != http.StatusTooManyRequests || err != nil || retry < 1 || !strings.Contains(answer.body.String(), limit) {
		w.Errorf("HTTP %d %q, Retry-After %q; want 429 that names the %s", answer.status, answer.body.String(), answer.header.Get("Retry-After"), limit)
	}
}

// A client exceeds its subject's rate, so the relay reads its messages later. When the
// delay becomes too long, the relay answers the client's request with an error, and
// closes the connection with the reason.
func TestClientAboveItsRateIsReadLater(t *testing.T) {
	inWorld(t, Config{Limits: admission.Limits{Subject: admission.Limit{Frames: 1}}}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(nil))
		h := w.hostConn(1)
		for i := range 15 {
			w.running.Go(func() { c.request(i, "listSessions") })
			synctest.Wait()
		}
		if n := len(h.messages()); n != 10 {
			w.Errorf("the host got %d messages at once; want 10", n)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := len(h.messages()); n != 13 {
			w.Errorf("the host got %d messages after 3 s; want 13", n)
		}
		time.Sleep(time.Minute)
		c.wantOpen()
		if n := len(h.messages()); n != 15 {
			w.Errorf("the host got %d messages in the end; want all 15", n)
		}
		bob := auth.Client{ID: "other", Tenant: testTenant, Subject: "ada", Hosts: []string{auth.AllHosts}}
		other, _ := w.server.limits.Connect(bob, testHost, "")
		gone, cancel := context.WithCancel(w.Context())
		cancel()
		for range 20 { // a different connection uses up the subject's rate
			if over := other.AwaitRate(gone, 1, false); over != nil {
				w.Fatal(over)
			}
		}
		c.request(15, "listSessions")
		synctest.Wait()
		var refused struct {
			ID    int
			Error struct {
				Code int
				Data struct {
					Limit        string
					RetryAfterMs int
				}
			}
		}
		got := c.messages()
		if err := json.Unmarshal([]byte(got[len(got)-1]), &refused); err != nil || refused.ID != 15 || refused.Error.Code != ahp.CodeRateLimited ||
			refused.Error.Data.Limit != "messages a second of this subject" || refused.Error.Data.RetryAfterMs != 11_000 {
			w.Errorf("the request above the rate is answered %s; want request 15 refused for 11 s with the limit's name", got[len(got)-1])
		}
		c.wantClosed(ahp.CloseOverloaded, "overloaded: limit of 1 messages a second of this subject reached; try again in 11s")
	})
}

// After bad tokens from an address, the relay refuses bad tokens from there with 429
// for a while, and still accepts good tokens. Loopback has no such limit, because it
// may be a proxy.
func TestAddressWithBadTokensIsRefused(t *testing.T) {
	inWorld(t, Config{Limits: admission.Limits{Failures: 3}}, func(w *world) {
		ask := func(address, token string) *hijackable {
			r, err := http.NewRequest(http.MethodGet, "http://relay/ahp/"+testHost, nil)
			if err != nil {
				w.Fatal(err)
			}
			r.RemoteAddr = address
			r.Header.Set("Authorization", "Bearer "+token)
			answer := &hijackable{header: http.Header{}}
			w.server.Handler().ServeHTTP(answer, r)
			return answer
		}
		const here = "192.0.2.1:1000"
		for range 3 {
			if a := ask(here, "bad"); a.status != http.StatusUnauthorized {
				w.Fatalf("a request with a bad token: HTTP %d; want 401", a.status)
			}
		}
		if a := ask(here, "bad"); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "20" {
			w.Errorf("a fourth request with a bad token: HTTP %d, Retry-After %q; want 429, 20", a.status, a.header.Get("Retry-After"))
		}
		if a := ask(here, w.token(nil)); a.status != http.StatusUpgradeRequired {
			w.Errorf("a good token from the refused address: HTTP %d; want 426", a.status)
		}
		for _, other := range []string{"192.0.2.2:1000", "127.0.0.1:1000"} {
			for range 3 {
				if a := ask(other, "bad"); a.status != http.StatusUnauthorized {
					w.Errorf("a bad token from the address %s: HTTP %d; want 401", other, a.status)
				}
			}
		}
		if a := ask("127.0.0.1:1000", "bad"); a.status != http.StatusUnauthorized {
			w.Errorf("many bad tokens from a loopback address: HTTP %d; want no limit, because it may be a proxy's", a.status)
		}
		time.Sleep(20 * time.Second)
		if a := ask(here, "bad"); a.status != http.StatusUnauthorized {
			w.Errorf("a bad token after the pause: HTTP %d; want 401", a.status)
		}
	})
}
