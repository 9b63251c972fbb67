package store_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ahprelay/broker/embedded"
	"ahprelay/broker/store"
	"ahprelay/test/natssite"
)

// TestStopDuringCreationLeavesNothing closes stores while they create their streams, and then
// closes their server. TestMain fails if a goroutine of the server is left.
func TestStopDuringCreationLeavesNothing(t *testing.T) {
	keys := natssite.NewKeys(t)
	sealer, err := keys.Sealer("records")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		server, err := embedded.Start(embedded.Config{Keys: keys, Store: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		site := &natssite.Site{Keys: keys, Server: server}
		conn := site.Relays(t)
		var stores []*store.Store
		for n := range 4 {
			s, err := store.Start(t.Context(), store.Config{
				Conn: conn, Sealer: sealer, Name: "records", Stream: fmt.Sprint("ahp-", n), Subjects: fmt.Sprintf("ahp.relays.v1.r%d.", n),
			})
			if err != nil {
				t.Fatal(err)
			}
			stores = append(stores, s)
		}
		time.Sleep(time.Duration(rand.IntN(6000)) * time.Microsecond)
		for _, s := range stores {
			s.Close()
		}
		conn.Close()
		server.Close()
	}
}
