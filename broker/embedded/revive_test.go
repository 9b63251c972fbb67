package embedded

import (
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// TestReviveWhileAsked restarts the store while a relay sends requests to it. The store must keep its
// data and count each later request once. The race detector must find nothing.
func TestReviveWhileAsked(t *testing.T) {
	t.Parallel()
	s, js := startAlone(t)
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "key", []byte("value")); err != nil {
		t.Fatal(err)
	}

	var asking sync.WaitGroup
	asked, stop := make(chan struct{}), make(chan struct{})
	asking.Go(func() {
		for {
			_, _ = kv.Status(t.Context()) // fails during a restart
			select {
			case <-stop:
				return
			case asked <- struct{}{}:
			default:
			}
		}
	})
	for range 5 {
		<-asked
		if err := s.ReviveStore(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	asking.Wait()

	requests := func() uint64 {
		info, err := s.nats.Jsz(nil)
		if err != nil {
			t.Fatal(err)
		}
		return info.API.Total
	}
	const more = 20
	before := requests()
	for range more {
		if _, err := kv.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := requests() - before; n != more {
		t.Errorf("after restarts, the store counts %d requests as %d", more, n)
	}
	if e, err := kv.Get(t.Context(), "key"); err != nil || string(e.Value()) != "value" {
		t.Errorf("after restarts, the written entry is %v, %v; want its value", e, err)
	}
}
