// Package routing carries the connections of many clients to one host as records in the
// packets of a link (package link), and sends bytes that many clients receive across each
// link only once.
//
// An [AgentEnd] is the host-agent's end, and serves one host. A [RelayEnd] is a relay's end,
// and serves that relay's clients of one host. A link between them delivers packets
// once and in order, or not at all.
//
// # The flow of a frame
//
// From the host's socket to a client's queue:
//
//	AgentConn.Notify / AgentConn.FromHost     agent.go      one message on one connection
//	  AgentEnd.bodyOf, bodyTable.find         bodies.go     has the host just sent the same bytes?
//	  AgentEnd.send                           agent.go      does the relay hear them as a body?
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
// Bodies travel beside the links, on the NATS subject of their channel ([RelayEnd.Body]).
// Bodies that leave together share a message. Relays subscribe to a channel at the
// host-agent's request. Clients' messages take the opposite way, always in their own
// stream: [RelayConn.Send], mux.next, link, agentLink.Handle, HostConn.Deliver.
//
// # Bytes are shared, never authority
//
// The host decides which client gets a message, on a separate connection for each client,
// and so do the gates on that connection (package gate). Messages come here only after both.
// Each reference thus stands for bytes that the host did send on that connection, and its
// gates let pass. From there on:
//
//   - Bodies are compared byte by byte (bodyTable.find), never by hash alone. This package
//     does not read AHP, except the channel's name, which only selects the
//     bytes' subject.
//   - A reference is a number in a record. It names connections of that link only,
//     in the order of each connection's stream: a connection has a place in the
//     batch only while nothing is queued before it (mux.mayRefer).
//   - A relay hears bodies that none of its clients may see. It keeps them for a while,
//     and delivers a body only for a refs record (RelayEnd.entry).
//   - A missing body stops only the connections that wait for it
//     (pendingItem, row). The relay requests it (need) and does not release the packet
//     before it arrives, so the host-agent still has it.
//   - A body's message names the host-agent's instance, and each instance numbers its
//     bodies anew, so bodies of different instances are never confused.
//
// A wrong guess about shared channels costs only bytes. The host's own messages show which
// channels are shared (channel), not subscriptions.
//
// # Records
//
// A packet's payload is a sequence of records. A record is its kind, one byte, and these
// fields. Numbers are unsigned varints; texts and bytes stand behind their length.
//
//	kind       way  fields               meaning
//	frame      ↔    conn, bytes          a complete text message
//	fragment   ↔    conn, flags, bytes   a piece of a message: 1 first, 2 last, 4 binary, 8 fed: a channel follows
//	close      ↔    conn, code, reason   nothing follows in this direction
//	credit     ↔    conn, n              n bytes were written, so n more may be sent
//	open       →    conn, JSON of Open   connect this client to the host
//	flush      →    conn                 answer when everything before is written to the host
//	move       →    conn, Move           like flush, and keep the host's connection for an open with that ticket
//	watching   →    watch                the subscription to that channel exists
//	need       →    body                 the relay has not heard that body
//	opened     ←    conn                 the host accepts messages
//	ready      ←    conn                 the host has accepted initialize or reconnect
//	flushed    ←    conn                 answers flush, behind the host's earlier messages
//	moved      ←    conn                 answers move, behind the host's earlier messages; later ones are kept
//	probe      ←    conn                 the client has connected again: is this connection alive?
//	watch      ←    watch, token         bodies will come on that channel's subject
//	unwatch    ←    watch                no more bodies will come there
//	refs       ←    floor, entries       see refs.go: which connections receive which bodies
//	tagged     ←    floor, entries       like refs; behind each set, a tag of 16 bytes for each of its connections
//	body       ←    body, bytes          answers need
//	gone       ←    body                 answers need for a body that is no longer kept
//	chunk      ←    chunk, flags, bytes  content that several answers share, see chunks.go
//	chunkref   ←    conn, chunk          the chunk is the next part of the connection's message
//	drop       ←    chunk                no later record refers to that chunk
//	report     ←    0, JSON of Report    a connection's state
//	feed       ←    channel, token       the name of a channel in fed records, see feed.go
//	fed        ←    conn, channel, bytes like frame; the relay also publishes it for readers
//
// → is from relay to host-agent. An unknown kind ends the link: the hellos of both ends
// announce which kinds may come.
//
// # Credit
//
// Each connection has credit in each direction, 1 MiB at first. Everything sent takes
// credit, including referenced bodies, and the credit returns when the bytes are written to
// the socket at the far end. The reader's speed thus bounds the bytes in flight, and a slow
// reader fills only its own stream. At a relay with little memory, a client's credit begins
// smaller and grows while the client reads (RelayConn.adapt). Streams take turns in pieces of at most a packet.
// hold.go and relief.go handle streams with long queues; docs/limits.md has all bounds.
//
// # Streams of bytes
//
// A connection whose Open names a canvas carries bytes in place of messages, in each direction:
// its frames are pieces of a stream, and each end is a [ByteConn]. It has half the credit,
// and takes turns like all streams. All byte streams together have a share of the link, so
// messages do not wait behind a download (share.go). Relays open byte streams only at
// host-agents with [link.FeatureCanvas], and to ports opened by clients only with
// [link.FeaturePreview].
//
// # Locks
//
// [AgentEnd] and [RelayEnd] have one mutex each (Routing in the list of package lockorder).
// Methods of HostConn and ClientConn are called under it, and must not block nor call back.
// Links call their traffic (Next, Handle, Released) without holding a lock of their own, so
// either end may wake its link under its own lock.
package routing
