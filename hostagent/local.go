package hostagent

import (
	"context"
	"net"
	"sync"
)

// A Local is a listener for connections from this process, such as that of an AHP
// host to which an [Upstream] connects.
type Local struct {
	name  string
	conns chan net.Conn // new connections, for Accept; never closed
	done  chan struct{} // closed by Close
	once  sync.Once
}

// NewLocal returns a listener. The name is for the log.
func NewLocal(name string) *Local {
	return &Local{name: name, conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept implements [net.Listener].
func (l *Local) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener]. Connections stay.
func (l *Local) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements [net.Listener].
func (l *Local) Addr() net.Addr { return localAddr(l.name) }

type localAddr string

func (localAddr) Network() string  { return "local" }
func (a localAddr) String() string { return string(a) }

func (l *Local) connect(ctx context.Context) (net.Conn, error) {
	ours, theirs, err := connPair()
	if err != nil {
		return nil, err
	}
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.done:
		err = net.ErrClosed
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	_ = ours.Close()
	_ = theirs.Close()
	return nil, err
}
