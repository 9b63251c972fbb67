package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/routing"
	"ahprelay/test/locked"
)

// refresh sends a new token over the connection, and returns the relay's response.
func (c *clientEnd) refresh(token string) string {
	c.w.Helper()
	before := len(c.messages())
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":77,"method":"relay/refreshToken","params":{"channel":"ahp-root://","token":%q}}`, token))
	synctest.Wait()
	got := c.messages()[before:]
	if len(got) != 1 {
		c.w.Fatalf("answers %q; want one", got)
	}
	return got[0]
}

// lasting returns a change of a token: it sets the lifetime, and then applies change
// unless that is nil.
func lasting(d time.Duration, change func(*auth.Client)) func(*auth.Client) {
	return func(c *auth.Client) {
		c.Expires = time.Now().Add(d)
		if change != nil {
			change(c)
		}
	}
}

// A client replaces its token, with its host away or online. The connection then lasts
// until the new token expires.
func TestRefreshedConnectionOutlivesItsToken(t *testing.T) {
	for name, setUp := range map[string]func(w *world){
		"host away":   func(*world) {},
		"host online": func(w *world) { w.startAgent(routing.AgentEndConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{HoldTime: 24 * time.Hour}, func(w *world) {
				setUp(w)
				begin := time.Now()
				c := w.dial(w.token(lasting(time.Hour, nil)))
				c.request(1, "reconnect")
				time.Sleep(30 * time.Minute)
				want := fmt.Sprintf(`{"jsonrpc":"2.0","id":77,"result":{"expiresAt":%q}}`, begin.Add(2*time.Hour).UTC().Format(time.RFC3339))
				if got := c.refresh(w.token(lasting(90*time.Minute, nil))); got != want {
					t.Errorf("answer %s; want %s", got, want)
				}
				time.Sleep(89 * time.Minute)
				c.wantOpen()
				time.Sleep(time.Minute)
				c.wantClosed(ahp.CloseTokenEnded, "token expired")
			})
		})
	}
}

// The relay refuses to replace a token by an invalid token, or by a token with
// different authority. The first token stays valid, and neither the host nor the log
// gets the refused token.
func TestRefreshNeedsEqualAuthority(t *testing.T) {
	logged := new(locked.Buffer)
	log := slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	inWorld(t, Config{Log: log}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		w.revoke(auth.Revocation{Token: "gone"})
		first := func(c *auth.Client) { c.Channels = []string{"mock:/1", "mock:/2"} }
		c := w.dial(w.token(lasting(time.Hour, first)))
		c.request(1, "initialize")
		h := w.hostConn(1)
		h.accept(1)
		synctest.Wait()
		time.Sleep(time.Minute)

		other := func(change func(*auth.Client)) string {
			return w.token(lasting(2*time.Hour, func(c *auth.Client) { first(c); change(c) }))
		}
		expired := w.token(lasting(time.Second, first))
		time.Sleep(10 * time.Second)
		for _, test := range []struct{ name, token, want string }{
			{"none", "", "-32007"},
			{"garbage", "x.y.z", "-32007"},
			{"expired", expired, "-32007"},
			{"revoked", other(func(c *auth.Client) { c.ID = "gone" }), "-32007"},
			{"subject", other(func(c *auth.Client) { c.Subject = "bob" }), "-32009"},
			{"tenant", other(func(c *auth.Client) { c.Tenant = "acme" }), "-32009"},
			{"host", other(func(c *auth.Client) { c.Hosts = []string{"other"} }), "-32009"},
			{"access", other(func(c *auth.Client) { c.Access = auth.AccessAdmin }), "-32009"},
			{"narrower access", other(func(c *auth.Client) { c.Access = auth.AccessRead }), "-32009"},
			{"channels", other(func(c *auth.Client) { c.Channels = nil }), "-32009"},
			{"fewer channels", other(func(c *auth.Client) { c.Channels = c.Channels[:1] }), "-32009"},
			{"methods", other(func(c *auth.Client) { c.Methods = []string{"ping"} }), "-32009"},
			{"reverse", other(func(c *auth.Client) { c.Reverse = true }), "-32009"},
			{"files", other(func(c *auth.Client) { c.Files = true }), "-32009"},
		} {
			got := c.refresh(test.token)
			if !strings.Contains(got, `"code":`+test.want) {
				t.Errorf("%s: %s; want %s", test.name, got, test.want)
			}
			for _, where := range []string{got, logged.String()} {
				if test.token != "" && strings.Contains(where, test.token) {
					t.Errorf("%s: the client's token appears in %s; want it nowhere", test.name, where)
				}
			}
		}
		for _, odd := range []string{
			`{"id":78,"method":"relay/refreshToken"}`, `{"id":78,"method":"relay/refreshToken","params":{"token":7}}`,
			`{"id":78,"method":"relay/refreshToken","params":{"token":"a","token":"b"}}`, `{"method":"relay/refreshToken","params":{"token":"secret"}}`,
		} {
			c.send(odd)
		}
		synctest.Wait()
		for _, message := range h.messages() {
			if strings.Contains(message, "refreshToken") {
				t.Errorf("the host got %s; want no refreshToken", message)
			}
		}
		time.Sleep(time.Hour)
		c.wantClosed(ahp.CloseTokenEnded, "token expired")
	})
}

