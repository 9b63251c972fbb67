// Package store stores the records which relays share besides their registry: small
// records that rarely change, such as people, settings, and notifications to send.
//
// # Stream
//
// The records of a [Store] are in one JetStream stream in the relays' account. A
// cluster has up to three copies:
//
//	ahp.relays.v1.records.<key>   one record; its revision is the message's sequence
//
// All tenants share the stream, because host-agents log in to the tenants' own
// accounts, which therefore have no JetStream. The relays' account does not have one
// stream for each tenant either: it may have eight streams, and each stream costs every
// server memory and an election, while a subject costs nothing.
//
// Alternatively, the records are values in a JetStream key-value bucket, each as a
// JSON string, under the bucket's subjects. For compatibility, the records of people
// are in such a bucket.
//
// Each change names the revision it replaces, or 0 for a missing record. If two
// writers are concurrent, the second gets [ErrConflict]. A record may have an expiry,
// after which servers drop it. Removing a record leaves an empty message, its marker, for some
// time, so relays which were disconnected notice the removal. A relay that was disconnected for
// longer than the shortest such time reads the whole stream again.
//
// Each message's data is encrypted under its record's key (auth.Sealer). So external NATS
// servers can neither read records nor invent their data. They can withhold or remove a
// record, and bring back an older version of it.
//
// # Memory and file
//
// Every relay follows the stream, and reads all records from memory, which may lag behind the
// stream's leader: [Store.CatchUp] waits for it. The relay also keeps
// records without expiry in a file, and starts from it while the store is unreachable.
// If the stream is new, or has lost its last changes in a power failure, relays write
// the records they still have. This must not readmit a removed person. With
// Config.Known, a relay therefore writes them only to a stream that it has not seen
// before. In a known stream, a missing record counts as removed, and the relay deletes
// its own copy.
//
// With [Config.Sizes], memory has only the size and time of each record, which servers
// send without the data, and [Store.Load] reads the data. There is no file, so a
// record which the stream has lost is lost.
//
// # Bounds
//
// If relays create too many records, the oldest are removed. If requests from outside
// create records, further records are refused instead (Config.Most), so an attacker
// cannot remove the records of others. Markers take room, too: Config.Room keeps
// those of a tenant from displacing those of others.
package store
