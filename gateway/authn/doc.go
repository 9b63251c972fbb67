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
//	    ProvenKey              of a device: the header DPoP, good once (Proofs)
//	    Proved                 the connection gives way to nobody any more
//	  or Unauthorized          401, of which an address may have only so many
//	  or TooMany               429, from a limit of package admission
//
// # What it owns
//
// The proofs that were shown, each good once ([Proofs]). All else it is given: the keys,
// what is revoked, the limits, the audit, and the counter of refusals.
//
// # Concurrency
//
// A [Checker] does not change, and is safe for concurrent use. The lock of Proofs guards
// what was shown; nothing is called under it.
package authn
