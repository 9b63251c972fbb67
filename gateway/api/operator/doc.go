// Package operator serves the commands on a relay's machine that act on the running
// relay. Each request carries a token from [auth.Tokens.IssueOperator] as Authorization:
// Bearer, which requires read access to the relay's keys.
//
//	POST /operator/revocations  RevokeRequest → auth.Revocation
//	GET  /operator/revocations  → {"revocations": [auth.Revocation]}
//	POST /operator/forget       {"tenant", "host"} → {}
//	POST /operator/shares       {"token"} → {}; only for the audit log
//
// An error is {"error"}. A revocation is written to the audit log before it takes
// effect.
//
// The package has no state: revocations are in registry.Revocations, and hosts in the
// registry. An [API] is safe for concurrent use, and has no lock.
package operator
