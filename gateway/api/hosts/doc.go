// Package hosts serves the hosts and their state over HTTP.
//
//	GET /api/hosts         → {"hosts": [Info], "token": the token's authority}
//	GET /api/hosts/{host}  → Info, or 404 for a host outside the token's authority
//	POST /api/hosts/{host}/wake → Woken, when the host is back
//
// The last runs the operator's command for a host that is away. It needs the level operate
// and a device's signature; at most one command per host runs in half a minute.
//
// If a client connects through a relay other than its host-agent's, the response to
// the handshake names the better relay: see [EndpointHeader].
//
// Hosts are in the registry; the package's own state is the latest wake of each host. An
// [API] is safe for concurrent use.
package hosts
