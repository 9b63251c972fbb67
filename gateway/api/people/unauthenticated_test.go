package people_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	hostsapi "ahprelay/gateway/api/hosts"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
	"ahprelay/test/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A site is a relay's API for people. Tests call its handlers without a network.
type site struct {
	*testing.T
	keys    *auth.Keys
	people  *people.Directory
	api     *peopleapi.API
	mux     *http.ServeMux
	revoked *registry.Revocations
}

const siteURL = "https://relay.example.com"

func newSite(t *testing.T) *site { return newSiteWith(t, new(memstore.Store), "") }

// newSiteWith returns a site whose people are in a store, and whose revocations are in a file; "":
// in memory only.
func newSiteWith(t *testing.T, store people.Store, revocations string) *site {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	revoked, err := registry.LoadRevocations(revocations, nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	caller := authn.New(authn.Config{
		Keys: keys, Revoked: revoked, PublicURL: siteURL, TrustProxy: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Limits: admission.New(admission.Limits{}.WithDefaults(), 1<<20), Audit: audit.New(log, nil),
		Count: func(string) {}, Proved: func(*http.Request) {},
	})
	s := &site{t, keys, people.NewDirectory(store), nil, http.NewServeMux(), revoked}
	s.api = peopleapi.New(peopleapi.Config{
		Caller: caller, People: s.people, Log: log, CredentialTTL: time.Hour,
		Hosts:    func(auth.Client) []hostsapi.Info { return nil },
		Lookup:   func(string, string) (registry.Host, bool) { return registry.Host{}, false },
		Watching: func(string) map[string][]peopleapi.Viewer { return nil },
	})
	s.api.Routes(s.mux)
	return s
}

// A caller is a device at an IP address. It has a key, and after enter also access.
type caller struct {
	*site
	key     *auth.DeviceKey
	address string
	nonce   string
	in      peopleapi.Access
}

func (s *site) caller(address string) *caller {
	s.Helper()
	key, err := auth.NewDeviceKey()
	if err != nil {
		s.Fatal(err)
	}
	return &caller{site: s, key: key, address: address, nonce: s.keys.NewChallenge()}
}

// enter admits the caller as a device of the tenant's owner, through an invitation.
func (c *caller) enter() *caller {
	c.Helper()
	secret, err := c.people.Invite(people.Invite{Person: peopleapi.OwnerOf("default", "ada"), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		c.Fatal(err)
	}
	if status, said := c.post("/auth/setup", `{"invite":"`+secret+`","name":"a phone"}`, &c.in); status != http.StatusOK {
		c.Fatalf("using the setup link: HTTP %d %s; want 200", status, said)
	}
	return c
}

// renew requests a token for the device, with a proof over a fresh nonce.
func (c *caller) renew() (status int, said string) {
	c.Helper()
	c.nonce = c.keys.NewChallenge()
	return c.post("/auth/token", url.Values{"grant_type": {peopleapi.GrantDevice}, "device": {c.in.Device}}.Encode(), &c.in)
}

// post sends a request without a token, but with a proof by the caller's key. It
// returns the HTTP status and the body, and decodes the body of a 200 into answer.
func (c *caller) post(path, body string, answer any) (status int, said string) {
	c.Helper()
	return c.send("POST", path, "", c.proof("POST", path, ""), body, answer)
}

func (c *caller) proof(method, path, token string) string {
	c.Helper()
	proof, err := c.key.Prove(auth.Asked{Method: method, URLs: []string{siteURL + path}, Token: token}, c.nonce)
	if err != nil {
		c.Fatal(err)
	}
	return proof
}

// proofs returns a function that makes valid proofs for a request without a token. It
// is five times as fast as proof, for tests that make many.
func (c *caller) proofs(method, path string) func() string {
	c.Helper()
	first := c.proof(method, path, "")
	private, err := c.key.Private()
	if err != nil {
		c.Fatal(err)
	}
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), private)
	if err != nil {
		c.Fatal(err)
	}
	header, _, _ := strings.Cut(first, ".")
	made := 0
	return func() string {
		made++
		claims := fmt.Sprintf(`{"jti":"%d","htm":"%s","htu":"%s","nonce":"%s"}`, made, method, siteURL+path, c.nonce)
		text := header + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
		sum := sha256.Sum256([]byte(text))
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			c.Fatal(err)
		}
		var signature [64]byte
		r.FillBytes(signature[:32])
		s.FillBytes(signature[32:])
		return text + "." + base64.RawURLEncoding.EncodeToString(signature[:])
	}
}

