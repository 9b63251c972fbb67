package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"ahprelay/auth"
)

// saveAfter is how long a change waits to be in the file, with others.
const saveAfter = 200 * time.Millisecond

// streamRecord is beside the records in a file, and names the stream that they are a copy
// of.
const streamRecord = "store"

// load takes what the file has.
func (s *Store) load() error {
	if s.cfg.File == "" {
		return nil
	}
	data, err := os.ReadFile(s.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	kept := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	if err != nil { // to begin anew might give the relay to whoever comes first
		return fmt.Errorf("%s: %s: %w; put it back from a copy, or remove it and begin anew", s.cfg.Name, s.cfg.File, err)
	}
	_ = json.Unmarshal(kept[streamRecord], &s.streamID) // of another form: not known
	delete(kept, streamRecord)
	for key, record := range kept {
		if !recordKey.MatchString(key) {
			continue
		}
		var b bytes.Buffer
		_ = json.Compact(&b, record) // it was read
		s.records[key] = &known{Record: Record{Key: key, Data: b.Bytes()}}
	}
	return nil
}

// keep writes the file when something has changed, until ctx ends.
func (s *Store) keep(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-s.save:
		case <-ctx.Done():
			select {
			case <-s.save:
			default:
				return
			}
		}
		select {
		case <-time.After(saveAfter):
		case <-ctx.Done():
		}
		if err := s.saveFile(); err != nil {
			s.cfg.Log.Error(s.cfg.Name, "error", err)
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
	kept[streamRecord], _ = json.Marshal(s.streamID) // a string cannot fail
	s.mu.Unlock()
	data, err := json.MarshalIndent(kept, "", "\t")
	if err != nil {
		return err
	}
	return auth.ReplaceFile(s.cfg.File, append(data, '\n'), 0o600)
}
