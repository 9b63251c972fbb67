// Package contentproxy makes the content of canvases reachable for clients that
// cannot reach the host: the host-agent's side of it (Canvas proposal, §§8 to
// 10).
//
// # Addresses
//
// The state of a canvas says where its content is: url, or contentUri in later
// drafts. A host that knows of relays gives
//
//	ahp-canvas-content:/<instanceId>/<path>
//
// and serves canvasReadResource itself; nothing is to be done here then. Other
// hosts give the address of a web server of their own on the loopback
// interface, which means nothing to a client elsewhere. For these a [Conn]
//
//   - mints: it replaces http://localhost|127.0.0.1|[::1]:port/path in the
//     states that the host sends, by ahp-canvas-content:/<instanceId>/path,
//     before the bytes are shared;
//   - serves: where the host answers canvasReadResource with -32601, it reads
//     from that web server and answers instead.
//
// What the host says is read by package [ahprelay/view], in whatever message and
// form it says it. Minted are only addresses of canvases that the host provides
// (provider.kind is "server"; or, as canvases are registered since AHP 0.10, an
// extensionId and no provider), in the host's own words: what a client says could
// name anything on the host's machine. So an action that has an origin, or was
// rejected, teaches nothing, and passes as it came: in a client's words, an
// address is that of the client's machine. Some hosts take into a canvas's state
// what clients dispatch to it: an address there whose port a client has said, and
// the host has not said before, is not minted. What clients have said to the
// host in another way, or to another host-agent, is not known here.
//
// Names that resolve to loopback addresses and other ways
// to write one are not loopback addresses here. Those, https: and everything else
// pass untouched, unless the host's owner allows such an origin ([Allowed]), as does what comes in pieces (channel/frame), which hosts do
// only if they are asked to.
//
// # Who may read
//
// The host has the first word on each read. A read is served only on a
// connection whose client is subscribed to the canvas, as the host has
// confirmed on that connection, and from the scheme, host and port that the
// host gave for it, to this client or, later, to another. Everything else is
// refused (§8):
//
//	-32602  the address is malformed, or of another instance than the channel
//	-32009  not subscribed, or the origin may not be read
//	-32008  the canvas is closed or has no such content, or its server does not answer
//
// Whether the canvas is still there the host says on that connection: if it has
// said nothing in the last 2 s, it is asked ([Ask]), unless the client's own
// subscribe was longer than 2 KiB. After a host-agent's restart, an address that
// comes in the replay of a reconnect itself passes as it is: whose the canvas is,
// is not known before the host was asked.
//
// What is at file: of a folder that the owner allows is read from there: see files.go.
//
// Reads are GET requests without credentials, cookies, proxies or redirects.
// What pages served so cannot do: absolute paths of other origins, WebSockets,
// POST, and anything that depends on the origin being that of the web server.
//
// # By URL
//
// Where a relay has a domain for canvases, [Host.Serve] is a reverse proxy to the
// very same origins, and [Look] the same check, for each request: see
// docs/canvases.md for what changes on the way. It may not lead anywhere else, and
// dials nothing that has to be looked up.
package contentproxy
