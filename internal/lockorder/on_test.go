//go:build lockorder

package lockorder

import (
	"strings"
	"sync"
	"testing"
)

func TestLocksAreTakenInOrder(t *testing.T) {
	var client Mutex[Client]
	var routing, other Mutex[Routing]
	var outbox Mutex[Outbox]
	take := func(list ...sync.Locker) (said string) {
		defer func() {
			if r := recover(); r != nil {
				said = r.(string)
			}
		}()
		for _, m := range list {
			m.Lock()
			defer m.Unlock()
		}
		return ""
	}
	for range 2 { // the second round shows that a panic leaves nothing locked
		if said := take(&client, &routing, &outbox); said != "" {
			t.Errorf("taking locks in order: %s; want no panic", said)
		}
		if said := take(&client, &outbox, &routing); !strings.Contains(said, "Routing is locked while Outbox is held") {
			t.Errorf("taking locks out of order: %q; want both locks named", said)
		}
		if said := take(&routing, &other); !strings.Contains(said, "Routing is locked while Routing is held") {
			t.Errorf("two locks at the same place: %q; want Routing is locked while Routing is held", said)
		}
	}
	routing.Lock()
	done := make(chan string)
	go func() { done <- take(&client) }() // the new goroutine holds no locks
	if said := <-done; said != "" {
		t.Errorf("taking a lock in a new goroutine: %s; want no panic", said)
	}
	routing.Unlock()
}

func TestGoroutinesHoldLocksIndependently(t *testing.T) {
	var wg sync.WaitGroup
	all := make(chan struct{})
	for i := range 5000 {
		wg.Go(func() {
			var client Mutex[Client]
			var outbox Mutex[Outbox]
			client.Lock()
			if i%2 == 0 {
				<-all
			}
			outbox.Lock()
			outbox.Unlock()
			client.Unlock()
		})
	}
	close(all)
	wg.Wait()
}

func BenchmarkMutex(b *testing.B) {
	var routing Mutex[Routing]
	for b.Loop() {
		routing.Lock()
		routing.Unlock()
	}
}
