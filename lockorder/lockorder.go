// Package lockorder says in which order locks are taken that are held together, and has
// tests fail that take them in another.
//
// A lock of the list is a [Mutex] of its place. Who holds one takes only those that stand
// behind it:
//
//	Client    gateway.client.mu             what has become of a client's connection
//	HostConn  hostagent.hostConn.order      from when a message is judged until it is queued
//	Audience  audience.Pool.mu              the audiences of one host
//	Routing   routing.RelayEnd, AgentEnd    what the links of one host carry
//	Link      link.boundLink.mu             the link below
//	Outbox    gateway.outbox.mu             what a client is still to be sent
//
// Each has its reason: who opens, sends on or closes a client's connection holds Client or
// HostConn, and goes down from there through an audience and package routing to the link.
// What comes up from a link (clientEvents, and hostConn as a [routing.HostConn]) is called
// under Routing, so it touches the outbox or starts a goroutine, and nothing else. Locks
// that are not in the list are held while nothing else is called.
//
// In a build with the tag lockorder, which make test has, a Mutex panics if it is taken out
// of turn, and twice by one goroutine. Without the tag it is a [sync.Mutex] and costs
// nothing more.
package lockorder

// A Rank is a place in the list.
type Rank interface {
	rank() int
	name() string
}

// The places, from the first to the last.
type (
	Client   struct{}
	HostConn struct{}
	Audience struct{}
	Routing  struct{}
	Link     struct{}
	Outbox   struct{}
)

func (Client) rank() int   { return 1 }
func (HostConn) rank() int { return 2 }
func (Audience) rank() int { return 3 }
func (Routing) rank() int  { return 4 }
func (Link) rank() int     { return 5 }
func (Outbox) rank() int   { return 6 }

func (Client) name() string   { return "Client" }
func (HostConn) name() string { return "HostConn" }
func (Audience) name() string { return "Audience" }
func (Routing) name() string  { return "Routing" }
func (Link) name() string     { return "Link" }
func (Outbox) name() string   { return "Outbox" }
