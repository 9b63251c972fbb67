package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"ahprelay/broker/store"
)

// Former are the files of a relay that kept for itself what relays share now. What is in
// them is taken over, and then they are removed. "" and a file that is not there are none.
type Former struct {
	Queue string // what was to be told
	Ways  string // what people had set
	Key   string // for push services
}

// pushKeys is the record of the keys for push services.
const pushKeys = "push.keys"

// prepare takes over what was kept formerly, and sees that there is a key for push services.
func (t *Teller) prepare() error {
	t.mu.Lock()
	prepared := t.prepared
	t.mu.Unlock()
	if prepared {
		return nil
	}
	former, err := readFormerKey(t.cfg.Former.Key)
	if err == nil {
		err = t.ensurePushKey(former)
	}
	if err == nil {
		err = t.takeFormerWays(former)
	}
	if err == nil {
		err = t.takeFormerJobs()
	}
	if err != nil {
		return err
	}
	for _, path := range []string{t.cfg.Former.Queue, t.cfg.Former.Ways, t.cfg.Former.Key} {
		if path == "" {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	t.mu.Lock()
	t.prepared = true
	t.mu.Unlock()
	return nil
}

// readFormer reads a file; nil: there is none.
func readFormer(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// readFormerKey returns the key that browsers have subscribed to at this relay.
func readFormerKey(path string) (*PushKey, error) {
	data, err := readFormer(path)
	if data == nil || err != nil {
		return nil, err
	}
	key := &PushKey{}
	if err := json.Unmarshal(data, key); err != nil || key.Public == "" || key.Private == "" {
		return nil, fmt.Errorf("key for push services: %s: no key in it", path)
	}
	return key, nil
}

// ensurePushKey has relays share one key, and use those that they had for who has subscribed
// to them.
func (t *Teller) ensurePushKey(former *PushKey) error {
	return t.cfg.Records.Update(pushKeys, func(old []byte) ([]byte, error) {
		var keys []PushKey
		if old != nil {
			if err := json.Unmarshal(old, &keys); err != nil {
				return nil, fmt.Errorf("keys for push services: %w", err)
			}
		}
		if former != nil && !slices.Contains(keys, *former) {
			keys = append(keys, *former)
		}
		if len(keys) == 0 {
			key, err := NewPushKey()
			if err != nil {
				return nil, err
			}
			keys = append(keys, *key)
		}
		return json.Marshal(keys)
	})
}

func (t *Teller) takePushKeys(r store.Record) {
	var keys []PushKey
	if json.Unmarshal(r.Data, &keys) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys = keys
}

// PushKey is what browsers subscribe to, "" if it is not known yet.
func (t *Teller) PushKey() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.keys) == 0 {
		return ""
	}
	return t.keys[0].Public
}

// pushKey returns the key that a browser has subscribed to.
func (t *Teller) pushKey(public string) (key PushKey, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range t.keys {
		if key.Public == public || public == "" {
			return key, true
		}
	}
	return key, false
}

// takeFormerWays adds what people had set at this relay to what they have.
func (t *Teller) takeFormerWays(key *PushKey) error {
	data, err := readFormer(t.cfg.Former.Ways)
	if data == nil || err != nil {
		return err
	}
	var people map[string]json.RawMessage
	if err := json.Unmarshal(data, &people); err != nil {
		return fmt.Errorf("what people have set: %s: %w; put it back from a copy, or remove it", t.cfg.Former.Ways, err)
	}
	for name, raw := range people {
		had, err := readPerson(raw)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", t.cfg.Former.Ways, name, err)
		}
		err = t.change(had.Tenant, had.Subject, func(p *Person) error {
			for _, w := range had.Ways {
				if w.Kind == WebPush && key != nil {
					w.PushKey = key.Public
				}
				if !slices.ContainsFunc(p.Ways, func(o Way) bool { return o.ID == w.ID }) && len(p.Ways) < maxWays {
					p.Ways = append(p.Ways, w)
				}
			}
			for _, m := range had.Mutes {
				if !slices.Contains(p.Mutes, m) && len(p.Mutes) < maxMutes {
					p.Mutes = append(p.Mutes, m)
				}
			}
			if p.Quiet == nil {
				p.Quiet = had.Quiet
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A formerLine is one change of the file that was the queue.
type formerLine struct {
	Put   *Job      `json:"put"`
	Retry string    `json:"retry"`
	Due   time.Time `json:"due"`
	Tries int       `json:"tries"`
	Done  string    `json:"done"`
}

// takeFormerJobs takes what was to be told, and what was told. The last line may be cut.
func (t *Teller) takeFormerJobs() error {
	data, err := readFormer(t.cfg.Former.Queue)
	if data == nil || err != nil {
		return err
	}
	jobs := map[string]*Job{}
	for n := 1; ; n++ {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			break
		}
		var l formerLine
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("events to be told: %s, line %d: %w; remove it to begin anew", t.cfg.Former.Queue, n, err)
		}
		switch job := jobs[l.Retry]; {
		case l.Put != nil:
			jobs[l.Put.ID] = l.Put
		case l.Done != "":
			delete(jobs, l.Done)
			t.queue.over(l.Done, "", "", nil)
		case job != nil:
			job.Due, job.Tries = l.Due, l.Tries
		}
		data = rest
	}
	for _, job := range jobs {
		t.queue.put(*job, time.Time{})
	}
	return t.queue.sync(context.Background())
}
