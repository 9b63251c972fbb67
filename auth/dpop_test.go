package auth_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
)

// TestProofIsForItsRequest makes proofs for a request. CheckProof must accept a proof only for the
// same method, URL and token, and with a relay's valid nonce. The device's clock must not matter.
func TestProofIsForItsRequest(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	device, err := auth.NewDeviceKey()
	if err != nil {
		t.Fatal(err)
	}
	private, err := device.Private()
	if err != nil {
		t.Fatal(err)
	}
	again, err := auth.ReadDeviceKey(private)
	if err != nil || again.Thumbprint() != device.Thumbprint() {
		t.Errorf("ReadDeviceKey returns a different key: %v; want the same", err)
	}
	const public = "https://relay.example.com/relay/api/hosts" // a proxy removes the first /relay from the path
	asked := auth.Asked{Method: "GET", URLs: []string{public, "http://10.0.0.5:8484/api/hosts"}, Token: "token"}
	check := func(made auth.Asked, nonce string) (auth.Proof, error) {
		text, err := again.Prove(made, nonce) // without a time, as from a device whose clock is wrong
		if err != nil {
			t.Fatal(err)
		}
		claimed, err := auth.ReadProof(text)
		if err != nil || claimed.Thumbprint != device.Thumbprint() {
			t.Fatalf("ReadProof = %+v, %v; want the device's thumbprint", claimed, err)
		}
		return keys.CheckProof(claimed, asked)
	}
	proof, err := check(asked, keys.NewChallenge())
	if err != nil || proof.Thumbprint != device.Thumbprint() || !strings.HasPrefix(proof.ID, proof.Thumbprint) || !proof.Own || time.Since(proof.Made) > time.Minute {
		t.Errorf("CheckProof = %+v, %v; want the device's thumbprint, and a new proof with its own nonce", proof, err)
	}
	for _, same := range []string{
		"http://10.0.0.5:8484/api/hosts", "https://relay.example.com:443/relay/api/hosts", "HTTPS://Relay.Example.COM/relay/api/hosts?x#y",
		"wss://relay.example.com/relay/api/hosts", "https://relay.example.com/relay/%61pi/hosts",
	} {
		if _, err := check(auth.Asked{Method: "GET", URLs: []string{same}, Token: "token"}, keys.NewChallenge()); err != nil {
			t.Errorf("CheckProof of a proof for the same address, %s: %v; want no error", same, err)
		}
	}
	for _, other := range []auth.Asked{
		{Method: "POST", URLs: asked.URLs, Token: "token"}, {Method: "GET", URLs: asked.URLs},
		{Method: "GET", Token: "token", URLs: []string{"https://other.example.com/relay/api/hosts"}},
		{Method: "GET", Token: "token", URLs: []string{"https://relay.example.com/api/hosts"}},
		{Method: "GET", Token: "token", URLs: []string{"https://relay.example.com/relay/relay/api/hosts"}},
		{Method: "GET", Token: "token", URLs: []string{"https://relay.example.com/relay/api/host"}},
		{Method: "GET", Token: "token", URLs: []string{"https://relay.example.com/relay/api/hosts/"}},
		{Method: "GET", Token: "token", URLs: []string{"https://relay.example.com:8443/relay/api/hosts"}},
		{Method: "GET", Token: "token", URLs: []string{"http://relay.example.com/relay/api/hosts"}},
		{Method: "GET", Token: "token", URLs: []string{"https://10.0.0.5:8484/api/hosts"}},
		{Method: "GET", Token: "token", URLs: []string{"https://x@relay.example.com/relay/api/hosts"}},
		{Method: "GET", Token: "token", URLs: []string{"ftp://relay.example.com/relay/api/hosts"}},
		{Method: "GET", Token: "token", URLs: []string{"/relay/api/hosts"}},
		{Method: "GET", Token: "token", URLs: []string{""}},
	} {
		if _, err := check(other, keys.NewChallenge()); !errors.Is(err, auth.ErrProofInvalid) {
			t.Errorf("a proof for %+v, shown for %+v: %v; want ErrProofInvalid", other, asked, err)
		}
	}
	for _, nonce := range []string{"", "x", strings.Repeat("A", 76)} {
		if _, err := check(asked, nonce); !errors.Is(err, auth.ErrProofStale) {
			t.Errorf("CheckProof with the nonce %q: %v; want ErrProofStale", nonce, err)
		}
	}
}

