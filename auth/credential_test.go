package auth_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"ahprelay/auth"
)

// TestCredentialRoundTrip issues a credential. VerifyAgent must return its contents, and must
// refuse each forged change.
func TestCredentialRoundTrip(t *testing.T) {
	k, signer := newKeys(t)
	key := auth.NewHostKey()
	e := auth.Enrolment{
		Tenant: "acme", Host: "laptop", Key: key.Public(), Expires: start.Add(time.Hour),
		Replaces: &auth.Replaced{ID: "f1", Expires: start.Add(time.Minute)},
	}
	credential, err := k.Tokens().IssueCredential(e)
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.Tokens().VerifyAgent(credential)
	if err != nil || got.Host != "laptop" || !bytes.Equal(got.Key, key.Public()) || got.Replaces == nil || got.Replaces.ID != "f1" || got.ID == "" {
		t.Errorf("VerifyAgent = %+v, %v; want host laptop with its key, replacing f1", got, err)
	}
	if tenant, host, err := auth.PeekHost(credential); tenant != "acme" || host != "laptop" || err != nil {
		t.Errorf("PeekHost = %s, %s, %v; want acme, laptop", tenant, host, err)
	}
	if issued, expires, err := auth.PeekTimes(credential); err != nil || !issued.Equal(start) || !expires.Equal(e.Expires) {
		t.Errorf("PeekTimes = %v to %v, %v; want the issue and expiry times", issued, expires, err)
	}
	// VerifyHost must refuse a credential as an enrolment token, because it would not check the
	// proof of its key.
	if _, err := k.Tokens().VerifyHost(credential); !errors.Is(err, auth.ErrTokenInvalid) {
		t.Errorf("VerifyHost of a credential = %v; want ErrTokenInvalid", err)
	}
	if _, err := k.Tokens().VerifyClient(credential); !errors.Is(err, auth.ErrTokenInvalid) {
		t.Errorf("VerifyClient of a credential = %v; want ErrTokenInvalid", err)
	}
	token, err := k.Tokens().IssueHost(auth.Enrolment{Tenant: "acme", Host: "laptop", Expires: start.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.Tokens().VerifyAgent(token); err != nil || got.Key != nil {
		t.Errorf("VerifyAgent of an enrolment token = %+v, %v; want no key", got, err)
	}

	for name, change := range map[string]func(header, claims map[string]any){
		"no cnf":        func(_, c map[string]any) { delete(c, "cnf") },
		"cnf is empty":  func(_, c map[string]any) { c["cnf"] = map[string]any{} },
		"cnf is null":   func(_, c map[string]any) { c["cnf"] = nil },
		"another curve": func(_, c map[string]any) { c["cnf"].(map[string]any)["jwk"].(map[string]any)["crv"] = "X25519" },
		"another type":  func(_, c map[string]any) { c["cnf"].(map[string]any)["jwk"].(map[string]any)["kty"] = "oct" },
		"short key":     func(_, c map[string]any) { c["cnf"].(map[string]any)["jwk"].(map[string]any)["x"] = "AAAA" },
		"former is odd": func(_, c map[string]any) { c["former"] = map[string]any{"jti": "x"} },
		"client token":  func(h, _ map[string]any) { h["typ"] = "ahp-client+jwt" },
		"no kind":       func(h, _ map[string]any) { h["typ"] = "JWT" },
	} {
		parsed, _, err := jwt.NewParser().ParseUnverified(credential, jwt.MapClaims{})
		if err != nil {
			t.Fatal(err)
		}
		change(parsed.Header, parsed.Claims.(jwt.MapClaims))
		forged, err := parsed.SignedString(signer)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := k.Tokens().VerifyAgent(forged); !errors.Is(err, auth.ErrTokenInvalid) {
			t.Errorf("%s: %+v, %v; want ErrTokenInvalid", name, got, err)
		}
	}
	for name, e := range map[string]auth.Enrolment{
		"no key":    {Tenant: "acme", Host: "laptop", Expires: start.Add(time.Hour)},
		"no expiry": {Tenant: "acme", Host: "laptop", Key: key.Public()},
		"no host":   {Tenant: "acme", Key: key.Public(), Expires: start.Add(time.Hour)},
	} {
		if _, err := k.Tokens().IssueCredential(e); err == nil {
			t.Errorf("%s: IssueCredential succeeds; want an error", name)
		}
	}
}

// TestOnlyTrustedRelaysIssueCredentials checks a new credential against the current token.
// CheckCredential must accept it only if the same relay's keys signed both, for the same host and
// key.
func TestOnlyTrustedRelaysIssueCredentials(t *testing.T) {
	k, _ := newKeys(t)
	strange, _ := newKeys(t)
	key, other := auth.NewHostKey(), auth.NewHostKey()
	before, err := k.Tokens().IssueHost(auth.Enrolment{Tenant: "acme", Host: "laptop", Expires: start.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	issue := func(k *auth.Keys, host string, key *auth.HostKey) string {
		credential, err := k.Tokens().IssueCredential(auth.Enrolment{Tenant: "acme", Host: host, Key: key.Public(), Expires: start.Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return credential
	}
	good := issue(k, "laptop", key)
	if err := auth.CheckCredential(good, before, key.Public()); err != nil {
		t.Errorf("CheckCredential of the relay's credential: %v; want no error", err)
	}
	if err := auth.CheckCredential(issue(k, "laptop", key), good, key.Public()); err != nil {
		t.Errorf("CheckCredential after the first renewal: %v; want no error", err)
	}
	for name, credential := range map[string]string{
		"another relay's": issue(strange, "laptop", key),
		"another host's":  issue(k, "server", key),
		"another key's":   issue(k, "laptop", other),
		"no credential":   before,
		"nothing":         "",
		"cut short":       good[:len(good)-3],
	} {
		if err := auth.CheckCredential(credential, before, key.Public()); err == nil {
			t.Errorf("CheckCredential (%s) returns no error; want one", name)
		}
	}
}

// TestKeyProofIsForOnePurpose checks a proof with a different key, purpose, challenge or name.
// CheckKey must accept the proof only for the request it was made for.
func TestKeyProofIsForOnePurpose(t *testing.T) {
	k, _ := newKeys(t)
	k.Now = func() time.Time { return start }
	key, other := auth.NewHostKey(), auth.NewHostKey()
	challenge := k.NewChallenge()
	good, err := key.Prove(auth.ToConnect, challenge, "acme", "laptop", "U1")
	if err != nil {
		t.Fatal(err)
	}
	check := func(key *auth.HostKey, purpose auth.Purpose, challenge, tenant, host, said string, signature []byte) error {
		return k.CheckKey(key.Public(), purpose, challenge, tenant, host, said, signature)
	}
	if err := check(key, auth.ToConnect, challenge, "acme", "laptop", "U1", good); err != nil {
		t.Errorf("CheckKey of the key's own proof: %v; want no error", err)
	}
	for name, err := range map[string]error{
		"another key":       check(other, auth.ToConnect, challenge, "acme", "laptop", "U1", good),
		"another purpose":   check(key, auth.ToRenew, challenge, "acme", "laptop", "U1", good),
		"another challenge": check(key, auth.ToConnect, k.NewChallenge(), "acme", "laptop", "U1", good),
		"no challenge":      check(key, auth.ToConnect, "x", "acme", "laptop", "U1", good),
		"another tenant":    check(key, auth.ToConnect, challenge, "evil", "laptop", "U1", good),
		"another host":      check(key, auth.ToConnect, challenge, "acme", "server", "U1", good),
		"another nkey":      check(key, auth.ToConnect, challenge, "acme", "laptop", "U2", good),
		"parts that meet":   check(key, auth.ToConnect, challenge, "acme", "laptop", "\x00U1", good),
		"no signature":      check(key, auth.ToConnect, challenge, "acme", "laptop", "U1", nil),
		"no key":            k.CheckKey(nil, auth.ToConnect, challenge, "acme", "laptop", "U1", good),
	} {
		if err == nil {
			t.Errorf("CheckKey accepts a proof with %s; want an error", name)
		}
	}
	k.Now = func() time.Time { return start.Add(auth.ChallengeTTL + time.Second) }
	if err := check(key, auth.ToConnect, challenge, "acme", "laptop", "U1", good); err == nil {
		t.Error("a proof for an expired challenge is accepted; want an error")
	}
	if _, err := key.Prove(auth.ToConnect, "a\x00b", "acme", "laptop", ""); err == nil || !strings.Contains(err.Error(), "challenge") {
		t.Errorf("Prove with NUL in the challenge = %v; want an error about the challenge", err)
	}
	again, err := auth.ReadHostKey(key.Seed())
	if err != nil || !again.Public().Equal(key.Public()) {
		t.Errorf("ReadHostKey of the key's seed: %v; want the same key", err)
	}
	if _, err := auth.ReadHostKey([]byte("short")); err == nil {
		t.Error("ReadHostKey reads a short key; want an error")
	}
}
