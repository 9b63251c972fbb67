// Package canvas serves canvases by URL, and previews of ports. A client in a browser requests a
// canvas page on its connection:
//
//	→ {"id":1,"method":"relay/canvasTicket","params":{"channel":"ahp-canvas:/<id>","uri":"ahp-canvas-content:/<instanceId>/<path>"}}
//	← {"id":1,"result":{"url":"https://<name>.<canvas domain>/.ahp-canvas/<ticket>/<path>","origin":"https://<name>.<canvas domain>",
//	    "access":"use","expires":"2026-03-04T05:06:07Z"}}
//
// The name identifies the client's view of the canvas. It is the same in every request, at all
// relays of the cluster, and is not secret. The signed ticket is valid once, for a minute. It gives
// the browser a session, which is a signed cookie that scripts cannot read, and redirects to the
// path. Then each request in the session is forwarded to the host-agent, on a stream of the link,
// and answered by the canvas's application: see package contentproxy. Relays store nothing.
//
// The host-agent decides about each request and ticket. The session belongs to the client. It ends
// when the client's token is revoked or expires without renewal, when the client has been
// disconnected too long to resume, and after auth.CanvasSessionTTL or the token's lifetime,
// whichever is longer (in an audience, after the token's lifetime). If a ticket is refused, the
// error gives the reason, and the client can still read the canvas over AHP. Without a canvas
// domain, the relay forwards the method to the host.
//
// # The flow of a request
//
//	client    Answer → ticketAnswer → ticket → consult    request for a ticket; the host-agent agrees
//	browser   serve → enter → spend, begin                the ticket becomes a session, once
//	          serve → sessionOf → use → proxy             a request in the session
//	            → dial → Borrow, routing.RelayEnd.OpenBytes → the host-agent (hostagent/live.go)
//	            → framable                                headers for a frame with its own origin
//	          Handler → dropForeignCookies                cookies of other canvases, first of all
//	          serve → serveEvents                         an event stream, while the host is away (events.go)
//
// # State
//
// The requests in progress, which end with their permission; verified sessions; names of cookies
// set by responses; and each subject's rate of tickets. All of it can be lost: tickets and sessions
// are signed, and used tickets are in the relays' shared revocations.
//
// # Concurrency
//
// [Canvases] is safe for concurrent use. Its lock guards requests and sessions. It is held while
// requests are ended, which takes no other lock of the relay.
package canvas
