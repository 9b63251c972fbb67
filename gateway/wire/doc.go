// Package wire implements the relay's side of WebSockets: handshake, frames, compression,
// TLS and paced writes. All it knows about AHP is the close codes.
//
//	Accept → Socket → Conn → tls.Conn → pacedConn → TCP
//
// A [Socket] reads through the WebSocket library, but writes encoded frames without it. A
// [Conn] keeps the frames of both in order, and counts received bytes. Below TLS, a
// pacedConn fails a Write that makes no progress for some time, and joins the TLS records
// of a Write into one system call.
//
// # Frames
//
// [EncodePiece] makes frames. Server frames are not masked, so all clients that get a
// message share its bytes. [DeflatePiece] does the same with compression.
//
// # Concurrency
//
// One goroutine may read from a Socket while others write. The package starts no
// goroutines: a Conn ends with the context life passed to [Accept].
package wire
