// Package hosts serves the hosts and their state over HTTP.
//
//	GET /api/hosts         → {"hosts": [Info], "token": the token's authority}
//	GET /api/hosts/{host}  → Info, or 404 for a host outside the token's authority
//
// If a client connects through a relay other than its host-agent's, the response to
// the handshake names the better relay: see [EndpointHeader].
//
// The package has no state: hosts are in the registry. An [API] is safe for concurrent
// use, and has no lock.
package hosts
