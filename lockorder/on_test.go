//go:build lockorder

package lockorder

import (
	"strings"
	"sync"
	"testing"
)

// TestOrder takes locks in the order of the list, in another, and one twice.
func TestOrder(t *testing.T) {
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
	for range 2 { // what a panic has unlocked is free
		if said := take(&client, &routing, &outbox); said != "" {
			t.Errorf("in order: %s", said)
		}
		if said := take(&client, &outbox, &routing); !strings.Contains(said, "Routing is taken while Outbox is held") {
			t.Errorf("out of order: %q", said)
		}
		if said := take(&routing, &other); !strings.Contains(said, "Routing is taken while Routing is held") {
			t.Errorf("two of one place: %q", said)
		}
	}
	routing.Lock()
	done := make(chan string)
	go func() { done <- take(&client) }() // which holds nothing
	if said := <-done; said != "" {
		t.Errorf("another goroutine: %s", said)
	}
	routing.Unlock()
}

// TestManyGoroutines has many of them hold something at a time, and one after the other.
func TestManyGoroutines(t *testing.T) {
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
