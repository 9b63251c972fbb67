package hostagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"ahprelay/auth"
	"ahprelay/internal/atomicfile"
)

// A CredentialFile holds a host-agent's credential and the key bound to it:
// JSON with "credential" and "key", the key's seed in base64. A reader of the
// file can impersonate the host, so the file's mode admits its owner only.
type CredentialFile struct {
	path  string
	relay string // the relay's base URL for the next write; "" keeps the URL in the file
}

// credential is the JSON of a CredentialFile.
type credential struct {
	Credential string `json:"credential"`
	Key        []byte `json:"key"`
	Relay      string `json:"relay,omitempty"` // a relay's base URL, if known
}

// maxCredentialFile bounds the file, in bytes, far above real sizes.
const maxCredentialFile = 64 << 10

// OpenCredentialFile opens and checks a file made by [Enroll] or [Pair].
func OpenCredentialFile(path string) (*CredentialFile, error) {
	f := &CredentialFile{path: path}
	if _, _, err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// Token returns the credential, which takes the place of an enrolment token.
func (f *CredentialFile) Token() (string, error) {
	c, _, err := f.read()
	return c.Credential, err
}

// Relay returns the base URL of the credential's relay, or "" if the file has none.
func (f *CredentialFile) Relay() string {
	c, _, err := f.read()
	if err != nil {
		return ""
	}
	return c.Relay
}

// Key returns the key bound to the credential.
func (f *CredentialFile) Key() (*auth.HostKey, error) {
	_, key, err := f.read()
	return key, err
}

// read reads the file each time, because a new enrolment may have replaced it.
func (f *CredentialFile) read() (c credential, key *auth.HostKey, err error) {
	info, err := os.Stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil, fmt.Errorf("credentials file: %w; \"host-agent enroll\" makes one", err)
	case err != nil:
		return c, nil, fmt.Errorf("credentials file: %w", err)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0:
		return c, nil, fmt.Errorf("credentials file %s has mode %04o, so other users may read it; run: chmod 600 %[1]s", f.path, info.Mode().Perm())
	case info.Size() > maxCredentialFile:
		return c, nil, fmt.Errorf("credentials file %s: not a credentials file (%d bytes)", f.path, info.Size())
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		return c, nil, fmt.Errorf("credentials file: %w", err)
	}
	if json.Unmarshal(data, &c) != nil || c.Credential == "" {
		return c, nil, fmt.Errorf("credentials file %s is damaged; want a file written by \"host-agent enroll\"", f.path)
	}
	if key, err = auth.ReadHostKey(c.Key); err != nil {
		return c, nil, fmt.Errorf("credentials file %s: %w", f.path, err)
	}
	return c, key, nil
}

// write replaces the credential atomically: a reader finds either the old
// credential or the new one.
func (f *CredentialFile) write(text string, key *auth.HostKey) error {
	relay := f.relay
	if relay == "" {
		relay = f.Relay()
	}
	if err := atomicfile.ReplaceJSON(f.path, credential{text, key.Seed(), relay}, "  "); err != nil {
		return fmt.Errorf("credentials file: %w", err)
	}
	return nil
}

// makeable returns an error if the file cannot be created. It is also an error
// if the file exists, because a valid credential may be in it.
func (f *CredentialFile) makeable() error {
	if _, err := os.Lstat(f.path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("credentials file %s exists; move it away to enroll the host again", f.path)
	}
	return f.writable()
}

// writable returns an error if the file cannot be written.
func (f *CredentialFile) writable() error {
	probe, err := os.CreateTemp(filepath.Dir(f.path), ".ahp-credential-")
	if err != nil {
		return fmt.Errorf("credentials file: %w", err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}
