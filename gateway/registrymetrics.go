package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"ahprelay/broker/registry"
	"ahprelay/internal/meter"
)

func registryStats(r *registry.Registry) prometheus.Collector {
	t := meter.NewTable(r.Stats)
	t.Gauge("ahp_relay_registry_hosts", "Known hosts.", func(s registry.Stats) float64 { return float64(s.Hosts) })
	t.Gauge("ahp_relay_registry_tenants", "Tenants with known hosts.", func(s registry.Stats) float64 { return float64(s.Tenants) })
	t.Gauge("ahp_relay_registry_leases", "Leases kept by this relay for connected host-agents.", func(s registry.Stats) float64 { return float64(s.Kept) })
	t.Gauge("ahp_relay_registry_leases_heard", "Kept leases whose host-agents are connected to this relay, which renews them without requests.", func(s registry.Stats) float64 { return float64(s.Heard) })
	t.Gauge("ahp_relay_registry_relays", "Running relays, including this relay.", func(s registry.Stats) float64 { return float64(s.Relays) })
	t.Counter("ahp_relay_registry_writes_total", "Host changes that this relay has written to the store.", func(s registry.Stats) float64 { return float64(s.Writes) })
	t.Gauge("ahp_relay_registry_waiting", "Hosts with changes not yet written to the store.", func(s registry.Stats) float64 { return float64(s.Waiting) })
	t.Counter("ahp_relay_registry_requests_put_off_total", "Lease requests deferred, because too many waited for the store.", func(s registry.Stats) float64 { return float64(s.Refused) })
	t.Counter("ahp_relay_registry_tenant_full_total", "Host-agents refused beyond their tenant's limit (--limit-hosts).", func(s registry.Stats) float64 { return float64(s.Full) })
	t.Counter("ahp_relay_registry_requests_dropped_total", "Lease requests dropped, because their host sends too many.", func(s registry.Stats) float64 { return float64(s.Dropped) })
	t.Gauge("ahp_relay_registry_store_up", "Whether the store is usable.", func(s registry.Stats) float64 { return meter.Bool(s.Store) })
	t.Gauge("ahp_relay_registry_store_copies", "Configured copies of the store.", func(s registry.Stats) float64 { return float64(s.Copies) })
	t.Gauge("ahp_relay_registry_store_copies_up", "Available copies of the store.", func(s registry.Stats) float64 { return float64(s.Current) })
	return t
}
