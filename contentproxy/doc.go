// Package contentproxy makes canvas content available to clients that cannot reach the
// host: the host-agent's part (Canvas proposal, §§8 to 10).
//
// # Addresses
//
// A canvas's state has the address of its content in url, or contentUri in later drafts. A host
// with support for relays writes
//
//	ahp-canvas-content:/<instanceId>/<path>
//
// and serves canvasReadResource itself; then this package does nothing. Other hosts write
// the address of a local web server on the loopback interface, which is useless to a
// client elsewhere. For these a [Conn]
//
//   - mints: it replaces http://localhost|127.0.0.1|[::1]:port/path in states and changes
//     from the host by ahp-canvas-content:/<instanceId>/path, before the bytes are shared;
//   - serves: if the host does not serve a read (see unserved), it reads from that web
//     server and answers instead.
//
// Package [ahprelay/ahp/view] reads the host's messages in all their forms. Addresses are
// minted only for canvases of the host itself: provider.kind is "server" or, for AHP 0.10
// and later, there is an extensionId and no provider. The address must come from the host, because
// a client could name any service on the host's machine. So an action with an origin, or a
// rejected action, passes unchanged: its addresses come from a client, and refer to that client's
// machine. Some hosts copy clients' actions into a canvas's state. An address in the state is not
// minted if a client named its port before the host did. This package does not know addresses that
// clients gave to the host in another way, or through another host-agent.
//
// Only localhost, 127.0.0.1 and [::1] count as loopback. All other addresses, such as https:
// addresses and names that resolve to loopback, pass unchanged, unless the host's owner allows
// their origin ([Allowed]). Messages in pieces (channel/frame) pass unchanged too; hosts send them
// only on request.
//
// # Who may read
//
// The host decides first about each read. A read is served only if the host has confirmed on
// this connection that the client is subscribed to the canvas. The scheme, host and port must
// be those that the host gave for the canvas, to this client or, later, to a different client.
// All other reads are refused (§8):
//
//	-32602  the address is malformed, or names a different instance than the channel
//	-32009  not subscribed, or the content is too large, or its server redirects
//	-32008  the canvas is closed, has no such content, or none that may be read, or its server
//	        does not answer
//	4290    the client has too many waiting reads
//
// The host also decides whether the canvas still exists. If the host has not described the canvas
// on that connection for 2 s, the host-agent queries it ([ahprelay/ahp/view.Ask]), unless the client's
// subscribe request was longer than 2 KiB. After a host-agent's restart, an address in the replay of
// a reconnect passes unchanged, because the canvas's provider is unknown before this query.
//
// Files in folders that the owner allows are read directly: see files.go.
//
// Reads are GET requests without credentials, cookies, proxies or redirects. Pages served
// this way cannot use absolute paths to other origins, WebSockets, POST, or anything that
// depends on the web server's origin.
//
// # By URL
//
// On relays with a domain for canvases, [Host.Serve] is a reverse proxy to the same origins,
// and [Look] performs the same check for each request. docs/canvases.md lists what the proxy
// changes. Besides these origins, the proxy reaches only loopback ports ([Host.PlaceAt]). It
// resolves only names that the owner allows.
package contentproxy
