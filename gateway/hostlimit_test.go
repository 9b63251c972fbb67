package gateway

import (
	"net/http"
	"strings"
	"testing"
)

// A tenant's limit permits one host-agent. The second host-agent gets 429 with the
// limit's name, and the relay counts the refusal.
func TestHostLimitIsNamed(t *testing.T) {
	t.Parallel()
	r := startRelay(t, func(cfg *RelayConfig) { cfg.HostLimits = map[string]int{"default": 1} })
	first := newFakeAgent(t, r)
	if status, answer := first.post("/agent/credentials", first.token, encode(t, first.proof())); status != http.StatusOK {
		t.Fatalf("credentials of the tenant's first host: HTTP %d %s; want 200", status, answer)
	}
	second := newFakeAgentOf(t, r, "desktop")
	status, answer := second.post("/agent/credentials", second.token, encode(t, second.proof()))
	if status != http.StatusTooManyRequests || !strings.Contains(answer, "limit of 1 connected host-agents of this tenant (--limit-hosts)") {
		t.Errorf("the second host: HTTP %d %s; want 429 with the limit", status, answer)
	}
	if _, metrics := get(t, r.AdminURL()+"/metrics", nil); !strings.Contains(metrics, "ahp_relay_registry_tenant_full_total 1\n") {
		t.Error("ahp_relay_registry_tenant_full_total does not count the refusal; want 1")
	}
}
