// Package hosts serves the hosts and their state over HTTP.
//
//	GET /api/hosts         → {"hosts": [Info], "token": the token's authority}
//	GET /api/hosts/{host}  → Info, or 404 for a host outside the token's authority
//	POST /api/hosts/{host}/wake → Woken, when the host is back
//
// The last request wakes a host whose machine sleeps, with the operator's command or through
// another host. It needs the level operate and a device's signature. There is at most one
// attempt per host in half a minute.
//
// If a client connects through a relay other than the one to which its host-agent is
// connected, the handshake's response names the better relay: see [EndpointHeader].
//
// The registry holds the hosts. This package's own state is the latest attempt to wake
// each host. An [API] is safe for concurrent use.
package hosts
