package broker

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// InstanceHeader is the header of a WebSocket handshake in which a host-agent says which
// run of it comes: so the relay knows that this one is there for as long as the WebSocket
// brings something.
const InstanceHeader = "Ahp-Instance"

// RelayHeader is the header of the answer in which a relay says which run of it the
// WebSocket ends at. NATS gives what is asked of any relay to any.
const RelayHeader = "Ahp-Relay"

// A wsDialer makes connections that carry the NATS protocol in a WebSocket, one
// at a time. The NATS library could do that itself, but then nothing could be
// done with the bytes between the two; see compress.go.
type wsDialer struct {
	tls      *tls.Config
	headers  func() (http.Header, error)
	compress string
	instance string
}

// dial returns a connection through the WebSocket at a URL. It ends with life at
// the latest.
func (d *wsDialer) dial(ctx, life context.Context, rawURL string, dial dialFunc) (net.Conn, error) {
	header := http.Header{}
	if d.headers != nil {
		given, err := d.headers()
		if err != nil {
			return nil, err
		}
		header = given.Clone()
	}
	if d.compress != "" {
		header.Set(CompressHeader, d.compress)
	}
	header.Set(InstanceHeader, d.instance)
	var below atomic.Pointer[netConn] // the transport may still be dialling when ctx has ended the handshake
	transport := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: d.tls,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialLive(ctx, life, dial, network, address)
			if err != nil {
				return nil, err
			}
			below.Store(c)
			return c, nil
		},
	}
	ws, response, err := websocket.Dial(ctx, rawURL, &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		HTTPHeader: header, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if conn := below.Load(); conn != nil {
			_ = conn.Close()
		}
		if response != nil {
			return nil, fmt.Errorf("the WebSocket handshake was answered with HTTP %d", response.StatusCode)
		}
		return nil, err
	}
	ws.SetReadLimit(-1) // NATS has limits of its own
	c := &wsConn{Conn: websocket.NetConn(life, ws, websocket.MessageBinary), ws: ws, below: below.Load(), relay: response.Header.Get(RelayHeader)}
	if d.compress != "" && response.Header.Get(CompressHeader) == d.compress {
		if c.packed, err = newPacker(c.Conn); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	return c, nil
}

// A wsConn is a connection through a WebSocket.
type wsConn struct {
	net.Conn
	ws    *websocket.Conn
	below *netConn
	relay string // where it ends, as that says; "": it does not

	packed *packer // nil: what is written leaves as it is
}

// Write implements [net.Conn].
func (c *wsConn) Write(p []byte) (int, error) {
	if c.packed == nil {
		return c.Conn.Write(p)
	}
	return c.packed.Write(p)
}

// Close ends the connection at once. What was written has left.
func (c *wsConn) Close() error {
	err := c.ws.CloseNow()
	_ = c.Conn.Close() // which has nobody left to say goodbye to, and forgets its context
	if c.packed != nil {
		c.packed.close()
	}
	return err
}

// The deadlines are those of the network connection.

// SetDeadline implements [net.Conn].
func (c *wsConn) SetDeadline(t time.Time) error { return c.below.SetDeadline(t) }

// SetReadDeadline implements [net.Conn].
func (c *wsConn) SetReadDeadline(t time.Time) error { return c.below.SetReadDeadline(t) }

// SetWriteDeadline implements [net.Conn].
func (c *wsConn) SetWriteDeadline(t time.Time) error { return c.below.SetWriteDeadline(t) }

// libraryURL is how the NATS library is told of a URL: for it, the WebSocket is
// part of the network.
func libraryURL(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" {
		return rawURL
	}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "wss":
		port = "443"
	default:
		port = "80"
	}
	return "nats://" + net.JoinHostPort(u.Hostname(), port)
}
