package loadgen

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Opcodes of WebSocket frames (RFC 6455, section 5.2).
const (
	opContinuation = 0
	opText         = 1
	opBinary       = 2
	opClose        = 8
	opPing         = 9
	opPong         = 10

	finBit  = 0x80
	maskBit = 0x80
)

// A frame is a WebSocket frame. Its payload is valid until the next frame is read.
type frame struct {
	op      byte
	fin     bool
	payload []byte
}

// A head is the header of a frame.
type head struct {
	op     byte
	fin    bool
	masked bool
	key    [4]byte
	size   int // length of the header in bytes
	length int // length of the payload in bytes
}

// maxFrame is larger than every frame in a benchmark.
const maxFrame = 256 << 20

var errFrameTooBig = errors.New("the frame is too long")

// readHead reads a frame's header. ok is false if the header is not complete.
func readHead(b []byte) (h head, ok bool, err error) {
	if len(b) < 2 {
		return h, false, nil
	}
	if b[0]&0x70 != 0 {
		return h, false, fmt.Errorf("a frame begins with %#x", b[0])
	}
	h = head{op: b[0] & 0x0f, fin: b[0]&finBit != 0, masked: b[1]&maskBit != 0, size: 2, length: int(b[1] &^ maskBit)}
	switch h.length {
	case 126:
		h.size = 4
	case 127:
		h.size = 10
	}
	need := h.size
	if h.masked {
		need += 4
	}
	if len(b) < need {
		return h, false, nil
	}
	switch h.size {
	case 4:
		h.length = int(binary.BigEndian.Uint16(b[2:]))
	case 10:
		length := binary.BigEndian.Uint64(b[2:])
		if length > maxFrame {
			return h, false, errFrameTooBig
		}
		h.length = int(length)
	}
	if h.masked {
		copy(h.key[:], b[h.size:])
	}
	h.size = need
	return h, true, nil
}

// nextFrame returns the frame at the beginning of b, and its length. If the frame is
// not complete, the length is 0. It unmasks a masked payload in place.
func nextFrame(b []byte) (f frame, used int, err error) {
	h, ok, err := readHead(b)
	if !ok || len(b) < h.size+h.length {
		return frame{}, 0, err
	}
	payload := b[h.size : h.size+h.length]
	if h.masked {
		unmask(payload, h.key)
	}
	return frame{h.op, h.fin, payload}, h.size + h.length, nil
}

func unmask(payload []byte, key [4]byte) {
	if key == [4]byte{} {
		return
	}
	for i := range payload {
		payload[i] ^= key[i&3]
	}
}

// appendFrame appends a frame in the form in which servers send it.
func appendFrame(b []byte, op byte, payload []byte) []byte {
	return append(appendHead(b, op, len(payload), 0), payload...)
}

// appendMasked appends a frame in the form in which clients send it. Its mask is 0, so
// the payload stays as it is.
func appendMasked(b []byte, op byte, payload []byte) []byte {
	b = appendHead(b, op, len(payload), maskBit)
	return append(append(b, 0, 0, 0, 0), payload...)
}

func appendHead(b []byte, op byte, length int, mask byte) []byte {
	b = append(b, finBit|op)
	switch {
	case length < 126:
		return append(b, mask|byte(length))
	case length < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, mask|126), uint16(length))
	}
	return binary.BigEndian.AppendUint64(append(b, mask|127), uint64(length))
}

// closeText returns the reason in a close frame as a text.
func closeText(payload []byte) string {
	if len(payload) < 2 {
		return "closed without a reason"
	}
	return fmt.Sprintf("closed with %d %s", binary.BigEndian.Uint16(payload), payload[2:])
}
