package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"ahprelay/broker/registry"
	"ahprelay/internal/meter"
)

// registryStats asks the registry when it is asked.
func registryStats(r *registry.Registry) prometheus.Collector {
	t := meter.NewTable(r.Stats)
	t.Gauge("ahp_relay_registry_hosts", "Hosts that are known.", func(s registry.Stats) float64 { return float64(s.Hosts) })
	t.Gauge("ahp_relay_registry_tenants", "Tenants of hosts that are known.", func(s registry.Stats) float64 { return float64(s.Tenants) })
	t.Gauge("ahp_relay_registry_leases", "Leases that this relay keeps: hosts whose host-agents are connected here.", func(s registry.Stats) float64 { return float64(s.Kept) })
	t.Gauge("ahp_relay_registry_leases_heard", "Of these, leases of host-agents that are heard through this relay's port, and need not ask for them every few seconds.", func(s registry.Stats) float64 { return float64(s.Heard) })
	t.Gauge("ahp_relay_registry_relays", "Relays that are there, this one included.", func(s registry.Stats) float64 { return float64(s.Relays) })
	t.Counter("ahp_relay_registry_writes_total", "Changes of hosts that this relay has written into the store.", func(s registry.Stats) float64 { return float64(s.Writes) })
	t.Gauge("ahp_relay_registry_waiting", "Hosts of which the store does not have yet what this relay knows.", func(s registry.Stats) float64 { return float64(s.Waiting) })
	t.Counter("ahp_relay_registry_requests_put_off_total", "Lease requests that were told to come again, because too many waited for the store.", func(s registry.Stats) float64 { return float64(s.Refused) })
	t.Counter("ahp_relay_registry_requests_dropped_total", "Lease requests that were not read, because their host sends too many.", func(s registry.Stats) float64 { return float64(s.Dropped) })
	t.Gauge("ahp_relay_registry_store_up", "Whether the store can be used.", func(s registry.Stats) float64 { return meter.Bool(s.Store) })
	t.Gauge("ahp_relay_registry_store_copies", "Copies of the store that there are to be.", func(s registry.Stats) float64 { return float64(s.Copies) })
	t.Gauge("ahp_relay_registry_store_copies_up", "Copies of the store that are there.", func(s registry.Stats) float64 { return float64(s.Current) })
	return t
}
