package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"ahprelay/internal/atomicfile"
	"ahprelay/internal/clock"
)

// saveAfter is the delay of a write, so several changes are written
// together.
const saveAfter = 200 * time.Millisecond

// streamRecord is the key of an additional entry in the file: the id of the
// stream.
const streamRecord = "store"

func (s *Store) load() error {
	if s.cfg.File == "" {
		return nil
	}
	kept := map[string]json.RawMessage{}
	if _, err := atomicfile.ReadJSON(s.cfg.File, &kept); err != nil { // starting empty could let the first person who asks own the relay
		return fmt.Errorf("%s: %s: %w; restore it from a copy, or remove it to start empty", s.cfg.Name, s.cfg.File, err)
	}
	_ = json.Unmarshal(kept[streamRecord], &s.streamID) // any other form counts as unknown
	delete(kept, streamRecord)
	for key, record := range kept {
		if !recordKey.MatchString(key) {
			continue
		}
		var b bytes.Buffer
		_ = json.Compact(&b, record) // cannot fail, because it was parsed
		rememberLocked(s, key, &known{Record: Record{Key: key, Data: b.Bytes()}})
	}
	return nil
}

// keep writes changes to the file until ctx ends and none is left.
func (s *Store) keep(ctx context.Context) {
	for {
		select {
		case <-s.save:
		case <-ctx.Done():
			select {
			case <-s.save:
			default:
				return
			}
		}
		clock.Sleep(ctx, saveAfter)
		if err := s.saveFile(); err != nil {
			s.cfg.Log.Error("records not saved", "store", s.cfg.Name, "error", err)
		}
	}
}

func (s *Store) saveFile() error {
	if s.cfg.File == "" {
		return nil
	}
	kept := map[string]json.RawMessage{}
	s.mu.Lock()
	for key, k := range s.records {
		if k.Data != nil && k.Until.IsZero() {
			kept[key] = k.Data
		}
	}
	kept[streamRecord], _ = json.Marshal(s.streamID) // cannot fail
	s.mu.Unlock()
	return atomicfile.ReplaceJSON(s.cfg.File, kept, "\t")
}
