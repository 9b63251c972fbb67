package auth

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"ahprelay/ahp"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// DefaultAgentTTL is the lifetime of a host-agent's NATS credentials. It limits how long
// a NATS server that has missed a revocation still accepts the host-agent.
const DefaultAgentTTL = 15 * time.Minute

// MaxReaderTTL is the longest lifetime of credentials from [Authority.ChannelReader]. It
// is only a day, because the sole way to end them earlier is to revoke all users of the
// tenant.
const MaxReaderTTL = 24 * time.Hour

// Limits for a host-agent's NATS user, and for a channel reader.
const (
	readerMaxSubs   = 16
	agentMaxSubs    = 512     // a host-agent needs a few: one subscription receives for all of its links
	agentMaxPayload = 1 << 20 // bytes; link packets are smaller
)

// userConnections are the types of connections that users other than relays may have.
// In-process is included, because connections through a relay's own listeners have this
// type. Leaf nodes and MQTT are not permitted, because they use subjects outside the
// user's permissions.
var userConnections = jwt.StringList{
	jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket, jwt.ConnectionTypeInProcess,
}

// HostSubjects returns a host's subjects as a NATS wildcard:
// "ahp.v1.<tenant>.<host>.>".
func HostSubjects(tenant, host string) string {
	return "ahp.v1." + tenant + "." + host + ".>"
}

// TenantSubjects returns a tenant's subjects as a NATS wildcard: "ahp.v1.<tenant>.>".
func TenantSubjects(tenant string) string { return "ahp.v1." + tenant + ".>" }

// Subjects that relays use, in accounts that no host-agent can use.
var (
	relaySubjects  = []string{"ahp.relays.v1.>", "_INBOX.>", "$JS.API.>", "$JS.ACK.>", "$JS.FC.>", "$KV.>"}
	systemSubjects = []string{"$SYS.>", "_INBOX.>", "$JS.API.META.LEADER.STEPDOWN", "$JS.API.SERVER.REMOVE"}
)

// Authority issues the JWTs that NATS servers trust, for accounts and users.
// [Keys.Authority] returns it.
type Authority struct{ keys *Keys }

// SystemAccount returns the public nkey of the NATS system account.
func (a Authority) SystemAccount() string { return a.keys.system.public }

// RelaysAccount returns the public nkey of the NATS account in which relays share
// their state. Only relays use it.
func (a Authority) RelaysAccount() string { return a.keys.account.public }

// Servers is the kind of NATS servers for which a JWT is made.
type Servers int

// Kinds of NATS servers. An embedded server gets accounts only from its own relay. An
// external server accepts accounts from anyone with an operator key.
const (
	Embedded Servers = iota
	External
)

// operatorOf returns the key that signs accounts. When the first set is retired, this is
// the key of a strict operator, which rejects users signed by an account's own key.
func (a Authority) operatorOf(of Servers) (natsKey, error) {
	switch s := a.keys.oldest(); {
	case s.first, of == External:
		return s.operator, nil
	default:
		return deriveNkey(a.keys.tenants, nkeys.PrefixByteOperator, "ahp-relay embedded operator v1")
	}
}

// OperatorJWTs returns the operator JWTs that NATS servers of this kind must trust. A server
// reads them only when it starts.
func (a Authority) OperatorJWTs(of Servers) (jwts []string, err error) {
	var strict []natsKey
	for _, s := range a.keys.sets.Load().all {
		if !s.first {
			strict = append(strict, s.operator)
			continue
		}
		c := jwt.NewOperatorClaims(s.operator.public)
		c.Name, c.SystemAccount = "ahp-relay", a.keys.system.public
		text, err := encode("operator", c, s.operator)
		if err != nil {
			return nil, err
		}
		jwts = append(jwts, text)
	}
	if of == Embedded {
		key, err := deriveNkey(a.keys.tenants, nkeys.PrefixByteOperator, "ahp-relay embedded operator v1")
		if err != nil {
			return nil, err
		}
		strict = []natsKey{key}
	}
	for _, key := range strict {
		text, err := a.strictOperator(key)
		if err != nil {
			return nil, err
		}
		jwts = append(jwts, text)
	}
	return jwts, nil
}

