package broker_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ahprelay/broker"
	"ahprelay/test/natssite"

	"github.com/nats-io/nats.go"
)

// TestDroppedWhileItIsOpened drops tenants' accounts while they are being opened. NATS must then
// refuse the users of these accounts, because no relay would serve them.
func TestDroppedWhileItIsOpened(t *testing.T) {
	t.Parallel()
	s := natssite.New(t)
	tenants := s.Tenants(t)
	tenants.OnDemand(broker.Demand{Find: func(string) (string, map[string]time.Time, bool) { return "", nil, false }})
	const many = 20
	name := func(i int) string { return fmt.Sprintf("tenant-%d", i) }
	for i := range many {
		if err := tenants.Open(name(i), nil); err != nil {
			t.Fatal(err)
		}
		if !tenants.DropIdle(name(i), time.Now()) {
			t.Fatalf("%s is in use", name(i))
		}
	}
	tenants.Close() // waits until all accounts are opened and dropped
	for i := range many {
		cfg := s.AgentConfig(t, name(i), "laptop", 0)
		user, err := cfg.Credentials(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		nc, err := natssite.Connect(s.URL(), nats.UserJWT(func() (string, error) { return user, nil }, cfg.Sign))
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: %v; want %v", name(i), err, nats.ErrAuthorization)
		}
		if err == nil {
			nc.Close()
		}
	}
}