func (c *caller) send(method, path, token, proof, body string, answer any) (status int, said string) {
	c.Helper()
	r := httptest.NewRequest(method, siteURL+path, strings.NewReader(body))
	r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(c.address), 4000).String()
	r.Header.Set("DPoP", proof)
	if !strings.HasPrefix(body, "{") {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if token != "" {
		r.Header.Set("Authorization", "DPoP "+token)
	}
	w := httptest.NewRecorder()
	c.mux.ServeHTTP(w, r)
	if answer != nil && w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), answer); err != nil {
			c.Fatalf("%s %s answers %s, not JSON of the wanted type: %v", method, path, w.Body, err)
		}
	}
	return w.Code, w.Body.String()
}

// TestUnauthenticatedProofsLockNoDeviceOut: a client without access sends 65,839 valid
// proofs by unknown keys in 35 s. Devices still renew their tokens, also at that
// client's address.
func TestUnauthenticatedProofsLockNoDeviceOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		ada, near := s.caller("192.0.2.1").enter(), s.caller("198.51.100.7").enter()
		const proofs, ofKey = 65_839, 1000
		own := url.Values{"grant_type": {peopleapi.GrantDevice}, "device": {ada.in.Device}}.Encode()
		if status, said := ada.send("POST", "/auth/token", "", ada.proofs("POST", "/auth/token")(), own, nil); status != http.StatusOK {
			t.Fatalf("a renewal with a good proof: HTTP %d %s; want 200", status, said)
		}
		body := url.Values{"grant_type": {peopleapi.GrantDevice}, "device": {"device-none"}}.Encode()
		answers := map[int]int{}
		var mallory *caller
		var proof func() string
		for i := range proofs {
			if i%ofKey == 0 {
				mallory = s.caller("198.51.100.7")
				proof = mallory.proofs("POST", "/auth/token")
			}
			status, _ := mallory.send("POST", "/auth/token", "", proof(), body, nil)
			answers[status]++
			time.Sleep(35 * time.Second / proofs)
		}
		if answers[http.StatusOK] > 0 || answers[http.StatusTooManyRequests] < proofs-300 {
			t.Errorf("HTTP answers to the unauthenticated proofs: %v; want none with 200, nearly all with 429", answers)
		}
		for name, device := range map[string]*caller{"elsewhere": ada, "at the same address": near} {
			if status, said := device.renew(); status != http.StatusOK {
				t.Errorf("a device %s renews: HTTP %d %s; want 200", name, status, said)
			}
		}
	})
}

// TestAddressOverItsRateIsRefusedBeforeItsProofIsChecked: after too many failures from an
// address, the relay refuses its requests, even with a valid proof. An invitation in a
// refused request is not used up.
func TestAddressOverItsRateIsRefusedBeforeItsProofIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		c := s.caller("198.51.100.7")
		for range admission.DefaultLimits.Failures {
			if status, said := c.post("/auth/setup", `{"invite":"none"}`, nil); status != http.StatusBadRequest {
				t.Fatalf("setup with an unknown invitation: HTTP %d %s; want 400", status, said)
			}
		}
		secret, err := s.people.Invite(people.Invite{Person: peopleapi.OwnerOf("default", "ada"), Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		body := `{"invite":"` + secret + `"}`
		if status, said := c.post("/auth/setup", body, nil); status != http.StatusTooManyRequests {
			t.Errorf("a request from an address over its rate: HTTP %d %s; want 429", status, said)
		}
		if status, said := s.caller("198.51.100.8").post("/auth/device", "kind=device", nil); status != http.StatusOK {
			t.Errorf("a request from a different address: HTTP %d %s; want 200", status, said)
		}
		time.Sleep(time.Second)
		if status, said := c.post("/auth/setup", body, nil); status != http.StatusOK {
			t.Errorf("a request from the same address a second later: HTTP %d %s; want 200", status, said)
		}
	})
}