// A client replaces its token by tokens with the same authority in other words, and by
// tokens that differ only in what does not concern an open connection. The relay accepts
// them.
func TestRefreshComparesAuthorityAndNotWords(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		first := func(c *auth.Client) { c.Channels = []string{"mock:/1", "mock:/2"} }
		c := w.dial(w.token(first))
		c.request(1, "initialize")
		w.hostConn(1).accept(1)
		synctest.Wait()
		for name, change := range map[string]func(*auth.Client){
			"repeated channels": func(c *auth.Client) { c.Channels = []string{"mock:/2", "mock:/1", "mock:/2"} },
			"other hosts":       func(c *auth.Client) { c.Hosts = []string{testHost, "other"} },
			"fewer connections": func(c *auth.Client) { c.MaxConnections = 1 },
		} {
			if got := c.refresh(w.token(func(c *auth.Client) { first(c); change(c) })); !strings.Contains(got, "expiresAt") {
				t.Errorf("%s: %s; want the token accepted", name, got)
			}
		}
	})
}

// A client replaces its token. A revocation of the first token does not affect the
// connection, and a revocation of the new token ends it.
func TestRevokedRefreshedTokenEndsTheConnection(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		named := func(id string) string { return w.token(func(c *auth.Client) { c.ID = id }) }
		c := w.dial(named("one"))
		c.request(1, "initialize")
		w.hostConn(1).accept(1)
		synctest.Wait()
		if got := c.refresh(named("two")); !strings.Contains(got, "expiresAt") {
			t.Fatal(got)
		}
		w.revoke(auth.Revocation{Token: "one"})
		c.wantOpen()
		w.revoke(auth.Revocation{Token: "two"})
		c.wantClosed(ahp.CloseTokenEnded, "token revoked")
	})
}

// otherIssuer verifies every token, as that of the same client.
type otherIssuer auth.Client

func (o otherIssuer) Verify(_ context.Context, token string) (auth.Client, error) {
	return auth.Client(o), nil
}

// awayIssuer is an external issuer that cannot be reached.
type awayIssuer struct{}

func (awayIssuer) Verify(context.Context, string) (auth.Client, error) {
	return auth.Client{}, fmt.Errorf("%w: secret detail", auth.ErrIssuerAway)
}

// The relay recognizes an external issuer's token by its iss, and has the issuer verify
// it. If the issuer cannot be reached, the relay answers 503; if the issuer is unknown,
// 401.
func TestExternalIssuersAreKnownByIss(t *testing.T) {
	const iss = "https://login.example.com"
	// A token with the claims {"iss":"https://login.example.com"}.
	const token = "e30.eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUuY29tIn0.e30"
	who := auth.Client{ID: "1", Tenant: testTenant, Subject: "ann@login.example.com", Hosts: []string{"*"}, Access: auth.AccessWrite, Expires: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)}
	inWorld(t, Config{Issuers: map[string]auth.Verifier{iss: otherIssuer(who)}}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(token)
		c.request(1, "initialize")
		if got := w.hostConn(1).open.Subject; got != who.Subject {
			t.Errorf("subject %q; want %q", got, who.Subject)
		}
		c = w.dial(w.token(nil))
		c.request(1, "initialize")
		if got := w.hostConn(2).open.Subject; got != "ada" {
			t.Errorf("the external token's subject is read as %q; want ada", got)
		}
	})
	away := map[string]auth.Verifier{iss: awayIssuer{}}
	inWorld(t, Config{Issuers: away}, func(w *world) {
		for range 100 { // does not count as a failure of the address
			if status, said := w.handshakeStatus(token); status != 503 || strings.Contains(said, "secret detail") {
				t.Fatalf("a token whose issuer is away: HTTP %d %s; want 503", status, said)
			}
		}
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(nil))
		if got := c.refresh(token); !strings.Contains(got, "-32603") {
			t.Errorf("refreshToken with an external token is answered %s; want error -32603", got)
		}
	})
	inWorld(t, Config{}, func(w *world) {
		if status, _ := w.handshakeStatus(token); status != 401 {
			t.Errorf("a token from an unknown issuer: HTTP %d; want 401", status)
		}
	})
}
