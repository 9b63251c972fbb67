// Package store holds the records that relays share beside their registry: small and
// rarely changed, such as people, settings, and notifications to send.
//
// # Stream
//
// The records of a [Store] are in one JetStream stream of the relays' account, with up
// to three copies in a cluster:
//
//	ahp.relays.v1.records.<key>   one record; its revision is the message's sequence
//
// There is one stream for all tenants. Tenants' own accounts have no JetStream,
// because host-agents log in there. The relays' account may have eight streams, and
// each costs every server memory and an election, but a subject costs nothing.
//
// Alternatively, the records are the values of a JetStream key-value bucket, each a
// JSON string, under the bucket's subjects. People are in such a bucket for
// compatibility.
//
// Each change names the revision that it replaces, 0 for a missing record, so the
// second of two concurrent writers gets [ErrConflict]. A record may have an expiry,
// after which the servers drop it. A removed record is an empty message for a while,
// for relays that were away.
//
// Messages are sealed under their key (auth.Sealer): external NATS servers can
// withhold records, but neither read nor forge them.
//
// # Memory and file
//
// Every relay follows the stream and reads all records from memory. It also keeps
// records without expiry in a file, and starts from it while the store is away. A new
// stream, or a stream that has lost its last changes in a power failure, gets the
// records that relays still have. For records whose return would readmit a removed
// person (Config.Known), this applies only to a new stream: if the relay has seen the
// stream before, it deletes records that are missing there.
//
// With [Config.Sizes], memory holds only the size and time of each record, which the
// servers send without the data, and [Store.Load] reads one record. There is no file:
// a record that the stream has lost is gone.
//
// # Bounds
//
// Beyond the bounds, the oldest records are removed if relays create them. Records
// created by outside requests are refused instead (Config.Most), so an attacker cannot
// evict others.
package store
