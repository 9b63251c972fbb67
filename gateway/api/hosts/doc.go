// Package hosts tells clients, over HTTP, which hosts there are and how they are.
//
//	GET /api/hosts         → {"hosts": [Info], "token": what it allows}
//	GET /api/hosts/{host}  → Info; one that the token may not see is not there
//
// A client that connects to a host through another relay than the host's host-agent is told so in
// the answer to its handshake: see [EndpointHeader].
//
// The package owns nothing: hosts are the registry's. An [API] is safe for concurrent use, and has no
// lock.
package hosts
