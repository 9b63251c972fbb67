package auth

import (
	"fmt"
	"path/filepath"
	"strings"

	"ahprelay/internal/atomicfile"
)

// AccountsDir is the directory in which external NATS servers store the tenants'
// accounts, relative to the server's working directory. The trust configuration names it.
const AccountsDir = "ahp-relay-accounts"

// StoreDir is the directory in which external NATS servers store the relays' streams.
const StoreDir = "ahp-relay-store"

const trustConfig = `# Trust of a NATS server in the keys of an AHP relay. It holds nothing secret.
# Include it in the server's configuration:
#
#     include "%[1]s"
#
# Relays add the accounts of tenants while the server runs. The server keeps
# these accounts in the directory below. It must be able to write there, and
# must not share the directory with another server.
#
operator: [%[2]s]
system_account: %[3]s
resolver: {
  type: full
  dir: "%[4]s"
  allow_delete: false
  interval: "2m"
}
# The records that relays share are in JetStream. A jetstream block of your own
# after the include replaces this block.
jetstream: {
  store_dir: "%[8]s"
}
resolver_preload: {
  %[3]s: %[5]s
  %[6]s: %[7]s
}
`

// WriteTrustConfig writes a part of a nats-server configuration to path. With it, an
// external server or cluster accepts relays with these keys, and their host-agents. It
// replaces the file atomically.
func (a Authority) WriteTrustConfig(path string) error {
	operators, err := a.OperatorJWTs(External)
	if err != nil {
		return err
	}
	system, err := a.SystemAccountJWT(External)
	if err != nil {
		return err
	}
	relays, err := a.RelaysAccountJWT(External)
	if err != nil {
		return err
	}
	text := fmt.Sprintf(trustConfig, filepath.Base(path), strings.Join(operators, ", "), a.keys.system.public, AccountsDir, system, a.keys.account.public, relays, StoreDir)
	if err := atomicfile.Replace(path, []byte(text), 0o644); err != nil { // it holds no secret
		return fmt.Errorf("write NATS configuration: %w", err)
	}
	return nil
}
