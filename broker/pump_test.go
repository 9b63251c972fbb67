package broker

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A pacedReader returns the given pieces, each after its pause.
type pacedReader struct {
	pieces [][]byte
	pauses []time.Duration
	most   int // largest buffer passed to Read before a long pause
}

func (r *pacedReader) Read(p []byte) (int, error) {
	if len(r.pieces) == 0 {
		return 0, io.ErrClosedPipe
	}
	if len(r.pauses) > 0 {
		time.Sleep(r.pauses[0])
		if r.pauses[0] > 2*quietRead {
			r.most = max(r.most, len(p))
		}
		r.pauses = r.pauses[1:]
	}
	n := copy(p, r.pieces[0])
	if r.pieces[0] = r.pieces[0][n:]; len(r.pieces[0]) == 0 {
		r.pieces = r.pieces[1:]
	}
	return n, nil
}

// TestPumpCopiesInOrder copies pieces with pauses between them. All bytes must be copied in order.
// After a silence, Pump must wait with a small buffer.
func TestPumpCopiesInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			var want []byte
			r := &pacedReader{}
			for range rapid.IntRange(1, 10).Draw(rt, "pieces") {
				piece := bytes.Repeat([]byte{byte(len(r.pieces))}, rapid.SampledFrom([]int{1, 100, 511, 512, 513, 5000, 40_000, 100_000}).Draw(rt, "size"))
				want = append(want, piece...)
				r.pieces = append(r.pieces, piece)
			}
			for range 30 {
				r.pauses = append(r.pauses, rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Minute}).Draw(rt, "pause"))
			}
			var got bytes.Buffer
			if err := Pump(&got, r); !errors.Is(err, io.ErrClosedPipe) {
				rt.Fatalf("Pump = %v; want io.ErrClosedPipe", err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				rt.Fatalf("%d bytes arrive as %d bytes, or they differ; want the same", len(want), got.Len())
			}
		})
	})
	synctest.Test(t, func(t *testing.T) {
		r := &pacedReader{}
		for range 5 { // many bytes, then a few small messages with long pauses
			r.pieces = append(r.pieces, make([]byte, 50_000), make([]byte, 6), make([]byte, 6), make([]byte, 6))
			for range 2 + 50_000/PumpBuffer {
				r.pauses = append(r.pauses, 0)
			}
			r.pauses = append(r.pauses, time.Second+quietRead, time.Minute, time.Minute)
		}
		if err := Pump(io.Discard, r); !errors.Is(err, io.ErrClosedPipe) {
			t.Fatalf("Pump = %v; want io.ErrClosedPipe", err)
		}
		if r.most > idleBuffer {
			t.Errorf("the pump waits for a minute with a buffer of %d bytes; want at most idleBuffer", r.most)
		}
	})
}
