package auth

import (
	"fmt"
	"time"

	"ahprelay/ahp"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// AllUsers, as a key of the argument revoked of [Authority.TenantAccountJWT], means all
// users of the account.
const AllUsers = jwt.All

// TenantAccount returns the public nkey of a tenant's NATS account. Relays with the
// same keys derive the same account.
func (a Authority) TenantAccount(tenant string) (string, error) {
	key, err := a.tenantKey(tenant)
	return key.public, err
}

// TenantAccountJWT returns the JWT of a tenant's account. revoked maps users' public
// nkeys, or [AllUsers], to times. A NATS server with this JWT disconnects these users,
// and accepts only credentials issued after the given time. Times count in seconds.
func (a Authority) TenantAccountJWT(of Servers, tenant string, revoked map[string]time.Time) (string, error) {
	account, err := a.tenantKey(tenant)
	if err != nil {
		return "", err
	}
	return a.accountJWT(of, "AHP tenant "+tenant, account, revoked)
}

func (a Authority) tenantKey(tenant string) (natsKey, error) {
	if err := ahp.CheckName("tenant", tenant); err != nil {
		return natsKey{}, err
	}
	account, err := deriveNkey(a.keys.tenants, nkeys.PrefixByteAccount, "ahp-relay tenant account v1\x00"+tenant)
	if err != nil {
		return natsKey{}, fmt.Errorf("account of tenant %s: %w", tenant, err)
	}
	return account, nil
}

// relayStreams is the largest number of streams that relays have. The registry is one of
// them.
const relayStreams = 8

// accountJWT returns an account's JWT. The account has no leaf nodes, imports or exports,
// and only the relays' account has JetStream. So only the account's own users can send or
// receive messages in it. Any valid key set may sign those users.
func (a Authority) accountJWT(of Servers, name string, account natsKey, revoked map[string]time.Time) (string, error) {
	c := jwt.NewAccountClaims(account.public)
	c.Name = name
	c.Limits.DisallowBearer = true
	c.Limits.LeafNodeConn = 0
	c.Limits.Conn = jwt.NoLimit                 // relays bound host-agents when they issue credentials
	if account.public != a.keys.system.public { // the system account has the server's own exports
		c.Limits.Imports, c.Limits.Exports, c.Limits.WildcardExports = 0, 0, false
	}
	if account.public == a.keys.account.public {
		c.Limits.MemoryStorage, c.Limits.DiskStorage = jwt.NoLimit, jwt.NoLimit
		c.Limits.Streams, c.Limits.Consumer = relayStreams, jwt.NoLimit
	}
	for user, before := range revoked {
		c.RevokeAt(user, before)
	}
	sets := a.keys.sets.Load()
	if !sets.retired.IsZero() && c.Revocations[AllUsers] < sets.retired.Unix() {
		c.RevokeAt(AllUsers, sets.retired) // includes users signed by the account's own key
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
	operator, err := a.operatorOf(of)
	if err != nil {
		return "", err
	}
	return encode("account", c, operator)
}
