package broker_test

import (
	"testing"
	"time"

	"ahprelay/test/natssite"
)

// TestAwaitedLoginIsNotReportedAgain connects host-agents, and waits until each is connected. No
// login may be reported afterwards, because there is none: a holder of a lease repeats its
// request after a login, and two relays would then decide the same request.
func TestAwaitedLoginIsNotReportedAgain(t *testing.T) {
	s := natssite.New(t)
	for i := range 20 {
		next := natssite.DialAgent(t, s.AgentConfig(t, "acme", "laptop", 0)).NextLogin()
		select {
		case <-next:
			t.Fatalf("connection %d: a login was reported after AwaitConnected had returned", i+1)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