// TestProofOfAPairingIsGoodOnce: a new device asks for access, and polls for the
// answer. The relay refuses the proof of either request when it comes a second time,
// and a poll with a proof by a different key.
func TestProofOfAPairingIsGoodOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		c := s.caller("198.51.100.7")
		ask := c.proof("POST", "/auth/device", "")
		var code peopleapi.DeviceCode
		if status, said := c.send("POST", "/auth/device", "", ask, "kind=device", &code); status != http.StatusOK {
			t.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
		}
		poll := url.Values{"grant_type": {peopleapi.GrantDeviceCode}, "device_code": {code.DeviceCode}}.Encode()
		look := c.proof("POST", "/auth/token", "")
		if _, said := c.send("POST", "/auth/token", "", look, poll, nil); !strings.Contains(said, "authorization_pending") {
			t.Errorf("polling before the approval: %s; want authorization_pending", said)
		}
		time.Sleep(people.PollEvery)
		for path, again := range map[string]struct{ proof, body string }{"/auth/device": {ask, "kind=device"}, "/auth/token": {look, poll}} {
			if _, said := c.send("POST", path, "", again.proof, again.body, nil); !strings.Contains(said, authn.ErrProofAgain.Error()) {
				t.Errorf("a used proof at %s: %s; want ErrProofAgain", path, said)
			}
		}
		if _, said := s.caller("198.51.100.7").post("/auth/token", poll, nil); !strings.Contains(said, authn.ErrOtherKey.Error()) {
			t.Errorf("a poll with a different key: %s; want ErrOtherKey", said)
		}
	})
}

// TestNoRoomForProofsRemovesNoDevice: a device sends more proofs than the relay can
// remember. The relay answers 503 until the proofs expire. It does not claim that the
// device was removed, because the page would then delete its key.
func TestNoRoomForProofsRemovesNoDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ada := newSite(t).caller("192.0.2.1").enter()
		status, said := 0, ""
		for range 2000 {
			if status, said = ada.renew(); status != http.StatusOK {
				break
			}
		}
		if status != http.StatusServiceUnavailable || !strings.Contains(said, "temporarily_unavailable") {
			t.Errorf("an unauthenticated request when the table of used proofs is full: HTTP %d %s; want 503", status, said)
		}
		status, said = ada.send("GET", "/api/devices", ada.in.Token, ada.proof("GET", "/api/devices", ada.in.Token), "", nil)
		if status != http.StatusServiceUnavailable {
			t.Errorf("a request with a token when the table of used proofs is full: HTTP %d %s; want 503", status, said)
		}
		time.Sleep(auth.ChallengeTTL + auth.Leeway + time.Second)
		if status, said := ada.renew(); status != http.StatusOK {
			t.Errorf("a renewal after the proofs have expired: HTTP %d %s; want 200", status, said)
		}
	})
}

