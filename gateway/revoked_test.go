package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	operatorapi "ahprelay/gateway/api/operator"
	"ahprelay/routing"
)

// revoke adds a revocation that is effective now.
func (w *world) revoke(rev auth.Revocation) {
	w.Helper()
	rev.At = time.Now()
	if err := w.revoked.Add(rev); err != nil {
		w.Fatal(err)
	}
}

// handshakeStatus sends a request with a token but without an upgrade. It returns the
// HTTP status, which is 426 for a valid token, and the body.
func (w *world) handshakeStatus(token string) (int, string) {
	w.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://relay/ahp/"+testHost, nil)
	if err != nil {
		w.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	response := &hijackable{header: http.Header{}}
	w.server.Handler().ServeHTTP(response, r)
	return response.status, response.body.String()
}

// Whatever the host's state, a token's revocation ends its connection. A subject's
// revocation ends the connections with all earlier tokens of the subject. Unrelated
// connections stay, and the subject's later tokens work.
func TestRevocationEndsConnections(t *testing.T) {
	const reason = "token revoked"
	named := func(id, subject string) func(*auth.Client) {
		return func(c *auth.Client) { c.ID, c.Subject = id, subject }
	}
	for name, setUp := range map[string]func(w *world){
		"host away":   func(*world) {},
		"host online": func(w *world) { w.startAgent(routing.AgentEndConfig{}) },
		"host silent": func(w *world) { w.silent = true; w.startAgent(routing.AgentEndConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{}, func(w *world) {
				setUp(w)
				tokens := map[string]string{"one": w.token(named("one", "ada")), "two": w.token(named("two", "ada")), "three": w.token(named("three", "bob"))}
				clients := map[string]*clientEnd{}
				for id, token := range tokens {
					clients[id] = w.dial(token)
					clients[id].request(1, "reconnect") // held while the host is away
					clients[id].wantOpen()
				}
				time.Sleep(time.Second)
				w.revoke(auth.Revocation{Token: "one"})
				clients["one"].wantClosed(ahp.CloseTokenEnded, reason)
				clients["two"].wantOpen()
				clients["three"].wantOpen()

				w.revoke(auth.Revocation{Tenant: testTenant, Subject: "ada"})
				clients["two"].wantClosed(ahp.CloseTokenEnded, reason)
				clients["three"].wantOpen()
				for id, want := range map[string]int{"one": 401, "two": 401, "three": 426} {
					if status, said := w.handshakeStatus(tokens[id]); status != want || want == 401 && !strings.Contains(said, reason) {
						t.Errorf("a handshake with token %s: HTTP %d %q; want %d", id, status, said, want)
					}
				}
				time.Sleep(time.Second)
				w.dial(w.token(named("four", "ada"))).wantOpen()
			})
		})
	}
}

// A token is revoked after the relay has verified it, and before the relay has
// registered its connection. The relay closes the connection all the same.
func TestRevokeWhileConnecting(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.lookup = func() {
			w.lookup = nil
			w.revoke(auth.Revocation{Token: "one"})
			time.Sleep(time.Millisecond) // by now, the revocation has ended all registered connections
		}
		c := w.dial(w.token(func(c *auth.Client) { c.ID = "one" }))
		time.Sleep(time.Second)
		c.wantClosed(ahp.CloseTokenEnded, "token revoked")
		w.wantGone()
	})
}

