// Package operator is what commands on a relay's machine ask of the running relay. All requests
// carry a token of [auth.Keys.IssueOperator] as Authorization: Bearer: who can
// make one can read the relay's keys.
//
//	POST /operator/revocations  RevokeRequest → auth.Revocation
//	GET  /operator/revocations  → {"revocations": [auth.Revocation]}
//	POST /operator/forget       {"tenant", "host"} → {}
//	POST /operator/shares       {"token"} → {}; only for the audit
//
// An error is {"error"}. A revocation is a line of the audit before anything comes of it.
//
// The package owns nothing: what is revoked is in registry.Revocations, and hosts are the
// registry's. An [API] is safe for concurrent use, and has no lock.
package operator
