// Package registry lists all hosts. For each host it knows the host-agent that serves
// it, its presence (online, offline or asleep), its enrolments, and revocations.
//
// # Leases
//
// A lease names the host-agent instance that may serve a host. It expires unless the
// instance renews it. A host-agent requests and renews its lease through its NATS
// connection ([LeaseHolder]). The relay that answers becomes the lease's keeper
// ([Registry]): it answers renewals from memory, without a write to the store or a
// message to other relays, and it reports the lease's end.
//
// # Store
//
// Changes are written to a JetStream bucket (store.go): leases and their keepers,
// presence, versions, enrolments and revocations. A single relay has the bucket on its
// own NATS server. A cluster stores up to three copies, and can write while a majority
// of them is available. Every relay watches the bucket and reads from memory. A view is
// this copy in memory.
//
//   - Each write of a host or revocation names the revision that it replaces. If two instances request the same
//     host, only one write succeeds. Relays never compare their clocks.
//   - Each lease has a higher number than the previous lease, so the instance with the
//     higher number is newer. A relay accepts a lower number only of a forgotten host. If
//     a new store was filled with old data, the relay writes the number that it knows.
//     Links also contain the number, see package link.
//   - Each relay has a session, a key that it rewrites regularly; such a write is a
//     beat. A relay measures another relay's silence in its own completed beats, not in
//     time: after two more beats than fit into a lease time, the other relay's leases
//     have expired. A relay that cannot write, or was paused, completes no beats, and so
//     never considers other relays lost.
//
// # While the store is unreachable
//
// A host-agent with a lease keeps it and can renew it at any relay: that relay confirms
// the lease from memory, and later writes itself as the new keeper. Two requests are
// refused until the store is reachable ([ErrStoreAway]): for a host without a current
// lease, except at a relay with a store of its own (leaseKeeper.holdHere), and the
// enrolment of an unknown host. A revocation takes effect at once: the relay saves it in
// its own file and sends it to all relays. It is written to the store later.
//
// Each relay also saves its view in a file. If a cluster's store is unreachable, the relay
// starts from that file. It also fills a new store from it: the first store, the store
// of a cluster that a single relay joins, or a store that has lost all copies.
//
// # Crashed relays
//
// If a relay is silent, it need not have crashed, so host-agents keep its links for the
// resume window. Two observations prove a crash: a successor runs with the same locked
// data directory, or the relay's previous address refuses connections (neighbours.go).
// Host-agents are then notified, and close the connections of that relay's clients at
// once.
package registry
