package gateway

import (
	"encoding/binary"

	"ahprelay/ahp"
)

// The first byte of a frame (RFC 6455, section 5.2).
const (
	opContinuation = 0
	opText         = 1
	opBinary       = 2
	opClose        = 8
	opPing         = 9
	opPong         = 10

	finBit = 0x80 // the last frame of its message
)

// encodePiece returns a message, or a piece of one, as one WebSocket frame
// (RFC 6455, section 5.2). Frames from a server are not masked, so the same
// bytes serve every client.
func encodePiece(piece []byte, first, last, binary bool) []byte {
	opcode := byte(opContinuation)
	switch {
	case first && binary:
		opcode = opBinary
	case first:
		opcode = opText
	}
	if last {
		opcode |= finBit
	}
	return appendFrame(make([]byte, 0, len(piece)+10), opcode, piece)
}

// decodePieces reads pieces that encodePiece has made, one behind the other. Whole is
// the piece as it is encoded.
func decodePieces(encoded []byte, piece func(payload, whole []byte, first, last, binary bool)) {
	for len(encoded) >= 2 {
		head, size := frameSizes(encoded)
		opcode, end := encoded[0]&^finBit, head+size
		piece(encoded[head:end:end], encoded[:end], opcode != opContinuation, encoded[0]&finBit != 0, opcode == opBinary)
		encoded = encoded[end:]
	}
}

// frameSizes returns how long the head and the payload are of a frame that
// [appendFrame] has made.
func frameSizes(frame []byte) (head, size int) {
	switch n := frame[1]; n {
	case 126:
		return 4, int(binary.BigEndian.Uint16(frame[2:]))
	case 127:
		return 10, int(binary.BigEndian.Uint64(frame[2:]))
	default:
		return 2, int(n)
	}
}

// appendFrame appends a frame whose first byte is given.
func appendFrame(b []byte, first byte, payload []byte) []byte {
	switch n := len(payload); {
	case n < 126:
		b = append(b, first, byte(n))
	case n < 1<<16:
		b = append(b, first, 126)
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	default:
		b = append(b, first, 127)
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return append(b, payload...)
}

// encodeClose returns a close frame (RFC 6455, section 5.5.1).
func encodeClose(code ahp.CloseCode, reason string) []byte {
	payload := binary.BigEndian.AppendUint16(nil, uint16(code))
	return appendFrame(nil, finBit|opClose, append(payload, fitReason(reason)...))
}
