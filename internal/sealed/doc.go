// Package sealed keeps the conversation between a client and a host-agent secret from
// the relays between them. docs/sealed.md is its specification; the names here are those
// of the specification, and testdata/vectors.json has its test vectors.
//
// # The parts
//
// A [Code] is shown by the host-agent and typed at a device. A [Device] and a host have
// keys. A [Grant] is a device's signed statement about a different device. An
// [Initiator] (the client) and a [Responder] (the host-agent) perform the handshake. Each
// gets a [Session], which seals the messages of its end and opens those of the peer.
//
// # Errors
//
// Each function that reads a peer's bytes returns an error that wraps [ErrLie] if the
// bytes cannot come from a correct peer behind an honest relay. The session is then over:
// it opens and seals nothing more.
//
// # Concurrency
//
// An Initiator and a Responder belong to one goroutine. A Session has two halves: calls
// of Seal, and calls of Open, each need a lock of their own.
package sealed
