package connect

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
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
	"ahprelay/internal/atomicfile"
)

const localPrefix = "local_"

// maxTokens bounds the local tokens.
const maxTokens = 256

// A LocalToken permits one client program to use the endpoint.
type LocalToken struct {
	Name  string      `json:"name"` // name of the client program
	Token string      `json:"token"`
	Hosts []string    `json:"hosts,omitempty"` // patterns; none: all
	Level auth.Access `json:"level,omitempty"` // "": the person's own, at most operate
	Made  time.Time   `json:"made"`
}

func (t *LocalToken) opens(host string) bool {
	return len(t.Hosts) == 0 || auth.MatchesAny(t.Hosts, host)
}

// Tokens are the local tokens, in a file with mode 0600 or in memory. Methods read the file
// again if it has changed, so changes by another ahp-connect command take effect at the next
// call.
type Tokens struct {
	path string // "": in memory

	mu   sync.Mutex // guards the fields below
	list []LocalToken
	read time.Time // modification time of the read file
	size int64
}

// NewTokens returns the tokens in a file, which may be missing. With the path "", tokens
// are only in memory.
func NewTokens(path string) *Tokens { return &Tokens{path: path} }

// refreshLocked reads a changed file.
func (t *Tokens) refreshLocked() error {
	if t.path == "" {
		return nil
	}
	info, err := os.Stat(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		t.list, t.read, t.size = nil, time.Time{}, 0
		return nil
	}
	if err != nil || info.ModTime().Equal(t.read) && info.Size() == t.size {
		return err
	}
	data, err := os.ReadFile(t.path)
	if err != nil {
		return err
	}
	var list []LocalToken
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("%s is damaged: delete it, then make the tokens again with ahp-connect token", t.path)
	}
	t.list, t.read, t.size = list, info.ModTime(), info.Size()
	return nil
}

// saveLocked writes the file. The next call reads it again.
func (t *Tokens) saveLocked() error {
	if t.path == "" {
		return nil
	}
	t.read = time.Time{}
	return atomicfile.ReplaceJSON(t.path, t.list, "  ")
}

// List returns all tokens by name.
func (t *Tokens) List() ([]LocalToken, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.refreshLocked()
	return slices.Clone(t.list), err
}

// change calls f while no other process changes the file, and then saves the file.
func (t *Tokens) change(f func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	unlock, err := t.lockFile()
	if err != nil {
		return err
	}
	defer unlock()
	if err := t.refreshLocked(); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return t.saveLocked()
}

// lockFile waits until no other process changes the file.
func (t *Tokens) lockFile() (unlock func(), err error) {
	if t.path == "" {
		return func() {}, nil
	}
	if err := os.MkdirAll(filepath.Dir(t.path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(t.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := auth.AwaitLock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is locked: %w", t.path, err), f.Close())
	}
	return func() { _ = auth.CloseLocked(f) }, nil
}

// Make creates the token for a client program, and replaces its previous token.
func (t *Tokens) Make(name string, hosts []string, level auth.Access) (made LocalToken, err error) {
	err = t.change(func() error { made, err = t.makeLocked(name, hosts, level); return err })
	return made, err
}

func (t *Tokens) makeLocked(name string, hosts []string, level auth.Access) (LocalToken, error) {
	if name == "" || len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return LocalToken{}, errors.New("a token's name has 1 to 64 bytes, without control characters")
	}
	if err := auth.CheckPatterns("host", hosts); err != nil {
		return LocalToken{}, err
	}
	t.list = slices.DeleteFunc(t.list, func(o LocalToken) bool { return o.Name == name })
	if len(t.list) >= maxTokens {
		return LocalToken{}, fmt.Errorf("there are %d local tokens: revoke one with ahp-connect token --revoke", maxTokens)
	}
	made := LocalToken{name, localPrefix + rand.Text() + rand.Text(), hosts, level, time.Now().UTC().Truncate(time.Second)}
	t.list = append(t.list, made)
	slices.SortFunc(t.list, func(a, b LocalToken) int { return strings.Compare(a.Name, b.Name) })
	return made, nil
}

// For returns a client program's token, which must open the host. If the program has none, For
// makes one for all hosts. It replaces no limited token, because the program would get wider
// rights.
func (t *Tokens) For(name, host string) (token LocalToken, err error) {
	list, err := t.List()
	if err != nil {
		return LocalToken{}, err
	}
	known := func(list []LocalToken) bool {
		i := slices.IndexFunc(list, func(o LocalToken) bool { return o.Name == name })
		if i >= 0 {
			token = list[i]
		}
		return i >= 0
	}
	if !known(list) {
		err = t.change(func() error {
			if !known(t.list) { // no other process has made it meanwhile
				token, err = t.makeLocked(name, nil, "")
			}
			return err
		})
	}
	if err == nil && !token.opens(host) {
		err = fmt.Errorf(`the local token of %q does not open %s: name a different program, or replace the token with "ahp-connect token %s"`, name, cmp.Or(host, "all hosts"), name)
	}
	return token, err
}

// Revoke removes a client program's token.
func (t *Tokens) Revoke(name string) error {
	return t.change(func() error {
		before := len(t.list)
		t.list = slices.DeleteFunc(t.list, func(o LocalToken) bool { return o.Name == name })
		if len(t.list) == before {
			return fmt.Errorf("there is no token for %q: ahp-connect token lists them", name)
		}
		return nil
	})
}

// RenewAll replaces the secrets of all tokens.
func (t *Tokens) RenewAll() (renewed int, err error) {
	err = t.change(func() error {
		for i := range t.list {
			t.list[i].Token = localPrefix + rand.Text() + rand.Text()
		}
		renewed = len(t.list)
		return nil
	})
	return renewed, err
}

// Match returns the token with a secret, in constant time.
func (t *Tokens) Match(secret string) (found LocalToken, ok bool) {
	list, err := t.List()
	if err != nil {
		return LocalToken{}, false
	}
	given := sha256.Sum256([]byte(secret))
	for _, one := range list {
		own := sha256.Sum256([]byte(one.Token))
		if subtle.ConstantTimeCompare(given[:], own[:]) == 1 {
			found, ok = one, true
		}
	}
	return found, ok
}

// Path returns the tokens' file.
func (t *Tokens) Path() string { return t.path }
