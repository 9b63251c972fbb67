// Package oidc verifies client tokens from OpenID Connect providers, and maps them to
// authority at a relay.
//
// # Tokens
//
// A token is a JWT from a configured issuer: an ID token, or an access token in JWT form
// (RFC 9068). It is accepted if
//
//   - its header has alg, a configured algorithm; kid, the name of a provider's key
//     for that algorithm; and typ, "JWT", "at+jwt" or another configured type, in any
//     case, with or without "application/" (RFC 7515, section 4.1.9);
//   - its claims have iss, the configured issuer; aud, which contains the configured
//     audience; sub, iat and exp. If nbf is present, it counts. Clocks may differ by
//     [auth.Leeway];
//   - a [Rule] matches it.
//
// The first matching rule defines the token's authority. The client's subject is
//
//	<sub>@<issuer without its scheme>
//
// which is unique for all issuers. The token's ID, by which it can be revoked, is derived
// from the issuer and the claim jti, or without jti from the token.
//
// # Keys
//
// The provider's keys are found by OpenID Connect Discovery at
// <issuer>/.well-known/openid-configuration. That document must name the issuer, and the
// keys' URL as jwks_uri. Both documents are fetched
//
//   - when the first token arrives;
//   - in the background, when the keys are older than refreshAge;
//   - when a token names an unknown key, so that a new key works at once.
//
// Because anyone can send a token with an unknown key, fetches begin at least askAgain
// apart. Only one fetch runs at a time, and all tokens that need it wait for it. A fetch has a
// timeout and size limits, and follows no redirects. If it fails, the known keys remain
// valid for up to keepAge, because a provider may be unreachable for a day. A successful
// fetch replaces the known keys.
//
// # Signing in
//
// A [SignIn] lets people sign in with browsers, by OpenID Connect's authorization code
// flow with PKCE, implemented by go-oidc and x/oauth2. State, nonce and verifier are
// derived from the relay's keys ([auth.Keys.NewSignIn]) and bound to the device's key. So
// if an attacker begins a sign-in and sends the URL to a victim, the attacker cannot use
// the result. The relay stores the ID token's claims that rules mention. A changed rule
// therefore applies at once, even while the provider is unreachable.
//
// Only public-key algorithms are supported: RSA with 2048 to 8192 bits, P-256, P-384, P-521
// and Ed25519.
package oidc
