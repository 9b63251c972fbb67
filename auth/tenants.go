package auth

import (
	"fmt"
	"time"

	"ahprelay/ahp"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// tenantConns bounds the connections to one tenant's account, through all
// servers of a cluster: those of its host-agents, twice while they change over,
// and of relays.
const tenantConns = 10_000

// AllUsers stands for every user of an account in what
// [Keys.TenantAccountJWT] revokes.
const AllUsers = jwt.All

// TenantAccount returns the public nkey of a tenant's NATS account, which is the
// same for all relays with these keys.
func (k *Keys) TenantAccount(tenant string) (string, error) {
	key, err := k.tenantKey(tenant)
	return key.public, err
}

// TenantAccountJWT returns the claim of a tenant's account. NATS servers that
// get it end the connections of revoked users, which are named by their public
// nkey or as [AllUsers], and accept them only with credentials that were issued
// after the given time. Times count in seconds.
func (k *Keys) TenantAccountJWT(of Servers, tenant string, revoked map[string]time.Time) (string, error) {
	account, err := k.tenantKey(tenant)
	if err != nil {
		return "", err
	}
	return k.accountJWT(of, "AHP tenant "+tenant, account, revoked)
}

// tenantKey derives the key of a tenant's account.
func (k *Keys) tenantKey(tenant string) (natsKey, error) {
	if err := ahp.CheckName("tenant", tenant); err != nil {
		return natsKey{}, err
	}
	account, err := deriveNkey(k.tenants, nkeys.PrefixByteAccount, "ahp-relay tenant account v1\x00"+tenant)
	if err != nil {
		return natsKey{}, fmt.Errorf("account of tenant %s: %w", tenant, err)
	}
	return account, nil
}

// relayStreams is how many streams relays may have: the registry is one.
const relayStreams = 8

// accountJWT returns the claim of an account without leaf nodes, JetStream (but for
// that of relays), imports and exports: nothing gets in or out but through its own users.
// These are signed by any of the keys that are good.
func (k *Keys) accountJWT(of Servers, name string, account natsKey, revoked map[string]time.Time) (string, error) {
	c := jwt.NewAccountClaims(account.public)
	c.Name = name
	c.Limits.DisallowBearer = true
	c.Limits.LeafNodeConn = 0
	c.Limits.Conn = tenantConns
	if account.public != k.system.public { // which has exports of the server's own
		c.Limits.Imports, c.Limits.Exports, c.Limits.WildcardExports = 0, 0, false
	}
	if account.public == k.account.public {
		c.Limits.MemoryStorage, c.Limits.DiskStorage = jwt.NoLimit, jwt.NoLimit
		c.Limits.Streams, c.Limits.Consumer = relayStreams, jwt.NoLimit
	}
	for user, before := range revoked {
		c.RevokeAt(user, before)
	}
	sets := k.sets.Load()
	if !sets.retired.IsZero() && c.Revocations[AllUsers] < sets.retired.Unix() {
		c.RevokeAt(AllUsers, sets.retired) // among them those that the account's own key has signed
	}
	for _, s := range sets.all {
		signer, err := s.signerOf(account)
		if err != nil {
			return "", err
		}
		if signer.public != account.public {
			c.SigningKeys.Add(signer.public)
		}
	}
	operator, err := k.operatorOf(of)
	if err != nil {
		return "", err
	}
	return encode("account", c, operator)
}
