package broker

import (
	"net"
	"sync"
)

// A loginConn lets the NATS library read the refusal of a login. The connection is a
// [net.Pipe], so a write waits until the server reads. A server that refuses the login
// stops reading, and writes its refusal. The library does not read before its ping, which
// follows the login, is written. So a loginConn writes login and ping while the library
// reads.
type loginConn struct {
	net.Conn
	written chan struct{} // closed when the login is written

	mu    sync.Mutex // guards the fields below
	login []byte     // what the library wrote before it read the answer
	read  bool       // the library has begun to read the answer
}

func loginConnOf(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err // not a typed nil
	}
	return &loginConn{Conn: conn, written: make(chan struct{})}, nil
}

func (c *loginConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if !c.read {
		c.login = append(c.login, p...)
		c.mu.Unlock()
		return len(p), nil
	}
	c.mu.Unlock()
	<-c.written
	return c.Conn.Write(p)
}

func (c *loginConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	if !c.read && c.login != nil {
		c.read = true
		go func() {
			defer close(c.written)
			_, _ = c.Conn.Write(c.login) // if it fails, Read fails too
		}()
	}
	c.mu.Unlock()
	return c.Conn.Read(p)
}
