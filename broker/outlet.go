package broker

import (
	"net"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// The NATS library has a goroutine of its own write what is published: a message waits
// until that has woken, which takes a fifth of what relay and host-agent add to a request
// and its answer. So it is told to write at once, and what leaves together is held here
// until all of it is there: one call of the kernel, one record of TLS, one frame.

// mostHeld is how much is held of what leaves together, in bytes.
const mostHeld = 64 << 10

// An outlet is a connection of the library's to a server.
type outlet struct {
	net.Conn
	together *atomic.Int32 // how many publish what leaves together

	mu   sync.Mutex // held during a write
	held *[]byte    // of heldBuffers; nil: nothing is held
}

var heldBuffers = sync.Pool{New: func() any { b := make([]byte, 0, mostHeld); return &b }}

// Write implements [net.Conn].
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

// room is how much more may be held.
func (o *outlet) room() int {
	if o.held == nil {
		return mostHeld
	}
	return mostHeld - len(*o.held)
}

// release writes what is held. If that fails, the connection is over: the library takes it
// for written.
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

// Together calls publish, and has what that publishes leave together when it returns.
// Others who publish meanwhile do not wait for longer. It implements Bus.
func (c *Conn) Together(_ string, publish func()) {
	c.together.Add(1)
	publish()
	c.together.Add(-1)
	if o := c.outlet.Load(); o != nil {
		o.release()
	}
}

// letOut has a connection be written to through an outlet from now on.
func (c *Conn) letOut(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err // and no typed nil
	}
	o := &outlet{Conn: conn, together: &c.together}
	c.outlet.Store(o)
	return o, nil
}

// writeAtOnce is the option by which the library writes what it is given, through an outlet.
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

// An inProcess makes connections to a server within the process.
type inProcess func() (net.Conn, error)

// InProcessConn implements [nats.InProcessConnProvider].
func (f inProcess) InProcessConn() (net.Conn, error) { return f() }
