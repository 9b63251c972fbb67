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

	"ahprelay/internal/retryafter"
)

// InstanceHeader is the WebSocket handshake header with the host-agent's instance. While
// the WebSocket delivers bytes, the relay knows that this instance is alive.
const InstanceHeader = "Ahp-Instance"

// RelayHeader is the response header with the relay's instance. The host-agent needs it
// to address requests to this relay, because NATS would deliver a request for any relay
// to an arbitrary one.
const RelayHeader = "Ahp-Relay"

// A wsDialer makes connections that carry the NATS protocol in a WebSocket. The NATS
// library's own WebSocket support has no place for our
// compression, see compress.go.
type wsDialer struct {
	tls      *tls.Config
	headers  func() (http.Header, error)
	compress string
	instance string

	closing *atomic.Bool            // true once [Conn.Close] has begun; may be nil
	advised func(payload []byte)    // called with the payload of each ping; may be nil
	learn   func(url, place string) // called with the place of each relay (PlaceHeader); may be nil
}

// dial connects through the WebSocket at a URL. The connection ends when life ends.
func (d *wsDialer) dial(ctx, life context.Context, rawURL string, dial dialFunc) (net.Conn, error) {
	c, err := d.handshake(ctx, life, rawURL, dial, false)
	if err == nil {
		err = c.pack()
	}
	if err != nil {
		return nil, err // not a typed nil
	}
	return c, nil
}

// refusedWith returns the error for an HTTP answer other than a WebSocket handshake.
func refusedWith(response *http.Response) error {
	err := fmt.Errorf("the WebSocket handshake was answered with HTTP %d", response.StatusCode)
	if response.StatusCode == http.StatusUnauthorized {
		err = fmt.Errorf("%w: %w", err, errUnauthorized)
	}
	if after := retryafter.Of(response.Header, mostAfter); after > 0 {
		err = &busyError{err, after}
	}
	return err
}

// mostAfter bounds how long a host-agent waits because a busy relay asks for it.
const mostAfter = 2 * time.Minute

// A busyError reports that a relay is busy, and the time after which it permits the next
// attempt.
type busyError struct {
	error
	after time.Duration
}

func (e *busyError) Unwrap() error { return e.error }

// handshake opens a WebSocket, which may stay idle until it is used.
func (d *wsDialer) handshake(ctx, life context.Context, rawURL string, dial dialFunc, idle bool) (*wsConn, error) {
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
	if idle {
		header.Set(StandbyHeader, "1")
	}
	var below atomic.Pointer[netConn] // the transport may still dial after ctx has ended
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
		OnPingReceived: func(_ context.Context, payload []byte) bool {
			if d.advised != nil {
				d.advised(payload)
			}
			return true
		},
	})
	if err != nil {
		if conn := below.Load(); conn != nil {
			_ = conn.Close()
		}
		if response != nil {
			err = refusedWith(response)
		}
		return nil, err
	}
	ws.SetReadLimit(-1) // NATS has its own limits
	c := &wsConn{Conn: websocket.NetConn(life, ws, websocket.MessageBinary), ws: ws, below: below.Load(), relay: response.Header.Get(RelayHeader), closing: d.closing}
	c.packs = d.compress != "" && response.Header.Get(CompressHeader) == d.compress
	if d.learn != nil {
		d.learn(rawURL, response.Header.Get(PlaceHeader))
	}
	return c, nil
}

// pack starts compression if the relay supports it. An error closes the connection.
func (c *wsConn) pack() (err error) {
	if !c.packs {
		return nil
	}
	if c.packed, err = newPacker(c.Conn); err != nil {
		_ = c.Close()
	}
	return err
}

// A wsConn is a connection through a WebSocket.
type wsConn struct {
	net.Conn
	ws    *websocket.Conn
	below *netConn
	relay string // relay instance, from RelayHeader; "": unknown

	closing *atomic.Bool // see wsDialer

	packs  bool    // the relay accepts compression
	packed *packer // nil: no compression
}

func (c *wsConn) Write(p []byte) (int, error) {
	if c.packed == nil {
		return c.Conn.Write(p)
	}
	return c.packed.Write(p)
}

// Close ends the connection at once. All earlier writes have been sent. If [Conn.Close] has begun, Close first exchanges close frames, so
// that the relay can distinguish this end from a loss. Conn.Close bounds the time.
func (c *wsConn) Close() error {
	if c.closing != nil && c.closing.Load() {
		if c.packed != nil {
			c.packed.endFrame()
		}
		_ = c.ws.Close(websocket.StatusNormalClosure, "") // the relay may be gone
	}
	err := c.ws.CloseNow()
	_ = c.Conn.Close() // after CloseNow, it waits for no close handshake
	if c.packed != nil {
		c.packed.close()
	}
	return err
}

// The deadline methods apply to the network connection.

func (c *wsConn) SetDeadline(t time.Time) error { return c.below.SetDeadline(t) }

func (c *wsConn) SetReadDeadline(t time.Time) error { return c.below.SetReadDeadline(t) }

func (c *wsConn) SetWriteDeadline(t time.Time) error { return c.below.SetWriteDeadline(t) }

// libraryURL returns the URL to give to the NATS library. The library must not know
// about the WebSocket, which is part of the network connection here.
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