// An operator revokes a host over HTTP, as the commands do. The host-agent's connection
// ends, and the revocation is still in force after the relay's restart. Without an
// operator's token, the relay refuses.
func TestRevokeThroughRelay(t *testing.T) {
	dir := t.TempDir()
	here := func(cfg *RelayConfig) { cfg.DataDir = dir }
	r := startRelay(t, here)
	a := newFakeAgent(t, r)
	operator, err := r.Keys().Tokens().IssueOperator("test")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := r.Keys().Tokens().IssueClient(auth.Client{Tenant: "default", Subject: "ada", Hosts: []string{"*"}, Access: auth.AccessAdmin, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{"none": "", "a client's": admin, "a host's": a.token} {
		if status, _ := a.post("/operator/revocations", token, []byte(`{"host":"laptop","tenant":"default"}`)); status != http.StatusUnauthorized {
			t.Errorf("revoke with token %s: HTTP %d; want 401", name, status)
		}
		if status, _ := get(t, r.URL()+"/operator/revocations", bearerOf(token)); status != http.StatusUnauthorized {
			t.Errorf("list with token %s: HTTP %d; want 401", name, status)
		}
	}
	for _, bad := range []string{"", "{", `{}`, `{"host":"laptop"}`, `{"host":"*","tenant":"default"}`, `{"token":"a","subject":"b","tenant":"c"}`} {
		if status, answer := a.post("/operator/revocations", operator, []byte(bad)); status != http.StatusBadRequest || !strings.Contains(answer, "error") {
			t.Errorf("revoke %s: HTTP %d %s; want 400 with the reason", bad, status, answer)
		}
	}

	ws, _, err := websocket.Dial(t.Context(), r.URL()+"/nats", &websocket.DialOptions{HTTPHeader: bearerOf(a.token)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	if status, answer := a.post("/operator/revocations", operator, []byte(`{"host":"laptop","tenant":"default"}`)); status != http.StatusOK {
		t.Fatalf("revoking the host: HTTP %d %s; want 200", status, answer)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for err == nil {
		_, _, err = ws.Read(ctx)
	}
	if code := websocket.CloseStatus(err); ahp.CloseCode(code) != ahp.CloseTokenEnded {
		t.Errorf("host-agent's connection ended with %v; want close %d", err, ahp.CloseTokenEnded)
	}

	r.Close()
	r = startRelay(t, here)
	a.relay = r
	for _, path := range []string{"/agent/challenge", "/agent/credentials"} {
		if status, answer := a.post(path, a.token, []byte("{}")); status != http.StatusUnauthorized || !strings.Contains(answer, "token revoked") {
			t.Errorf("%s after a restart: HTTP %d %s; want 401", path, status, answer)
		}
	}
	status, body := get(t, r.URL()+"/operator/revocations", bearerOf(operator))
	var list struct{ Revocations []auth.Revocation }
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != http.StatusOK || len(list.Revocations) != 1 || list.Revocations[0].Host != "laptop" {
		t.Errorf("the list of revocations: HTTP %d %s; want only the laptop's", status, body)
	}
}

// RevokeForNextStart writes a revocation, which the next relay in the data directory
// loads. It fails while a relay uses the directory.
func TestRevokeForNextStart(t *testing.T) {
	r := startRelay(t, nil)
	ask := operatorapi.RevokeRequest{Tenant: "default", Subject: "ada"}
	if _, err := RevokeForNextStart(r.dir.path, ask); err == nil || !strings.Contains(err.Error(), "in use by another relay") {
		t.Errorf("RevokeForNextStart while a relay runs = %v; want in use by another relay", err)
	}
	dir := r.dir.path
	r.Close()
	rev, err := RevokeForNextStart(dir, ask)
	if err != nil {
		t.Fatal(err)
	}
	r = startRelay(t, func(cfg *RelayConfig) { cfg.DataDir = dir })
	revoked := r.registry.Revocations()
	if !revoked.Revoked(rev.At, rev.Key()) {
		t.Errorf("the relay after its start knows the revocations %+v; want the stored one", revoked.List())
	}
}

// An operator revokes an external issuer's token. The relay revokes it by the ID that
// the relay derives, not by the issuer's jti.
func TestExternalTokenIsRevokedByDerivedID(t *testing.T) {
	const iss = "https://login.example.com"
	who := auth.Client{
		ID: "made-by-the-relay", Tenant: testTenant, Subject: "ann@login.example.com", Hosts: []string{auth.AllHosts}, Access: auth.AccessRead,
		IssuedAt: time.Date(1999, 12, 31, 23, 0, 0, 0, time.UTC), Expires: time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC),
	}
	inWorld(t, Config{Issuers: map[string]auth.Verifier{iss: otherIssuer(who)}}, func(w *world) {
		token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"`+iss+`","jti":"theirs"}`)) + ".x"
		c := w.dial(token)
		c.wantOpen()
		operator, err := w.keys.Tokens().IssueOperator("test")
		if err != nil {
			w.Fatal(err)
		}
		ask := func(body string) *hijackable {
			r, err := http.NewRequest(http.MethodPost, "http://relay/operator/revocations", strings.NewReader(body))
			if err != nil {
				w.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+operator)
			answer := &hijackable{header: http.Header{}}
			w.server.Handler().ServeHTTP(answer, r)
			return answer
		}
		if a := ask(`{"whole":"e30.e30.x"}`); a.status != http.StatusBadRequest {
			w.Errorf("revoking an external token whose issuer the relay does not know: HTTP %d %s; want 400", a.status, a.body.String())
		}
		c.wantOpen()
		if a := ask(`{"whole":"` + token + `"}`); a.status != http.StatusOK || strings.Contains(a.body.String(), "until") {
			w.Errorf("revoking an external token by its derived ID: HTTP %d %s; want 200, and no expiry", a.status, a.body.String())
		}
		c.wantClosed(ahp.CloseTokenEnded, "token revoked")
	})
}