// TestNonceOfAnotherProcessIsNotOwn shows a proof to two relays with the same keys, of which the
// first relay gave the nonce. Both must accept the proof, and only the first relay may report the
// nonce as its own. So a new relay process can refuse older nonces.
func TestNonceOfAnotherProcessIsNotOwn(t *testing.T) {
	dir := t.TempDir()
	var runs [2]*auth.Keys
	for i := range runs {
		var err error
		if runs[i], err = auth.LoadKeys(dir); err != nil {
			t.Fatal(err)
		}
	}
	device, err := auth.NewDeviceKey()
	if err != nil {
		t.Fatal(err)
	}
	asked := auth.Asked{Method: "GET", URLs: []string{"https://relay.example.com/"}}
	text, err := device.Prove(asked, runs[0].NewChallenge())
	if err != nil {
		t.Fatal(err)
	}
	for i, keys := range runs {
		claimed, err := auth.ReadProof(text)
		if err != nil {
			t.Fatal(err)
		}
		if proof, err := keys.CheckProof(claimed, asked); err != nil || proof.Own != (i == 0) {
			t.Errorf("CheckProof by relay process %d = %+v, %v; want Own %v", i, proof, err, i == 0)
		}
	}
}

// TestBoundTokensAreRevokedWithTheirDevice issues a token for a device's key. VerifyClient must
// return the key and the device, and a revocation of the device must match the token.
func TestBoundTokensAreRevokedWithTheirDevice(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	device, err := auth.NewDeviceKey()
	if err != nil {
		t.Fatal(err)
	}
	c := auth.Client{Tenant: "default", Subject: "ada", Hosts: []string{"*"}, Access: auth.AccessTalk, Expires: time.Now().Add(time.Hour), Device: "device-1", Key: device.Thumbprint()}
	token, err := keys.Tokens().IssueClient(c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := keys.Tokens().VerifyClient(token)
	if err != nil || got.Device != c.Device || got.Key != c.Key || got.ID == "" || got.ID == c.Device {
		t.Errorf("the bound token is %+v, %v; want its device and key, and an ID of its own", got, err)
	}
	named := false
	for _, key := range got.Keys() {
		named = named || key == auth.RevocationKey{Token: "device-1"}
	}
	if !named {
		t.Errorf("the revocation keys %v lack the device; want it", got.Keys())
	}
	c.Key = "x"
	if _, err := keys.Tokens().IssueClient(c); err == nil {
		t.Error("IssueClient accepts a Key that is no thumbprint; want an error")
	}
}

// FuzzProofOfDevice reads arbitrary text as a proof. CheckProof must not accept it for a device's
// key unless this device signed it.
func FuzzProofOfDevice(f *testing.F) {
	keys, err := auth.LoadKeys(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	device, err := auth.NewDeviceKey()
	if err != nil {
		f.Fatal(err)
	}
	asked := auth.Asked{Method: "GET", URLs: []string{"https://h/"}}
	good, err := device.Prove(asked, keys.NewChallenge())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, header := range []string{`{"alg":"none","typ":"dpop+jwt"}`, `{"alg":"ES256","typ":"dpop+jwt","jwk":{"kty":"EC","crv":"P-256","x":"","y":""}}`, `{"alg":"ES256","typ":"dpop+jwt","jwk":{"kty":"oct","k":"AA"}}`} {
		_, rest, _ := strings.Cut(good, ".")
		f.Add(base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + rest)
	}
	f.Fuzz(func(t *testing.T, proof string) {
		var got auth.Proof
		claimed, err := auth.ReadProof(proof)
		if err == nil {
			got, err = keys.CheckProof(claimed, asked)
		}
		switch {
		case err == nil && proof != good && got.Thumbprint == device.Thumbprint():
			// An ES256 signature has a second valid form.
			if a, b := strings.LastIndexByte(good, '.'), strings.LastIndexByte(proof, '.'); good[:a] != proof[:b] {
				t.Errorf("the proof %s is accepted for the key of %s; want that only for a proof with the same content", proof, good)
			}
		case err != nil && !errors.Is(err, auth.ErrProofInvalid) && !errors.Is(err, auth.ErrProofStale):
			t.Errorf("CheckProof(%s) = %v; want ErrProofInvalid or ErrProofStale", proof, err)
		}
	})
}
