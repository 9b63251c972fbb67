package auth

import (
	"cmp"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"ahprelay/internal/atomicfile"
)

// Keys can be rotated. The first set of keys is in the key directory itself, and each later set
// in a subdirectory:
//
//	token.pem, operator.nk, system.nk, account.nk     the first set
//	retired.json                                      time when the first set was retired
//	set-<id>/token.pem, operator.nk, account.nk       a later set
//	set-<id>/set.json                                 when it was made, and when it begins to sign
//
// Signatures by any set are valid. New signatures come from the newest set whose signing time has
// arrived. By that time, all relays and host-agents know the set. Links, and the NATS users of
// relays, use the oldest set, because every host-agent that can connect, and every NATS server,
// knows it.
//
// NATS accounts keep the names that the first set gave them. When the first set is retired, its
// users are revoked, and servers that start later accept only users of the remaining sets
// (signing keys under a strict operator). A running server cannot change its operator.
const (
	setPrefix   = "set-"
	setFile     = "set.json"
	retiredFile = "retired.json"

	// maxSets is the largest number of sets. It is small because a host-agent's token
	// names the key of each set.
	maxSets = 4
)

// A keySet is a set of keys that were made together.
type keySet struct {
	id          string
	first       bool
	made, signs time.Time

	token     ed25519.PrivateKey
	tokenID   string // kid in the header of signed tokens
	challenge []byte // MAC key of challenges
	canvases  []byte // MAC key of canvas names
	signIns   []byte // MAC key of sign-ins at identity providers

	operator natsKey // signs accounts: the first set's operator, or a later set's signing key
	account  []byte  // secret from which user signing keys are derived
}

type keySets struct {
	all     []*keySet // oldest first; never empty
	retired time.Time // when the first set was retired; zero: it was not
}

// A SetInfo describes a set of keys.
type SetInfo struct {
	ID    string
	Made  time.Time // when the set was made; zero: the first set
	Signs time.Time // when the set begins to sign; zero: always
	State string    // for people
}

// newKeySet returns a set from the keys in files, and derives its other keys.
func newKeySet(token ed25519.PrivateKey, operator, account natsKey) (*keySet, error) {
	s := &keySet{token: token, tokenID: thumbprint(token.Public().(ed25519.PublicKey)), operator: operator}
	sum := sha256.Sum256(token.Public().(ed25519.PublicKey))
	s.id = hex.EncodeToString(sum[:4])
	var err error
	if s.challenge, err = hkdf.Key(sha256.New, token.Seed(), nil, "ahp-relay challenge v1", sha256.Size); err != nil {
		return nil, fmt.Errorf("derive the challenge key: %w", err)
	}
	if s.canvases, err = hkdf.Key(sha256.New, token.Seed(), nil, "ahp-relay canvas names v1", sha256.Size); err != nil {
		return nil, fmt.Errorf("derive the key for canvas names: %w", err)
	}
	if s.signIns, err = hkdf.Key(sha256.New, token.Seed(), nil, "ahp-relay sign-in v1", sha256.Size); err != nil {
		return nil, fmt.Errorf("derive the key for sign-ins: %w", err)
	}
	if s.account, err = rawSeed(account); err != nil {
		return nil, fmt.Errorf("derive account keys: %w", err)
	}
	return s, nil
}

func (s *keySet) public() ed25519.PublicKey { return s.token.Public().(ed25519.PublicKey) }

// signerOf returns the key with which this set signs an account's users.
func (s *keySet) signerOf(account natsKey) (natsKey, error) {
	if s.first {
		return account, nil
	}
	return deriveNkey(s.account, nkeys.PrefixByteAccount, "ahp-relay account signing v1\x00"+account.public)
}

func deriveNkey(secret []byte, kind nkeys.PrefixByte, info string) (natsKey, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, info, nkeySeed)
	if err != nil {
		return natsKey{}, fmt.Errorf("derive a NATS key: %w", err)
	}
	pair, err := nkeys.FromRawSeed(kind, seed)
	if err != nil {
		return natsKey{}, fmt.Errorf("derive a NATS key: %w", err)
	}
	public, err := pair.PublicKey()
	return natsKey{pair, public}, err
}

// oldest returns the oldest set, which every host-agent knows.
func (k *Keys) oldest() *keySet { return k.sets.Load().all[0] }

func (k *Keys) signing() *keySet {
	sets, now := k.sets.Load().all, k.now()
	for _, s := range slices.Backward(sets) {
		if !s.signs.After(now) {
			return s
		}
	}
	return sets[0]
}

// setOf returns the set whose token key has the given kid, or nil.
func (k *Keys) setOf(kid string) *keySet {
	for _, s := range k.sets.Load().all {
		if s.tokenID == kid {
			return s
		}
	}
	return nil
}

// Retired reports whether a token's key has been retired since the token was verified. signer
// is the token's [Client.Signer].
func (k *Keys) Retired(signer string) bool { return signer != "" && k.setOf(signer) == nil }

// FirstRetired reports whether the first set is retired.
func (k *Keys) FirstRetired() bool { return !k.oldest().first }

// SetIDs returns the IDs of the sets, oldest first.
func (k *Keys) SetIDs() (ids []string) {
	for _, s := range k.sets.Load().all {
		ids = append(ids, s.id)
	}
	return ids
}

// List describes the sets, oldest first.
func (k *Keys) List() (list []SetInfo) {
	signing := k.signing()
	for _, s := range k.sets.Load().all {
		info := SetInfo{ID: s.id, Made: s.made, Signs: s.signs, State: "verifies"}
		switch {
		case s == signing:
			info.State = "signs"
		case s.signs.After(k.now()):
			info.State = "will sign"
		}
		list = append(list, info)
	}
	return list
}

