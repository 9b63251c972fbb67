package waiting

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/waiting"
	"ahprelay/internal/atomicfile"
	"ahprelay/internal/sealed"
)

// Bounds of a Book.
const (
	MaxEntries = 512 // most entries in the journal; a new entry replaces a reported entry
	maxName    = 100 // longest name of a device, in bytes

	keepOver  = 24 * time.Hour     // how long a reported entry is kept after its item has expired
	keepStuck = 8 * 24 * time.Hour // the same for an unreported entry; by then, relays have forgotten the entry's item
)

// A Device is a device on which a person may leave items.
type Device struct {
	Subject string    `json:"subject"`
	ID      string    `json:"id"`   // the device's ID at the relay
	Keys    string    `json:"keys"` // the device's public keys in base64url: see sealed.ReadIdentity
	Name    string    `json:"name"`
	At      time.Time `json:"at"`

	Vouch *Vouch `json:"vouch,omitempty"` // nil: the host is not sealed, and a relay has named the device
}

// A Vouch has the keys and grants of a device that has given its keys to a sealed host inside
// a sealed connection. The host-agent judges the grants at each delivery.
type Vouch struct {
	Identity []byte      `json:"identity"` // see sealed.ReadIdentity
	Grants   []string    `json:"grants,omitempty"`
	Wanted   auth.Access `json:"wanted,omitempty"` // highest level that the device asked for
}

// equal reports whether two devices have the same vouch.
func (v *Vouch) equal(o *Vouch) bool {
	if v == nil || o == nil {
		return v == o
	}
	return bytes.Equal(v.Identity, o.Identity) && slices.Equal(v.Grants, o.Grants) && v.Wanted == o.Wanted
}

// equal reports whether two devices are equal apart from their times.
func (d Device) equal(o Device) bool {
	return o.ID == d.ID && o.Subject == d.Subject && o.Keys == d.Keys && o.Name == d.Name && o.Vouch.equal(d.Vouch)
}

// A Stage is the last step that an entry records.
type Stage string

const (
	Creating Stage = "creating"
	Sending  Stage = "sending"
	Over     Stage = "over"
)

// An Entry is the journal's entry of an item.
type Entry struct {
	Stage    Stage           `json:"stage"`
	Version  uint64          `json:"version"`
	Expires  int64           `json:"expires"` // when the item expires, in Unix milliseconds
	Result   *waiting.Result `json:"result,omitempty"`
	Reported bool            `json:"reported,omitempty"`
}

// file is the JSON of a Book's file.
type file struct {
	Secret  []byte           `json:"secret"`
	Devices []Device         `json:"devices"` // known devices, oldest first
	Entries map[string]Entry `json:"entries"` // entries of the journal, by item
}

// A Book is the lasting memory of one host.
type Book struct {
	Fence atomicfile.Fence

	path   string
	strict bool
	secret sealed.Secret

	mu   sync.Mutex // guards kept, and the file
	kept file
}

// FileName returns the name of a host's file in the state directory.
func FileName(tenant, host string) string { return "waiting." + tenant + "." + host + ".json" }

// Open reads or creates the file. An unreadable file is an error, because without the
// journal an item could be delivered twice. strict makes a strict Book.
func Open(dir, tenant, host string, strict bool) (*Book, error) {
	b := &Book{strict: strict, path: filepath.Join(dir, FileName(tenant, host))}
	exists, err := atomicfile.ReadJSON(b.path, &b.kept)
	switch {
	case !exists:
		if b.secret, err = sealed.NewSecret(); err == nil {
			b.kept.Secret = b.secret.Private()
			err = os.MkdirAll(dir, 0o700)
		}
	case err == nil:
		b.secret, err = sealed.ReadSecret(b.kept.Secret)
	}
	if b.kept.Entries == nil {
		b.kept.Entries = map[string]Entry{}
	}
	if err == nil && !exists {
		err = b.saveLocked()
	}
	if _, unusable := errors.AsType[*fs.PathError](err); unusable {
		return nil, fmt.Errorf("waiting items: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("waiting items: %s: %w; remove the file to begin anew: items in delivery at that moment may be delivered again", b.path, err)
	}
	return b, nil
}

// Reread reads the file again, because a previous host-agent may have changed it until this one got
// the host. It fails if the host has a different key now.
func (b *Book) Reread() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var kept file
	exists, err := atomicfile.ReadJSON(b.path, &kept)
	if err == nil && (!exists || !bytes.Equal(kept.Secret, b.kept.Secret)) {
		err = errors.New("the key is not the one from the start of this host-agent: start it again")
	}
	if err != nil {
		return fmt.Errorf("waiting items: %s: %w", b.path, err)
	}
	if b.kept = kept; kept.Entries == nil {
		b.kept.Entries = map[string]Entry{}
	}
	return nil
}

func (b *Book) saveLocked() error { return b.Fence.ReplaceJSON(b.path, &b.kept, "") }

// Secret returns the host's key.
func (b *Book) Secret() sealed.Secret { return b.secret }

// PublicKey returns the host's public key in base64url.
func (b *Book) PublicKey() string {
	key := b.secret.Public()
	return base64.RawURLEncoding.EncodeToString(key[:])
}

