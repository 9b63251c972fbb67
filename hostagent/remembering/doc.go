// Package remembering writes the last state of a host's sessions to the relays, sealed
// (package remember), so people can read it while the host is away.
//
// A [Keeper] learns of changes from the session summaries that the host sends (package
// watch). When a session has not changed for settleTime, and at the latest after
// writeEvery, the Keeper reads the session on a new connection:
//
//	initialize; subscribe SESSION; subscribe CHAT {view: {turns: 20}}
//
// and writes a record, at most once per writeEvery for each session. It reads a session
// with a running turn again every workingEvery. It does not write unchanged content. After
// a restart, the relays' list of records shows which records are current, so an idle host
// causes no writes.
//
// # Keys
//
// The host's key and the signing key are in a file of the state directory. Without a state
// directory, each start makes new keys, and a device can read the records only if it has
// connected since then. The Keeper remembers the holders, which are the clients that have
// received its keys. Every checkEvery, and whenever a relay ends a holder's connection
// because of its token, it asks a relay which holders are revoked. If there is one, the
// Keeper makes a new key, seals all records again, and forgets the holders. The host-agent
// of a sealed host decides itself which holders are still admitted, also when it removes a
// device. The IDs of its records change with the key.
//
// # Bounds
//
//	300      sessions with a record, the latest
//	20       turns of a session; fewer if they do not fit into 256 KiB
//	512      holders of the keys; above, the oldest are forgotten, and not checked. A sealed
//	         host gives no further client the keys
package remembering
