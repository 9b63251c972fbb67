// Package registry knows all hosts: the host-agent that serves each, its presence, its
// enrolments, and revocations.
//
// # Leases
//
// A lease names the host-agent instance that serves a host. It expires unless it is
// renewed. A host-agent requests it through its NATS connection ([LeaseHolder]), and
// the relay that answers keeps it ([Registry]). Renewals are answered from memory:
// they cause no write and no message to other relays.
//
// # Store
//
// Changes go into a JetStream bucket (store.go): lease holders and keepers, presence,
// versions, enrolments, revocations. A single relay has the bucket on its own NATS
// server. A cluster has up to three copies, and can write while a majority of them is
// available. Every relay watches the bucket and reads from memory.
//
//   - A write names the revision that it replaces. If two instances want a host, exactly
//     one gets it. No relay compares its clock with another relay's.
//   - Each lease has a number, one more than the previous lease: the instance with the
//     higher number is the later one. No relay accepts a lower number, even from a new
//     store filled with old knowledge: it writes the number that it knows. Links carry
//     the number too, see package link.
//   - A relay is present while its session, a key of its own, is rewritten regularly.
//     The other relays measure its silence in their own completed writes, not in time:
//     after two more writes than fit into a lease, the leases that it kept have expired.
//     A relay that cannot write, or was paused, therefore never misses another relay.
//
// # While the store is away
//
// No lease expires and no host changes hands. A host-agent with a lease keeps it,
// through any relay: the relay confirms it from memory, and writes the new keeper
// later. A request by an instance without a lease is refused until the store is back
// ([ErrStoreAway]), and so is the enrolment of an unknown host. A revocation is sent
// to all relays at once, takes effect, and is in the file of the relay that made it.
// It enters the store later.
//
// Each relay also keeps its knowledge in a file. The relay starts from that file while
// the store is away, and fills a new store from it: the first store, the store of a
// single relay that joins a cluster, and a store that has lost all copies.
//
// # Silence
//
// Silence does not prove that a relay has crashed: host-agents keep its links for the
// resume window. There are two proofs: its successor runs with the same locked data
// directory, or its previous address refuses connections (neighbours.go). Host-agents
// are then notified, and close the connections of its clients.
package registry
