// Package authn authenticates HTTP requests: it finds the client's address, verifies
// the token, and checks a device's proof of its key. It answers and records the
// requests that it refuses.
//
// # The flow of a request
//
//	handler
//	  Client, Host, Operator   the three kinds of token
//	    auth.RequestToken      finds the token in the request
//	    VerifyClient, VerifyHost
//	                           check the token and its revocation (registry.Revocations)
//	    ProveKey               checks a device's DPoP header, valid once (Proofs)
//	    Proved                 protects the connection from eviction
//	  or Unauthorized          401, limited for each address
//	  or TooMany               429, from a limit of package admission
//
// # Proofs of devices' keys
//
// A proof is read, compared with the known key, checked (the signature last), and then
// used up. This bounds the work and the memory that an unauthenticated client can
// cause:
//
//   - [Checker.ProveKey] is for a known key, of a device or a pairing (a request to be
//     let in). A proof with a different key is refused before its signature is
//     checked.
//   - [Checker.ProveNewKey] is for an unknown key. After too many failures, an address
//     is refused before the signature is checked. Nothing is remembered: the caller
//     calls [Proofs.Use] when the key belongs to a device or a pairing.
//   - Proofs of pairings and of devices have separate limits in [Proofs].
//
// A proof names the whole URL of its request as the client sees it: the relay's public
// URL with the path, or scheme, host and path as the request arrived. Behind a proxy
// that ends TLS, the relay reads the scheme from X-Forwarded-Proto, if the proxy is
// trusted or on the same machine.
//
// # What it owns
//
// The used proofs ([Proofs]). Its caller provides the keys, the revocations, the
// limits, the audit, and the counter of refusals.
//
// # Concurrency
//
// A [Checker] does not change, and is safe for concurrent use. The lock of Proofs
// guards the used proofs; no function is called under it.
package authn
