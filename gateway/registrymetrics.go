package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"ahprelay/registry"
)

// registryStats asks the registry when it is asked.
type registryStats struct{ registry *registry.Registry }

// A registryGauge is one number of the registry's.
type registryGauge struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(registry.Stats) float64
}

var registryGauges = func() (gauges []registryGauge) {
	add := func(name, help string, kind prometheus.ValueType, of func(registry.Stats) float64) {
		gauges = append(gauges, registryGauge{prometheus.NewDesc("ahp_relay_registry_"+name, help, nil, nil), kind, of})
	}
	add("hosts", "Hosts that are known.", prometheus.GaugeValue, func(s registry.Stats) float64 { return float64(s.Hosts) })
	add("tenants", "Tenants of hosts that are known.", prometheus.GaugeValue, func(s registry.Stats) float64 { return float64(s.Tenants) })
	add("leases", "Leases that this relay keeps: hosts whose host-agents are connected here.", prometheus.GaugeValue, func(s registry.Stats) float64 { return float64(s.Kept) })
	add("relays", "Relays that are there, this one included.", prometheus.GaugeValue, func(s registry.Stats) float64 { return float64(s.Relays) })
	add("writes_total", "Changes of hosts that this relay has written into the store.", prometheus.CounterValue, func(s registry.Stats) float64 { return float64(s.Writes) })
	add("waiting", "Hosts of which the store does not have yet what this relay knows.", prometheus.GaugeValue, func(s registry.Stats) float64 { return float64(s.Waiting) })
	add("requests_put_off_total", "Lease requests that were told to come again, because too many waited for the store.", prometheus.CounterValue, func(s registry.Stats) float64 { return float64(s.Refused) })
	add("store_up", "Whether the store can be used.", prometheus.GaugeValue, func(s registry.Stats) float64 {
		if s.Store {
			return 1
		}
		return 0
	})
	add("store_copies", "Copies of the store that there are to be.", prometheus.GaugeValue, func(s registry.Stats) float64 { return float64(s.Copies) })
	add("store_copies_up", "Copies of the store that are there.", prometheus.GaugeValue, func(s registry.Stats) float64 { return float64(s.Current) })
	return gauges
}()

// Describe implements [prometheus.Collector].
func (registryStats) Describe(out chan<- *prometheus.Desc) {
	for _, g := range registryGauges {
		out <- g.desc
	}
}

// Collect implements [prometheus.Collector].
func (r registryStats) Collect(out chan<- prometheus.Metric) {
	stats := r.registry.Stats()
	for _, g := range registryGauges {
		out <- prometheus.MustNewConstMetric(g.desc, g.kind, g.of(stats))
	}
}
