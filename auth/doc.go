// Package auth holds a relay's keys and everything that they sign: the tokens of clients and
// host-agents, the challenges that host-agents answer, and the JWTs of NATS operators,
// accounts and users.
//
// # Keys
//
// All keys are in the directory keys below a data directory. [LoadKeys] creates them on
// first use:
//
//	token.pem      Ed25519, PKCS#8: signs tokens
//	operator.nk    NATS operator: signs accounts
//	system.nk      NATS system account
//	account.nk     NATS account of the relays; the tenants' accounts derive from it
//
// A process that can read these files can impersonate any host and any client. The relays in
// a cluster have copies of the directory, each in its own data directory.
//
// # Tokens
//
// A token is a JWT (RFC 7519), signed with EdDSA only. Its header has kid, the JWK
// thumbprint (RFC 7638) of the token key, and typ, which distinguishes the kinds (RFC 8725,
// section 3.11). Its claims are iss and aud (both "ahp-relay"), sub, iat, exp, jti, tenant,
// and:
//
//	typ ahp-client+jwt   sub: the user's name; hosts: patterns of names; access:
//	                     "read", "talk", "approve", "write" or "admin"; device: the
//	                     device's ID; cnf: jkt, the thumbprint of the key that the
//	                     device proves with each use (RFC 9449)
//	typ ahp-host+jwt     sub: the host's name; relay_keys: the public keys of the
//	                     relays that the host-agent trusts, Ed25519 in base64url
//	typ ahp-agent+jwt    sub and relay_keys as above; cnf: the host-agent's key
//	                     (RFC 7800), an Ed25519 JWK; former: jti and exp of the
//	                     credential that this one replaces
//
// Every claim is required except former and, in a client token, device and cnf. A client
// token may also have channels and methods (patterns; default: all), files, reverse,
// maxConnections, deviceName and audience: see [Client]. A token derived from other grants
// names them in origins ([Origin]). Clocks may differ by [Leeway].
//
// In a pattern, * stands for any characters. No other character is special, see [Matches].
//
// # NATS credentials for a host-agent
//
// The host-agent sends its enrolment token and the public key of its NATS user (nkey). It
// proves that it has the private key by signing a relay's challenge. The relay responds with
// a short-lived user JWT for that nkey, which permits only the subjects in [HostSubjects].
//
//	challenge = base64url(version, milliseconds since 1970, random of the process, random, MAC)
//	signed    = "ahp-relay agent credentials v1" NUL challenge NUL tenant NUL host NUL nkey
//
// The MAC is HMAC-SHA256 with a key derived from the token key. Every relay with the same
// keys therefore accepts the challenge, and relays store nothing. Only the relays' clocks
// matter, so a host-agent's clock may be wrong. An attacker who replays a signed challenge
// gets credentials that are useless without the private nkey.
//
// # Relays prove themselves
//
// A host-agent accepts links only from relays with a key named in its token
// ([PeekRelayKeys], [CheckLink]). This key is the relay's oldest token key. New tokens bring
// new keys to the host-agent: a renewed credential, or a new enrolment token. A relay signs
//
//	"ahp-relay link v1" NUL tenant NUL host NUL agent NUL relay NUL epoch NUL shares
//
// where agent and relay are the instances at both ends, and shares are both ends' X25519
// public keys, made for that link. At login to NATS, a host-agent signs any nonce except one
// with the prefix "ahp-relay ".
//
// # Enrolment
//
// A host-agent may exchange its enrolment token, which is then used up, for a credential: a
// token bound to a key that never leaves the host's machine. It proves that key with each
// use:
//
//	signed = "ahp-relay host key v1" NUL purpose NUL challenge NUL tenant NUL host NUL detail
//
// The detail is the public key in base64url for the purpose "enroll", empty for "renew",
// the nkey for "credentials", and a hash of the request for "shares".
//
// A host-agent renews its credential before it expires. The new credential names the old
// one. The old one is revoked when the new one is first used, so the host-agent can try
// again if the response was lost. If a credential is renewed several times, only the new one
// that is used first remains valid. So if a credential file was copied, only one copy
// survives the next renewal. If it is a thief's, the owner's copy is refused, which reveals
// the theft; relay revoke --host ends both.
//
// # NATS
//
// Servers run in operator mode. Each tenant has an account for its host-agents and all
// relays. A separate account connects the relays. Accounts share no subject and have no
// imports, so everything that a host-agent publishes, requests, or names as a reply subject
// stays within its tenant, even if a permission is wrong. A tenant account's key is derived
// from account.nk with HKDF-SHA256 and the info
//
//	"ahp-relay tenant account v1" NUL tenant
//
// Relays with the same keys therefore derive the same account without storing it. The
// account key signs the account's users.
//
// NATS servers trust [Authority.OperatorJWTs], [Authority.SystemAccountJWT],
// [Authority.RelaysAccountJWT] and [Authority.TenantAccountJWT]. For servers outside relays,
// [Authority.WriteTrustConfig] writes the first three, and relays announce the tenants'
// accounts.
//
// The embedded servers of several relays connect with TLS. Both ends use the certificate
// from [Keys.ClusterTLS]. Its key is derived from the token key with HKDF-SHA256 and the
// info "ahp-relay cluster v1".
package auth
