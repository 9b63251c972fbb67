package remembering

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/broker/remember"
	"ahprelay/internal/atomicfile"
)

type keyFile struct {
	Runs    uint64   `json:"runs"` // how often the host-agent has started
	Key     []byte   `json:"key"`
	Signer  []byte   `json:"signer"` // the signing key, as PKCS #8
	Holders []Holder `json:"holders"`
	Blind   bool     `json:"blind,omitempty"` // the host is sealed
	Wipe    bool     `json:"wipe,omitempty"`  // relays may have records from before the host was sealed, or unsealed; remove them
}

// A Holder is a client that has received the keys. End, Rests and Class are set for sealed
// hosts, which decide themselves whether a holder is still admitted.
type Holder struct {
	auth.Holder
	End   time.Time `json:"end,omitzero"`
	Rests []string  `json:"rests,omitempty"` // grants and devices behind the authority; the holder itself is the last
	Class []byte    `json:"class,omitempty"` // see [gate.Policy.Class]; nil: the holder had several
}

// is reports whether h and to are the same holder of a sealed host: they have the same grants,
// as all viewers of one link have, or different grants for the same device with equal authority.
func (h *Holder) is(to *Holder) bool {
	if slices.Equal(h.Rests, to.Rests) {
		return true
	}
	return h.Class != nil && bytes.Equal(h.Class, to.Class) && len(h.Rests) > 0 && len(to.Rests) > 0 && h.Rests[len(h.Rests)-1] == to.Rests[len(to.Rests)-1]
}

// keyring holds the keys of a host and remembers the clients that received them.
type keyring struct {
	path  string // the file's path; "" keeps the keys in memory only
	fence atomicfile.Fence

	mu      sync.Mutex // guards the fields below
	vault   remember.Vault
	runs    uint64
	version uint64
	wipe    bool
	holders []Holder // clients that received the keys, oldest first
}

// FileName returns the name of the file with a host's keys in the state directory.
func FileName(tenant, host string) string { return "remembered." + tenant + "." + host + ".json" }

// openKeyring reads the keys, or creates them. It writes nothing, because a former host-agent may still
// change the file.
func openKeyring(dir, tenant, host string, blind bool) (*keyring, error) {
	r := &keyring{vault: remember.Vault{Tenant: tenant, Host: host, Blind: blind}}
	var kept keyFile
	if dir != "" {
		r.path = filepath.Join(dir, FileName(tenant, host))
		data, err := os.ReadFile(r.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("keys for remembered sessions: %w", err)
		}
		if err == nil && json.Unmarshal(data, &kept) != nil {
			kept = keyFile{} // new keys: devices read the records after their next connection
		}
	}
	if len(kept.Key) > 0 && kept.Blind != blind { // the host was sealed or unsealed: keys and records are replaced
		kept = keyFile{Wipe: true}
	}
	if signer, err := x509.ParsePKCS8PrivateKey(kept.Signer); err == nil {
		r.vault.Signer, _ = signer.(*ecdsa.PrivateKey)
	}
	if r.vault.Signer == nil || len(kept.Key) != remember.KeySize {
		kept = keyFile{Wipe: kept.Wipe}
		var err error
		if r.vault.Signer, err = remember.NewSigner(); err != nil {
			return nil, err
		}
	}
	r.vault.Key, r.runs, r.holders, r.wipe = kept.Key, kept.Runs+1, kept.Holders, kept.Wipe
	if r.vault.Key == nil {
		r.vault.Key = newKey()
	}
	r.version = r.runs << 32
	return r, nil
}

// passes makes later versions higher than that of a stored record: the file with the keys may be an
// older copy.
func (r *keyring) passes(version uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version = max(r.version, (version>>32+1)<<32)
}

func newKey() []byte {
	key := make([]byte, remember.KeySize)
	_, _ = rand.Read(key) // never fails
	return key
}

func (r *keyring) saveLocked() error {
	if r.path == "" {
		return nil
	}
	signer, err := x509.MarshalPKCS8PrivateKey(r.vault.Signer)
	if err != nil {
		return err
	}
	err = os.MkdirAll(filepath.Dir(r.path), 0o700)
	if err == nil {
		err = r.fence.ReplaceJSON(r.path, keyFile{r.runs, r.vault.Key, signer, r.holders, r.vault.Blind, r.wipe}, "")
	}
	if err != nil {
		return fmt.Errorf("keys for remembered sessions: %w", err)
	}
	return nil
}

