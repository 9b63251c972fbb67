package wire

import "net"

// A Resumable is a connection that survives the loss of network connections (package
// resume).
type Resumable interface {
	// Away reports whether the client has no network connection at the moment.
	Away() bool
	// Queued returns the number of bytes that the client has not confirmed, and of bytes
	// received but not read.
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

// Queued returns the number of bytes in transit: in the kernel, or in the buffers of a
// Resumable.
func Queued(conn net.Conn) (written, unread int) {
	if r := ResumableOf(conn); r != nil {
		return r.Queued()
	}
	return KernelQueued(conn)
}
