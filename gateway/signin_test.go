package gateway

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
	operatorapi "ahprelay/gateway/api/operator"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/test/idp"
)

// rulesOf returns rules that give the people in a group this access to hosts lap*.
func rulesOf(group string, access auth.Access) []oidc.Rule {
	return []oidc.Rule{{When: []oidc.Condition{{Claim: "groups", Contains: group}}, Hosts: []string{"lap*"}, Access: access, MaxConnections: 3}}
}

// signInAt returns the relay's configuration for sign-in at a test provider.
func signInAt(t *testing.T, issuer string, rules []oidc.Rule) *oidc.SignIn {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(idp.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := oidc.NewSignIn(oidc.Config{Issuer: issuer, Audience: "ahp", ClientID: idp.ClientID, ClientSecretFile: secret, Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// signIn has a person sign in at a provider, in the phone's browser. It returns the
// parameters for /auth/code.
func (p *phone) signIn(issuer, sub, group string) (back map[string]string) {
	p.Helper()
	var at struct{ URL string }
	if status, said := p.ask("POST", "/auth/signin", "", map[string]string{"issuer": issuer}, &at); status != http.StatusOK {
		p.Fatalf("starting the sign-in: HTTP %d %s; want 200", status, said)
	}
	came := idp.SignIn(p.T, at.URL, sub, group)
	if want := p.relay.URL() + "/signin"; !strings.HasPrefix(came.String(), want+"?") {
		p.Fatalf("the browser comes back to %s; want %s", came, want)
	}
	q := came.Query()
	return map[string]string{"issuer": issuer, "state": q.Get("state"), "code": q.Get("code"), "iss": q.Get("iss"), "name": sub + "'s phone"}
}

// changedAt returns a text with a different character at a position.
func changedAt(text string, at int) string {
	c := "x"
	if text[at] == 'x' {
		c = "y"
	}
	return text[:at] + c + text[at+1:]
}

// A person signs in at an identity provider, which is a separate process. The person's
// device gets the authority from the relay's current rules, even while the provider is
// away. A browser cannot complete a sign-in that a different browser has started.
func TestSignInGivesTheRulesAuthority(t *testing.T) {
	issuer, stop := idp.Start(t, "")
	in := signInAt(t, issuer, rulesOf("dev", auth.AccessWrite))
	relay, err := StartRelay(t.Context(), RelayConfig{
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: NoListener, Gateway: Config{SignIn: []*oidc.SignIn{in}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)

	ann := newPhone(t, relay)
	back := ann.signIn(issuer, "ann", "dev")
	mallory := newPhone(t, relay)
	mallory.denied(400, auth.ErrSignInOver.Error(), "POST", "/auth/code", back)                                       // ann's browser has started this sign-in
	for what, iss := range map[string]string{"of another provider": "https://login.example.net", "without iss": ""} { // refused, and the code stays valid
		mixed := maps.Clone(back)
		mixed["iss"] = iss
		if status, said := ann.ask("POST", "/auth/code", "", mixed, nil); status != 400 || !strings.Contains(said, oidc.ErrOtherIssuer.Error()) {
			t.Errorf("a response %s: HTTP %d %s; want 400, ErrOtherIssuer", what, status, said)
		}
	}
	if status, said := ann.ask("POST", "/auth/code", "", back, &ann.in); status != http.StatusOK {
		t.Fatalf("ann's sign-in: HTTP %d %s; want 200", status, said)
	}
	place := strings.TrimPrefix(issuer, "http://")
	if ann.in.Subject != "ann@"+place || ann.in.Level != "operate" || ann.in.Hosts[0] != "lap*" {
		t.Errorf("ann got %+v; want the subject, level and hosts of the rule", ann.in)
	}
	if who, err := relay.Keys().Tokens().VerifyClient(ann.in.Token); err != nil || who.MaxConnections != 3 {
		t.Errorf("ann's token is %+v, %v; want 3 connections", who, err)
	}
	ann.denied(400, "rejects the code", "POST", "/auth/code", back) // the code is used up
	for what, change := range map[string]map[string]string{
		"another state":       {"state": changedAt(back["state"], 20)},
		"no state":            {"state": ""},
		"a state of no relay": {"state": strings.Repeat("A", len(back["state"]))},
	} {
		ask := map[string]string{"issuer": issuer, "code": back["code"], "state": change["state"]}
		if status, said := ann.ask("POST", "/auth/code", "", ask, nil); status != 400 || !strings.Contains(said, auth.ErrSignInOver.Error()) {
			t.Errorf("a sign-in with %s: HTTP %d %s; want 400, and that the sign-in is over", what, status, said)
		}
	}
	ann.denied(400, peopleapi.ErrNoProvider.Error(), "POST", "/auth/signin", map[string]string{"issuer": "https://login.example.net"})
	eve := newPhone(t, relay)
	eve.denied(400, oidc.ErrNoRule.Error(), "POST", "/auth/code", eve.signIn(issuer, "eve", "guests"))

	// An operator revokes a subject, which ends the subject's device.
	bob := newPhone(t, relay)
	if status, said := bob.ask("POST", "/auth/code", "", bob.signIn(issuer, "bob", "dev"), &bob.in); status != http.StatusOK {
		t.Fatalf("bob's sign-in: HTTP %d %s; want 200", status, said)
	}
	if err := relay.Revocations().Add(operatorapi.RevokeRequest{Tenant: "default", Subject: bob.in.Subject}.Revocation()); err != nil {
		t.Fatal(err)
	}
	if status, said := bob.renew(); status != 400 || !strings.Contains(said, "removed") {
		t.Errorf("a device of a revoked subject renews: HTTP %d %s; want 400, removed", status, said)
	}

	begun := ann.signIn(issuer, "ann", "dev")
	stop() // the provider is away
	if status, said := ann.renew(); status != http.StatusOK {
		t.Errorf("ann's device renews while the provider is unreachable: HTTP %d %s; want 200", status, said)
	}
	ann.denied(503, peopleapi.ErrProviderAway.Error(), "POST", "/auth/code", begun)

	// The relay applies changed rules when a device next renews its token.
	server := relay.server.Load()
	set := func(rules []oidc.Rule) { server.people.SignIn = []*oidc.SignIn{signInAt(t, issuer, rules)} }
	set(rulesOf("dev", auth.AccessRead))
	var limited struct{ Token string }
	ann.do("POST", "/api/tokens", map[string]any{}, &limited) // ann's own token still has the level operate
	if who, err := relay.Keys().Tokens().VerifyClient(limited.Token); err != nil || who.Access != auth.AccessRead {
		t.Errorf("after the rules have changed, ann makes a token %+v, %v; want the level look", who, err)
	}
	if status, said := ann.renew(); status != http.StatusOK || ann.in.Level != "look" {
		t.Errorf("ann renews after the rules have changed: HTTP %d %s; want 200, with level look", status, said)
	}
	set(rulesOf("boss", auth.AccessWrite))
	ann.denied(400, oidc.ErrNoRule.Error(), "POST", "/auth/token", url.Values{"grant_type": {peopleapi.GrantDevice}, "device": {ann.in.Device}})
	ann.refused(400, oidc.ErrNoRule.Error(), "POST", "/api/tokens", map[string]any{"level": "look"})
	ann.refused(400, oidc.ErrNoRule.Error(), "POST", "/api/invites", map[string]any{"subject": "eve", "level": "look"})
	ann.refused(400, oidc.ErrNoRule.Error(), "POST", "/api/shares", map[string]any{"host": "laptop", "session": "mock:/1"})
	short := rulesOf("dev", auth.AccessWrite)
	short[0].MaxTTL = time.Hour
	set(short)
	_, person, err := relay.server.Load().cfg.People.Device(ann.in.Device)
	if err != nil {
		t.Fatal(err)
	}
	if _, until, err := server.people.Allowed(person); err != nil || !until.Equal(person.SignedIn.Add(time.Hour)) {
		t.Errorf("ann's access ends at %v, %v; want an hour after her sign-in", until, err)
	}
	var made struct{ Expires time.Time }
	if status, said := ann.renew(); status != http.StatusOK {
		t.Fatalf("requesting a new token for the device: HTTP %d %s; want 200", status, said)
	}
	if ann.do("POST", "/api/tokens", map[string]any{"seconds": 8 * 3600}, &made); made.Expires.After(person.SignedIn.Add(time.Hour)) {
		t.Errorf("ann's token is valid until %v; want at most until %v", made.Expires, person.SignedIn.Add(time.Hour))
	}
	person.SignedIn = time.Now().Add(-2 * time.Hour)
	if _, _, err := server.people.Allowed(person); !errors.Is(err, peopleapi.ErrSignInAgain) {
		t.Errorf("after max-ttl: %v; want %v", err, peopleapi.ErrSignInAgain)
	}
	server.people.SignIn = nil
	ann.denied(400, peopleapi.ErrNoProvider.Error(), "POST", "/auth/token", url.Values{"grant_type": {peopleapi.GrantDevice}, "device": {ann.in.Device}})
}
