package auth

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/nats-io/nkeys"

	"ahprelay/internal/atomicfile"
)

// Names of the key directory in the data directory, and of the key files in it.
const (
	keyDir       = "keys"
	tokenFile    = "token.pem"
	operatorFile = "operator.nk"
	systemFile   = "system.nk"
	accountFile  = "account.nk"
)

// maxKeyFile is the longest accepted key file in bytes. Real key files are far smaller.
const maxKeyFile = 4096

// nkeyKinds maps a file name to the kind of its nkey.
var nkeyKinds = map[string]nkeys.PrefixByte{
	operatorFile: nkeys.PrefixByteOperator,
	systemFile:   nkeys.PrefixByteAccount,
	accountFile:  nkeys.PrefixByteAccount,
}

// LoadKeys reads the keys in the data directory dir. If there are none, it creates the
// directory and the keys. Commands that start at the same time get the same keys, because
// a new set is stored only if none exists, and always completely.
//
// An error names the file and the fault: unreadable, not writable, accessible to other
// users, incomplete, or the wrong kind. Existing keys are never replaced.
func LoadKeys(dir string) (*Keys, error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("keys: %s is a file; want a directory", dir)
	}
	path := filepath.Join(dir, keyDir)
	missing, err := isMissing(path)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if missing {
		for _, name := range []string{accountFile, systemFile} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				return nil, fmt.Errorf("keys: the key files are in %[1]s itself, not in its directory %[2]s: move them into %[3]s", dir, keyDir, path)
			}
		}
		if err := makeKeys(dir, path); err != nil {
			return nil, fmt.Errorf("make keys in %s: %w; the data directory must be a place where this user can write", dir, err)
		}
	}
	return ExistingKeys(dir)
}

// ErrNoKeys reports a directory without keys.
var ErrNoKeys = errors.New("no relay's data directory")

// ExistingKeys reads the keys in the data directory dir. Unlike [LoadKeys], it creates
// none, because relays would not accept new ones. If there are none, the error wraps
// ErrNoKeys.
func ExistingKeys(dir string) (*Keys, error) {
	path := filepath.Join(dir, keyDir)
	missing, err := isMissing(path)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if missing {
		return nil, fmt.Errorf("%w: %s has no keys", ErrNoKeys, dir)
	}
	keys, err := readKeys(path)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	return keys, nil
}

func isMissing(path string) (bool, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; use the user who owns the data directory, or root", err)
	}
	return len(entries) == 0, err
}

// makeKeys writes keys into a temporary directory, and renames it to path. An empty directory
// there is replaced. If it is not empty, the rename fails, and the keys that another process has
// made there are used.
func makeKeys(dir, path string) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(dir, keyDir+".new-") // mode 0700
	if err != nil {
		return err
	}
	if err := writeKeys(tmp, operatorFile, systemFile, accountFile); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	_ = syscall.Rmdir(path) // os.Rename replaces no directory, not even an empty one
	if renameErr := os.Rename(tmp, path); renameErr != nil {
		err := os.RemoveAll(tmp)
		if missing, _ := isMissing(path); missing {
			err = errors.Join(renameErr, err)
		}
		return err
	}
	return atomicfile.SyncDir(dir)
}

// writeKeys creates a token key, and the nkeys with the given file names.
func writeKeys(dir string, names ...string) error {
	_, token, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(token)
	if err != nil {
		return err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := atomicfile.Create(filepath.Join(dir, tokenFile), block, 0o600); err != nil {
		return err
	}
	for _, name := range names {
		pair, err := nkeys.CreatePair(nkeyKinds[name])
		if err != nil {
			return err
		}
		seed, err := pair.Seed()
		if err != nil {
			return err
		}
		if err := atomicfile.Create(filepath.Join(dir, name), append(seed, '\n'), 0o600); err != nil {
			return err
		}
	}
	return atomicfile.SyncDir(dir)
}

func readKeys(dir string) (*Keys, error) {
	k, sets := &Keys{dir: dir}, &keySets{}
	rand.Read(k.run[:]) // never fails
	var err error
	if k.system, err = readNkey(filepath.Join(dir, systemFile), nkeys.PrefixByteAccount); err != nil {
		return nil, err
	}
	if k.account, err = readNkey(filepath.Join(dir, accountFile), nkeys.PrefixByteAccount); err != nil {
		return nil, err
	}
	if k.tenants, err = rawSeed(k.account); err != nil {
		return nil, fmt.Errorf("derive the tenants' secret: %w", err)
	}
	if err := readJSON(filepath.Join(dir, retiredFile), &sets.retired); errors.Is(err, fs.ErrNotExist) {
		first, err := readFirst(dir, k.account)
		if err != nil {
			return nil, err
		}
		sets.all = append(sets.all, first)
	} else if err != nil {
		return nil, err
	}
	others, err := readSets(dir)
	if err != nil {
		return nil, err
	}
	if sets.all = append(sets.all, others...); len(sets.all) == 0 {
		return nil, fmt.Errorf("%s has only retired keys", dir)
	}
	k.sets.Store(sets)
	return k, nil
}

func readFirst(dir string, account natsKey) (*keySet, error) {
	token, err := readToken(filepath.Join(dir, tokenFile))
	if err != nil {
		return nil, err
	}
	operator, err := readNkey(filepath.Join(dir, operatorFile), nkeys.PrefixByteOperator)
	if err != nil {
		return nil, err
	}
	s, err := newKeySet(token, operator, account)
	if err == nil {
		s.first = true
	}
	return s, err
}

func readToken(path string) (ed25519.PrivateKey, error) {
	data, err := readSecret(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(data)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s is damaged: want one PEM block", path)
	}
	if block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s holds a %q block; want a PKCS#8 %q", path, block.Type, "PRIVATE KEY")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: not a PKCS#8 key", path)
	}
	token, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T; want an Ed25519 key", path, key)
	}
	return token, nil
}

func readNkey(path string, kind nkeys.PrefixByte) (natsKey, error) {
	data, err := readSecret(path)
	if err != nil {
		return natsKey{}, err
	}
	pair, err := nkeys.FromSeed(bytes.TrimSpace(data))
	if err != nil {
		return natsKey{}, fmt.Errorf("%s is damaged: not an nkey seed", path)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return natsKey{}, fmt.Errorf("%s is damaged: not an nkey seed", path)
	}
	if got := nkeys.Prefix(public); got != kind {
		return natsKey{}, fmt.Errorf("%s holds the nkey of a NATS %v; want a NATS %v", path, got, kind)
	}
	return natsKey{pair, public}, nil
}

// readSecret reads a file. It returns an error if users other than the owner can access
// the file, unless it is shared with a group on purpose.
func readSecret(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing; restore it, or remove the whole directory to make new keys, which invalidates all tokens", path)
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s is not a key file", path)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 && !mayGroupUse(path, info) && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("%s has mode %04o, so other users may use it; run: chmod 600 %[1]s", path, perm)
	}
	data, err := os.ReadFile(path)
	return slices.Clip(data), err
}
