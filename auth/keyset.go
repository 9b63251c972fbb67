package auth

import (
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
)

// Keys can be rolled. The first set lies in the directory of keys itself, those that
// come after it in directories of their own below:
//
//	token.pem, operator.nk, system.nk, account.nk     the first
//	retired.json                                      the first is no good any more: since when
//	set-<id>/token.pem, operator.nk, account.nk       another
//	set-<id>/set.json                                 when it was made, and from when it signs
//
// What any set has signed is good. New things are signed by the newest whose time has
// come, which by then all relays and host-agents know. Links, and relays among
// themselves, go by the oldest, which every host-agent knows that could come at all.
//
// NATS accounts are named by the first set for ever. When it is retired, the users that
// it has signed are cut off, and servers that start from then on take those of the other
// sets only (keys for signing, under an operator that is strict about them). One that
// runs cannot be told that.
const (
	setPrefix   = "set-"
	setFile     = "set.json"
	retiredFile = "retired.json"

	// maxSets is how many sets there can be at a time: a host-agent's token names the
	// key of each.
	maxSets = 4
)

// DefaultSignAfter is how long new keys are known before anything is signed with them:
// host-agents hear of them when they fetch credentials for NATS, which last 15 minutes.
const DefaultSignAfter = time.Hour

// A keySet is keys that were made together.
type keySet struct {
	id          string
	first       bool
	made, signs time.Time

	token     ed25519.PrivateKey
	tokenID   string // kid of what token signs
	challenge []byte // MAC key of challenges
	canvases  []byte // MAC key of canvases' names
	signIns   []byte // MAC key of sign-ins at identity providers

	operator natsKey // who says which accounts there are: of the first set the operator, of others a key for signing
	account  []byte  // secret from which keys for signing users are derived
}

// keySets are all that are good.
type keySets struct {
	all     []*keySet // the oldest first; never empty
	retired time.Time // when the first set was; zero: it is there
}

// A SetInfo is what is to be known of a set of keys.
type SetInfo struct {
	ID    string
	Made  time.Time // zero for the first
	Signs time.Time // from when new things are signed with it; zero: always
	State string    // for people
}

// newKeySet derives what follows from the keys read from files.
func newKeySet(token ed25519.PrivateKey, operator, account natsKey) (*keySet, error) {
	s := &keySet{token: token, tokenID: thumbprint(token.Public().(ed25519.PublicKey)), operator: operator}
	sum := sha256.Sum256(token.Public().(ed25519.PublicKey))
	s.id = hex.EncodeToString(sum[:4])
	var err error
	if s.challenge, err = hkdf.Key(sha256.New, token.Seed(), nil, "ahp-relay challenge v1", sha256.Size); err != nil {
		return nil, fmt.Errorf("derive the challenge key: %w", err)
	}
	if s.canvases, err = hkdf.Key(sha256.New, token.Seed(), nil, "ahp-relay canvas names v1", sha256.Size); err != nil {
		return nil, fmt.Errorf("derive the key of canvases' names: %w", err)
	}
	if s.signIns, err = hkdf.Key(sha256.New, token.Seed(), nil, "ahp-relay sign-in v1", sha256.Size); err != nil {
		return nil, fmt.Errorf("derive the key of sign-ins: %w", err)
	}
	if s.account, err = rawSeed(account); err != nil {
		return nil, fmt.Errorf("derive keys of accounts: %w", err)
	}
	return s, nil
}

func (s *keySet) public() ed25519.PublicKey { return s.token.Public().(ed25519.PublicKey) }

// signerOf returns the key that signs users of an account.
func (s *keySet) signerOf(account natsKey) (natsKey, error) {
	if s.first {
		return account, nil
	}
	return deriveNkey(s.account, nkeys.PrefixByteAccount, "ahp-relay account signing v1\x00"+account.public)
}

// deriveNkey makes an nkey of a secret and what it is for.
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

// oldest returns the set that everybody knows.
func (k *Keys) oldest() *keySet { return k.sets.Load().all[0] }

// signing returns the set with which new things are signed.
func (k *Keys) signing() *keySet {
	sets, now := k.sets.Load().all, k.now()
	for _, s := range slices.Backward(sets) {
		if !s.signs.After(now) {
			return s
		}
	}
	return sets[0]
}

// setOf returns the set of a kid, nil if there is none.
func (k *Keys) setOf(kid string) *keySet {
	for _, s := range k.sets.Load().all {
		if s.tokenID == kid {
			return s
		}
	}
	return nil
}

// FirstRetired reports whether the first set is no good any more.
func (k *Keys) FirstRetired() bool { return !k.oldest().first }

// SetIDs returns which sets of keys there are, the oldest first.
func (k *Keys) SetIDs() (ids []string) {
	for _, s := range k.sets.Load().all {
		ids = append(ids, s.id)
	}
	return ids
}

