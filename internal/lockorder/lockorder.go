// Package lockorder defines the order in which a goroutine may take several locks, and
// makes tests fail if code violates it.
//
// Each lock in the list below is a [Mutex] with a rank. A goroutine which holds a lock
// may take only locks further down in the list:
//
//	Client    gateway.client.mu             the state of a client's connection
//	HostConn  hostagent.hostConn.order      from judging a message until it is queued
//	Audience  audience.Pool.mu              the audiences of one host
//	Routing   routing.RelayEnd, AgentEnd    the connections on the links of one host
//	Link      link.boundLink.mu             the link below
//	Outbox    gateway.outbox.mu             the messages that wait for a client
//
// Calls to open, use or close a client's connection first take Client or HostConn, and
// then the locks below, down to the link. Calls from a link upward run under Routing, so
// they may only append to an outbox or start a goroutine. No lock of this list is taken
// while a lock outside of it is held.
//
// With the build tag lockorder, which `make test` sets, a Mutex panics if a goroutine takes
// it out of order, or twice. Without the tag it is a [sync.Mutex].
package lockorder

// The ranks, from the first to the last.
type (
	Client   struct{}
	HostConn struct{}
	Audience struct{}
	Routing  struct{}
	Link     struct{}
	Outbox   struct{}
)
