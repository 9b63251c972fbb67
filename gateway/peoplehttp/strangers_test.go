package peoplehttp_test

import (
	"encoding/json"
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
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/hosthttp"
	"ahprelay/gateway/peoplehttp"
	"ahprelay/people"
	"ahprelay/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A site is the people's API of a relay, without sockets.
type site struct {
	*testing.T
	keys   *auth.Keys
	people *people.Directory
	mux    *http.ServeMux
}

const siteURL = "https://relay.example.com"

func newSite(t *testing.T) *site {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	revoked, err := registry.LoadRevocations("", nil)
	if err != nil {
		t.Fatal(err)
	}
	store, err := people.OpenFileStore("")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	caller := authn.New(authn.Config{
		Keys: keys, Revoked: revoked, PublicURL: siteURL, TrustProxy: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Limits: admission.New(admission.Limits{}.WithDefaults(), 1<<20), Audit: audit.New(log, nil),
		Count: func(string) {}, Proved: func(*http.Request) {},
	})
	s := &site{t, keys, people.NewDirectory(store), http.NewServeMux()}
	peoplehttp.New(peoplehttp.Config{
		Caller: caller, People: s.people, Log: log, CredentialTTL: time.Hour,
		Hosts:    func(auth.Client) []hosthttp.Info { return nil },
		Lookup:   func(string, string) (registry.Host, bool) { return registry.Host{}, false },
		Watching: func(string) map[string][]peoplehttp.Viewer { return nil },
	}).Routes(s.mux)
	return s
}

// A caller is a device, or what would like to be one, at an address.
type caller struct {
	*site
	key     *auth.DeviceKey
	address string
	nonce   string
	in      peoplehttp.Access
}

func (s *site) caller(address string) *caller {
	s.Helper()
	key, err := auth.NewDeviceKey()
	if err != nil {
		s.Fatal(err)
	}
	return &caller{site: s, key: key, address: address, nonce: s.keys.NewChallenge()}
}

// enter makes the caller a device of the tenant's owner.
func (c *caller) enter() *caller {
	c.Helper()
	secret, err := c.people.Invite(people.Invite{Person: peoplehttp.OwnerOf("default", "ada"), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		c.Fatal(err)
	}
	if status, said := c.post("/auth/setup", `{"invite":"`+secret+`","name":"a phone"}`, &c.in); status != http.StatusOK {
		c.Fatalf("setup: %d %s", status, said)
	}
	return c
}

// renew asks for a token, with a nonce that is good.
func (c *caller) renew() (status int, said string) {
	c.Helper()
	c.nonce = c.keys.NewChallenge()
	return c.post("/auth/token", url.Values{"grant_type": {peoplehttp.GrantDevice}, "device": {c.in.Device}}.Encode(), &c.in)
}

// post sends a request with a proof.
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
			c.Fatalf("%s %s: %s: %v", method, path, w.Body, err)
		}
	}
	return w.Code, w.Body.String()
}

// TestProofsOfStrangersLockNoDeviceOut has an address without a token show 65,839 good proofs of keys
// that no device has, in 35 s. Devices renew all the same, at that address too.
func TestProofsOfStrangersLockNoDeviceOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		ada, near := s.caller("192.0.2.1").enter(), s.caller("198.51.100.7").enter()
		const proofs, ofKey = 65_839, 1000
		body := url.Values{"grant_type": {peoplehttp.GrantDevice}, "device": {"device-none"}}.Encode()
		answers := map[int]int{}
		var mallory *caller
		for i := range proofs {
			if i%ofKey == 0 {
				mallory = s.caller("198.51.100.7")
			}
			status, _ := mallory.post("/auth/token", body, nil)
			answers[status]++
			time.Sleep(35 * time.Second / proofs)
		}
		if answers[http.StatusOK] > 0 || answers[http.StatusTooManyRequests] < proofs-300 {
			t.Errorf("the stranger's proofs were answered %v", answers)
		}
		for name, device := range map[string]*caller{"elsewhere": ada, "at the same address": near} {
			if status, said := device.renew(); status != http.StatusOK {
				t.Errorf("a device %s renews: %d %s", name, status, said)
			}
		}
	})
}

// TestAddressOverItsRateIsRefusedBeforeItsProofIsChecked: an address that has failed too often gets
// nothing for a good proof, either, and does not use up the invitation that it shows.
func TestAddressOverItsRateIsRefusedBeforeItsProofIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		c := s.caller("198.51.100.7")
		for range admission.DefaultLimits.Failures {
			if status, said := c.post("/auth/setup", `{"invite":"none"}`, nil); status != http.StatusBadRequest {
				t.Fatalf("no invitation: %d %s", status, said)
			}
		}
		secret, err := s.people.Invite(people.Invite{Person: peoplehttp.OwnerOf("default", "ada"), Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		body := `{"invite":"` + secret + `"}`
		if status, said := c.post("/auth/setup", body, nil); status != http.StatusTooManyRequests {
			t.Errorf("over its rate: %d %s; want 429", status, said)
		}
		if status, said := s.caller("198.51.100.8").post("/auth/device", "kind=device", nil); status != http.StatusOK {
			t.Errorf("another address: %d %s", status, said)
		}
		time.Sleep(time.Second)
		if status, said := c.post("/auth/setup", body, nil); status != http.StatusOK {
			t.Errorf("a second later: %d %s", status, said)
		}
	})
}

// TestProofOfAPairingIsGoodOnce: the proof of what asks to be let in is used up like a device's, and so
// is each with which it asks what became of that.
func TestProofOfAPairingIsGoodOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		c := s.caller("198.51.100.7")
		ask := c.proof("POST", "/auth/device", "")
		var code peoplehttp.DeviceCode
		if status, said := c.send("POST", "/auth/device", "", ask, "kind=device", &code); status != http.StatusOK {
			t.Fatalf("ask: %d %s", status, said)
		}
		poll := url.Values{"grant_type": {peoplehttp.GrantDeviceCode}, "device_code": {code.DeviceCode}}.Encode()
		look := c.proof("POST", "/auth/token", "")
		if _, said := c.send("POST", "/auth/token", "", look, poll, nil); !strings.Contains(said, "authorization_pending") {
			t.Errorf("poll: %s", said)
		}
		time.Sleep(people.PollEvery)
		for path, again := range map[string]struct{ proof, body string }{"/auth/device": {ask, "kind=device"}, "/auth/token": {look, poll}} {
			if _, said := c.send("POST", path, "", again.proof, again.body, nil); !strings.Contains(said, authn.ErrProofAgain.Error()) {
				t.Errorf("the same proof again at %s: %s", path, said)
			}
		}
		if _, said := s.caller("198.51.100.7").post("/auth/token", poll, nil); !strings.Contains(said, authn.ErrOtherKey.Error()) {
			t.Errorf("poll with another key: %s", said)
		}
	})
}

// TestNoRoomForProofsRemovesNoDevice: a device with more proofs than are remembered is asked to wait. It
// is not told that it is out, because the page would forget its key.
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
			t.Errorf("more proofs than are remembered: %d %s; want 503", status, said)
		}
		status, said = ada.send("GET", "/api/devices", ada.in.Token, ada.proof("GET", "/api/devices", ada.in.Token), "", nil)
		if status != http.StatusServiceUnavailable {
			t.Errorf("with a token: %d %s; want 503", status, said)
		}
		time.Sleep(auth.ChallengeTTL + auth.Leeway + time.Second)
		if status, said := ada.renew(); status != http.StatusOK {
			t.Errorf("a minute later: %d %s", status, said)
		}
	})
}
