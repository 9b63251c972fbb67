// Package audience lets many read-only viewers share one connection to a host.
//
// The holders of a link may all see the same and change nothing, so their conversations with the
// host are nearly equal. A [Pool] puts viewers with the same name, authority, protocol versions and
// capabilities into an audience. The audience is one client to the host: it initializes once, and
// subscribes to every channel that a viewer watches. However many viewers there are, the host
// writes each message once, and it crosses the link once. Each relay has audiences of its own.
//
// # A viewer's connection
//
// Each [Viewer] has an AHP conversation as on a connection of its own:
//
//	the viewer sends   the pool's response
//	ping               answered here
//	initialize         the host's answer to the audience, with current serverSeq and snapshots;
//	                   clientId stays here, and protocolVersions and capabilities select the
//	                   audience
//	reconnect          snapshots in the requested form; error -32008, after which clients
//	                   initialize, if this relay has not seen the clientId with this link
//	subscribe          requested from the host, with channel and view
//	unsubscribe        the last viewer of a channel unsubscribes the audience
//	reads              fetchTurns, resourceRead and others (request.go): requested from the host
//	dispatchAction     the echo with which hosts reject an action
//	other requests     error -32009; other notifications and answers are dropped
//
// A request from the host to the audience is answered with error -32009.
//
// Requests are shared: at most one of several equal requests is pending at the host, and the
// next follows after 50 ms at the earliest. A viewer that asks meanwhile gets the answer to the
// next request. An answer is thus never older than the viewer's request, and as good as an
// answer of the viewer's own.
//
// # Why a viewer never sees more than its link allows
//
// All messages on the audience's connection have passed its gates (package gate), which judge by
// the authority that the connection was opened with. Every viewer has the same authority
// ([routing.Open.Authority] is part of the audience's identity). Viewers receive messages from
// no other source. A viewer's words become part of a request only where the table above names
// them, so no clientId of a viewer reaches the host, and no viewer can request more than the gates
// permit to all. A viewer's subscriptions are a matter of order, not of authority.
//
// # Why an action comes once, behind its snapshot, and in order
//
// A host sends actions to a connection in the order of serverSeq. A snapshot's fromSeq is the
// last action that it contains. The host makes the snapshot after it has received the
// subscribe. On each channel, a viewer must therefore receive every action with a serverSeq greater than
// its snapshot's:
//
//   - Actions before the subscribe leaves here are in the snapshot. A subscription without a
//     request takes nothing (Viewer.offer).
//   - Actions while the subscribe is pending may be later than the snapshot, although the
//     answer has not arrived: hosts make snapshots and send answers at different times. They
//     are held, together with everything for the viewer from then on, so that order is kept
//     across channels (Viewer.hold).
//   - The answer goes to the viewer before the held messages. Messages in the snapshot are left
//     out; the rest follows in order of arrival (Viewer.release).
//   - From then on, the viewer receives each action with a serverSeq greater than the
//     snapshot's: the host may still send earlier actions.
//
// Each message from the host is handled once (audience.notified), and is sent, held or left out
// once for each subscription. A notification without serverSeq is left out if it came before the
// answer. An answer to initialize or reconnect contains all snapshots, so messages behind the
// first snapshot wait for the last.
//
// Broadcasts go to all live viewers: notifications on the root other than actions, and
// notifications on channels that no viewer watches or has watched.
//
// # Slow viewers
//
// A viewer cannot hold the host back, because others listen too. Each viewer has its own
// queue, and is closed when that is full (1013). It returns with reconnect, and receives snapshots.
//
// # Concurrency
//
// A pool has one mutex for all its state. Messages from the link are queued without it, and
// handled by one goroutine for each audience, which runs while there are messages. Another
// goroutine sends. Methods of [routing.ClientConn] are called under the mutex. Package lockorder
// has its place among other locks.
package audience
