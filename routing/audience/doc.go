// Package audience lets many who only look share one connection at a host.
//
// The holders of a link, who may all look at the same and do nothing, say much the same
// and are told the same. So a [Pool] puts those of one name, authority, protocol versions
// and capabilities into an audience, which is one client to the host: it says initialize,
// and subscribes to what any of them watches. However many watch, the host writes one
// copy, and one copy crosses the link. An audience is a relay's own: each relay has a
// connection at the host for those that are connected to it.
//
// # What a viewer sees
//
// Each [Viewer] is given a connection's worth of AHP, such as it would have at the host:
//
//	the viewer sends   what becomes of it
//	ping               answered here
//	initialize         the host's answer to the audience's own, with serverSeq and snapshots as they
//	                   are now; of its params, clientId is kept here, and protocolVersions and
//	                   capabilities decide which audience it is
//	reconnect          snapshots, in the form that is asked for; error -32008, with which clients begin
//	                   anew, if this relay has not seen the clientId with this link
//	subscribe          asked at the host, with channel and view
//	unsubscribe        the last one who watches a channel unsubscribes the audience
//	reads              fetchTurns, resourceRead and others (request.go): asked at the host
//	dispatchAction     the echo with which hosts reject an action
//	other requests     error -32009; other notifications and answers are dropped
//
// What the host asks of the audience is answered with error -32009: nobody there does
// anything.
//
// Requests are shared: of those that ask the host the same, one is under way at a time, and the
// next follows after 50 ms at the earliest. Who asks meanwhile gets the answer to the next. So
// an answer is never older than its request, which is what makes it as good as one of the viewer's own.
//
// # Why a viewer never sees what its link may not
//
// All that comes on the audience's connection has passed the gates there (package gate),
// which judge by the authority that the connection was opened with: it is that of each of its
// viewers ([routing.Open.Authority] is part of what they have in common). Nothing comes
// to a viewer from anywhere else. What viewers say is part of a request only where it is named above, so
// no viewer's clientId reaches the host, and none can ask for what the gates would not let any of
// them ask for. What a viewer may see less than others, by its subscriptions, is a matter of order, not
// of authority.
//
// # Why an action comes once, behind its snapshot, and in order
//
// A host sends a connection actions in the order of serverSeq. A snapshot has fromSeq: it contains what
// came up to there, and nothing later. It is made after the host got the subscribe that it answers.
// So of each channel, a viewer is to have what has a greater serverSeq than its snapshot, and that is what it gets:
//
//   - What the host sends before the subscribe leaves here is in the snapshot. A subscription that has not
//     been asked for takes nothing (Viewer.offer).
//   - What comes while the subscribe is under way may be later than the snapshot, though the
//     answer is not here: hosts make snapshots and send answers at different times. It is
//     held, and with it all that comes for the viewer from then on, so that order is kept across
//     channels (Viewer.hold).
//   - The answer goes to the viewer before what is held. Of that, what the
//     snapshot has is left out, the rest follows in the order in which it came (Viewer.release).
//   - From then on each action goes to the viewer as it comes, if its serverSeq is greater than the snapshot's:
//     the host may still send what it has held back.
//
// Each message of the host's is passed on once (audience.notified), to a subscription once, and either sent, held
// or left out. A notification without serverSeq is left out if it came before the answer.
// An answer to initialize or reconnect has all snapshots, and what comes behind the first
// of these waits for the last.
//
// What a host tells all its clients, subscribed or not, goes to all viewers that have begun: notifications
// on the root other than actions, and on channels that nobody watches or has watched.
//
// # Slow viewers
//
// A viewer cannot hold the host back, which others listen to. Each has a queue of its own, and is
// closed when that is full (1013): it comes again with reconnect, and has a snapshot for what it missed.
//
// # Concurrency
//
// A pool has one mutex, for all that it has. What comes from the link is queued without it, and
// read by one goroutine for each audience, which runs while there is something; another one sends. Methods of
// [routing.ClientConn] are called under the mutex. Where it stands among other locks, package
// lockorder says.
package audience
