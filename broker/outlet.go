package broker

import (
	"net"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// The NATS library normally writes published messages from a goroutine of its own.
// Waking that goroutine takes a fifth of the latency that relay and host-agent add to
// a request, so the library is configured to write at once. To send several messages
// with one system call, one TLS record and one frame, an outlet collects the messages
// that are written during Together.

// mostHeld bounds the bytes collected for one write.
const mostHeld = 64 << 10

// An outlet is the NATS library's connection to a server. It collects the library's
// writes while Together runs.
type outlet struct {
	net.Conn
	together *atomic.Int32 // number of calls of Together in progress

	mu   sync.Mutex // held during a write
	held *[]byte    // collected bytes, from heldBuffers; nil: none
}

var heldBuffers = sync.Pool{New: func() any { b := make([]byte, 0, mostHeld); return &b }}

func (o *outlet) Write(p []byte) (n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.together.Load() > 0 && o.room() >= len(p) {
		if o.held == nil {
			o.held = heldBuffers.Get().(*[]byte)
		}
		*o.held = append(*o.held, p...)
		return len(p), nil
	}
	if err := o.releaseLocked(); err != nil {
		return 0, err
	}
	return o.Conn.Write(p)
}

// room returns how many more bytes can be collected.
func (o *outlet) room() int {
	if o.held == nil {
		return mostHeld
	}
	return mostHeld - len(*o.held)
}

// release writes the collected bytes. If that fails, it closes the connection, because
// the library believes that they are written.
func (o *outlet) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.releaseLocked() != nil {
		_ = o.Close()
	}
}

func (o *outlet) releaseLocked() error {
	if o.held == nil {
		return nil
	}
	_, err := o.Conn.Write(*o.held)
	*o.held = (*o.held)[:0]
	heldBuffers.Put(o.held)
	o.held = nil
	return err
}

// Together implements [link.Bus]. It calls publish, and then sends the messages collected
// meanwhile in one write. Concurrent publishers do not wait for it.
func (c *Conn) Together(_ string, publish func()) {
	c.together.Add(1)
	publish()
	c.together.Add(-1)
	if o := c.outlet.Load(); o != nil {
		o.release()
	}
}

func (c *Conn) letOut(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err // not a typed nil
	}
	o := &outlet{Conn: conn, together: &c.together}
	c.outlet.Store(o)
	return o, nil
}

// writeAtOnce makes the NATS library write each message at once, and its connection an outlet.
func (c *Conn) writeAtOnce(o *nats.Options) error {
	o.WriteBufferSize = 1
	if dial := o.CustomDialer; dial != nil {
		o.CustomDialer = dialer(func(network, address string) (net.Conn, error) { return c.letOut(dial.Dial(network, address)) })
	}
	if inside := o.InProcessServer; inside != nil {
		o.InProcessServer = inProcess(func() (net.Conn, error) { return c.letOut(inside.InProcessConn()) })
	}
	return nil
}

// An inProcess connects to a NATS server in the same process.
type inProcess func() (net.Conn, error)

func (f inProcess) InProcessConn() (net.Conn, error) { return f() }
