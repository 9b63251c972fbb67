// Package sealed encrypts the connection between a client and a host-agent, so the relays
// between them cannot read it. docs/sealed.md is its specification, with the same names;
// testdata/vectors.json has its test vectors.
//
// # The parts
//
// The host-agent displays a [Code], which a person types on a device. Devices and hosts
// have keys; a [Device] has a device's. A [Grant] is a statement about a device, signed
// by another device. The client's [Initiator] and the host-agent's [Responder] do the
// handshake. Each then has a [Session], which encrypts its own messages and decrypts the
// peer's.
//
// # Errors
//
// A function which reads a peer's bytes returns an error that wraps [ErrLie] if a correct
// peer cannot have sent them through an honest relay. The session then decrypts nothing
// more, and the caller must end the connection.
//
// # Concurrency
//
// An Initiator or Responder must be used by one goroutine. Calls of Session.Seal need one
// lock, and calls of Session.Open another.
package sealed
