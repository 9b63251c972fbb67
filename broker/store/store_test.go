package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ahprelay/broker"
	"ahprelay/broker/store"
	"ahprelay/test/natssite"
)

// open starts a relay's store at a site, and returns it when it has read the stream, with its
// connection.
func open(t *testing.T, s *natssite.Site, file string) (*store.Store, *broker.Conn) {
	t.Helper()
	sealer, err := s.Keys.Sealer("records")
	if err != nil {
		t.Fatal(err)
	}
	conn := s.Relays(t)
	store, err := store.Start(t.Context(), store.Config{Conn: conn, Sealer: sealer, Name: "records", File: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	natssite.Next(t, "all that the stream has", store.Ready())
	return store, conn
}

// await waits until a record has the value want. With want "", it waits until the store has
// no record.
func await(t *testing.T, s *store.Store, key, want string) {
	t.Helper()
	heard := make(chan string, 100)
	cancel := s.Follow(key, func(r store.Record) { heard <- string(r.Data) })
	defer cancel()
	for string(s.Get(key).Data) != want {
		if got := natssite.Next(t, key, heard); got == want {
			return
		}
	}
}

// TestSecondConcurrentWriterGetsAConflict changes records at two relays. Creating an existing
// record must return ErrConflict. Concurrent updates must all take effect. In NATS, records must be
// unreadable, and a record copied to another key must be ignored.
func TestSecondConcurrentWriterGetsAConflict(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	one, conn := open(t, site, "")
	two, _ := open(t, site, "")
	if r := one.Write(t.Context(), store.Change{Key: "a.1", Data: []byte(`"secret"`)}, store.Change{Key: "a.2", Data: []byte(`2`), For: time.Hour}); r[0].Err != nil || r[1].Err != nil {
		t.Fatal(r)
	}
	if got := string(one.Get("a.1").Data); got != `"secret"` {
		t.Errorf("the writer reads its own change as %q; want secret at once", got)
	}
	await(t, two, "a.1", `"secret"`)
	await(t, two, "a.2", `2`)
	if u := two.Get("a.2").Until; time.Until(u) < 58*time.Minute || time.Until(u) > 61*time.Minute {
		t.Errorf("the record expires at %v; want in an hour", u)
	}
	for _, s := range []*store.Store{one, two} {
		if err := s.Write(t.Context(), store.Change{Key: "a.1", Data: []byte(`3`)})[0].Err; !errors.Is(err, store.ErrConflict) {
			t.Errorf("Write that creates an existing record = %v; want %v", err, store.ErrConflict)
		}
	}
	var wg sync.WaitGroup
	for _, s := range []*store.Store{one, two} {
		wg.Go(func() {
			for range 10 {
				if err := s.Update("count.all", func(old []byte) ([]byte, error) { return append(old, '1'), nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	await(t, one, "count.all", strings.Repeat("1", 20))
	if err := one.Update("count.all", func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	await(t, two, "count.all", "")
	if err := two.Update("count.all", func(old []byte) ([]byte, error) { return []byte(fmt.Sprint(len(old))), nil }); err != nil {
		t.Error("creating a removed record:", err)
	}
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "ahp-records")
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.GetLastMsgForSubject(t.Context(), "ahp.relays.v1.records.a.1")
	if err != nil || bytes.Contains(msg.Data, []byte("secret")) {
		t.Errorf("NATS has %q, %v; want nothing that can be read", msg.Data, err)
	}
	if _, err := js.Publish(t.Context(), "ahp.relays.v1.records.a.9", msg.Data); err != nil {
		t.Fatal(err)
	}
	if r := one.Write(t.Context(), store.Change{Key: "a.99", Data: []byte(`9`)}); r[0].Err != nil {
		t.Fatal(r)
	}
	await(t, two, "a.99", `9`)
	if got := two.Get("a.9").Data; got != nil {
		t.Errorf("a record with a different key's data is read as %q; want none", got)
	}
}

// TestRecordsAreBack deletes the stream under a running relay, which must write all its records
// into a new stream. Then a new relay starts at another site with the first relay's file: it must
// have each record that has no expiry.
func TestRecordsAreBack(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	file := filepath.Join(t.TempDir(), "records.json")
	one, conn := open(t, site, file)
	one.Write(t.Context(), store.Change{Key: "way.1", Data: []byte(`{"a":1}`)}, store.Change{Key: "job.1", Data: []byte(`{"b":2}`), For: time.Hour})
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "ahp-records"); err != nil {
		t.Fatal(err)
	}
	for { // until the relay has made the stream again
		stream, err := js.Stream(t.Context(), "ahp-records")
		if err == nil {
			if _, err = stream.GetLastMsgForSubject(t.Context(), "ahp.relays.v1.records.job.1"); err == nil {
				break
			}
		}
		if !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, jetstream.ErrMsgNotFound) {
			t.Fatal(err)
		}
		if t.Context().Err() != nil {
			t.Fatal("the stream is not made again after its removal; want a new one")
		}
		time.Sleep(50 * time.Millisecond)
	}
	two, _ := open(t, site, "")
	for key, want := range map[string]string{"way.1": `{"a":1}`, "job.1": `{"b":2}`} {
		await(t, two, key, want)
	}
	one.Close()
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), "way.1") || strings.Contains(string(data), "job.1") {
		t.Errorf("the file has %s, %v; want way.1, which has no expiry time, and not job.1", data, err)
	}
	other := natssite.New(t)
	three, _ := open(t, other, file)
	await(t, three, "way.1", `{"a":1}`)
	four, _ := open(t, other, "")
	await(t, four, "way.1", `{"a":1}`)
}
