// Package authn authenticates HTTP requests: it determines the client's address, verifies
// the token, and checks a device's proof of its key. It refuses invalid requests and
// records the refusals.
//
// # The flow of a request
//
//	handler
//	  Client, Host, Operator   the three kinds of token
//	    auth.Bearer            finds the token in the header Authorization
//	    VerifyClient, VerifyHost
//	                           check the token and its revocation (registry.Revocations)
//	    ProveKey               checks a device's DPoP header, valid once (Proofs)
//	    Proved                 protects the connection from eviction
//	  or Unauthorized          401, limited for each address
//	  or TooMany               429, from a limit of package admission
//
// # Proofs of devices' keys
//
// A proof is parsed, compared with the known key, and verified (its signature last). Then
// it is marked as used, so that it is valid once. This order limits the work and memory
// that an unauthenticated client can cause:
//
//   - [Checker.ProveKey] is for a key that the relay knows: a device's, or that of a
//     pairing, which is a device's request for access. A proof with a different key is
//     refused before its signature is verified.
//   - [Checker.ProveNewKey] is for an unknown key. After too many failures, an address
//     is refused before the signature is verified. The proof is not remembered: the
//     caller calls [Proofs.Use] when the key belongs to a device or a pairing.
//   - Proofs of pairings and of devices have separate limits in [Proofs].
//
// A proof names the whole URL of its request as the client sees it: the relay's public
// URL with the path, or scheme, host and path as the request arrived. Behind a proxy that
// ends TLS, the relay gets the scheme from X-Forwarded-Proto if the proxy is trusted or
// on the same machine.
//
// # What it owns
//
// The used proofs ([Proofs]). The caller provides keys, revocations, limits, the audit
// log and the counter of refusals.
//
// # Concurrency
//
// A [Checker] is immutable, and safe for concurrent use. The lock of Proofs guards the
// used proofs; no function is called under it.
package authn
