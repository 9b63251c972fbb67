package broker

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A writtenConn records the bytes of each call of Write.
type writtenConn struct {
	net.Conn
	calls  [][]byte
	fails  bool
	closed bool
}

func (c *writtenConn) Write(p []byte) (int, error) {
	if c.fails {
		return 0, io.ErrClosedPipe
	}
	c.calls = append(c.calls, bytes.Clone(p))
	return len(p), nil
}

func (c *writtenConn) Close() error {
	c.closed = true
	return nil
}

// TestGroupedBytesLeaveTogether writes to a connection alone and within Together, also nested, as
// two links do. All bytes must be written in order. Those within Together must be written in one
// call if they are within the bound, and none may be left.
func TestGroupedBytesLeaveTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		below := &writtenConn{}
		c := newConn(Events{})
		conn, err := c.letOut(below, nil)
		if err != nil {
			t.Fatal(err)
		}
		var said []byte
		write := func() int {
			p := bytes.Repeat([]byte{byte(len(said))}, rapid.SampledFrom([]int{0, 1, 100, mostHeld / 3, mostHeld, mostHeld + 1}).Draw(t, "bytes"))
			said = append(said, p...)
			if n, err := conn.Write(p); n != len(p) || err != nil {
				t.Fatalf("Write = %d, %v; want all bytes and no error", n, err)
			}
			return len(p)
		}
		left := func(when string) {
			t.Helper()
			if got := slices.Concat(below.calls...); !bytes.Equal(got, said) {
				t.Fatalf("%s, %d bytes have left; want %d, in order", when, len(got), len(said))
			}
		}
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "alone") {
				write()
				left("after a write")
				continue
			}
			before, size := len(below.calls), 0
			c.Together("", func() {
				for range rapid.IntRange(0, 4).Draw(t, "writes") {
					size += write()
				}
				if rapid.Bool().Draw(t, "another") {
					c.Together("", func() { write() })
					left("after another link's")
					before, size = len(below.calls), 0
				}
			})
			left("after what leaves together")
			if calls := len(below.calls) - before; size <= mostHeld && calls > 1 {
				t.Fatalf("a group of %d bytes left in %d writes; want 1", size, calls)
			}
		}
	})
}

// TestFailedWriteEndsTheConnection collects bytes within Together, and lets their write fail. The
// connection must be closed.
func TestFailedWriteEndsTheConnection(t *testing.T) {
	below := &writtenConn{}
	c := newConn(Events{})
	conn, _ := c.letOut(below, nil)
	c.Together("", func() {
		if _, err := conn.Write([]byte("held")); err != nil {
			t.Errorf("Write: %v; want no error", err)
		}
		below.fails = true
	})
	if !below.closed {
		t.Error("the connection is open after the write of held bytes failed; want it closed")
	}
	if _, err := c.letOut(nil, io.ErrUnexpectedEOF); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("letOut after a failed read = %v; want ErrUnexpectedEOF", err)
	}
}
