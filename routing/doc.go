// Package routing carries the connections of many clients to one host as records
// in the packets of links (package link), so that bytes which a host sends to many
// cross to each relay once.
//
// It has two ends. An [AgentEnd] belongs to a host-agent and speaks for its host. A
// [RelayEnd] belongs to a relay and speaks for the clients there of one host. Between
// the two is one link: packets that arrive once, in order, or not at all.
//
// # The flow of a frame
//
// What the host says to a client, from its socket to the client's queue:
//
//	AgentConn.Notify / AgentConn.FromHost     agent.go      one message, of one connection
//	  AgentEnd.bodyOf, bodyTable.find         bodies.go     has the host just sent the same bytes?
//	  AgentEnd.send                           agent.go      does its relay hear them as a body?
//	    no:  AgentConn.queue                                the bytes go in the connection's own stream
//	    yes: AgentConn.refer, batch.add       batch.go      a reference goes in the link's batch
//	agentLink.Next                            agentlink.go  the link asks for a packet
//	  mux.next                                mux.go        streams take turns; then the batch
//	    batch.append, connSet.append          refs.go       one record for all connections of the link
//	  ═══ link ═══ NATS ═══ link ═══
//	RelayEnd.Handle, RelayEnd.record          relay.go      one record after the other
//	  RelayEnd.refs, RelayEnd.entry           relayrefs.go  whom does it name, and which bodies
//	    RelayEnd.lookUp, RelayEnd.inRows      block.go      the bodies, encoded once for all
//	    RelayConn.deliver                     relayconn.go  THE LINE WHERE A BODY IS COPIED TO ITS READERS
//	      ClientConn.Deliver                                a queue of package gateway
//
// Bodies themselves come beside that, on the NATS subject of their channel
// ([RelayEnd.Body]), in one message if they leave together; relays subscribe to that when the
// host-agent says so. What a client
// says takes the other way, always in its own stream: [RelayConn.Send], mux.next, link,
// agentLink.Handle, HostConn.Deliver.
//
// # Bytes are shared, never authority
//
// Who gets a message is decided by the host, which has a connection of its own for each
// client, and by the gates on that connection (package gate). Only after both does a
// message come here: so each reference stands for bytes that the host did send on that
// connection, and that its gates let pass. From there on:
//
//   - A body is found by comparing all of its bytes (bodyTable.find), not by a hash, nor
//     by anything that is written in it. Nothing here reads AHP, but for the name of the
//     channel, which only decides on which subject the bytes travel.
//   - A reference is a number in a record of the link. It names connections of that link
//     only, in the order of each connection's stream: a connection has a place in the
//     batch only while nothing is queued before it (mux.mayRefer).
//   - A relay hears bodies that none of its clients may see. It keeps them for a while,
//     and sends them to nobody: only a refs record makes it deliver (RelayEnd.entry).
//   - A body that was not heard stops the connections that wait for it, and nobody else
//     (pendingItem, row). The relay asks for it (need) and does not release the packet until it
//     is there, so that the host-agent still has it.
//   - A body's message names the instance of its host-agent, and numbers of bodies begin
//     anew with each: nothing of a predecessor is taken for something of its successor.
//
// To guess wrong who shares costs bytes, and nothing else: whether a channel is shared is
// learnt from what the host sends (channel), not from subscriptions.
//
// # Records
//
// A packet's payload is a row of records. A record is its kind, one byte, and these
// fields. Numbers are unsigned varints; texts and bytes stand behind their length.
//
//	kind       way  fields               meaning
//	frame      ↔    conn, bytes          a whole text message
//	fragment   ↔    conn, flags, bytes   a piece of a message: 1 first, 2 last, 4 binary
//	close      ↔    conn, code, reason   nothing follows in this direction
//	credit     ↔    conn, n              n more bytes have been written: so many more may be sent
//	open       →    conn, JSON of Open   connect this client to the host
//	flush      →    conn                 say so when what came before is written to the host
//	ask        →    conn, ask, bytes     a request of the relay's own
//	watching   →    watch                the subscription for that channel is there
//	need       →    body                 that body was not heard
//	opened     ←    conn                 the host takes messages
//	ready      ←    conn                 the host has answered initialize or reconnect
//	flushed    ←    conn                 the answer to flush, behind what the host has said by then
//	probe      ←    conn                 this client came again elsewhere: is it still there?
//	aside      ←    conn, ask            the next message of this connection answers that request
//	watch      ←    watch, token         bodies will come on that channel's subject
//	unwatch    ←    watch                and no more
//	refs       ←    floor, entries       see refs.go: which connections are sent which bodies
//	body       ←    body, bytes          the answer to need
//	gone       ←    body                 the other answer
//	chunk      ←    chunk, flags, bytes  content that several answers hold, see chunks.go
//	chunkref   ←    conn, chunk          that chunk comes next in this connection's message
//	drop       ←    chunk                nothing refers to that chunk any more
//	report     ←    0, JSON of Report    how a connection is
//
// → is from relay to host-agent. A record of an unknown kind ends the link: both ends agree
// in their hellos what may come.
//
// # Credit
//
// Each connection has credit in each direction, 1 MiB at first. Whatever is sent takes of
// it, bodies that are referred to as well, and it is given back when bytes are written to
// the socket at the far end: so what is under way is bounded by what the reader takes, and
// a reader who takes nothing fills its own stream, nobody else's. Streams take turns in
// pieces of at most a packet. See hold.go and relief.go for what becomes of a stream that has queued
// too much, and the table of queues in ARCHITECTURE.md for all bounds.
//
// # Streams of bytes
//
// A connection whose Open names a canvas carries no messages but bytes, each way: its frames
// are pieces of a stream, and at either end it is a [ByteConn]. It has half the credit, so
// that what it lets wait is less, and takes its turns like any other. All of them have a share of
// the link, so that what others send does not wait behind a download (share.go). Relays open them only
// where the host-agent's hello has [link.FeatureCanvas], and to ports that clients open where it has
// [link.FeaturePreview].
//
// # Locks
//
// [AgentEnd] and [RelayEnd] have one mutex each (Routing in the list of package lockorder). Methods of HostConn and ClientConn are called
// under it, and must not block nor call back. Links call their traffic (Next, Handle,
// Released) while they hold no lock of their own, so either may wake its link under its own.
package routing