// Reload reads the sets in the data directory again, and reports whether they have
// changed. After an error, the previous sets remain in use.
func (k *Keys) Reload() (changed bool, err error) {
	fresh, err := readKeys(k.dir)
	if err != nil {
		return false, fmt.Errorf("keys: %w", err)
	}
	if fresh.system.public != k.system.public || fresh.account.public != k.account.public {
		return false, errors.New("keys: the directory now has a different relay's keys: account names differ")
	}
	was, now := k.sets.Load(), fresh.sets.Load()
	same := func(a, b *keySet) bool { return a.id == b.id && a.signs.Equal(b.signs) }
	if slices.EqualFunc(was.all, now.all, same) && was.retired.Equal(now.retired) {
		return false, nil
	}
	k.sets.Store(now)
	return true, nil
}

type setTimes struct {
	Made  time.Time `json:"made"`
	Signs time.Time `json:"signs"`
}

// readSets reads all sets except the first.
func readSets(dir string) (sets []*keySet, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, setPrefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		s, err := readSet(path)
		if err != nil {
			if _, gone := os.Stat(path); errors.Is(gone, fs.ErrNotExist) {
				continue // it was just retired
			}
			return nil, err
		}
		sets = append(sets, s)
	}
	slices.SortFunc(sets, func(a, b *keySet) int {
		return cmp.Or(a.made.Compare(b.made), strings.Compare(a.id, b.id))
	})
	return sets, nil
}

func readSet(path string) (*keySet, error) {
	token, err := readToken(filepath.Join(path, tokenFile))
	if err != nil {
		return nil, err
	}
	operator, err := readNkey(filepath.Join(path, operatorFile), nkeys.PrefixByteOperator)
	if err != nil {
		return nil, err
	}
	account, err := readNkey(filepath.Join(path, accountFile), nkeys.PrefixByteAccount)
	if err != nil {
		return nil, err
	}
	s, err := newKeySet(token, operator, account)
	if err != nil {
		return nil, err
	}
	var times setTimes
	if err := readJSON(filepath.Join(path, setFile), &times); err != nil {
		return nil, err
	}
	s.made, s.signs = times.Made, times.Signs
	return s, nil
}

func readJSON(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	return nil
}

// AddKeys adds a set of keys to a data directory. The set begins to sign at the time
// signs.
func AddKeys(dir string, made, signs time.Time) (SetInfo, error) {
	keys, err := ExistingKeys(dir)
	if err != nil {
		return SetInfo{}, err
	}
	if n := len(keys.SetIDs()); n >= maxSets {
		return SetInfo{}, fmt.Errorf("there are already %d sets of keys; retire a set first (relay keys retire)", n)
	}
	path := filepath.Join(dir, keyDir)
	tmp, err := os.MkdirTemp(path, "new-")
	if err != nil {
		return SetInfo{}, fmt.Errorf("add keys: %w", err)
	}
	s, err := writeSet(tmp, setTimes{made.UTC(), signs.UTC()})
	if err == nil {
		err = atomicfile.KeepOwner(path, tmp)
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(path, setPrefix+s.id))
	}
	if err != nil {
		return SetInfo{}, errors.Join(fmt.Errorf("add keys: %w", err), os.RemoveAll(tmp))
	}
	return SetInfo{ID: s.id, Made: s.made, Signs: s.signs}, atomicfile.SyncDir(path)
}

func writeSet(dir string, times setTimes) (*keySet, error) {
	if err := writeKeys(dir, operatorFile, accountFile); err != nil {
		return nil, err
	}
	data, err := json.Marshal(times)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Create(filepath.Join(dir, setFile), append(data, '\n'), 0o600); err != nil {
		return nil, err
	}
	return readSet(dir)
}

// overlap is the shortest time between a set's first signature and the retirement of the
// previous set. After this time, host-agents have no NATS credentials that the previous set
// signed.
const overlap = DefaultAgentTTL

// RetireKeys makes a set of keys invalid. It never retires the last set. Without force, it
// does not retire a set that signs, unless a later set has signed for overlap.
func RetireKeys(dir, id string, now time.Time, force bool) error {
	keys, err := ExistingKeys(dir)
	if err != nil {
		return err
	}
	sets := keys.sets.Load().all
	i := slices.IndexFunc(sets, func(s *keySet) bool { return s.id == id })
	if i < 0 {
		return fmt.Errorf("no keys %s; want %s", id, strings.Join(keys.SetIDs(), ", "))
	}
	if len(sets) == 1 {
		return fmt.Errorf("%s are the only keys; add a set first (relay keys add)", id)
	}
	later := func(s *keySet) bool { return now.Sub(s.signs) >= overlap }
	if !force && sets[i].signs.Before(now) && !slices.ContainsFunc(sets[i+1:], later) {
		return fmt.Errorf("%s are in use: a later set must have signed for %v first; --force retires them now, and invalidates everything that they signed", id, overlap)
	}
	path := filepath.Join(dir, keyDir)
	if !sets[i].first {
		retired := filepath.Join(path, "retired-"+id) // the set is gone at once, also after a crash
		if err := os.Rename(filepath.Join(path, setPrefix+id), retired); err != nil {
			return err
		}
		return errors.Join(os.RemoveAll(retired), atomicfile.SyncDir(path))
	}
	retired := filepath.Join(path, retiredFile)
	if err := atomicfile.ReplaceJSON(retired, now.UTC(), ""); err != nil {
		return err
	}
	if err := atomicfile.KeepOwner(path, retired); err != nil {
		return err
	}
	return errors.Join(os.Remove(filepath.Join(path, tokenFile)), os.Remove(filepath.Join(path, operatorFile)), atomicfile.SyncDir(path))
}
