// Package resume carries a byte stream over network connections that come and go: a
// client that changes its network, or sleeps, keeps its connection to the relay.
//
// # Streams
//
// A [Conn] is one end of a stream, and a net.Conn. Its bytes travel in the numbered,
// acknowledged packets of package link, over a carrier: a WebSocket between ahp-connect
// and a relay. When a carrier ends, the client dials another one, and each end sends
// what the other end misses. Above a Conn runs an ordinary WebSocket connection with its
// own handshake, so relay and client treat it like any other connection.
//
//	client                                       relay
//	  hello {version, stream id, or none}  ──▶
//	  ◀──  welcome {version, stream id, window, resume time}, or refuse {reason}
//	  data, ack, bye of package link       ◀──both──▶
//
// The relay chooses the id: 32 random bytes, which also prove that a later carrier comes
// from the same client. The relay wants the same person's token on each carrier.
//
// # Bounds
//
// Each end holds at most its window of bytes that the other end has not read: 8 MiB at a
// relay, 1 MiB at a client. A Write waits while the window is full, as on a TCP
// connection. While the peer is away, the relay's end does not wait: a full window ends
// the stream, because then the peer has missed more than may be made up for. A [Pool]
// bounds the bytes held for peers that are away, for each person and in total. A peer
// that is away for longer than the resume time loses the stream as well.
//
// A peer that sends more than its window, or bytes that are no packets, loses the
// stream.
//
// # Ends
//
// Close sends everything written before, for at most 5 s, and then a bye. A stream that
// was closed, or ended by a bound, does not resume: the client's local connections get
// close code 1012. [Conn.Discard] drops everything, for revoked tokens.
//
// # Concurrency
//
// The methods of Conn may run at once. Attach owns two goroutines until it returns.
package resume