// strictOperator returns the JWT of an operator with a single signing key.
func (a Authority) strictOperator(signer natsKey) (string, error) {
	seed, err := rawSeed(signer)
	if err != nil {
		return "", err
	}
	identity, err := deriveNkey(seed, nkeys.PrefixByteOperator, "ahp-relay operator identity v1")
	if err != nil {
		return "", err
	}
	c := jwt.NewOperatorClaims(identity.public)
	c.Name, c.SystemAccount, c.StrictSigningKeyUsage = "ahp-relay", a.keys.system.public, true
	c.SigningKeys.Add(signer.public)
	return encode("operator", c, identity)
}

// SystemAccountJWT returns the JWT of the system account, in which NATS servers announce
// connections and disconnections.
func (a Authority) SystemAccountJWT(of Servers) (string, error) {
	return a.accountJWT(of, "SYS", a.keys.system, nil)
}

// RelaysAccountJWT returns the JWT of the account [Authority.RelaysAccount], the only
// account with JetStream.
func (a Authority) RelaysAccountJWT(of Servers) (string, error) {
	return a.accountJWT(of, "AHP relays", a.keys.account, nil)
}

// AgentUser returns NATS credentials for the host-agent whose public nkey is userNKey.
// They permit only the host's subjects: no inboxes, no JetStream, and no replies to
// subjects that a request names. A ttl of zero means DefaultAgentTTL. The NATS server
// checks the expiry by its own clock, to the second.
func (a Authority) AgentUser(tenant, host, userNKey string, ttl time.Duration) (userJWT string, expires time.Time, err error) {
	if err := ahp.CheckName("host", host); err != nil {
		return "", time.Time{}, err
	}
	if !nkeys.IsValidPublicUserKey(userNKey) {
		return "", time.Time{}, errors.New("nkey is not a public NATS user key")
	}
	ttl = cmp.Or(ttl, DefaultAgentTTL)
	account, err := a.tenantKey(tenant)
	if err != nil {
		return "", time.Time{}, err
	}
	signer, err := a.keys.signing().signerOf(account)
	if err != nil {
		return "", time.Time{}, err
	}
	c := jwt.NewUserClaims(userNKey)
	c.Name = tenant + "/" + host
	setIssuer(c, account, signer)
	c.Permissions.Pub.Allow.Add(HostSubjects(tenant, host))
	c.Permissions.Sub.Allow.Add(HostSubjects(tenant, host))
	c.Limits.Subs = agentMaxSubs
	c.Limits.Payload = agentMaxPayload
	c.AllowedConnectionTypes = userConnections
	c.Expires = a.keys.now().Add(ttl).Unix()
	userJWT, err = encode("user", c, signer)
	return userJWT, time.Unix(c.Expires, 0).UTC(), err
}

// ChannelReader returns a NATS credentials file (as for nats --creds) with which an
// operator can watch a host's shared notifications or, if host is empty, those of all
// hosts in the tenant. The credentials permit only subscriptions to channel subjects: no
// clients' private subjects, and no publishing.
func (a Authority) ChannelReader(tenant, host string, ttl time.Duration) (creds []byte, err error) {
	account, err := a.tenantKey(tenant)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "*"
	} else if err := ahp.CheckName("host", host); err != nil {
		return nil, err
	}
	if ttl <= 0 || ttl > MaxReaderTTL {
		return nil, fmt.Errorf("credentials for %v; want more than 0 and at most %v", ttl, MaxReaderTTL)
	}
	signer, err := a.keys.signing().signerOf(account)
	if err != nil {
		return nil, err
	}
	pair, c, err := newUserClaims("reader of channels", account, signer)
	if err != nil {
		return nil, err
	}
	c.Permissions.Pub.Deny.Add(">")
	c.Permissions.Sub.Allow.Add("ahp.v1." + tenant + "." + host + ".chan.>")
	c.Limits.Subs = readerMaxSubs
	c.AllowedConnectionTypes = userConnections
	c.Expires = a.keys.now().Add(ttl).Unix()
	userJWT, err := encode("user", c, signer)
	if err != nil {
		return nil, err
	}
	seed, err := pair.Seed()
	if err != nil {
		return nil, fmt.Errorf("make a NATS user: %w", err)
	}
	return jwt.FormatUserConfig(userJWT, seed)
}

