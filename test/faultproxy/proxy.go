// Package faultproxy passes TCP connections on to an address, and injects the
// faults of real networks.
//
// # Faults
//
//   - [Proxy.Cut]: connections are closed, and new connections are refused.
//   - [Proxy.Freeze]: nothing passes any more, without any error. New
//     connections are accepted and frozen as well.
//   - [Proxy.FreezeOpen]: only the present connections freeze, as when a
//     router forgets them. New connections pass.
//   - [Proxy.ResetAfter]: connections are reset in the middle of a message.
//   - [Proxy.Shape]: bytes arrive later, or no faster than a given rate.
//   - [Proxy.Drop]: the kernel drops packets, like a radio link.
//
// [Proxy.Heal] ends all of these. The data in flight on a frozen connection
// then arrives, in order and complete: a frozen network loses packets, but TCP
// does not lose bytes. The proxy never drops data that it has accepted while
// both ends of a connection exist.
package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// dialTimeout limits the wait until the target accepts a connection.
const dialTimeout = 5 * time.Second

// A Proxy accepts connections at its address and passes them on to its target. All
// methods are safe for concurrent use.
type Proxy struct {
	listen, target string
	source         *net.TCPAddr // address for connections to the target; nil: any

	ctx    context.Context // ended by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // waits for all goroutines

	mu       sync.Mutex // guards the fields below
	listener net.Listener
	conns    map[*conn]bool
	frozen   bool // new connections freeze, too
	dropping bool // the kernel drops packets
	shape    Shape
}

// A Shape describes a slow network. It affects both directions of each connection.
type Shape struct {
	Delay  time.Duration // each byte arrives later by this
	Jitter time.Duration // each delay differs by up to this; the order stays
	Rate   int           // bytes per second; 0: no limit
}

// New returns a Proxy that listens at an address and passes connections on to target.
// With port 0, it listens at a free port; with an empty address, at an [OwnAddress].
func New(listen, target string) (*Proxy, error) {
	ctx, cancel := context.WithCancel(context.Background())
	if listen == "" {
		listen = OwnAddress()
	}
	p := &Proxy{listen: listen, target: target, source: source(), ctx: ctx, cancel: cancel, conns: map[*conn]bool{}}
	if err := p.open(); err != nil {
		cancel()
		return nil, err
	}
	p.listen = p.listener.Addr().String()
	return p, nil
}

// DialFromListener makes the proxy connect to its target from the IP address at which
// it listens, so both ends see one address. Call it before the first connection, and
// do not use [Proxy.Drop] with it.
func (p *Proxy) DialFromListener() {
	p.source = &net.TCPAddr{IP: p.listener.Addr().(*net.TCPAddr).IP}
}

// Addr returns the address at which the proxy listens.
func (p *Proxy) Addr() string { return p.listen }

// open makes the proxy listen, unless it listens already or is closed.
func (p *Proxy) open() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.ctx.Err() != nil {
		return nil
	}
	syscall.ForkLock.RLock() // waits for children that still have a listener closed by Cut
	defer syscall.ForkLock.RUnlock()
	l, err := net.Listen("tcp", p.listen)
	if err != nil {
		return fmt.Errorf("fault proxy for %s: %w", p.target, err)
	}
	p.listener = l
	p.wg.Go(func() { p.acceptLoop(l) })
	return nil
}

func (p *Proxy) acceptLoop(l net.Listener) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		c := newConn(p, from.(*net.TCPConn))
		if !p.keep(l, c) {
			c.close(true)
			continue
		}
		p.wg.Go(c.run)
	}
}

// keep registers a connection. It returns false if the listener that accepted the
// connection has been closed.
func (p *Proxy) keep(l net.Listener, c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != l {
		return false
	}
	if p.frozen {
		c.gate.shut()
	}
	shape := p.shape
	c.shape.Store(&shape)
	p.conns[c] = true
	return true
}

func (p *Proxy) forget(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// Cut closes all connections and refuses new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for c := range p.conns {
		c.close(true)
	}
}

// Freeze stops all traffic on present and new connections.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	p.frozen = true
	p.mu.Unlock()
	p.FreezeOpen()
}

// FreezeOpen stops all traffic on the present connections. New connections pass.
func (p *Proxy) FreezeOpen() {
	for _, c := range p.current() {
		c.gate.shut()
	}
}

// ResetAfter resets each present connection after it has passed this many more bytes,
// both directions together.
func (p *Proxy) ResetAfter(bytes int64) {
	for _, c := range p.current() {
		c.left.Store(bytes)
		c.doomed.Store(true)
	}
}

// Shape slows down all connections, present and new.
func (p *Proxy) Shape(s Shape) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shape = s
	for c := range p.conns {
		c.shape.Store(&s)
	}
}

// Heal ends all faults, and lets the proxy listen again after Cut.
func (p *Proxy) Heal() error {
	p.Shape(Shape{})
	p.mu.Lock()
	p.frozen = false
	p.mu.Unlock()
	for _, c := range p.current() {
		c.gate.open()
	}
	return errors.Join(p.deliver(), p.open())
}

// Conns returns the number of open connections.
func (p *Proxy) Conns() int { return len(p.current()) }

func (p *Proxy) current() []*conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*conn, 0, len(p.conns))
	for c := range p.conns {
		list = append(list, c)
	}
	return list
}

// Close ends all connections, and returns after all goroutines of the proxy have ended.
func (p *Proxy) Close() {
	p.cancel()
	p.Cut()
	_ = p.deliver() // Cut has ended the connections that lose packets
	p.wg.Wait()
}
