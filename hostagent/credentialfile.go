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
)

// A CredentialFile keeps a host-agent's credential and the key that it is
// bound to: JSON with "credential" and "key", the key's seed in base64. Only
// its owner may read it: who has it can pose as the host.
type CredentialFile struct {
	path  string
	relay string // that is written beside; "": the one that is there
}

// credential is what is in a CredentialFile.
type credential struct {
	Credential string `json:"credential"`
	Key        []byte `json:"key"`
	Relay      string `json:"relay,omitempty"` // base URL, if it is known
}

// maxCredentialFile is far more than one has, in bytes.
const maxCredentialFile = 64 << 10

// OpenCredentialFile returns a file that host-agent enroll has made, and checks
// it.
func OpenCredentialFile(path string) (*CredentialFile, error) {
	f := &CredentialFile{path: path}
	if _, _, err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// Token returns the credential, which stands in place of an enrolment token.
func (f *CredentialFile) Token() (string, error) {
	c, _, err := f.read()
	return c.Credential, err
}

// Relay returns the base URL of the relay that the credential is for, "" if the file does not say.
func (f *CredentialFile) Relay() string {
	c, _, err := f.read()
	if err != nil {
		return ""
	}
	return c.Relay
}

// Key returns the key that the credential is bound to.
func (f *CredentialFile) Key() (*auth.HostKey, error) {
	_, key, err := f.read()
	return key, err
}

// read reads the file anew, as somebody may have enrolled again.
func (f *CredentialFile) read() (c credential, key *auth.HostKey, err error) {
	info, err := os.Stat(f.path)
	switch {
	case err != nil:
		return c, nil, fmt.Errorf("credentials file: %w; host-agent enroll makes one", err)
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0:
		return c, nil, fmt.Errorf("credentials file %s has mode %04o, so others than its owner may use it; run: chmod 600 %[1]s", f.path, info.Mode().Perm())
	case info.Size() > maxCredentialFile:
		return c, nil, fmt.Errorf("credentials file %s: %d bytes; it is none", f.path, info.Size())
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		return c, nil, fmt.Errorf("credentials file: %w", err)
	}
	if json.Unmarshal(data, &c) != nil || c.Credential == "" {
		return c, nil, fmt.Errorf("credentials file %s is damaged, or none; want what host-agent enroll has written", f.path)
	}
	if key, err = auth.ReadHostKey(c.Key); err != nil {
		return c, nil, fmt.Errorf("credentials file %s: %w", f.path, err)
	}
	return c, key, nil
}

// write puts a credential in place of the one before. The file is there whole,
// the old or the new one, whatever happens.
func (f *CredentialFile) write(text string, key *auth.HostKey) error {
	relay := f.relay
	if relay == "" {
		relay = f.Relay()
	}
	data, err := json.MarshalIndent(credential{text, key.Seed(), relay}, "", "  ")
	if err != nil {
		return err
	}
	if err := auth.ReplaceFile(f.path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("credentials file: %w", err)
	}
	return nil
}

// makeable reports why a new file cannot be written. It never replaces one:
// there may be a good credential in it.
func (f *CredentialFile) makeable() error {
	if _, err := os.Lstat(f.path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("credentials file %s is there already; move it away if the host is to be enrolled anew", f.path)
	}
	return f.writable()
}

// writable reports why the file could not be written.
func (f *CredentialFile) writable() error {
	probe, err := os.CreateTemp(filepath.Dir(f.path), ".ahp-credential-")
	if err != nil {
		return fmt.Errorf("credentials file: %w", err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}
