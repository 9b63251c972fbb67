package auth_test

import (
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
)

func newAgentKey(t *testing.T) *auth.AgentKey {
	t.Helper()
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatalf("NewAgentKey: %v; want no error", err)
	}
	return key
}

func TestChallengeProvesKeyAndHost(t *testing.T) {
	dir := t.TempDir()
	k, sameKeys := load(t, dir), load(t, dir)
	strange, _ := newKeys(t)
	key, other := newAgentKey(t), newAgentKey(t)
	clock := func(d time.Duration) func() time.Time { return func() time.Time { return start.Add(d) } }
	k.Now = clock(0)
	challenge := k.NewChallenge()
	if challenge == k.NewChallenge() {
		t.Error("two challenges are the same; want different ones")
	}
	sign := func(challenge, tenant, host string) []byte {
		sig, err := auth.SignChallenge(key, challenge, tenant, host)
		if err != nil {
			t.Fatalf("SignChallenge: %v; want no error", err)
		}
		return sig
	}
	good := sign(challenge, "acme", "laptop")
	forNonce, err := key.SignNonce([]byte(challenge))
	if err != nil {
		t.Fatal(err)
	}

	tests := []struct {
		name                          string
		by                            *auth.Keys
		after                         time.Duration
		challenge, tenant, host, nkey string
		signature                     []byte
		want                          string // a part of the error; empty if the signature must be accepted
	}{
		{"as it should be", k, 0, challenge, "acme", "laptop", key.Public(), good, ""},
		{"at another relay with these keys", sameKeys, 10 * time.Second, challenge, "acme", "laptop", key.Public(), good, ""},
		{"at the last moment", k, auth.ChallengeTTL, challenge, "acme", "laptop", key.Public(), good, ""},
		{"too late", k, auth.ChallengeTTL + time.Second, challenge, "acme", "laptop", key.Public(), good, "made 1m1s ago"},
		{"from the future", k, -auth.Leeway - time.Second, challenge, "acme", "laptop", key.Public(), good, "valid for"},
		{"other keys", strange, 0, challenge, "acme", "laptop", key.Public(), good, "keys unknown to this relay"},
		{"other tenant", k, 0, challenge, "evil", "laptop", key.Public(), good, "signature"},
		{"other host", k, 0, challenge, "acme", "server", key.Public(), good, "signature"},
		{"other nkey", k, 0, challenge, "acme", "laptop", other.Public(), good, "signature"},
		{"other challenge", k, 0, k.NewChallenge(), "acme", "laptop", key.Public(), good, "signature"},
		{"no signature", k, 0, challenge, "acme", "laptop", key.Public(), nil, "signature"},
		{"signature for a NATS login", k, 0, challenge, "acme", "laptop", key.Public(), forNonce, "signature"},
		{"challenge cut short", k, 0, challenge[:40], "acme", "laptop", key.Public(), good, "not made by a relay"},
		{"challenge altered", k, 0, "B" + challenge[1:], "acme", "laptop", key.Public(), good, "not made by a relay"},
		{"time altered", k, 0, challenge[:6] + flip(challenge[6:12]) + challenge[12:], "acme", "laptop", key.Public(), good, "keys unknown"},
		{"no challenge", k, 0, "", "acme", "laptop", key.Public(), good, "not made by a relay"},
		{"name with wildcard", k, 0, challenge, "acme", ">", key.Public(), good, "host"},
		{"account nkey", k, 0, challenge, "acme", "laptop", k.Authority().RelaysAccount(), good, "not a public NATS user key"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.by.Now = clock(test.after)
			err := test.by.CheckChallenge(test.challenge, test.tenant, test.host, test.nkey, test.signature)
			if test.want == "" && err != nil {
				t.Errorf("CheckChallenge = %v; want it accepted", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("CheckChallenge = %v; want an error with %q", err, test.want)
			}
		})
	}
}

// TestNonceLikeAChallengeIsNotSigned has a malicious NATS server send bytes that begin like a
// relay's challenge as its nonce. SignNonce must refuse to sign them.
func TestNonceLikeAChallengeIsNotSigned(t *testing.T) {
	key := newAgentKey(t)
	if _, err := key.SignNonce([]byte("ahp-relay agent credentials v1\x00rest")); err == nil {
		t.Error("SignNonce signed an answer to a challenge; want an error")
	}
	if _, err := auth.SignChallenge(key, "a\x00b", "acme", "laptop"); err == nil {
		t.Error("SignChallenge signed a challenge with NUL in it; want an error")
	}
}

func FuzzCheckChallenge(f *testing.F) {
	k, _ := newKeys(f)
	key, err := auth.NewAgentKey()
	if err != nil {
		f.Fatal(err)
	}
	challenge := k.NewChallenge()
	signature, err := auth.SignChallenge(key, challenge, "acme", "laptop")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(challenge, "acme", "laptop", key.Public(), signature)
	f.Add(challenge, "acme", "laptop", "U", []byte{})
	f.Add("", "", "", "", []byte(nil))
	f.Fuzz(func(t *testing.T, c, tenant, host, nkey string, sig []byte) {
		if k.CheckChallenge(c, tenant, host, nkey, sig) == nil && (c != challenge || nkey != key.Public()) {
			t.Errorf("CheckChallenge accepts %q for %s/%s by %q; want only the signed challenge and key", c, tenant, host, nkey)
		}
	})
}