// List says which sets of keys there are, the oldest first.
func (k *Keys) List() (list []SetInfo) {
	signing := k.signing()
	for _, s := range k.sets.Load().all {
		info := SetInfo{ID: s.id, Made: s.made, Signs: s.signs, State: "what it has signed is good"}
		switch {
		case s == signing:
			info.State = "signs"
		case s.signs.After(k.now()):
			info.State = "is made known"
		}
		list = append(list, info)
	}
	return list
}

// Reload takes the sets that are in the data directory now, and reports whether they are
// others. If they cannot be read all stays as it is.
func (k *Keys) Reload() (changed bool, err error) {
	fresh, err := readKeys(k.dir)
	if err != nil {
		return false, fmt.Errorf("keys: %w", err)
	}
	if fresh.system.public != k.system.public || fresh.account.public != k.account.public {
		return false, errors.New("keys: they are those of another relay: accounts have other names")
	}
	was, now := k.sets.Load(), fresh.sets.Load()
	same := func(a, b *keySet) bool { return a.id == b.id && a.signs.Equal(b.signs) }
	if slices.EqualFunc(was.all, now.all, same) && was.retired.Equal(now.retired) {
		return false, nil
	}
	k.sets.Store(now)
	return true, nil
}

// setTimes is what is in set.json.
type setTimes struct {
	Made  time.Time `json:"made"`
	Signs time.Time `json:"signs"`
}

// readSets reads the sets beside the first.
func readSets(dir string) (sets []*keySet, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, setPrefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		s, err := readSet(path)
		if errors.Is(err, fs.ErrNotExist) {
			if _, gone := os.Stat(path); errors.Is(gone, fs.ErrNotExist) {
				continue // it was just retired
			}
		}
		if err != nil {
			return nil, err
		}
		sets = append(sets, s)
	}
	slices.SortFunc(sets, func(a, b *keySet) int {
		if c := a.made.Compare(b.made); c != 0 {
			return c
		}
		return strings.Compare(a.id, b.id)
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

// AddKeys makes another set of keys in a data directory, which signs from the given time
// on.
func AddKeys(dir string, made, signs time.Time) (SetInfo, error) {
	keys, err := ExistingKeys(dir)
	if err != nil {
		return SetInfo{}, err
	}
	if n := len(keys.SetIDs()); n >= maxSets {
		return SetInfo{}, fmt.Errorf("there are %d sets of keys; retire one first", n)
	}
	path := filepath.Join(dir, keyDir)
	tmp, err := os.MkdirTemp(path, "new-")
	if err != nil {
		return SetInfo{}, fmt.Errorf("add keys: %w", err)
	}
	s, err := writeSet(tmp, setTimes{made.UTC(), signs.UTC()})
	if err == nil {
		err = os.Rename(tmp, filepath.Join(path, setPrefix+s.id))
	}
	if err != nil {
		return SetInfo{}, errors.Join(fmt.Errorf("add keys: %w", err), os.RemoveAll(tmp))
	}
	return SetInfo{ID: s.id, Made: s.made, Signs: s.signs}, syncDir(path)
}

func writeSet(dir string, times setTimes) (*keySet, error) {
	if err := writeKeys(dir, operatorFile, accountFile); err != nil {
		return nil, err
	}
	data, err := json.Marshal(times)
	if err != nil {
		return nil, err
	}
	if err := writeSynced(filepath.Join(dir, setFile), append(data, '\n'), 0o600); err != nil {
		return nil, err
	}
	return readSet(dir)
}

// overlap is how long a set must have signed until the one before can be retired: by then
// host-agents have nothing any more that the one before has signed.
const overlap = DefaultAgentTTL

// RetireKeys has a set of keys be no good any more. It refuses the last one, and, unless
// force is given, one that is still in use.
func RetireKeys(dir, id string, now time.Time, force bool) error {
	keys, err := ExistingKeys(dir)
	if err != nil {
		return err
	}
	sets := keys.sets.Load().all
	i := slices.IndexFunc(sets, func(s *keySet) bool { return s.id == id })
	if i < 0 {
		return fmt.Errorf("there are no keys %s; there are %s", id, strings.Join(keys.SetIDs(), ", "))
	}
	if len(sets) == 1 {
		return fmt.Errorf("%s are the only keys; add others first (relay keys add)", id)
	}
	later := func(s *keySet) bool { return now.Sub(s.signs) >= overlap }
	if !force && sets[i].signs.Before(now) && !slices.ContainsFunc(sets[i+1:], later) {
		return fmt.Errorf("%s are in use: later ones must have signed for %v first; --force if it must be now, which ends what was signed with these", id, overlap)
	}
	path := filepath.Join(dir, keyDir)
	if !sets[i].first {
		path = filepath.Join(path, setPrefix+id)
		return errors.Join(os.RemoveAll(path), syncDir(filepath.Dir(path)))
	}
	data, err := json.Marshal(now.UTC())
	if err != nil {
		return err
	}
	if err := ReplaceFile(filepath.Join(path, retiredFile), append(data, '\n'), 0o600); err != nil {
		return err
	}
	return errors.Join(os.Remove(filepath.Join(path, tokenFile)), os.Remove(filepath.Join(path, operatorFile)), syncDir(path))
}
