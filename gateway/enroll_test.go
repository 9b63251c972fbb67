package gateway

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/auth"
	agentsapi "ahprelay/gateway/api/agents"
	operatorapi "ahprelay/gateway/api/operator"
)

// keyProof requests a challenge, and returns it with the host key's signature for a
// purpose.
func (a *fakeAgent) keyProof(key *auth.HostKey, purpose auth.Purpose, said string) agentsapi.KeyProof {
	a.t.Helper()
	challenge := a.proof().Challenge
	signature, err := key.Prove(purpose, challenge, "default", "laptop", said)
	if err != nil {
		a.t.Fatal(err)
	}
	return agentsapi.KeyProof{Challenge: challenge, KeySignature: signature}
}

func (a *fakeAgent) enrollProof(key *auth.HostKey) agentsapi.KeyProof {
	proof := a.keyProof(key, auth.ToEnroll, base64.RawURLEncoding.EncodeToString(key.Public()))
	proof.Key = key.Public()
	return proof
}

func (a *fakeAgent) wantCredential(path string, proof agentsapi.KeyProof) (credential string) {
	a.t.Helper()
	status, answer := a.post(path, a.token, encode(a.t, proof))
	var c agentsapi.Credential
	if err := json.Unmarshal([]byte(answer), &c); err != nil || status != http.StatusOK || c.Credential == "" {
		a.t.Fatalf("%s: HTTP %d %s; want a credential", path, status, answer)
	}
	if left := time.Until(c.Expires); left < auth.DefaultCredentialTTL-time.Hour || left > auth.DefaultCredentialTTL {
		a.t.Errorf("%s: the credential is valid for %v; want %v, less at most an hour", path, left, auth.DefaultCredentialTTL)
	}
	return c.Credential
}

func (a *fakeAgent) wantRefused(what, path string, proof any, want int, why string) {
	a.t.Helper()
	status, answer := a.post(path, a.token, encode(a.t, proof))
	if status != want || !strings.Contains(answer, why) {
		a.t.Errorf("%s: HTTP %d %s; want %d, %q", what, status, answer, want, why)
	}
}

// connectProof returns the proof with which a host-agent exchanges its credential for
// NATS credentials.
func (a *fakeAgent) connectProof(key *auth.HostKey) agentsapi.Proof {
	a.t.Helper()
	proof := a.proof()
	signature, err := key.Prove(auth.ToConnect, proof.Challenge, "default", "laptop", proof.NKey)
	if err != nil {
		a.t.Fatal(err)
	}
	proof.KeySignature = signature
	return proof
}

// TestEnrolmentYieldsCredentials follows a host-agent from its enrolment token to its
// second credential, and sends invalid requests at each step.
func TestEnrolmentYieldsCredentials(t *testing.T) {
	dir := t.TempDir()
	here := func(cfg *RelayConfig) { cfg.DataDir = dir }
	r := startRelay(t, here)
	a := newFakeAgent(t, r)
	enrolment := a.token
	key, other := auth.NewHostKey(), auth.NewHostKey()
	stolen := a.enrollProof(key)
	stolen.Key = other.Public()
	a.wantRefused("another key in the proof", "/agent/enroll", stolen, http.StatusForbidden, "signature")
	a.wantRefused("no key", "/agent/enroll", agentsapi.KeyProof{Challenge: a.proof().Challenge}, http.StatusForbidden, "signature")
	a.wantRefused("a proof for something else", "/agent/enroll", a.keyProof(key, auth.ToRenew, ""), http.StatusForbidden, "signature")
	a.wantRefused("no JSON of it", "/agent/enroll", "x", http.StatusBadRequest, "not JSON")
	a.wantRefused("an enrolment token cannot be renewed", "/agent/renew", a.keyProof(key, auth.ToRenew, ""), http.StatusBadRequest, "host-agent enroll")

	again := a.enrollProof(other) // made before the token is used up
	proof := a.enrollProof(key)
	first := a.wantCredential("/agent/enroll", proof)
	if got := a.wantCredential("/agent/enroll", proof); got != first { // the answer to the first may be lost
		t.Errorf("the same request again gets the credential %q; want %q", got, first)
	}
	a.wantRefused("the token once more", "/agent/enroll", again, http.StatusUnauthorized, "token revoked")
	a.wantRefused("the token for NATS", "/agent/challenge", nil, http.StatusUnauthorized, "token revoked")

	a.token = first
	a.wantRefused("a credential cannot be enrolled", "/agent/enroll", a.enrollProof(key), http.StatusBadRequest, "this is a credential")
	a.wantRefused("without a proof of the key", "/agent/credentials", a.proof(), http.StatusForbidden, "host's key")
	a.wantRefused("with another key", "/agent/credentials", a.connectProof(other), http.StatusForbidden, "host's key")
	moved := a.connectProof(key)
	nkey, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	if moved.Signature, err = auth.SignChallenge(nkey, moved.Challenge, "default", "laptop"); err != nil {
		t.Fatal(err)
	}
	moved.NKey = nkey.Public()
	a.wantRefused("a proof that was overheard, for another nkey", "/agent/credentials", moved, http.StatusForbidden, "host's key")
	if status, answer := a.post("/agent/credentials", a.token, encode(t, a.connectProof(key))); status != http.StatusOK {
		t.Fatalf("credentials for the moved host-agent: HTTP %d %s; want 200", status, answer)
	}

	a.wantRefused("renewal with another key", "/agent/renew", a.keyProof(other, auth.ToRenew, ""), http.StatusForbidden, "host's key")
	lost := a.wantCredential("/agent/renew", a.keyProof(key, auth.ToRenew, ""))
	second := a.wantCredential("/agent/renew", a.keyProof(key, auth.ToRenew, "")) // the relay issues another, because lost is unused
	if status, answer := a.post("/agent/credentials", first, encode(t, a.connectProof(key))); status != http.StatusOK {
		t.Errorf("the first credential, before the next is used: HTTP %d %s; want 200", status, answer)
	}
	a.token = second
	if status, answer := a.post("/agent/credentials", a.token, encode(t, a.connectProof(key))); status != http.StatusOK {
		t.Fatalf("the second credential: HTTP %d %s; want 200", status, answer)
	}
	a.token = lost
	a.wantRefused("its sibling", "/agent/credentials", a.connectProof(key), http.StatusUnauthorized, "credential was copied")
	a.wantRefused("its sibling's renewal", "/agent/renew", a.keyProof(key, auth.ToRenew, ""), http.StatusUnauthorized, "credential was copied")
	a.token = second
	if status, answer := a.post("/agent/credentials", a.token, encode(t, a.connectProof(key))); status != http.StatusOK {
		t.Errorf("the second credential, after its sibling was refused: HTTP %d %s; want 200", status, answer)
	}
	for name, token := range map[string]string{"the first": first, "the enrolment token": enrolment} {
		if status, _ := a.post("/agent/challenge", token, nil); status != http.StatusUnauthorized {
			t.Errorf("a challenge for %s after the second credential was used: HTTP %d; want 401", name, status)
		}
	}

	r.Close()
	a.relay = startRelay(t, here)
	if status, _ := a.post("/agent/challenge", first, nil); status != http.StatusUnauthorized {
		t.Errorf("a challenge for the first credential after a restart: HTTP %d; want 401", status)
	}
	if status, answer := a.post("/agent/credentials", second, encode(t, a.connectProof(key))); status != http.StatusOK {
		t.Errorf("the second credential after a restart: HTTP %d %s; want 200", status, answer)
	}
	a.token = lost
	a.wantRefused("after a restart, its sibling", "/agent/credentials", a.connectProof(key), http.StatusUnauthorized, "credential was copied")
	if err := a.relay.registry.Revocations().Add(operatorapi.RevokeRequest{Tenant: "default", Host: "laptop"}.Revocation()); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{lost, second} {
		if status, _ := a.post("/agent/challenge", token, nil); status != http.StatusUnauthorized {
			t.Errorf("a challenge after the host was revoked: HTTP %d; want 401", status)
		}
	}
}

