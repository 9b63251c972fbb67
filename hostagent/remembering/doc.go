// Package remembering writes the last state of a host's sessions to the relays, sealed
// (package remember), for people to read while the host is away.
//
// A [Keeper] learns of changes from the summaries of sessions that the host sends
// (package watch). Once a session has been still for settleTime, and at the latest after
// writeEvery, it reads the session on a connection of its own:
//
//	initialize; subscribe SESSION; subscribe CHAT {view: {turns: 20}}
//
// and writes a record. No session is written twice within writeEvery. A session with a
// running turn is read again every workingEvery. Content that has not changed is not
// written. After a restart, the list of the relays tells which records are current, so
// a host at rest causes no writes.
//
// # Keys
//
// The host's key and the signing key are in a file of the state directory. Without one,
// each start has new keys, and a device can read the records only if it was connected
// since that start. The Keeper remembers the holders of its keys. Every checkEvery, and
// when a relay ends a holder's connection because of its token, it asks a relay which of
// them are revoked. If any is, it makes a new key, seals all records again, and forgets the
// holders. A sealed host-agent judges the holders by itself,
// also when it removes a device, and its records' IDs change with the key.
//
// # Bounds
//
//	300      sessions with a record, the latest
//	20       turns of a session; fewer if they do not fit into 256 KiB
//	512      holders of the keys; above, the oldest are forgotten, and not checked
package remembering
