package stack

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// A Meter is a TCP proxy that counts the bytes and the NATS messages to its target.
type Meter struct {
	listener net.Listener
	target   string
	bytes    atomic.Int64
	messages atomic.Int64

	mu    sync.Mutex
	conns map[net.Conn]bool // nil when closed
	wg    sync.WaitGroup
}

// NewMeter returns a Meter that forwards connections to the address target.
func NewMeter(target string) (*Meter, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &Meter{listener: l, target: target, conns: map[net.Conn]bool{}}
	m.wg.Go(m.acceptLoop)
	return m, nil
}

// Addr returns the address at which the Meter listens.
func (m *Meter) Addr() string { return m.listener.Addr().String() }

// Bytes returns how many bytes have gone to the target so far.
func (m *Meter) Bytes() int64 { return m.bytes.Load() }

// Messages returns how many NATS messages have gone to the target so far.
func (m *Meter) Messages() int64 { return m.messages.Load() }

// Cut ends all present connections. New connections pass.
func (m *Meter) Cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.conns {
		_ = c.Close()
		delete(m.conns, c)
	}
}

// Close ends all connections, and the Meter accepts no more.
func (m *Meter) Close() {
	_ = m.listener.Close()
	m.mu.Lock()
	for c := range m.conns {
		_ = c.Close()
	}
	m.conns = nil
	m.mu.Unlock()
	m.wg.Wait()
}

func (m *Meter) acceptLoop() {
	for {
		from, err := m.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", m.target)
		if err != nil {
			_ = from.Close()
			continue
		}
		if !m.keep(from, to) {
			return
		}
		m.wg.Go(func() { m.pass(to, from, true) })
		m.wg.Go(func() { m.pass(from, to, false) })
	}
}

func (m *Meter) keep(a, b net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns == nil {
		_ = errors.Join(a.Close(), b.Close())
		return false
	}
	m.conns[a], m.conns[b] = true, true
	return true
}

func (m *Meter) pass(to, from net.Conn, count bool) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if count {
			m.bytes.Add(int64(n))
			m.messages.Add(countPublishes(buf[:n]))
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if err != io.EOF {
				_ = from.Close()
			}
			return
		}
	}
}

// countPublishes counts the operations PUB and HPUB in a piece of the NATS client
// protocol. It misses an operation whose name is in two pieces.
func countPublishes(piece []byte) (n int64) {
	operation := []byte("PUB ")
	for {
		i := bytes.Index(piece, operation)
		if i < 0 {
			return n
		}
		if i == 0 || piece[i-1] == '\n' || piece[i-1] == 'H' {
			n++
		}
		piece = piece[i+len(operation):]
	}
}