// UserLifetime returns how long a user JWT is valid after its issue, so that a host-agent
// with a wrong clock knows when to renew it. Zero means no expiry. It does not verify the
// JWT, because the NATS server does.
func UserLifetime(userJWT string) (time.Duration, error) {
	c, err := jwt.DecodeUserClaims(userJWT)
	if err != nil {
		return 0, errors.New("the NATS credentials are not a user JWT")
	}
	if c.Expires == 0 {
		return 0, nil
	}
	return time.Duration(c.Expires-c.IssuedAt) * time.Second, nil
}

// UserHost returns the host named in a user JWT from [Authority.AgentUser]; ok is false
// for other JWTs. It does not verify the JWT, because the NATS server does.
func UserHost(userJWT string) (tenant, host string, ok bool) {
	c, err := jwt.DecodeUserClaims(userJWT)
	if err != nil {
		return "", "", false
	}
	if tenant, host, ok = strings.Cut(c.Name, "/"); !ok || !c.Permissions.Pub.Allow.Contains(HostSubjects(tenant, host)) {
		return "", "", false
	}
	return tenant, host, true
}

// A User is a NATS user with its private nkey.
type User struct {
	JWT string // sent to the NATS server
	key nkeys.KeyPair
}

// Sign signs a NATS server's nonce.
func (u *User) Sign(nonce []byte) ([]byte, error) { return u.key.Sign(nonce) }

// RelayUser returns a relay's credentials in a tenant's account, with the permissions of
// all host-agents together. For an empty tenant, they are for the account
// [Authority.RelaysAccount]. They do not expire: a NATS server closes a connection when
// its credentials expire, and relays have the keys anyway.
func (a Authority) RelayUser(tenant string) (*User, error) {
	if tenant == "" {
		return a.newUser("relay", a.keys.account, relaySubjects)
	}
	account, err := a.tenantKey(tenant)
	if err != nil {
		return nil, err
	}
	return a.newUser("relay", account, []string{TenantSubjects(tenant)})
}

// SystemUser returns credentials for the system account. Like those of RelayUser, they
// do not expire.
func (a Authority) SystemUser() (*User, error) {
	return a.newUser("relay-system", a.keys.system, systemSubjects)
}

// newUser returns a user that may publish and subscribe to the given subjects. The oldest
// set signs it, because an external server may not know newer sets yet.
func (a Authority) newUser(name string, account natsKey, subjects []string) (*User, error) {
	signer, err := a.keys.oldest().signerOf(account)
	if err != nil {
		return nil, err
	}
	pair, c, err := newUserClaims(name, account, signer)
	if err != nil {
		return nil, err
	}
	c.Permissions.Pub.Allow.Add(subjects...)
	c.Permissions.Sub.Allow.Add(subjects...)
	userJWT, err := encode("user", c, signer)
	return &User{userJWT, pair}, err
}

// newUserClaims returns a new nkey, and claims for a user in the account. The claims
// permit nothing yet.
func newUserClaims(name string, account, signer natsKey) (nkeys.KeyPair, *jwt.UserClaims, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, nil, fmt.Errorf("make a NATS user: %w", err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, nil, fmt.Errorf("make a NATS user: %w", err)
	}
	c := jwt.NewUserClaims(public)
	c.Name = name
	setIssuer(c, account, signer)
	return pair, c, nil
}

// setIssuer names the account in the claims if they are signed with a signing key instead
// of the account's own key.
func setIssuer(c *jwt.UserClaims, account, signer natsKey) {
	if signer.public != account.public {
		c.IssuerAccount = account.public
	}
}

func encode(what string, c jwt.Claims, signer natsKey) (string, error) {
	s, err := c.Encode(signer.KeyPair)
	if err != nil {
		return "", fmt.Errorf("sign the NATS %s: %w", what, err)
	}
	return s, nil
}
