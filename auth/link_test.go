package auth_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
)

var testLink = auth.LinkID{
	Tenant: "acme", Host: "laptop", Agent: "agent1", Relay: "relay1", Epoch: 7,
	RelayShare: bytes.Repeat([]byte{1}, 32), AgentShare: bytes.Repeat([]byte{2}, 32),
}

// TestProofIsValidForOneLink makes a proof for a link. CheckLink must accept it for exactly this
// link, and only with a trusted key.
func TestProofIsValidForOneLink(t *testing.T) {
	k, _ := newKeys(t)
	key, proof, err := k.Links().Prove(testLink)
	if err != nil {
		t.Fatal(err)
	}
	trusted := []ed25519.PublicKey{k.Links().RelayKeys()[0]}
	if err := auth.CheckLink(trusted, testLink, key, proof); err != nil {
		t.Errorf("CheckLink: %v; want no error", err)
	}
	for name, change := range map[string]func(*auth.LinkID){
		"tenant": func(l *auth.LinkID) { l.Tenant = "umbrella" },
		"host":   func(l *auth.LinkID) { l.Host = "desktop" },
		"agent":  func(l *auth.LinkID) { l.Agent = "agent2" },
		"relay":  func(l *auth.LinkID) { l.Relay = "relay2" },
		"epoch":  func(l *auth.LinkID) { l.Epoch++ },
		"shares": func(l *auth.LinkID) { l.RelayShare, l.AgentShare = l.AgentShare, l.RelayShare },
		"share":  func(l *auth.LinkID) { l.AgentShare = bytes.Repeat([]byte{3}, 32) },
		"length": func(l *auth.LinkID) { l.AgentShare = l.AgentShare[:31] },
		"name":   func(l *auth.LinkID) { l.Tenant, l.Host = "acme\x00laptop", "" },
	} {
		other := testLink
		change(&other)
		if err := auth.CheckLink(trusted, other, key, proof); !errors.Is(err, auth.ErrUntrusted) {
			t.Errorf("%s changed: CheckLink = %v; want %v", name, err, auth.ErrUntrusted)
		}
	}
	stranger, _ := newKeys(t)
	for name, keys := range map[string][]ed25519.PublicKey{"none": nil, "another": {stranger.Links().RelayKeys()[0]}, "empty": {{}}} {
		if err := auth.CheckLink(keys, testLink, key, proof); !errors.Is(err, auth.ErrUntrusted) {
			t.Errorf("%s is trusted: CheckLink = %v; want %v", name, err, auth.ErrUntrusted)
		}
	}
	if err := auth.CheckLink([]ed25519.PublicKey{{}}, testLink, nil, proof); !errors.Is(err, auth.ErrUntrusted) {
		t.Errorf("no key: CheckLink = %v; want %v", err, auth.ErrUntrusted)
	}
}

// TestPeekRelayKeys reads from a host-agent's token which relay keys the host-agent must trust.
func TestPeekRelayKeys(t *testing.T) {
	k, _ := newKeys(t)
	token, err := k.Tokens().IssueHost(auth.Enrolment{Tenant: "acme", Host: "laptop", Expires: start.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := auth.PeekRelayKeys(token)
	if err != nil || len(keys) != 1 || !keys[0].Equal(k.Links().RelayKeys()[0]) {
		t.Errorf("PeekRelayKeys = %v, %v; want the relay's key", keys, err)
	}
	client := issue(t, k, auth.Client{Tenant: "acme", Subject: "ada", Hosts: []string{"*"}, Access: auth.AccessRead, Expires: start.Add(time.Hour)})
	for _, bad := range []string{"", "a.b.c", client, strings.Repeat("x", auth.MaxTokenSize+1)} {
		if _, err := auth.PeekRelayKeys(bad); err == nil || !strings.Contains(err.Error(), "relay token host") {
			t.Errorf("PeekRelayKeys(%.10q…) = %v; want an error that says what to do", bad, err)
		}
	}
}

// TestSignNonceRefuses has a NATS server choose nonces that would be a proof in another protocol.
// SignNonce must refuse to sign them.
func TestSignNonceRefuses(t *testing.T) {
	key := newAgentKey(t)
	for _, nonce := range []string{"ahp-relay agent credentials v1\x00x", "ahp-relay link v1\x00x", "ahp-relay host key v1\x00x"} {
		if _, err := key.SignNonce([]byte(nonce)); err == nil {
			t.Errorf("SignNonce(%q) succeeds; want an error", nonce)
		}
	}
	if _, err := key.SignNonce([]byte("kKj3fVu2Yyo")); err != nil {
		t.Errorf("SignNonce: %v; want no error", err)
	}
}
