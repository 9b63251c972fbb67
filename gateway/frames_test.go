package gateway

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"ahprelay/ahp"
	"ahprelay/gateway/wire"
)

// frame returns a client's WebSocket frame, masked with zeros, so the payload stays
// readable.
func frame(first byte, payload []byte) []byte {
	b := append(frameHeader(first, len(payload)), payload...)
	return b
}

func frameHeader(first byte, size int) []byte {
	b := []byte{first}
	switch {
	case size < 126:
		b = append(b, 0x80|byte(size))
	case size < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(size))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(size))
	}
	return append(b, 0, 0, 0, 0)
}

func writeFrame(t *testing.T, conn net.Conn, first byte, payload []byte) {
	t.Helper()
	if _, err := conn.Write(frame(first, payload)); err != nil {
		t.Errorf("writing a frame: %v; want no error", err)
	}
}

// readFrame reads a frame from the relay, and returns its first byte and its payload.
func readFrame(r io.Reader) (first byte, payload []byte, err error) {
	var header [2]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	size := uint64(header[1])
	var long [8]byte
	switch size {
	case 126:
		_, err = io.ReadFull(r, long[6:])
		size = binary.BigEndian.Uint64(long[:])
	case 127:
		_, err = io.ReadFull(r, long[:])
		size = binary.BigEndian.Uint64(long[:])
	}
	if err != nil {
		return 0, nil, err
	}
	payload = make([]byte, size)
	_, err = io.ReadFull(r, payload)
	return header[0], payload, err
}

// readClose skips frames up to the relay's close frame, and fails unless that has the
// code and reason. It does not answer the close.
func readClose(t *testing.T, conn net.Conn, code ahp.CloseCode, reason string) {
	t.Helper()
	r := bufio.NewReader(conn)
	for {
		first, payload, err := readFrame(r)
		if err != nil {
			t.Errorf("no close frame: %v; want %d %q", err, code, reason)
			return
		}
		if first != wire.FinBit|wire.OpClose {
			continue
		}
		if got := ahp.CloseCode(binary.BigEndian.Uint16(payload)); got != code || string(payload[2:]) != reason {
			t.Errorf("close frame %d %q; want %d %q", got, payload[2:], code, reason)
		}
		return
	}
}
