package registry_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"
)

// BenchmarkTenants opens the accounts of many tenants, which a registry serves. It reports memory,
// goroutines and time for each tenant.
func BenchmarkTenants(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for range b.N {
				s := natssite.New(b)
				tenants := s.Tenants(b)
				conn, err := broker.DialRelay(b.Context(), broker.RelayDialConfig{Server: s.Server, Keys: s.Keys, Instance: "r"})
				if err != nil {
					b.Fatal(err)
				}
				r, err := registry.Start(b.Context(), registry.Config{Conn: conn, Tenants: tenants})
				if err != nil {
					b.Fatal(err)
				}
				before, goroutines, start := memory(), runtime.NumGoroutine(), time.Now()
				for i := range n {
					natssite.Open(b, tenants, fmt.Sprintf("tenant-%d", i))
				}
				took := time.Since(start)
				b.ReportMetric(float64(memory()-before)/1024/float64(n), "KiB/tenant")
				b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/float64(n), "goroutines/tenant")
				b.ReportMetric(float64(took.Microseconds())/float64(n), "µs/tenant")
				r.Close()
				conn.Close()
			}
		})
	}
}

// memory collects garbage, and returns the size of the heap and the stacks in bytes.
func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
