// Package remembered serves the sealed last states of hosts over HTTP (package
// remember), with the token's authority.
//
//	GET /api/hosts/{host}/remembered              → {"sessions": [Entry], "list": Kept or null, "now"}
//	GET /api/hosts/{host}/remembered/session?uri= → Kept, or 404
//	GET /api/hosts/{host}/remembered/session?id=  → Kept of a sealed host, or 404
//
// The first needs a token for all sessions. The second needs a token for that session. The
// third needs a token for the host: the relay cannot know the session, and only holders of
// the host's keys can compute the ID.
// The records are useless without the host's keys, which clients get from the host-agent.
//
// The package has no state. An [API] is safe for concurrent use, and has no lock.
package remembered
