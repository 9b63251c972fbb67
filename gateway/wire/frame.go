package wire

import (
	"encoding/binary"

	"ahprelay/ahp"
)

// Frame opcodes and flags (RFC 6455, section 5.2).
const (
	OpContinuation = 0
	OpText         = 1
	OpBinary       = 2
	OpClose        = 8
	OpPing         = 9
	OpPong         = 10

	FinBit = 0x80 // the last frame of its message
)

// EncodePiece returns a message, or a piece of it, as a WebSocket frame (RFC 6455,
// section 5.2). Server frames are not masked, so all clients can share the bytes.
func EncodePiece(piece []byte, first, last, binary bool) []byte {
	opcode := byte(OpContinuation)
	switch {
	case first && binary:
		opcode = OpBinary
	case first:
		opcode = OpText
	}
	if last {
		opcode |= FinBit
	}
	return AppendFrame(make([]byte, 0, len(piece)+10), opcode, piece)
}

// AppendWhole appends a whole message as one frame.
func AppendWhole(b, message []byte, binary bool) []byte {
	return AppendFrame(b, wholeOpcode(binary), message)
}

// wholeOpcode returns the first byte of a frame with a whole message.
func wholeOpcode(binary bool) byte {
	if binary {
		return FinBit | OpBinary
	}
	return FinBit | OpText
}

// EncodeIn encodes the whole message in buffer[at:] as a frame. It writes the frame head
// directly before the message, or copies the message if there is no room.
func EncodeIn(buffer []byte, at int, binary bool) []byte {
	message := buffer[at:]
	var head [10]byte
	n := len(appendHead(head[:0], wholeOpcode(binary), len(message)))
	if n > at {
		return EncodePiece(message, true, true, binary)
	}
	copy(buffer[at-n:], head[:n])
	return buffer[at-n:]
}

// DecodePieces calls piece for each of the consecutive frames made by EncodePiece. whole
// is the encoded frame.
func DecodePieces(encoded []byte, piece func(payload, whole []byte, first, last, binary bool)) {
	for len(encoded) >= 2 {
		head, size := frameSizes(encoded)
		opcode, end := encoded[0]&^FinBit, head+size
		piece(encoded[head:end:end], encoded[:end], opcode != OpContinuation, encoded[0]&FinBit != 0, opcode == OpBinary)
		encoded = encoded[end:]
	}
}

// frameSizes returns the lengths of head and payload in a frame made by [AppendFrame].
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

// AppendFrame appends a frame. first is the frame's first byte.
func AppendFrame(b []byte, first byte, payload []byte) []byte {
	return append(appendHead(b, first, len(payload)), payload...)
}

// appendHead appends a frame head. n is the length of the payload.
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
	return AppendFrame(nil, FinBit|OpClose, append(payload, fitReason(reason)...))
}
