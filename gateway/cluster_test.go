package gateway

import (
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	notifyapi "ahprelay/gateway/api/notify"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/gateway/authn"
)

// pair starts two relays with a shared store. The first runs the NATS server, and the
// second connects to it with a copy of the first's keys.
func pair(t *testing.T) (one, two *Relay) {
	t.Helper()
	start := func(cfg RelayConfig) *Relay {
		cfg.Listen, cfg.AdminListen = "127.0.0.1:0", NoListener
		cfg.Notify.Private = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		relay, err := StartRelay(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(relay.Close)
		return relay
	}
	one = start(RelayConfig{DataDir: t.TempDir(), NATSListen: "127.0.0.1:0"})
	return one, start(RelayConfig{DataDir: withKeysOf(t, one.dir.path), NATSURL: "nats://" + one.NATSAddr().String()})
}

// withKeysOf returns a new data directory with a copy of the keys in the directory
// other.
func withKeysOf(t *testing.T, other string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	from, to := os.DirFS(filepath.Join(other, "keys")), filepath.Join(dir, "keys")
	if err := os.CopyFS(to, from); err != nil {
		t.Fatal(err)
	}
	err := fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Chmod(filepath.Join(to, name), 0o600)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// at returns the same device as a client of a different relay, without a nonce.
func (p *phone) at(relay *Relay) *phone {
	other := *p
	other.relay, other.nonce = relay, ""
	return &other
}

// setUp admits the device with a setup link or an invitation, as the page does, and
// returns the relay's HTTP status and body.
func (p *phone) setUp(link string) (status int, said string) {
	p.Helper()
	_, secret, _ := strings.Cut(link, "#")
	return p.ask("POST", "/auth/setup", "", map[string]string{"invite": secret, "name": "a phone"}, &p.in)
}

// Two relays share a store. A device admitted at the first renews at the second, and
// there approves a device that asked at the first. A device removed at the first loses
// its access at both. A proof used at the first is refused by the second.
func TestDevicesWorkAtEachRelayOfACluster(t *testing.T) {
	t.Parallel()
	one, two := pair(t)
	var links []string
	for _, relay := range []*Relay{one, two} {
		link, err := relay.SetupLink("")
		if err != nil || link == "" {
			t.Fatalf("SetupLink = %q, %v; want a link", link, err)
		}
		links = append(links, link)
	}
	ada := newPhone(t, one)
	if status, said := ada.setUp(links[0]); status != http.StatusOK {
		t.Fatalf("using the setup link: HTTP %d %s; want 200", status, said)
	}
	if status, said := newPhone(t, two).setUp(links[1]); status != http.StatusBadRequest || !strings.Contains(said, "used up") {
		t.Errorf("setup by the second relay's link, after an owner exists: HTTP %d %s; want 400, used up", status, said)
	}
	there := ada.at(two)
	if status, said := there.renew(); status != http.StatusOK {
		t.Fatalf("a device renews at the other relay: HTTP %d %s; want 200", status, said)
	}

	// A new device asks at the first relay, an existing device approves it at the
	// second, and the new device gets its token at the first.
	laptop, poll := newPhone(t, one), url.Values{"grant_type": {peopleapi.GrantDeviceCode}}
	var code peopleapi.DeviceCode
	if status, said := laptop.ask("POST", "/auth/device", "", url.Values{"kind": {"device"}}, &code); status != http.StatusOK {
		t.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
	}
	_, id, _ := strings.Cut(code.Complete, "#")
	poll.Set("device_code", code.DeviceCode)
	if status, said := laptop.at(two).ask("POST", "/auth/token", "", poll, nil); !strings.Contains(said, "authorization_pending") {
		t.Errorf("a poll at the other relay, before the approval: HTTP %d %s; want authorization_pending", status, said)
	}
	await(t, func() bool {
		status, _ := there.ask("GET", "/api/requests/"+id, there.in.Token, nil, nil)
		return status == http.StatusOK
	})
	there.do("POST", "/api/requests/"+id, map[string]any{"approve": true, "code": code.UserCode}, nil)
	if status, said := laptop.ask("POST", "/auth/token", "", poll, &laptop.in); status != http.StatusOK {
		t.Fatalf("polling for the credentials after the approval: HTTP %d %s; want 200", status, said)
	}

	// A proof used at the first relay counts as used at the second, when both are
	// behind a shared name.
	asked := auth.Asked{Method: "GET", URLs: []string{"https://relay.example.com/api/hosts"}, Token: ada.in.Token}
	proof, err := ada.key.Prove(asked, ada.nonce)
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := auth.ReadProof(proof)
	if err != nil {
		t.Fatal(err)
	}
	checked, err := one.Keys().CheckProof(claimed, asked)
	if err != nil {
		t.Fatal(err)
	}
	used := authn.UsedProof{Proof: checked, Person: authn.PersonOf(ada.in.Tenant, ada.in.Subject)}
	if err := one.server.Load().caller.Proofs.Use(used, time.Now()); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return two.server.Load().caller.Proofs.Unused(checked, time.Now()) == authn.ErrProofAgain })

	// The owner removes a device at the first relay. The second relay closes the
	// device's open connection, and refuses to renew its token.
	laptop = laptop.at(two)
	if status, said := laptop.renew(); status != http.StatusOK {
		t.Fatalf("the laptop renews at the other relay: HTTP %d %s; want 200", status, said)
	}
	hearing := laptop.hears()
	start := time.Now()
	ada.do("DELETE", "/api/devices/"+laptop.in.Device, nil, nil)
	select {
	case <-hearing:
	case <-time.After(notifyapi.StreamBeat / 2): // later the stream itself would notice
		t.Error("the event stream of a removed device is open; want it ended")
	}
	await(t, func() bool { // the other relay learns of the revocation and of the removal separately
		status, said := laptop.renew()
		return status == http.StatusBadRequest && strings.Contains(said, "removed")
	})
	t.Logf("out at the other relay after %v", time.Since(start))

	// The store stops. Devices still renew their tokens, but relays answer 503 to a new
	// invitation.
	one.nats.Close()
	if status, said := there.renew(); status != http.StatusOK {
		t.Errorf("a renewal while the store is unreachable: HTTP %d %s; want 200", status, said)
	}
	if status, said := there.ask("POST", "/api/invites", there.in.Token, map[string]any{"subject": "bob", "level": "look"}, nil); status != http.StatusServiceUnavailable || !strings.Contains(said, people.ErrAway.Error()) {
		t.Errorf("an invitation while the store is unreachable: HTTP %d %s; want 503, ErrAway", status, said)
	}
}

// Eight browsers race for the setup links of two relays. Exactly one browser is
// admitted.
func TestOnlyOneSetupLinkOfAClusterWorks(t *testing.T) {
	one, two := pair(t)
	said := make(chan string, 8)
	var wg sync.WaitGroup
	for _, relay := range []*Relay{one, two} {
		link, err := relay.SetupLink("")
		if err != nil {
			t.Fatal(err)
		}
		for range cap(said) / 2 {
			p := newPhone(t, relay)
			wg.Go(func() {
				status, why := p.setUp(link)
				if status == http.StatusOK {
					why = ""
				}
				said <- why
			})
		}
	}
	wg.Wait()
	close(said)
	in := 0
	for why := range said {
		switch {
		case why == "":
			in++
		case !strings.Contains(why, "used up"):
			t.Errorf("a late visitor of the setup link is told %s; want used up", why)
		}
	}
	devices, err := one.server.Load().cfg.People.Devices("default", "")
	if in != 1 || err != nil || len(devices) > 1 {
		t.Errorf("the setup link admitted %d visitors, and %d devices exist, %v; want 1 and 1", in, len(devices), err)
	}
}
