package auth_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
)

// TestProofOfDevice: a proof is good for what it was made for, whatever the device's clock
// says, and while the relay's nonce is.
func TestProofOfDevice(t *testing.T) {
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
		t.Errorf("a key that was kept is another: %v", err)
	}
	asked := auth.Asked{Method: "GET", Host: "relay.example.com", Path: "/api/hosts", Token: "token"}
	prove := func(asked auth.Asked, nonce string) string {
		proof, err := again.Prove("https", asked, nonce) // without iat: as a clock of 1970
		if err != nil {
			t.Fatal(err)
		}
		return proof
	}
	proof, err := keys.CheckProof(prove(asked, keys.NewChallenge()), asked)
	if err != nil || proof.Thumbprint != device.Thumbprint() || !strings.HasPrefix(proof.ID, proof.Thumbprint) {
		t.Errorf("CheckProof = %+v, %v", proof, err)
	}
	behind := asked
	behind.Path = "/relay/api/hosts" // of a proxy that takes /relay away
	if _, err := keys.CheckProof(prove(behind, keys.NewChallenge()), asked); err != nil {
		t.Errorf("behind a proxy: %v", err)
	}
	for _, change := range []func(*auth.Asked){
		func(a *auth.Asked) { a.Method = "POST" }, func(a *auth.Asked) { a.Host = "other.example.com" },
		func(a *auth.Asked) { a.Path = "/api/host" }, func(a *auth.Asked) { a.Token = "" },
	} {
		other := asked
		change(&other)
		if _, err := keys.CheckProof(prove(other, keys.NewChallenge()), asked); !errors.Is(err, auth.ErrProofInvalid) {
			t.Errorf("made for %+v, shown for %+v: %v", other, asked, err)
		}
	}
	for _, nonce := range []string{"", "x", strings.Repeat("A", 76)} {
		if _, err := keys.CheckProof(prove(asked, nonce), asked); !errors.Is(err, auth.ErrProofStale) {
			t.Errorf("nonce %q: %v", nonce, err)
		}
	}
}

// TestBoundTokens: a token says which key and device it is for, and with the device it is
// revoked.
func TestBoundTokens(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	device, err := auth.NewDeviceKey()
	if err != nil {
		t.Fatal(err)
	}
	c := auth.Client{Tenant: "default", Subject: "ada", Hosts: []string{"*"}, Access: auth.AccessTalk, Expires: time.Now().Add(time.Hour), Device: "device-1", Key: device.Thumbprint()}
	token, err := keys.IssueClient(c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := keys.VerifyClient(token)
	if err != nil || got.Device != c.Device || got.Key != c.Key || got.ID == "" || got.ID == c.Device {
		t.Errorf("the token says %+v, %v", got, err)
	}
	named := false
	for _, key := range got.Keys() {
		named = named || key == auth.RevocationKey{Token: "device-1"}
	}
	if !named {
		t.Errorf("revocations of %v do not end with the device", got.Keys())
	}
	c.Key = "x"
	if _, err := keys.IssueClient(c); err == nil {
		t.Error("a token is bound to what is no key")
	}
}

// FuzzProofOfDevice reads whatever somebody sends for a proof.
func FuzzProofOfDevice(f *testing.F) {
	keys, err := auth.LoadKeys(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	device, err := auth.NewDeviceKey()
	if err != nil {
		f.Fatal(err)
	}
	asked := auth.Asked{Method: "GET", Host: "h", Path: "/"}
	good, err := device.Prove("https", asked, keys.NewChallenge())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, header := range []string{`{"alg":"none","typ":"dpop+jwt"}`, `{"alg":"ES256","typ":"dpop+jwt","jwk":{"kty":"EC","crv":"P-256","x":"","y":""}}`, `{"alg":"ES256","typ":"dpop+jwt","jwk":{"kty":"oct","k":"AA"}}`} {
		_, rest, _ := strings.Cut(good, ".")
		f.Add(base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + rest)
	}
	f.Fuzz(func(t *testing.T, proof string) {
		got, err := keys.CheckProof(proof, asked)
		switch {
		case err == nil && proof != good && got.Thumbprint == device.Thumbprint():
			// A signature of ES256 has another form that is as good.
			if a, b := strings.LastIndexByte(good, '.'), strings.LastIndexByte(proof, '.'); good[:a] != proof[:b] {
				t.Errorf("%s proves the key of %s", proof, good)
			}
		case err != nil && !errors.Is(err, auth.ErrProofInvalid) && !errors.Is(err, auth.ErrProofStale):
			t.Errorf("%s: %v, which is none of the reasons", proof, err)
		}
	})
}
