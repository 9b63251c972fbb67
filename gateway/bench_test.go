package gateway

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"ahprelay/gateway/wire"
	"ahprelay/routing"
)

// A sinkConn discards all writes.
type sinkConn struct{ net.Conn }

func (sinkConn) Write(b []byte) (int, error)      { return len(b), nil }
func (sinkConn) Close() error                     { return nil }
func (sinkConn) SetWriteDeadline(time.Time) error { return nil }

// BenchmarkWriter measures the relay's writer without the kernel. An operation writes
// 2,000 frames: 20 frames of 512 bytes to each of 100 clients.
func BenchmarkWriter(b *testing.B) {
	const clients, burst = 100, 20
	frame := routing.Frame{Data: wire.EncodePiece(bytes.Repeat([]byte{'x'}, 512), true, true, false), Credit: 512}
	var writers sync.WaitGroup
	turns := newWriters(func(run func()) bool { writers.Go(run); return true }, alone)
	var boxes []*outbox
	for range clients {
		boxes = append(boxes, &outbox{
			sock: &wire.Socket{Conn: wire.NewConn(context.Background(), sinkConn{}, time.Minute)}, limit: 8 << 20,
			written: func(int) {}, ended: func(closing) {},
			writers: turns,
		})
	}
	b.SetBytes(clients * burst * int64(len(frame.Data)))
	b.ReportAllocs()
	for b.Loop() {
		for range burst {
			for _, o := range boxes {
				o.push(frame)
			}
		}
		writers.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*clients*burst), "ns/frame")
}

// BenchmarkEncode measures the encoding of a frame with 512 bytes.
func BenchmarkEncode(b *testing.B) {
	piece := bytes.Repeat([]byte{'x'}, 512)
	b.SetBytes(int64(len(piece)))
	b.ReportAllocs()
	for b.Loop() {
		wire.EncodePiece(piece, true, true, false)
	}
}
