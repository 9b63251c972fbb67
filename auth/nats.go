package auth

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"ahprelay/ahp"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// DefaultAgentTTL is how long the NATS credentials of a host-agent live: as
// long as a revoked enrolment can still be used at a NATS server that has not
// heard of it.
const DefaultAgentTTL = 15 * time.Minute

// MaxReaderTTL is how long the credentials of [Keys.ChannelReader] live at most: a day,
// as nothing but cutting off all of a tenant ends them earlier.
const MaxReaderTTL = 24 * time.Hour

// Limits of NATS users: of one host-agent, and of a reader of channels.
const (
	readerMaxSubs   = 16
	agentMaxSubs    = 512     // a link needs one, and there are at most 256 links
	agentMaxPayload = 1 << 20 // bytes; link packets are smaller
)

// userConnections are the ways in which those may connect who are no relay. In process
// are those that come through a relay's own listeners. Leaf nodes and MQTT have
// subjects of their own, and are none of their business.
var userConnections = jwt.StringList{
	jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket, jwt.ConnectionTypeInProcess,
}

// HostSubjects returns the subjects that belong to one host, as a NATS
// wildcard: "ahp.v1.<tenant>.<host>.>".
func HostSubjects(tenant, host string) string {
	return "ahp.v1." + tenant + "." + host + ".>"
}

// TenantSubjects returns the subjects that belong to one tenant, as a NATS
// wildcard: "ahp.v1.<tenant>.>".
func TenantSubjects(tenant string) string { return "ahp.v1." + tenant + ".>" }

// What relays need in the accounts that no host-agent can be in.
var (
	relaySubjects  = []string{"ahp.relays.v1.>", "_INBOX.>", "$JS.API.>", "$JS.ACK.>", "$JS.FC.>", "$KV.>"}
	systemSubjects = []string{"$SYS.>", "_INBOX.>", "$JS.API.META.LEADER.STEPDOWN", "$JS.API.SERVER.REMOVE"}
)

// SystemAccount returns the public nkey of the NATS system account.
func (k *Keys) SystemAccount() string { return k.system.public }

// RelaysAccount returns the public nkey of the NATS account in which relays
// tell each other what they know, and nobody else is.
func (k *Keys) RelaysAccount() string { return k.account.public }

// Servers says whose NATS servers a claim is for.
type Servers int

// The kinds of NATS servers. What is in a relay gets accounts from that relay alone; to
// others whoever has an operator's key can bring some.
const (
	Embedded Servers = iota
	External
)

// operatorOf returns who says which accounts there are. When the first set of keys is
// retired it is an operator that is strict: then users that an account's own key has
// signed are not accepted any more.
func (k *Keys) operatorOf(of Servers) (natsKey, error) {
	switch s := k.oldest(); {
	case s.first, of == External:
		return s.operator, nil
	default:
		return deriveNkey(k.tenants, nkeys.PrefixByteOperator, "ahp-relay embedded operator v1")
	}
}

// OperatorJWTs returns the claims that NATS servers trust above all. They are told once,
// when they start.
func (k *Keys) OperatorJWTs(of Servers) (jwts []string, err error) {
	var strict []natsKey
	for _, s := range k.sets.Load().all {
		if !s.first {
			strict = append(strict, s.operator)
			continue
		}
		c := jwt.NewOperatorClaims(s.operator.public)
		c.Name, c.SystemAccount = "ahp-relay", k.system.public
		text, err := encode("operator", c, s.operator)
		if err != nil {
			return nil, err
		}
		jwts = append(jwts, text)
	}
	if of == Embedded {
		key, err := deriveNkey(k.tenants, nkeys.PrefixByteOperator, "ahp-relay embedded operator v1")
		if err != nil {
			return nil, err
		}
		strict = []natsKey{key}
	}
	for _, key := range strict {
		text, err := k.strictOperator(key)
		if err != nil {
			return nil, err
		}
		jwts = append(jwts, text)
	}
	return jwts, nil
}

// strictOperator returns the claim of an operator that signs with one key only.
func (k *Keys) strictOperator(signer natsKey) (string, error) {
	seed, err := rawSeed(signer)
	if err != nil {
		return "", err
	}
	identity, err := deriveNkey(seed, nkeys.PrefixByteOperator, "ahp-relay operator identity v1")
	if err != nil {
		return "", err
	}
	c := jwt.NewOperatorClaims(identity.public)
	c.Name, c.SystemAccount, c.StrictSigningKeyUsage = "ahp-relay", k.system.public, true
	c.SigningKeys.Add(signer.public)
	return encode("operator", c, identity)
}

