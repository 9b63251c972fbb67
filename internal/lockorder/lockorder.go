// Package lockorder fixes the order in which a goroutine takes several locks, and makes
// tests fail that break it.
//
// A lock of the list is a [Mutex] of its rank. A goroutine that holds a lock may take
// only locks further down:
//
//	Client    gateway.client.mu             the state of a client's connection
//	HostConn  hostagent.hostConn.order      from judging a message until it is queued
//	Audience  audience.Pool.mu              the audiences of one host
//	Routing   routing.RelayEnd, AgentEnd    the connections on the links of one host
//	Link      link.boundLink.mu             the link below
//	Outbox    gateway.outbox.mu             the messages that wait for a client
//
// Opening, sending on and closing a client's connection takes Client or HostConn first,
// and then descends through an audience and package routing to the link. Calls that
// come up from a link run under Routing, so they may only queue in an outbox or start a
// goroutine. All other locks are leaves: their holders call nothing.
//
// In a build with the tag lockorder, as in make test, a Mutex panics if a goroutine takes
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
