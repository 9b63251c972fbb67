package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"ahprelay/auth"
	"ahprelay/test/must"

	"github.com/nats-io/nats.go/jetstream"
)

// tenants starts a relay that knows many tenants with one enrolled host each, and
// connects a single host-agent. It measures time and memory.
func tenants(ctx context.Context, c *Cluster, s *Plan) (rows []Row) {
	c.Start(ctx)
	defer c.Stop()
	known := 0
	for _, n := range s.Tenants {
		c.enrolStored(ctx, known, n)
		known = n
		rows = append(rows, c.startWith(ctx, n)...)
	}
	return rows
}

// lone returns the name of tenant i, which has a single host.
func lone(i int) string { return fmt.Sprintf("lone-%d", i) }

// enrolStored writes tenants with an enrolled host into the store, as if another relay
// had enrolled the hosts.
func (c *Cluster) enrolStored(ctx context.Context, from, to int) {
	js := must.Get(c.Relays[0].conn.JetStream())
	kv := must.Get(js.KeyValue(ctx, "ahp-registry"))
	key := must.Get(auth.NewAgentKey())
	now := time.Now().UTC()
	for i := from; i < to; i++ {
		body := must.Get(json.Marshal(map[string]any{
			"host": lone(i) + ".host", "enrolled": now,
			"users": []any{map[string]any{"nkey": key.Public(), "token": "t", "issued": now, "expires": now.Add(time.Hour)}},
		}))
		if _, err := kv.Create(ctx, "host."+lone(i)+".host", body); !errors.Is(err, jetstream.ErrKeyExists) {
			must.Do(err)
		}
	}
	must.Do(await(ctx, func() bool { return c.Relays[0].Registry.Stats().Hosts >= to }))
}

// startWith restarts the relay with n tenants in its store, and connects a host-agent
// of one tenant. It returns rows with the time and the memory.
func (c *Cluster) startWith(ctx context.Context, n int) []Row {
	c.Stop()
	before, goroutines, began := inUse(), runtime.NumGoroutine(), time.Now()
	c.Start(ctx)
	took := time.Since(began)
	r := c.Relays[0]
	must.Do(await(ctx, func() bool { return r.Registry.Stats().Hosts >= n }))
	each := float64(inUse()-before) / 1024 / float64(n)
	more := runtime.NumGoroutine() - goroutines
	defer r.connect(lone(n / 2)).Close()
	return []Row{
		within(fmt.Sprintf("a relay starts that knows of %d tenants of one host each", n), took, 2*time.Second, 10*time.Millisecond),
		{
			Name: fmt.Sprintf("memory and goroutines of each of %d tenants that are not served", n),
			Got:  fmt.Sprintf("%.1f KiB, %.2f", each, float64(more)/float64(n)), Wanted: "≤ 8 KiB, ≤ 0.2", Good: each <= 8 && more < n/5,
		},
	}
}

// inUse returns how many bytes the heap and the stacks use.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
