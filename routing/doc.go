// Package routing carries the connections of many clients to one host. It encodes their messages
// as records in the packets of a link (package link). A message that many clients receive usually
// reaches each relay only once.
//
// An [AgentEnd] is the host-agent's end, and serves one host. A [RelayEnd] is a relay's end, and
// serves that relay's clients of one host. The link between them delivers packets once and in
// order, or it ends.
//
// # The flow of a frame
//
// From the host's socket to a client's queue:
//
//	AgentConn.Notify / AgentConn.FromHost     agent.go      one message on one connection
//	  AgentEnd.bodyOf, bodyTable.find         bodies.go     has the host just sent the same bytes?
//	  AgentEnd.send                           agent.go      does the relay receive the body?
//	    no:  AgentConn.queue                                the bytes go in the connection's own stream
//	    yes: AgentConn.refer, batch.add       batch.go      a reference goes in the link's batch
//	agentLink.Next                            agentlink.go  the link asks for a packet
//	  mux.next                                mux.go        streams take turns; then the batch
//	    batch.append, connSet.append          refs.go       one record for all connections of the link
//	  ═══ link ═══ NATS ═══ link ═══
//	RelayEnd.Handle, RelayEnd.record          relay.go      one record after another
//	  RelayEnd.refs, RelayEnd.entry           relayrefs.go  the entry's connections and bodies
//	    RelayEnd.lookUp, RelayEnd.inRows      block.go      the bodies, encoded once for all
//	    RelayConn.deliver                     relayconn.go  THE LINE WHERE A BODY IS COPIED TO ITS READERS
//	      ClientConn.Deliver                                a queue of package gateway
//
// A message shared by several connections is a body. Bodies normally bypass links: the host-agent
// publishes them on the channel's NATS subject ([RelayEnd.Body]), several in one NATS message if
// they are sent together. A relay subscribes to a channel when the host-agent asks for it
// (watch). Messages from clients take the opposite way and are never shared: [RelayConn.Send],
// mux.next, link, agentLink.Handle, HostConn.Deliver.
//
// # Bytes are shared, never authority
//
// The host has a separate connection for each client, and decides for each connection which
// messages to send. The gates on that connection (package gate) then drop what the client may not
// see. Routing gets only the remaining messages. A reference therefore stands for bytes that the
// host has sent, and the gates have permitted, on that very connection. The following rules keep
// it so:
//
//   - Bodies are compared byte by byte (bodyTable.find), never by hash alone. From AHP, this
//     package reads only the channel's name, which selects the NATS subject.
//   - A reference is a number in a record. It names only connections of that link, and keeps the
//     order of each connection's stream: a reference joins the batch only while nothing is queued
//     before it on its connection (AgentConn.refer, mux.turn).
//   - A relay receives bodies that none of its clients may see. It stores them for a while, and
//     delivers a body only if a refs record names it (RelayEnd.entry).
//   - A missing body delays only the connections that need it (pendingItem, row). The relay
//     requests it over the link (need). It releases the packet only when the body has arrived,
//     and the host-agent stores a body until all packets that refer to it are released.
//   - Each instance of a host-agent has its own body numbers. A published body names its
//     instance, so bodies of two instances are never confused.
//
// Channels count as shared if the host sends their messages to several connections (channel);
// subscriptions are not read. A wrong guess wastes bandwidth, and reveals nothing.
//
// # Records
//
// A packet's payload is a sequence of records. A record consists of its kind, one byte, and the
// fields below. Numbers are unsigned varints; a length precedes each text and each byte string.
//
//	kind       way  fields               meaning
//	frame      ↔    conn, bytes          a complete text message
//	fragment   ↔    conn, flags, bytes   a piece of a message: 1 first, 2 last, 4 binary, 8 fed: a channel follows
//	close      ↔    conn, code, reason   nothing follows in this direction
//	credit     ↔    conn, n              n more bytes may be sent
//	open       →    conn, JSON of Open   connect this client to the host
//	flush      →    conn                 answer when everything before is written to the host
//	move       →    conn, ticket, until, holder   like flush, and keep the host's connection for an open with that
//	                                     ticket; the answer is moved, or flushed if the connection is not kept
//	watching   →    watch                the subscription to that channel exists
//	need       →    body                 the relay lacks that body
//	opened     ←    conn                 the host accepts messages
//	ready      ←    conn                 the host has accepted initialize or reconnect
//	flushed    ←    conn                 answers flush, behind the host's earlier messages
//	moved      ←    conn                 answers move, behind the host's earlier messages; later ones are kept
//	probe      ←    conn                 the client has connected again: is this connection alive?
//	watch      ←    watch, token         bodies will come on that channel's subject
//	unwatch    ←    watch                no more bodies will come there
//	refs       ←    floor, entries       see refs.go: which connections receive which bodies
//	tagged     ←    floor, entries       like refs; behind each set, a tag of 16 bytes for each of its connections
//	body       ←    body, bytes          answers need with that body
//	gone       ←    body                 answers need for a body that is no longer kept
//	chunk      ←    chunk, flags, bytes  the next piece of content that several answers share, see chunks.go
//	chunkref   ←    conn, chunk          the chunk is the next part of the connection's message
//	drop       ←    chunk                no later record refers to that chunk
//	report     ←    0, JSON of Report    a connection's state
//	place      ←    crowd, conn, enters, bytes   a message for the connection, which enters (1) or leaves (0) the crowd
//	told       ←    crowd, bytes         a message for all connections of the crowd, see crowd.go
//	feed       ←    channel, token       the name of a channel in fed records, see feed.go
//	fed        ←    conn, channel, bytes like frame; the relay also publishes it for readers
//
// → is from relay to host-agent. An unknown kind ends the link. A peer sends optional kinds only
// if the other peer's hello has announced support.
//
// # Credit
//
// Each connection has credit in each direction, 1 MiB at first. Messages, pieces and references
// use credit: their bytes, or those of the body, and pieceCost. The receiver returns the credit when
// it has written the bytes to its socket. A slow reader thus delays only its own stream. At a relay
// with little memory, a client's credit begins smaller and grows while the client reads
// (RelayConn.adapt). Streams are sent round-robin, in pieces of at most one packet. See hold.go and
// relief.go for streams with long queues, and docs/limits.md for all bounds.
//
// # Streams of bytes
//
// A connection whose Open names a canvas carries a stream of bytes, without message boundaries,
// and each of its ends is a [ByteConn]. Its credit is at most 512 KiB. All byte streams together
// may use only a share of the link, so messages do not wait behind a download (share.go). Relays open
// byte streams only at host-agents with [link.FeatureCanvas].
//
// # Locks
//
// [AgentEnd] and [RelayEnd] have one mutex each (Routing in the list of package lockorder). They
// call HostConn and ClientConn while holding it, so these methods must not block nor call back.
// Links hold no lock when they call Next, Handle or Released, so either end may wake its link
// under its own mutex.
package routing
