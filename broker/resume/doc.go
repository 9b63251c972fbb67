// Package resume carries a byte stream over successive network connections. With it, a
// client which changes its network or sleeps keeps its connection to the relay.
//
// # Streams
//
// A [Stream] is one end of a stream, and a net.Conn. Its bytes are sent in the numbered,
// acknowledged packets of package link, over a carrier: a WebSocket between ahp-connect
// and a relay. When a carrier ends, the client dials a new one, and each end resends
// what the peer has not received. An ordinary WebSocket connection with its own
// handshake runs inside the stream, so relay and client treat it nearly like any
// other connection.
//
//	client                                       relay
//	  hello {version, stream id, or none}  ──▶
//	  ◀──  welcome {version, stream id, window, resume time}, or refuse {reason}
//	  data, ack, bye of package link       ◀──both──▶
//
// The relay chooses the id: 32 random bytes. A later carrier must name the id, which
// proves that it comes from the same client. It must also present a token for the same
// person.
//
// # Bounds
//
// Each end stores bytes until the peer has read them, at most a window: 8 MiB at a
// relay, 1 MiB at a client. While the window is full, Write waits, as on a TCP
// connection. But if the peer is away, the relay's end does not wait: a full window ends
// the stream, because the peer has missed too much. A [Pool] bounds the bytes stored for
// absent peers, per person and in total. The stream also ends if the peer is away for
// longer than the resume time.
//
// If a peer sends more than its window, or an invalid packet, the stream ends.
//
// # How a stream ends
//
// Unless the peer is away, Close sends all bytes written before, for at most 5 s, and then a
// bye. A stream which
// was closed, or which has exceeded a bound, cannot resume: the client's local
// connections get close code 1012. [Stream.Discard] drops all bytes; it is for revoked
// tokens.
//
// # Concurrency
//
// The methods of Stream are safe for concurrent use. Attach starts goroutines, which end
// before Attach returns.
package resume
