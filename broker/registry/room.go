package registry

import (
	"fmt"
	"time"
)

// EveryTenant stands in [Config.HostLimits] for each tenant that is not named.
const EveryTenant = "*"

// A FullError reports that a tenant has its largest number of connected host-agents.
type FullError struct {
	Tenant string
	Max    int
}

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf("tenant %s has %d connected host-agents, its limit (the relay's --limit-hosts)", e.Tenant, e.Max)
}

// roomFor returns a *FullError if a tenant has no room for one more host. A host counts
// in the whole cluster while it has credentials for NATS, and until its host-agent
// releases it, so host-agents that come together cannot all pass before any of them has
// a lease.
func (ta *tenantAccounts) roomFor(tenant, host string) error {
	limits := ta.r.cfg.HostLimits
	most, named := limits[tenant]
	if !named {
		most = limits[EveryTenant]
	}
	if most == 0 {
		return nil
	}
	ta.r.mu.Lock()
	defer ta.r.mu.Unlock()
	t := ta.tenants[tenant]
	if t == nil {
		return nil
	}
	now, count := time.Now(), 0
	if k := t.hosts[hostKey(tenant, host)]; k != nil && k.connects(now) {
		return nil
	}
	for _, k := range t.hosts {
		if k.connects(now) {
			count++
		}
	}
	if count < most {
		return nil
	}
	ta.full++
	return &FullError{tenant, most}
}

// connects reports whether a host counts as connected: it has a lease, or credentials
// for NATS and was not released.
func (k *knownHost) connects(now time.Time) bool {
	l := k.lease()
	return l.runs() || (l == nil || !l.Released) && len(k.Users.current(now)) > 0
}
