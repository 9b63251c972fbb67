package faultproxy

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// In each direction of a connection, at most maxPieces pieces with pieceSize bytes each
// are on their way.
const (
	pieceSize = 16 << 10
	maxPieces = 64
)

// A conn is one connection through a Proxy.
type conn struct {
	proxy  *Proxy
	from   *net.TCPConn
	ctx    context.Context
	cancel context.CancelFunc
	gate   gate
	shape  atomic.Pointer[Shape]

	doomed atomic.Bool  // the connection will be reset
	left   atomic.Int64 // number of bytes until then

	mu    sync.Mutex // guards the fields below
	to    *net.TCPConn
	ended bool
}

// A piece is what a read returned, with the time at which the other end must get it.
type piece struct {
	bytes []byte
	due   time.Time
}

func newConn(p *Proxy, from *net.TCPConn) *conn {
	c := &conn{proxy: p, from: from, gate: gate{passable: make(chan struct{})}}
	close(c.gate.passable)
	c.ctx, c.cancel = context.WithCancel(p.ctx)
	return c
}

// run passes bytes in both directions until both ends have closed, or one end has
// failed.
func (c *conn) run() {
	defer c.proxy.forget(c)
	defer c.cancel()
	if !c.connect() {
		c.close(true)
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.pass(c.to, c.from) })
	wg.Go(func() { c.pass(c.from, c.to) })
	wg.Wait()
	c.close(false)
}

func (c *conn) connect() bool {
	if c.gate.wait(c.ctx) != nil {
		return false
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	if c.proxy.source != nil {
		dialer.LocalAddr = c.proxy.source
	}
	to, err := dialer.DialContext(c.ctx, "tcp", c.proxy.target)
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.to = to.(*net.TCPConn)
	return !c.ended
}

// close ends the connection at both ends. If abrupt is true, both ends get a reset.
func (c *conn) close(abrupt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.cancel()
	for _, end := range []*net.TCPConn{c.from, c.to} {
		if end == nil {
			continue
		}
		if abrupt {
			_ = end.SetLinger(0)
		}
		_ = end.Close()
	}
}

// pass passes bytes in one direction until the end.
func (c *conn) pass(to, from *net.TCPConn) {
	pieces := make(chan piece, maxPieces)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(pieces)
		if err := c.read(pieces, from); err != io.EOF {
			c.close(true)
		}
	})
	if err := c.write(to, pieces); err != nil {
		c.close(true)
	}
	wg.Wait()
}

// read reads pieces until the sender ends. It returns io.EOF after an orderly end.
func (c *conn) read(pieces chan<- piece, from *net.TCPConn) error {
	due := time.Time{} // time at which the previous piece must arrive
	for {
		buf := make([]byte, pieceSize)
		n, err := from.Read(buf)
		if gone := c.gate.wait(c.ctx); gone != nil {
			return gone
		}
		if n > 0 {
			if at := time.Now().Add(c.shape.Load().delay()); at.After(due) {
				due = at
			}
			select {
			case pieces <- piece{buf[:n], due}:
			case <-c.ctx.Done():
				return c.ctx.Err()
			}
		}
		if err != nil {
			return err
		}
	}
}

func (s *Shape) delay() time.Duration {
	if s.Jitter <= 0 {
		return s.Delay
	}
	return s.Delay - s.Jitter + rand.N(2*s.Jitter)
}

// write writes each piece when it is due, and closes the connection for writing after
// the last.
func (c *conn) write(to *net.TCPConn, pieces <-chan piece) error {
	limit := rate.NewLimiter(rate.Inf, pieceSize)
	for p := range pieces {
		if err := c.await(p, limit); err != nil {
			return err
		}
		if c.doomed.Load() {
			if left := c.left.Add(-int64(len(p.bytes))); left < 0 {
				_, _ = to.Write(p.bytes[:max(0, int64(len(p.bytes))+left)])
				return net.ErrClosed
			}
		}
		if _, err := to.Write(p.bytes); err != nil {
			return err
		}
	}
	if c.ctx.Err() == nil {
		return to.CloseWrite()
	}
	return nil
}

// await waits until a piece is due and the rate and the gate admit it.
func (c *conn) await(p piece, limit *rate.Limiter) error {
	if wait := time.Until(p.due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
	want := rate.Inf
	if r := c.shape.Load().Rate; r > 0 {
		want = rate.Limit(r)
	}
	if limit.Limit() != want { // a new limiter may pass a whole piece at once
		limit.SetLimit(want)
	}
	if err := limit.WaitN(c.ctx, len(p.bytes)); err != nil {
		return err
	}
	return c.gate.wait(c.ctx)
}

// A gate lets callers of wait pass while it is open.
type gate struct {
	mu       sync.Mutex
	passable chan struct{} // closed while the gate is open
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.passable:
		g.passable = make(chan struct{})
	default:
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.passable:
	default:
		close(g.passable)
	}
}

func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	passable := g.passable
	g.mu.Unlock()
	select {
	case <-passable:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
