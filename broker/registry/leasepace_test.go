package registry_test

import (
	"log/slog"
	"strings"
	"testing"

	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// TestHostThatAsksTooOftenIsNotRead sends thousands of requests from one host-agent. The registry
// must drop most of them without reading them, and name the host in its log once. A different host
// of the tenant must get its lease.
func TestHostThatAsksTooOftenIsNotRead(t *testing.T) {
	t.Parallel()
	const requests = 4000
	s := natssite.New(t)
	log := natssite.LogLines{Lines: make(chan string, 1<<16)}
	r := registryWith(t, s, registry.Config{Log: slog.New(log)})
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
	named := 0
	for len(log.Lines) > 0 {
		if line := <-log.Lines; strings.Contains(line, "lease requests dropped") && strings.Contains(line, "server") {
			named++
		}
	}
	if named != 1 {
		t.Errorf("the log names the host %d times; want once", named)
	}
	holder, _ := holder(t, s, nil)
	acquire(t, holder)
	wantHost(t, r, registry.Online, "")
}