func (r *keyring) seal(id string, content []byte, at time.Time) (*remember.Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version++
	record := &remember.Record{ID: id, Version: r.version, Time: at.UnixMilli()}
	return record, r.vault.Seal(record, content)
}

func (r *keyring) current() remember.Vault {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.vault
}

// wipes reports whether the relays' records must be removed before others are written.
func (r *keyring) wipes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wipe
}

// wiped records that the relays' records are removed.
func (r *keyring) wiped() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changeLocked(func() { r.wipe = false })
}

// changeLocked makes a change and writes the file. If that fails, the change is undone: a
// restarted host-agent would not know it.
func (r *keyring) changeLocked(change func()) error {
	vault, holders, wipe := r.vault, slices.Clone(r.holders), r.wipe
	change()
	err := r.saveLocked()
	if err != nil {
		r.vault, r.holders, r.wipe = vault, holders, wipe
	}
	return err
}

// renew replaces the host's key, and forgets the holders.
func (r *keyring) renew() (previous remember.Vault, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	previous = r.vault
	return previous, r.changeLocked(func() { r.vault.Key, r.holders = newKey(), nil })
}

// endEvery is the precision with which the file records the end of a holder's authority.
const endEvery = time.Hour

// hand records that a holder has received the present keys.
func (r *keyring) hand(to Holder) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(r.holders, func(h Holder) bool { return r.same(&h, &to) }); i >= 0 {
		was := &r.holders[i]
		if was.At.Before(to.At) {
			to.At = was.At // a pairing or revocation between the two ends the holder
		}
		if !bytes.Equal(was.Class, to.Class) {
			to.Class = nil // the holder's keys may exceed its present authority
		}
		late := to.End.Sub(was.End)
		if late >= 0 && late < endEvery && slices.Equal(was.Rests, to.Rests) && slices.Equal(was.Origins, to.Origins) && bytes.Equal(was.Class, to.Class) {
			to.End = was.End // avoids a write of the file for a small difference
			*was = to
			return nil
		}
		return r.changeLocked(func() { r.holders[i] = to })
	}
	if r.vault.Blind && len(r.holders) >= remember.MaxHolders {
		return fmt.Errorf("%d devices have the keys for remembered sessions: no further one gets them", len(r.holders))
	}
	return r.changeLocked(func() {
		r.holders = append(r.holders, to)
		if n := len(r.holders) - remember.MaxHolders; n > 0 {
			r.holders = slices.Delete(r.holders, 0, n)
		}
	})
}

// same reports whether two holders are the same device, or the same token if neither has a device.
func (r *keyring) same(h, to *Holder) bool {
	if r.vault.Blind {
		return h.is(to)
	}
	return h.Subject == to.Subject && h.Device == to.Device && (to.Device != "" || h.Token == to.Token)
}

func (r *keyring) all() []Holder {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.holders)
}

// Keys are the keys for one client, as in the answer to its request. Key is set for a
// client that may see all sessions. For other clients, Records holds the key of each
// record that the client may see.
type Keys struct {
	Tenant   string            `json:"tenant"`
	KeyID    string            `json:"keyId"`
	Verifier []byte            `json:"verifier"` // public key, as an uncompressed point
	Key      []byte            `json:"key,omitempty"`
	Records  map[string][]byte `json:"records,omitempty"` // keys of single records, by the records' IDs

	// Blind is true for sealed hosts. A client with Key computes the records' IDs; other
	// clients get them in IDs, by session.
	Blind bool              `json:"blind,omitempty"`
	IDs   map[string]string `json:"ids,omitempty"`
}

// Keys returns the keys for a client, and records that the client has them. A client that
// may see no session gets none.
func (k *Keeper) Keys(policy gate.Policy, to Holder) (Keys, error) {
	vault := k.keys.current()
	given := Keys{Tenant: vault.Tenant, KeyID: vault.KeyID(), Verifier: vault.Verifier(), Blind: vault.Blind}
	if policy.SeesAll() {
		given.Key = vault.Key
	} else {
		given.Records, given.IDs = map[string][]byte{}, map[string]string{}
		for _, uri := range k.uris() {
			if policy.Sees(uri) {
				id := vault.IDOf(uri)
				given.Records[id] = vault.RecordKey(id)
				if vault.Blind {
					given.IDs[uri] = id
				}
			}
		}
		if len(given.Records) == 0 {
			return given, nil
		}
	}
	if vault.Blind {
		to.Class = []byte(policy.Class())
	}
	return given, k.keys.hand(to)
}
