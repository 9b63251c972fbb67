// Package store keeps what relays know together beside their registry: small records
// that are changed seldom, such as who is let in, what people have set, and what is to be told to
// whom.
//
// # Stream
//
// The records of a [Store] are in one JetStream stream of the account that relays have together, up
// to three copies of it where there are several servers:
//
//	ahp.relays.v1.records.<key>   one record; its revision is the message's sequence
//
// It is one stream for all tenants. Their own accounts have no JetStream, since
// host-agents have users there; and the account of relays may have eight streams, each
// of which costs every server memory and an election, whereas a subject costs nothing.
//
// Or they are the values of a JetStream key-value bucket, each a JSON string, and their
// subjects those of the bucket: people are, whom relays had there before.
//
// Each change names the revision that it changes, 0 for a record that is not there: so
// of two relays that change one thing the second is told ([ErrConflict]). A record may
// have a time after which the servers drop it. One that is removed is an empty message
// for a while, so that relays that were away hear of it.
//
// What a message has is sealed under its key (auth.Sealer): NATS servers may be
// somebody else's, who can keep it from relays, but neither read nor make it.
//
// # Memory and file
//
// Every relay follows the stream and has all records in memory, where it reads them. It
// keeps those that have no end in a file too: with these it starts while the store is
// away. A stream that is new, or that has lost its last changes as it may if a machine
// loses its power, gets what relays have and it has not. Where that would let somebody in
// again who was removed (Config.Known), only a stream that is new does: of one that a
// relay has seen before it forgets what is not there any more.
//
// # Bounds
//
// Of too many records the oldest go, where relays themselves make them. What requests from outside
// make is refused when there are enough (Config.Most): nobody can push out what is there.
package store
