package registry

import (
	"fmt"
	"time"
)

// EveryTenant is the key in [Config.HostLimits] for all tenants without a key of their
// own.
const EveryTenant = "*"

// A FullError reports that a tenant has reached its limit of connected host-agents.
type FullError struct {
	Tenant string
	Max    int
}

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf("tenant %s has %d connected host-agents, its limit (the relay's --limit-hosts)", e.Tenant, e.Max)
}

// roomFor returns a *FullError if a tenant has no room for a further host. Hosts in the
// whole cluster count, from when they get NATS credentials until their host-agent
// releases them. If only hosts with a lease counted, host-agents that arrive together
// would all pass before the first has a lease.
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

// connects reports whether a host counts towards the limit: it has a lease, or it has
// NATS credentials and was not released.
func (k *knownHost) connects(now time.Time) bool {
	l := k.lease()
	return l.runs() || (l == nil || !l.Released) && len(k.Users.current(now)) > 0
}
