// Package audience lets many read-only viewers share one connection to a host.
//
// A read-only link may be opened by many people. All of them may see the same and change nothing,
// so their connections would carry nearly the same messages. A [Pool] groups viewers with the same
// name, authority, protocol versions and capabilities into an audience. To the host, the audience
// is a single client: it initializes once, and subscribes to every channel that a viewer watches.
// The host writes each message once, and the message crosses the link once, for any number of
// viewers. Each relay has its own audiences.
//
// # A viewer's connection
//
// Each [Viewer] has an AHP conversation as if it had its own connection:
//
//	the viewer sends   the pool's response
//	ping               answered here
//	initialize         the host's answer to the audience, with current serverSeq and snapshots;
//	                   clientId stays here, and protocolVersions and capabilities select the
//	                   audience
//	reconnect          snapshots in the requested form; if this relay has not seen the clientId
//	                   with this link, error -32008, after which clients initialize
//	subscribe          requested from the host, with channel and view
//	unsubscribe        the last viewer of a channel unsubscribes the audience
//	reads              fetchTurns, resourceRead and others (request.go): requested from the host
//	dispatchAction     the echo with which hosts reject an action
//	other requests     error -32009; other notifications and answers are dropped
//
// A request from the host to the audience, except ping, is answered with error -32009.
//
// Equal requests from viewers are merged. At most one of them is pending at the host, and two are
// sent at least 50 ms apart. A viewer that asks meanwhile gets the answer to the next request. An
// answer is thus never older than the viewer's request.
//
// # Why a viewer never sees more than its link allows
//
// The gates (package gate) check all messages on the audience's connection, with the authority of
// that connection. Every viewer has the same authority, because [routing.Open.Authority] is part of
// the audience's identity. Viewers receive messages from no other source. Only the parts of a
// viewer's message listed in the table above become part of a request to the host. So no viewer's
// clientId reaches the host, and no viewer can request more than the gates permit for all. A
// viewer's subscriptions only select messages; they grant nothing.
//
// # Why a viewer gets each action once, after its snapshot, and in order
//
// On each connection, a host sends actions in the order of serverSeq. A snapshot's fromSeq is the
// serverSeq of the last action that it contains. The host makes a snapshot after it has received
// the subscribe. On each channel, a viewer must therefore receive exactly the actions with a
// serverSeq greater than its snapshot's:
//
//   - Actions that arrive before the subscribe is sent are in the snapshot. A subscription whose
//     subscribe was not sent yet ignores them (Viewer.offer).
//   - Actions that arrive while the subscribe is pending may or may not be in the snapshot: hosts
//     do not make snapshots and send answers at the same moment. They are held, and so is
//     everything that arrives for the viewer later, to preserve the order across channels
//     (Viewer.hold).
//   - The viewer gets the answer first, then the held messages in order of arrival, without those
//     that the snapshot contains (Viewer.release).
//   - From then on, the viewer gets each action with a serverSeq greater than the snapshot's. The
//     check is still necessary, because the host may send earlier actions late.
//
// The audience handles each message from the host once (audience.notified), and for each
// subscription sends, holds or drops it. A notification without serverSeq is dropped if it arrived
// before the answer to subscribe. An answer to initialize or reconnect contains several snapshots,
// so messages held after the first snapshot wait for the last.
//
// Broadcasts go to all live viewers. A notification that is not an action is a broadcast if it is
// on the root, or if no viewer is or was subscribed to its channel.
//
// # Crowds
//
// Once all requests of a viewer are answered, it gets exactly the same messages as other such
// viewers with the same subscriptions: the audience holds or drops no message for this viewer alone
// (Viewer.settled). If these viewers' clients implement [Follower], the pool puts them into a
// [Crowd], and passes each message to the crowd once instead of once per viewer. A viewer that
// sends anything first leaves its crowd (audience.part), and then gets the answer alone. A sealed
// host has crowds; see docs/sealed.md.
//
// # Slow viewers
//
// A slow viewer must not slow down the host, because that would delay all viewers. Each viewer has
// its own queue, and is closed with 1013 when the queue is full. The viewer then reconnects and
// receives snapshots.
//
// # Concurrency
//
// A pool has one mutex for all its state. Messages from the link are queued without it. For each
// audience, one goroutine handles them; it runs only while there are messages. A second goroutine
// sends. Methods of [routing.ClientConn] may be called under the mutex. Package lockorder defines the
// mutex's place among other locks.
package audience
