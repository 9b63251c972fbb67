// Package remembered serves the last states of hosts, which are encrypted (package remember), over
// HTTP to clients whose token permits it.
//
//	GET /api/hosts/{host}/remembered              → {"sessions": [Entry], "list": Kept or null, "now"}
//	GET /api/hosts/{host}/remembered/session?uri= → Kept, or 404
//	GET /api/hosts/{host}/remembered/session?id=  → Kept of a sealed host, or 404
//
// The first needs a token for all sessions, and the second a token for that session. The third
// needs a token for the host: the relay cannot know the session, and only clients with the host's
// keys can compute the ID. Without the host's keys, which clients get from the host-agent, the
// records are useless.
//
// The package has no state. An [API] is safe for concurrent use, and has no lock.
package remembered