// TestOneNetworkKeepsNoPairingOut: 18 sites in a /48 network, and then 300, send
// requests for access at their limits. Devices elsewhere still get access: before,
// after, and with a tenant's name in the request.
func TestOneNetworkKeepsNoPairingOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		ada := s.caller("192.0.2.1").enter()
		ask := func(c *caller, tenant string, answer any) (status int, said string) {
			t.Helper()
			return c.post("/auth/device", url.Values{"kind": {"device"}, "tenant": {tenant}}.Encode(), answer)
		}
		mallory := s.caller("2001:db8::1")
		flood := func(tenant string, sites, times int) (taken int) {
			for i := range sites * times {
				mallory.address = fmt.Sprintf("2001:db8:0:%x::1", i%sites)
				if status, _ := ask(mallory, tenant, nil); status == http.StatusOK {
					taken++
				}
			}
			return taken
		}
		early := s.caller("198.51.100.7")
		var code peopleapi.DeviceCode
		if status, said := ask(early, "", &code); status != http.StatusOK {
			t.Fatalf("a pairing before the flood: HTTP %d %s; want 200", status, said)
		}
		taken := flood("", 18, 15)
		for range 9 {
			time.Sleep(time.Minute)
			mallory.nonce = s.keys.NewChallenge()
			taken += flood("", 300, 1)
			taken += flood("default", 300, 1)
		}
		if taken > 60+9*12 {
			t.Errorf("%d requests of one network were taken in 9 minutes; want at most 60, and 12 a minute", taken)
		}
		for _, one := range []struct {
			name string
			*caller
		}{{"after", s.caller("198.51.100.8")}, {"for the tenant", s.caller("198.51.100.9")}, {"before", early}} {
			name, c := one.name, one.caller
			c.nonce, ada.nonce = s.keys.NewChallenge(), s.keys.NewChallenge()
			code := code
			tenant := ""
			if name == "for the tenant" {
				tenant = "default"
			}
			if name != "before" {
				if status, said := ask(c, tenant, &code); status != http.StatusOK {
					t.Fatalf("%s: asking for a code: HTTP %d %s; want 200", name, status, said)
				}
			}
			_, id, _ := strings.Cut(code.Complete, "#")
			at := "/api/requests/" + id
			if status, said := ada.renew(); status != http.StatusOK {
				t.Fatalf("requesting a new token for the device: HTTP %d %s; want 200", status, said)
			}
			if status, said := ada.send("POST", at, ada.in.Token, ada.proof("POST", at, ada.in.Token), `{"approve":true,"code":"`+code.UserCode+`"}`, nil); status != http.StatusOK {
				t.Errorf("approval of a request made %s the flood: HTTP %d %s; want 200", name, status, said)
			}
			poll := url.Values{"grant_type": {peopleapi.GrantDeviceCode}, "device_code": {code.DeviceCode}}.Encode()
			if status, said := c.post("/auth/token", poll, &c.in); status != http.StatusOK {
				t.Errorf("the token for a device that asked %s the flood: HTTP %d %s; want 200", name, status, said)
			}
		}
	})
}

// An awayStore is a store that does not know its records while away is set.
type awayStore struct {
	memstore.Store
	away error
	of   string // in the keys of the records that are unknown; "": all are
}

// Get implements [people.Store].
func (s *awayStore) Get(key string) ([]byte, error) {
	if s.away != nil && strings.Contains(key, s.of) {
		return nil, s.away
	}
	return s.Store.Get(key)
}

// CatchUp implements [people.Store].
func (s *awayStore) CatchUp() error { return s.away }

// TestStandingIsUnknownWhileTheStoreIsAway asks for the standing of a device while the store of
// people is unreachable, and after the device was removed. Standing must return an error only in
// the first case, because grants of a removed device end for good.
func TestStandingIsUnknownWhileTheStoreIsAway(t *testing.T) {
	store := &awayStore{}
	s := newSiteWith(t, store, "")
	c := s.caller("192.0.2.1").enter()
	who := auth.Client{Tenant: "default", Subject: "ada", Device: c.in.Device, Key: c.key.Thumbprint()}
	want := func(what string, wantGood bool, wantErr error) {
		t.Helper()
		if _, good, err := s.api.Standing(who); good != wantGood || !errors.Is(err, wantErr) {
			t.Errorf("%s: Standing = %v, %v; want %v, %v", what, good, err, wantGood, wantErr)
		}
	}
	want("a device", true, nil)
	store.away = people.ErrAway
	want("while the store is away", false, people.ErrAway)
	store.away = nil
	if err := s.people.Remove(c.in.Device); err != nil {
		t.Fatal(err)
	}
	want("a removed device", false, nil)
}