// TestEnrolmentWorksOnAFullDisk exchanges an enrolment token while the relay cannot record that the
// token is used up. It must work once. When the relay can write again, it must record the token.
func TestEnrolmentWorksOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	r := startRelay(t, func(cfg *RelayConfig) { cfg.DataDir = dir })
	a := newFakeAgent(t, r)
	proof, again := a.enrollProof(auth.NewHostKey()), a.enrollProof(auth.NewHostKey())
	file := filepath.Join(dir, revokedName)
	if err := os.Mkdir(file, 0o700); err != nil { // a directory cannot be replaced by a file
		t.Fatal(err)
	}
	a.wantCredential("/agent/enroll", proof)
	a.wantRefused("the token once more", "/agent/enroll", again, http.StatusUnauthorized, "token revoked")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := r.Revocations().Add(auth.Revocation{Token: "other", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	enrolment, err := r.Keys().Tokens().VerifyHost(a.token)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), enrolment.ID) {
		t.Errorf("the file of revocations has %s, %v; want the used token", data, err)
	}
}

// TestRenewalOnAFullDiskEndsTheFirstCredential renews a credential while the relay cannot write its file
// of revocations. With the first use of the new credential, the previous one and other copies must end.
func TestRenewalOnAFullDiskEndsTheFirstCredential(t *testing.T) {
	dir := t.TempDir()
	r := startRelay(t, func(cfg *RelayConfig) { cfg.DataDir = dir })
	a, key := newFakeAgent(t, r), auth.NewHostKey()
	first := a.wantCredential("/agent/enroll", a.enrollProof(key))
	a.token = first
	copied := a.wantCredential("/agent/renew", a.keyProof(key, auth.ToRenew, ""))
	second := a.wantCredential("/agent/renew", a.keyProof(key, auth.ToRenew, ""))
	file := filepath.Join(dir, revokedName)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil { // a directory cannot be replaced by a file
		t.Fatal(err)
	}
	a.token = second
	if status, answer := a.post("/agent/credentials", a.token, encode(t, a.connectProof(key))); status != http.StatusOK {
		t.Fatalf("the second credential: HTTP %d %s; want 200", status, answer)
	}
	a.token = copied
	a.wantRefused("its sibling", "/agent/credentials", a.connectProof(key), http.StatusUnauthorized, "credential was copied")
	if status, _ := a.post("/agent/challenge", first, nil); status != http.StatusUnauthorized {
		t.Errorf("a challenge for the first credential: HTTP %d; want 401", status)
	}
}

// Eight requests exchange the same enrolment token at once. Exactly one gets a
// credential.
func TestEnrolmentTokenWorksOnce(t *testing.T) {
	a := newFakeAgent(t, startRelay(t, nil))
	var proofs [8][]byte
	for n := range proofs {
		proofs[n] = encode(t, a.enrollProof(auth.NewHostKey()))
	}
	var given atomic.Int32
	var wg sync.WaitGroup
	for _, proof := range proofs {
		wg.Go(func() {
			if status, _ := a.post("/agent/enroll", a.token, proof); status == http.StatusOK {
				given.Add(1)
			}
		})
	}
	wg.Wait()
	if n := given.Load(); n != 1 {
		t.Errorf("%d credentials were given; want 1", n)
	}
}
