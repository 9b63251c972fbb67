// Package wire carries the relay's WebSockets: handshake, frames, compression, TLS
// and writes at the kernel's pace. It knows AHP's close codes and nothing else from
// the gateway.
//
//	Accept → Socket → Conn → tls.Conn → pacedConn → TCP
//
// A [Socket] reads through the WebSocket library and writes encoded frames past it.
// A [Conn] keeps the order of both, and counts received bytes. Below TLS, a
// pacedConn fails a Write after a time without progress, and joins the records of a
// Write into one system call.
//
// # Frames
//
// [EncodePiece] makes frames. Server frames are not masked, so all clients of a
// message share its bytes. [DeflatePiece] does the same with compression.
//
// # Concurrency
//
// One goroutine may read from a Socket while others write. The package starts no
// goroutines: a Conn ends with the life passed to [Accept].
package wire
