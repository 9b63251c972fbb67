package notify

import (
	"encoding/json"
	"fmt"
	"sync"

	webpush "github.com/SherClockHolmes/webpush-go"

	"ahprelay/broker/store"
)

// A PushKey is a relay key for push services (VAPID, RFC 8292), in base64.
type PushKey struct {
	Public  string `json:"public"`
	Private string `json:"private"`
}

func newPushKey() (*PushKey, error) {
	private, public, err := webpush.GenerateVAPIDKeys()
	return &PushKey{public, private}, err
}

const pushKeysRecord = "push.keys"

// A pushKeyring holds the keys for push services, which relays share.
type pushKeyring struct {
	records Records

	mu      sync.Mutex // guards the fields below
	ensured bool       // the record has a key
	keys    []PushKey  // browsers subscribe with the first key
}

// ensure makes the first key if the record has none.
func (k *pushKeyring) ensure() error {
	k.mu.Lock()
	ensured := k.ensured
	k.mu.Unlock()
	if ensured {
		return nil
	}
	err := k.records.Update(pushKeysRecord, func(old []byte) ([]byte, error) {
		var keys []PushKey
		if old != nil {
			if err := json.Unmarshal(old, &keys); err != nil {
				return nil, fmt.Errorf("record %s: %w", pushKeysRecord, err)
			}
		}
		if len(keys) == 0 {
			key, err := newPushKey()
			if err != nil {
				return nil, err
			}
			keys = append(keys, *key)
		}
		return json.Marshal(keys)
	})
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ensured = true
	return nil
}

func (k *pushKeyring) apply(r store.Record) {
	var keys []PushKey
	if json.Unmarshal(r.Data, &keys) != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys = keys
}

// current returns the public key for new subscriptions, or "" if it is not known yet.
func (k *pushKeyring) current() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.keys) == 0 {
		return ""
	}
	return k.keys[0].Public
}

// find returns the key pair with which a browser has subscribed, or the first if public is
// "".
func (k *pushKeyring) find(public string) (PushKey, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.keys {
		if key.Public == public || public == "" {
			return key, true
		}
	}
	return PushKey{}, false
}
