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

// encodePiece returns a message, or a piece of one, as one WebSocket frame (RFC 6455,
// section 5.2). Server frames are not masked, so the same bytes serve every client.
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

// appendText appends a whole text message, encoded like encodePiece's.
func appendText(b, message []byte) []byte { return appendFrame(b, finBit|opText, message) }

// encodeIn encodes the whole text message at buffer[at:], and puts the frame head
// before it in place.
func encodeIn(buffer []byte, at int) []byte {
	message := buffer[at:]
	var head [10]byte
	n := len(appendHead(head[:0], finBit|opText, len(message)))
	if n > at {
		return encodePiece(message, true, true, false)
	}
	copy(buffer[at-n:], head[:n])
	return buffer[at-n:]
}

// decodePieces reads consecutive frames made by encodePiece. Whole is the encoded
// frame.
func decodePieces(encoded []byte, piece func(payload, whole []byte, first, last, binary bool)) {
	for len(encoded) >= 2 {
		head, size := frameSizes(encoded)
		opcode, end := encoded[0]&^finBit, head+size
		piece(encoded[head:end:end], encoded[:end], opcode != opContinuation, encoded[0]&finBit != 0, opcode == opBinary)
		encoded = encoded[end:]
	}
}

// frameSizes returns the lengths of the head and the payload of a frame made by
// [appendFrame].
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

// appendFrame appends a frame with the given first byte.
func appendFrame(b []byte, first byte, payload []byte) []byte {
	return append(appendHead(b, first, len(payload)), payload...)
}

// appendHead appends the head of a frame with n payload bytes.
func appendHead(b []byte, first byte, n int) []byte {
	switch {
	case n < 126:
		return append(b, first, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, first, 126), uint16(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, first, 127), uint64(n))
	}
}

// encodeClose returns a close frame (RFC 6455, section 5.5.1).
func encodeClose(code ahp.CloseCode, reason string) []byte {
	payload := binary.BigEndian.AppendUint16(nil, uint16(code))
	return appendFrame(nil, finBit|opClose, append(payload, fitReason(reason)...))
}
