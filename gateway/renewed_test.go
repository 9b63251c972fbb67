package gateway

import (
	"net/http"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/test/natssite"
)

// A host-agent renews its credential. Then one of two relays stops, so the store cannot
// be written. The relay that is left admits the host-agent with the new credential. It
// keeps the previous credential valid, because different relays may not know that the
// new credential is in use, and refuses a second renewal. When the store is back, the
// next use of the new credential ends the previous credential at both relays.
func TestRenewedWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	dirs := [2]string{t.TempDir()}
	if _, err := auth.LoadKeys(dirs[0]); err != nil {
		t.Fatal(err)
	}
	dirs[1] = withKeysOf(t, dirs[0])
	routes := []string{natssite.FreePort(t), natssite.FreePort(t)}
	start := func(i int) *Relay {
		t.Helper()
		relay, err := StartRelay(t.Context(), RelayConfig{
			DataDir: dirs[i], Listen: "127.0.0.1:0", AdminListen: NoListener, ClusterListen: routes[i], ClusterRoutes: routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(relay.Close)
		return relay
	}
	one, two := start(0), start(1)
	for _, relay := range []*Relay{one, two} {
		natssite.Eventually(t, "the store is there", func() bool { return relay.registry.Degraded() == "" })
	}
	a, key := newFakeAgent(t, one), auth.NewHostKey()
	comes := func() (status int) {
		t.Helper()
		status, _ = a.post("/agent/credentials", a.token, encode(t, a.connectProof(key)))
		return status
	}
	a.token = a.wantCredential("/agent/enroll", a.enrollProof(key))
	// Like a host-agent, try again while the new store is slow.
	natssite.Eventually(t, "the first credential gets credentials for NATS", func() bool { return comes() == http.StatusOK })
	first, err := one.Keys().Tokens().VerifyAgent(a.token)
	if err != nil {
		t.Fatal(err)
	}
	usedUp := func(relay *Relay) bool {
		return relay.registry.Revocations().Revoked(first.IssuedAt, auth.RevocationKey{Token: first.ID})
	}
	a.token = a.wantCredential("/agent/renew", a.keyProof(key, auth.ToRenew, ""))

	two.Close()
	natssite.Eventually(t, "the store is away", func() bool { return strings.Contains(one.registry.Degraded(), "is unreachable (") })
	if status := comes(); status != http.StatusOK {
		t.Errorf("a request for NATS credentials with the renewed enrolment credential, while the store is unreachable: HTTP %d; want 200", status)
	}
	if usedUp(one) {
		t.Error("the first enrolment credential is refused before a second relay knows the renewed one; want it valid")
	}
	a.wantRefused("one more renewal", "/agent/renew", a.keyProof(key, auth.ToRenew, ""), http.StatusServiceUnavailable, "store is unreachable")

	two = start(1)
	natssite.Eventually(t, "the credential before is used up at both when the store is back", func() bool {
		return comes() == http.StatusOK && usedUp(one) && usedUp(two)
	})
}
