package registry_test

import (
	"testing"

	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestHostThatAsksTooOftenIsNotRead sends thousands of requests from one host-agent. The registry
// must drop most of them without reading them, and a different host of the tenant must get its
// lease.
func TestHostThatAsksTooOftenIsNotRead(t *testing.T) {
	t.Parallel()
	const requests = 4000
	s := natssite.New(t)
	r := startRegistry(t, s, 0)
	flood := natssite.DialAgent(t, s.AgentConfig(t, "acme", "server", 0))
	answers := natssite.Subscribe(t, flood, "ahp.v1.acme.server.inbox.>")
	answered, sent := 0, 0
	for r.Stats().Dropped == 0 && sent < 100*requests {
		for range requests {
			if err := flood.PublishRequest("ahp.v1.acme.server.ctl.lease", "ahp.v1.acme.server.inbox.a.b", []byte("x")); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		if err := flood.Flush(natssite.Patience); err != nil {
			t.Fatal(err)
		}
		for len(answers) > 0 {
			<-answers
			answered++
		}
	}
	if answered >= sent/2 || r.Stats().Dropped == 0 {
		t.Errorf("%d of %d requests are answered, and %d are dropped unread; want less than half, and some dropped", answered, sent, r.Stats().Dropped)
	}
	holder, _ := holder(t, s, nil)
	acquire(t, holder)
	wantHost(t, r, registry.Online, "")
}
