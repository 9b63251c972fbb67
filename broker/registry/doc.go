// Package registry knows the hosts: who serves them, who may, and what is revoked.
//
// # Leases
//
// The lease says which host-agent instance serves a host, and ends by itself if
// it is not renewed. A host-agent asks for it ([LeaseHolder]) where it is connected to
// NATS, and the relay that answers keeps it ([Registry]): while the host-agent goes on
// asking, nothing else happens, and nobody else is told.
//
// # Store
//
// What changes is in a JetStream bucket, see store.go: who holds a host, and by which
// relay, whether the AHP host is there, versions, enrolments, revocations. In a relay
// that is alone its own NATS server has it; several servers have up to three copies,
// which are made when they come to know each other, and it can be written while most of
// them are there. Every relay watches the bucket and reads from memory.
//
//   - Who changes something names the revision that it has seen. So of two instances
//     that want a host one gets it, and of two relays that think differently of a host
//     one is right. No relay compares its clock with another's.
//   - A lease has a number, one more than the lease before: of two instances the one
//     with the higher one is the later. No relay goes back to a lower one, also with a
//     store that is new and that another began with what it knew long ago: it writes what
//     it knows. Links say the number, too, see package link.
//   - A relay is there while its session, a key of its own, is written again and again.
//     Others count their own writes that have come back since, not time: after two more
//     than fit into the time of a lease the leases that it kept have run out. Whoever
//     cannot write, or was stopped, misses nobody.
//
// # While the store is away
//
// Nothing runs out, and nobody takes anything over. A host-agent that has its host
// keeps it, at any relay that it asks: that says so from memory, and writes later who
// keeps the lease. What an instance without a host asks for is refused until the store
// is back ([ErrStoreAway]), and so are enrolments of hosts that nobody knew. A revocation
// is told to all relays at once, counts, and is in the file of the relay that was asked;
// it is written into the store when that is back.
//
// Each relay keeps what it knows in a file too. With that it starts when the store is
// away, and a store that is new begins with it: the first one, that of a relay which
// was alone and is one of several now, and one of which all copies were lost.
//
// # Silence
//
// That a relay is not heard is no proof that it is gone: host-agents keep its links for
// the resume window. Proof is that its successor runs, with the same locked data
// directory, or that nobody listens any more where it did (neighbours.go). Then
// host-agents are told, and close the connections of its clients.
package registry
