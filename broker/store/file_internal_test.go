package store

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"ahprelay/internal/signal"
)

// TestClosedStoreKeepsItsLastChange makes a change just before Close. The file must contain it.
func TestClosedStoreKeepsItsLastChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "people.json")
	s := &Store{
		cfg:     Config{Name: "people", File: file},
		save:    make(chan struct{}, 1),
		records: map[string]*known{"device.a": {Record: Record{Key: "device.a", Data: json.RawMessage(`"ada's"`)}}},
	}
	ctx, close := context.WithCancel(t.Context())
	close()
	signal.Send(s.save)
	s.keep(ctx)
	again := &Store{cfg: s.cfg, records: map[string]*known{}}
	if err := again.load(); err != nil {
		t.Fatal(err)
	}
	if k := again.records["device.a"]; k == nil || string(k.Data) != `"ada's"` {
		t.Errorf("after Close, the file has the records %v; want device.a", again.records)
	}
}
