package wire

import "net"

// A Resumable is a connection that outlives its network connections (package resume).
type Resumable interface {
	// Away reports whether the client is unreachable at the moment.
	Away() bool
	// Queued returns the bytes that the client has not confirmed, and the bytes not
	// read here.
	Queued() (written, unread int)
	// Discard ends the connection and drops the queued bytes.
	Discard()
}

// ResumableOf returns the Resumable below a connection, or nil.
func ResumableOf(conn net.Conn) Resumable {
	if paced, ok := conn.(*pacedConn); ok {
		conn = paced.Conn
	}
	r, _ := conn.(Resumable)
	return r
}

// Queued returns a connection's bytes on their way: in the kernel, or in the buffers of
// a connection that resumes.
func Queued(conn net.Conn) (written, unread int) {
	if r := ResumableOf(conn); r != nil {
		return r.Queued()
	}
	return KernelQueued(conn)
}
