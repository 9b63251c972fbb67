// Package oidc verifies client tokens of OpenID Connect providers, and says
// what they allow at a relay.
//
// # Tokens
//
// A token is a JWT of one of the configured issuers: an ID token, or an access
// token that the provider writes as a JWT (RFC 9068). It is accepted if
//
//   - its header has alg, one of the configured algorithms, kid, the name of one
//     of the provider's keys, which is made for that algorithm, and typ, "JWT",
//     "at+jwt" or another configured one, in any case, with or without
//     "application/" (RFC 7515, section 4.1.9);
//   - its claims have iss, the configured issuer, aud, which holds the configured
//     audience, sub, iat and exp; nbf counts if it is there. Clocks may differ by
//     [auth.Leeway];
//   - a [Rule] fits it.
//
// The first rule that fits says what the token allows. The client's subject is
//
//	<sub>@<issuer without its scheme>
//
// so that it is nobody else's, at any issuer. Its token's ID, by which it can be
// revoked, is made from the issuer and the claim jti, or else from the token.
//
// # Keys
//
// The provider's keys are found as OpenID Connect Discovery says: at
// <issuer>/.well-known/openid-configuration, which must name the issuer, and
// the place of the keys as jwks_uri. Both are fetched
//
//   - when the first token comes;
//   - when keys are older than refreshAge, beside their use;
//   - when a token names a key that is not known, so that a new key is good at
//     once. That anybody can bring about: so at most once in askAgain.
//
// At most one fetch is under way, for which all who need it wait. It has a
// timeout, bounds of sizes, and follows no redirects. When it fails, the keys that
// are known stay good, for up to keepAge: a provider may be down for a day.
// Keys that the provider names no more are forgotten at the next fetch.
//
// # Signing in
//
// A [SignIn] is for people in browsers: OpenID Connect's authorization code flow, with PKCE, by
// go-oidc and x/oauth2. State, nonce and verifier follow from the relay's keys
// ([auth.Keys.NewSignIn]) and are bound to the key of the device that begins: who is sent an address
// that somebody else has begun with ends nowhere. Of the ID token those claims are kept that rules are
// about, so a rule that is changed counts at once, and the provider may be away.
//
// Only public keys count: RSA from 2048 bits, P-256, P-384, P-521 and Ed25519.
package oidc
