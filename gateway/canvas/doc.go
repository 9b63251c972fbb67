// Package canvas shows canvases by URL, and previews of ports. A client that renders in a browser asks the relay, on its
// connection, for a page of a canvas:
//
//	→ {"id":1,"method":"relay/canvasTicket","params":{"channel":"ahp-canvas:/<id>","uri":"ahp-canvas-content:/<instanceId>/<path>"}}
//	← {"id":1,"result":{"url":"https://<name>.<canvas domain>/.ahp-canvas/<ticket>/<path>","origin":"https://<name>.<canvas domain>",
//	    "access":"use","expires":"2026-03-04T05:06:07Z"}}
//
// The name is that of the client's view of the canvas: the same whenever it asks,
// at any relay of the cluster. It opens nothing. The ticket is signed, good once
// and for a minute: it gives the browser that comes with it a session, a signed
// cookie that no script reads, and leads on to the path. With that, each request
// goes to the host-agent, on a stream of the link, and is answered by what the
// canvas's content is on: see package contentproxy. No relay keeps anything.
//
// The host-agent decides about each request and ticket. The session is bound to the
// client: it ends when the client's token is revoked or expires and is not renewed, when the client has been
// gone for longer than it may come back, and after auth.CanvasSessionTTL. An error says why there
// is no ticket; the client can read in band then. Without a canvas domain, the
// method is the host's to answer.
//
// # The flow of a request
//
//	client    Answer → ticketAnswer → ticket → consult    is asked for, and the host-agent agrees
//	browser   serve → enter → spend, begin                the ticket becomes a session, once
//	          serve → sessionOf → use → proxy             a request of it
//	            → dial → Borrow, routing.RelayEnd.OpenBytes → the host-agent (hostagent/live.go)
//	            → framable                                what may be in a frame of its own origin
//	          Handler → dropForeignCookies                cookies of other canvases, before any of that
//	          serve → serveEvents                         an event stream, while the host is away (events.go)
//
// # What it owns
//
// The requests that are being answered, which end when what allows them does; sessions that were
// found to be good; names of cookies that responses have set; and how many tickets each subject has asked for. All of that can be lost: tickets
// and sessions are signed, and which ticket was used is among what relays know to be revoked.
//
// # Concurrency
//
// [Canvases] are safe for concurrent use. Their lock guards requests and sessions; what ends a request
// is called under it, and takes no lock of the relay's.
package canvas
