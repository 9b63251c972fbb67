// Package auth holds a relay's keys and everything signed with them: the
// tokens of clients and host-agents, the challenge that a host-agent answers,
// and the JWTs that make up the authority of the NATS servers.
//
// # Keys
//
// All keys live in the directory keys below a data directory and are made on
// first use, see [LoadKeys]:
//
//	token.pem      Ed25519, PKCS#8: signs tokens
//	operator.nk    NATS operator: signs accounts
//	system.nk      NATS system account
//	account.nk     NATS account of relays among themselves; those of tenants derive from it
//
// Who can read these files can name any host and any client. Relays of one
// cluster have copies of the same directory, each in a data directory of its
// own.
//
// # Tokens
//
// A token is a JWT (RFC 7519), signed with EdDSA and nothing else. Its header
// has kid, the JWK thumbprint (RFC 7638) of the token key, and typ, which
// tells the kinds apart (RFC 8725, section 3.11). Its claims are iss and
// aud (both "ahp-relay"), sub, iat, exp, jti, tenant, and:
//
//	typ ahp-client+jwt   sub: who uses it; hosts: patterns of names; access:
//	                     "read", "talk", "approve", "write" or "admin"; device: whose
//	                     it is; cnf: jkt, the thumbprint of the key that the
//	                     device proves with each use (RFC 9449)
//	typ ahp-host+jwt     sub: the name of the host; relay_keys: the public keys
//	                     of the relays that its host-agent is to trust, Ed25519
//	                     in base64url
//	typ ahp-agent+jwt    sub and relay_keys as above; cnf: the host-agent's key
//	                     (RFC 7800), an Ed25519 JWK; former: jti and exp of the
//	                     credential that it was renewed from
//
// Every one of these is required, but former. A client's token may further have channels
// and methods (patterns; without them, all), reverse (true: the host may ask
// the client for files) and maxConnections (at a time; without it, as the relay
// is set). Clocks may differ by [Leeway].
//
// In a pattern * stands for any characters, and nothing else is special, see
// [Matches].
//
// # A host-agent's way to NATS credentials
//
// The host-agent shows its enrolment token, the public part of a user nkey of
// its own, and that it holds the private part: it signs a challenge made by a
// relay. The relay answers with a user JWT for that nkey, which allows the
// subjects of [HostSubjects] only, and not for long.
//
//	challenge = base64url(version, milliseconds since 1970, random, MAC)
//	signed    = "ahp-relay agent credentials v1" NUL challenge NUL tenant NUL host NUL nkey
//
// The MAC is HMAC-SHA256 with a key derived from the token key, so that a
// challenge of one relay is good at every relay with the same keys, and
// nothing is stored. Only relays read their clocks: a host-agent may have a
// wrong one. A replayed answer gets credentials that are useless without the
// private nkey.
//
// # Relays prove themselves
//
// A host-agent accepts links only of relays that have a key which its token
// names ([PeekRelayKeys], [CheckLink]). It is the token key, so that new keys need
// new enrolment tokens, and these bring the host-agent the new key: there is
// nothing else to rotate. What a relay signs is
//
//	"ahp-relay link v1" NUL tenant NUL host NUL agent NUL relay NUL epoch NUL shares
//
// with the instances of both, and an X25519 public key of either, made for that
// link. A host-agent signs at login to NATS whatever the server asks, except what
// begins with "ahp-relay ".
//
// # Enrolment
//
// A host-agent may trade its enrolment token, which is then used up, for a
// credential: a token that is bound to a key which never leaves the host's
// machine. With each use it proves that key:
//
//	signed = "ahp-relay host key v1" NUL purpose NUL challenge NUL tenant NUL host NUL said
//
// where said is, for the purpose "enroll", the public key in base64url; for
// "renew", nothing; for "credentials", the nkey that is to get the user JWT.
//
// A credential is renewed before it expires, by whoever has it and its key. The
// new one names its former, which is revoked when the new one is first used: an
// answer that was lost leaves a credential that is good. Of several that were
// renewed from the same one, only that goes on which is used first. So of a file
// that was copied, only one copy goes on after the next renewal. If that is the
// thief's, the owner's is refused, and the owner knows; relay revoke --host ends
// both.
//
// # NATS
//
// Servers run in operator mode. Each tenant has an account of its own, in which
// are its host-agents and all relays; another account is that of relays among
// themselves. Accounts share no subject and import nothing from each other, so
// what a host-agent publishes, asks, or names as a reply subject, stays within
// its tenant, even if a permission were wrong. An account's key is derived from
// account.nk with HKDF-SHA256 and the info
//
//	"ahp-relay tenant account v1" NUL tenant
//
// so that relays with the same keys agree and nothing has to be stored. It signs
// its users itself.
//
// [Keys.OperatorJWT], [Keys.SystemAccountJWT], [Keys.RelaysAccountJWT] and
// [Keys.TenantAccountJWT] are what servers trust. For servers that are not
// embedded in a relay [Keys.WriteTrustConfig] writes the first three, and relays
// tell them of tenants.
//
// Embedded servers of several relays are connected with TLS, in both directions
// with the certificate of [Keys.ClusterTLS]. Its key is derived from the token
// key with HKDF-SHA256 and the info "ahp-relay cluster v1".
package auth