// TestRemovalWaitsForTheStore removes a device while the store of people is unreachable. The relay must ask to try again,
// because the device may exist. A device that does not exist must be unknown. While the relay knows the device and
// not the device that asks, it must also ask to try again.
func TestRemovalWaitsForTheStore(t *testing.T) {
	store := &awayStore{}
	s := newSiteWith(t, store, "")
	c := s.caller("192.0.2.1").enter()
	path := "/api/devices/device-unknown"
	for away, want := range map[error]int{nil: http.StatusNotFound, people.ErrAway: http.StatusServiceUnavailable} {
		store.away = away
		if status, said := c.send("DELETE", path, c.in.Token, c.proof("DELETE", path, c.in.Token), "", nil); status != want {
			t.Errorf("removing a device while the store has the error %v: HTTP %d %s; want %d", away, status, said, want)
		}
	}
	store.away = nil
	path = "/api/devices/" + s.caller("192.0.2.2").enter().in.Device
	for away, want := range map[error]int{people.ErrAway: http.StatusServiceUnavailable, people.ErrNone: http.StatusForbidden} {
		store.away, store.of = away, c.in.Device
		if status, said := c.send("DELETE", path, c.in.Token, c.proof("DELETE", path, c.in.Token), "", nil); status != want {
			t.Errorf("removing a device while the store has the error %v for the own device: HTTP %d %s; want %d", away, status, said, want)
		}
	}
}

// TestUnknownLinksWaitForTheStore follows a link that the relay does not know. While the store of
// people is unreachable, the relay must ask to try again, because another relay may have made the
// link. Otherwise it must say that the link is over.
func TestUnknownLinksWaitForTheStore(t *testing.T) {
	store := &awayStore{}
	c := newSiteWith(t, store, "").caller("192.0.2.1")
	for away, want := range map[error]int{nil: http.StatusBadRequest, people.ErrAway: http.StatusServiceUnavailable} {
		store.away = away
		if status, said := c.post("/auth/share", `{"link":"x"}`, nil); status != want {
			t.Errorf("following a link while the store's error is %v: HTTP %d %s; want %d", away, status, said, want)
		}
	}
}

// TestRequestOfADifferentRelayIsFound asks for access at one relay. Another relay, which has not read
// the requests yet, must find one by its code, and decide about one by its ID. Wrong codes must not
// make it ask the store more often than guesses are allowed.
func TestRequestOfADifferentRelayIsFound(t *testing.T) {
	records := &memstore.Copy{Store: new(memstore.Store)}
	s := newSiteWith(t, records, "")
	c := s.caller("192.0.2.1").enter()
	ask := func() people.Request {
		t.Helper()
		request, err := people.NewDirectory(records.Store).Ask(people.Request{Kind: people.OfDevice, Key: s.caller("192.0.2.2").key.Thumbprint()})
		if err != nil {
			t.Fatal(err)
		}
		return request
	}
	send := func(method, which, body string) (status int, said string) {
		path := "/api/requests/" + which
		return c.send(method, path, c.in.Token, c.proof(method, path, c.in.Token), body, nil)
	}
	if status, said := send("GET", people.ShowCode(ask().Code), ""); status != http.StatusOK {
		t.Errorf("the code of a request at a different relay: HTTP %d %s; want 200", status, said)
	}
	second := ask()
	if status, said := send("POST", second.ID, `{"approve":true,"code":"`+second.Code+`"}`); status != http.StatusOK {
		t.Errorf("approval of a request at a different relay: HTTP %d %s; want 200", status, said)
	}
	for range 10 {
		send("GET", "BBBB-BBBB", "")
	}
	if records.Asked != 5 {
		t.Errorf("2 requests and 10 wrong codes ask the store %d times; want 5", records.Asked)
	}
}