// SystemAccountJWT returns the claim of the system account, in which NATS
// servers tell who connects and disconnects.
func (k *Keys) SystemAccountJWT(of Servers) (string, error) {
	return k.accountJWT(of, "SYS", k.system, nil)
}

// RelaysAccountJWT returns the claim of the account of [Keys.RelaysAccount], the only
// one that may use JetStream.
func (k *Keys) RelaysAccountJWT(of Servers) (string, error) {
	return k.accountJWT(of, "AHP relays", k.account, nil)
}

// AgentUser returns NATS credentials for a host-agent whose public user nkey
// is userNKey. They allow the subjects of the one host and nothing else: no
// inboxes of others, no JetStream, no answers to subjects that a request
// names. A ttl of zero means DefaultAgentTTL; the time of expiry is by the
// clock of the NATS server, to the second.
func (k *Keys) AgentUser(tenant, host, userNKey string, ttl time.Duration) (userJWT string, expires time.Time, err error) {
	if err := ahp.CheckName("tenant", tenant); err != nil {
		return "", time.Time{}, err
	}
	if err := ahp.CheckName("host", host); err != nil {
		return "", time.Time{}, err
	}
	if !nkeys.IsValidPublicUserKey(userNKey) {
		return "", time.Time{}, errors.New("nkey is no public NATS user key")
	}
	if ttl == 0 {
		ttl = DefaultAgentTTL
	}
	account, err := k.tenantKey(tenant)
	if err != nil {
		return "", time.Time{}, err
	}
	signer, err := k.signing().signerOf(account)
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
	c.Expires = k.now().Add(ttl).Unix()
	userJWT, err = encode("user", c, signer)
	return userJWT, time.Unix(c.Expires, 0).UTC(), err
}

// ChannelReader returns a file of NATS credentials, as nats --creds takes it, for an
// operator who wants to see the notifications that the hosts of a tenant share, or one
// of them. They allow to subscribe to the subjects of channels, and nothing else: not to
// what is one client's own, and not to publish.
func (k *Keys) ChannelReader(tenant, host string, ttl time.Duration) (creds []byte, err error) {
	account, err := k.tenantKey(tenant)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "*"
	} else if err := ahp.CheckName("host", host); err != nil {
		return nil, err
	}
	if ttl <= 0 || ttl > MaxReaderTTL {
		return nil, fmt.Errorf("credentials for %v; want more than 0, and at most %v", ttl, MaxReaderTTL)
	}
	signer, err := k.signing().signerOf(account)
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
	c.Expires = k.now().Add(ttl).Unix()
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

// UserLifetime returns how long the credentials of a user JWT live, from issue
// to expiry. It is a duration, so that a host-agent with a wrong clock knows
// when to renew; zero means for ever. The JWT is not checked: that is the NATS
// server's work.
func UserLifetime(userJWT string) (time.Duration, error) {
	c, err := jwt.DecodeUserClaims(userJWT)
	if err != nil {
		return 0, errors.New("the NATS credentials are no user JWT")
	}
	if c.Expires == 0 {
		return 0, nil
	}
	return time.Duration(c.Expires-c.IssuedAt) * time.Second, nil
}

// UserHost returns the host that a user JWT of [Keys.AgentUser] is for; ok is false for
// others. Whether it is genuine is the NATS server's work.
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

// A User is a NATS user with its private nkey, which stays in this process.
type User struct {
	JWT string // what the NATS server is shown
	key nkeys.KeyPair
}

// Sign signs the nonce of a NATS server.
func (u *User) Sign(nonce []byte) ([]byte, error) { return u.key.Sign(nonce) }

// RelayUser returns credentials of a relay: in a tenant's account, with the
// rights of all its host-agents together, or for an empty tenant in the account
// of [Keys.RelaysAccount]. They do not expire: NATS would cut the connection,
// and relays hold the keys anyway.
func (k *Keys) RelayUser(tenant string) (*User, error) {
	if tenant == "" {
		return k.newUser("relay", k.account, relaySubjects)
	}
	account, err := k.tenantKey(tenant)
	if err != nil {
		return nil, err
	}
	return k.newUser("relay", account, []string{TenantSubjects(tenant)})
}

// SystemUser returns credentials for the system account, like RelayUser.
func (k *Keys) SystemUser() (*User, error) {
	return k.newUser("relay-system", k.system, systemSubjects)
}

// newUser makes a user of the account, who may publish and subscribe there. The oldest
// keys sign it: servers that are not embedded hear last of others.
func (k *Keys) newUser(name string, account natsKey, subjects []string) (*User, error) {
	signer, err := k.oldest().signerOf(account)
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

// newUserClaims makes the key of a user of the account, and claims that allow nothing yet,
// for the signer to sign.
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

// setIssuer says whose user it is, if that is not whose key signs it.
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
