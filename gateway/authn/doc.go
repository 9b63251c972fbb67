// Package authn says who sends a request over HTTP: from which address, with which
// token, and whether a device that shows one proves its key. Whoever may not go on is
// answered here, and written down.
//
// # The flow of a request
//
//	handler
//	  Client, Host, Operator   which of the three kinds of token is wanted
//	    Bearer, RequestToken   where it stands in the request
//	    VerifyClient, VerifyHost
//	                           is it good, and not revoked (registry.Revocations)
//	    ProveKey               of a device: the header DPoP, good once (Proofs)
//	    Proved                 the connection gives way to nobody any more
//	  or Unauthorized          401, of which an address may have only so many
//	  or TooMany               429, from a limit of package admission
//
// # Proofs of devices' keys
//
// A proof is read, then compared with the key that the relay knows, then checked, the
// signature last, and then used up. So the work and the memory that a stranger can cause
// have these bounds:
//
//   - [Checker.ProveKey] is for a known key, of a device or of a pairing (a request to be
//     let in). A proof that claims another key is refused before its signature is checked.
//   - [Checker.ProveNewKey] is for a key that is not known yet. An address that has failed
//     too often is refused before the signature is checked. Nothing is remembered: the
//     caller calls [Proofs.Use] when the key belongs to a device or a pairing.
//   - Proofs of pairings have their own places in [Proofs], and take none from devices.
//
// A proof names the whole URL of its request, as the client has it: the relay's public URL
// with the path, or scheme, host and path as the request came. Of TLS that a proxy ends,
// the relay learns by X-Forwarded-Proto from a trusted proxy or from its own machine.
//
// # What it owns
//
// The proofs that were used ([Proofs]). All else it is given: the keys,
// what is revoked, the limits, the audit, and the counter of refusals.
//
// # Concurrency
//
// A [Checker] does not change, and is safe for concurrent use. The lock of Proofs guards
// the used proofs; nothing is called under it.
package authn