// Blind returns the key for the IDs of sessions in a person's items at a sealed host: see
// waiting.BlindID.
func (b *Book) Blind(subject string) []byte {
	mac := hmac.New(sha256.New, b.secret.Private())
	mac.Write([]byte("sessions of waiting items\x00" + subject))
	return mac.Sum(nil)
}

// errKeys reports malformed keys of a device.
var errKeys = errors.New("keys: want base64url of an X25519 key and a point on P-256")

// ReadKeys decodes a device's keys.
func ReadKeys(text string) (sealed.Identity, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return sealed.Identity{}, errKeys
	}
	i, err := sealed.ReadIdentity(raw)
	if err != nil {
		return i, errKeys
	}
	return i, nil
}

// Enter stores a device's keys in place of its earlier ones, and returns all devices of its
// person, including this one. Above the bounds, the oldest devices are removed.
func (b *Book) Enter(d Device) ([]Device, error) {
	if _, err := ReadKeys(d.Keys); err != nil {
		return nil, err
	}
	d.Name = strings.ToValidUTF8(d.Name[:min(len(d.Name), maxName)], "")
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.kept.Devices
	if !slices.ContainsFunc(before, d.equal) {
		b.kept.Devices = slices.DeleteFunc(slices.Clone(before), func(o Device) bool { return o.ID == d.ID || o.Keys == d.Keys && o.Subject == d.Subject })
		own := 1
		for i := len(b.kept.Devices) - 1; i >= 0; i-- {
			if b.kept.Devices[i].Subject != d.Subject {
				continue
			}
			if own++; own > waiting.MaxOwn {
				b.kept.Devices = slices.Delete(b.kept.Devices, i, i+1)
			}
		}
		if n := len(b.kept.Devices) + 1 - waiting.MaxDevices; n > 0 {
			b.kept.Devices = slices.Delete(b.kept.Devices, 0, n)
		}
		b.kept.Devices = append(b.kept.Devices, d)
		if err := b.saveLocked(); err != nil {
			b.kept.Devices = before
			return nil, err
		}
	}
	var list []Device
	for _, o := range b.kept.Devices {
		if o.Subject == d.Subject && (o.Vouch == nil) == (d.Vouch == nil) {
			list = append(list, o)
		}
	}
	return list, nil
}

// Devices returns the IDs of all devices that a relay has named.
func (b *Book) Devices() (ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.kept.Devices {
		if d.Vouch == nil {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// Drop removes devices that a relay has named.
func (b *Book) Drop(ids []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.kept.Devices
	left := slices.DeleteFunc(slices.Clone(before), func(d Device) bool { return d.Vouch == nil && slices.Contains(ids, d.ID) })
	if len(left) == len(before) {
		return nil
	}
	b.kept.Devices = left
	err := b.saveLocked()
	if err != nil {
		b.kept.Devices = before // the next round asks for them again
	}
	return err
}

// Signer returns the keys of a person's device. It returns false unless the device with the
// relay's id has this fingerprint.
func (b *Book) Signer(subject, id, fingerprint string) (sealed.Identity, bool) {
	_, keys, ok := b.find(fingerprint, func(d Device) bool { return d.Subject == subject && d.ID == id && d.Vouch == nil })
	return keys, ok
}

// Vouched returns the device of a sealed host whose keys have this fingerprint.
func (b *Book) Vouched(fingerprint string) (d Device, keys sealed.Identity, ok bool) {
	return b.find(fingerprint, func(d Device) bool { return d.Vouch != nil })
}

// find returns the first eligible device whose keys have this fingerprint.
func (b *Book) find(fingerprint string, eligible func(d Device) bool) (Device, sealed.Identity, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.kept.Devices {
		if !eligible(d) {
			continue
		}
		if keys, err := ReadKeys(d.Keys); err == nil && keys.Fingerprint().String() == fingerprint {
			return d, keys, true
		}
	}
	return Device{}, sealed.Identity{}, false
}

// Entry returns an item's entry.
func (b *Book) Entry(id string) (Entry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.kept.Entries[id]
	return e, ok
}

// ErrFull reports that the journal is full.
var ErrFull = errors.New("too many results of waiting items are not reported yet")

// Write writes an item's entry durably. It removes old entries. If the journal is full, it
// also removes the reported entry that expires first, because relays do not offer its item
// again. A strict Book removes no such entry.
func (b *Book) Write(id string, e Entry, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	was, had := b.kept.Entries[id]
	if !had {
		if b.makeRoomLocked(now); len(b.kept.Entries) >= MaxEntries {
			return ErrFull
		}
	}
	b.kept.Entries[id] = e
	err := b.saveLocked()
	if err != nil {
		if delete(b.kept.Entries, id); had {
			b.kept.Entries[id] = was
		}
	}
	return err
}

func (b *Book) makeRoomLocked(now time.Time) {
	first := ""
	for id, e := range b.kept.Entries {
		over := now.Sub(time.UnixMilli(e.Expires))
		switch {
		case over > keepStuck, e.Reported && over > keepOver:
			delete(b.kept.Entries, id)
		case e.Reported && !b.strict && (first == "" || e.Expires < b.kept.Entries[first].Expires):
			first = id
		}
	}
	if len(b.kept.Entries) >= MaxEntries {
		delete(b.kept.Entries, first)
	}
}

// Unreported returns the items whose results may be unknown to relays.
func (b *Book) Unreported() (ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, e := range b.kept.Entries {
		if e.Stage == Over && !e.Reported {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
