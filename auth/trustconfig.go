package auth

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const trustConfig = `# Trust of a NATS server in the keys of an AHP relay. It holds nothing secret.
# Include it in the server's configuration:
#
#     include "%[1]s"
#
operator: %[2]s
system_account: %[3]s
resolver: MEMORY
resolver_preload: {
  %[3]s: %[4]s
  %[5]s: %[6]s
}
`

// WriteTrustConfig writes a piece of nats-server configuration to path, with
// which a server or cluster that is not embedded in a relay accepts relays
// with these keys and their host-agents. It replaces the file at once.
func (k *Keys) WriteTrustConfig(path string) error {
	operator, err := k.OperatorJWT()
	if err != nil {
		return err
	}
	system, err := k.SystemAccountJWT()
	if err != nil {
		return err
	}
	account, err := k.AccountJWT()
	if err != nil {
		return err
	}
	text := fmt.Sprintf(trustConfig, filepath.Base(path), operator, k.system.public, system, k.account.public, account)
	if err := replaceFile(path, []byte(text)); err != nil {
		return fmt.Errorf("write NATS configuration: %w", err)
	}
	return nil
}

// replaceFile writes a file that everybody may read, whole or not at all.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
