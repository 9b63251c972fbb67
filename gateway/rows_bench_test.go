package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
	"ahprelay/gateway/wire"
	"ahprelay/routing"
)

// quietLines stands for a link, and ignores all calls.
type quietLines struct{}

func (quietLines) Wake()              {}
func (quietLines) Done(uint64)        {}
func (quietLines) Watch(string) error { return nil }
func (quietLines) Unwatch(string)     {}

// sink is a connection that accepts all bytes at once.
type sink struct{ net.Conn }

func (sink) Write(p []byte) (int, error)      { return len(p), nil }
func (sink) SetWriteDeadline(time.Time) error { return nil }
func (sink) Close() error                     { return nil }

// discardClient only passes frames to its outbox.
type discardClient struct{ out *outbox }

func (n discardClient) Event(routing.Event)            {}
func (n discardClient) Deliver(frames []routing.Frame) { n.out.push(frames...) }
func (n discardClient) Closed(ahp.CloseCode, string)   {}

// BenchmarkRows measures the relay's work, without the kernel's, for a packet that
// gives 32 actions with 512 bytes each to 100 clients. The clients get the same 32
// actions, or different sequences out of 63.
func BenchmarkRows(b *testing.B) {
	const clients, row, size = 100, 32, 512
	for name, spread := range map[string]int{"same": 1, "spread": 32} {
		b.Run(name, func(b *testing.B) {
			relay := routing.NewRelayEnd(routing.RelayEndConfig{Agent: "agent", Encode: wire.EncodePiece})
			relay.Start(link.Hello{Credit: 1 << 20, MaxFrame: 1 << 20}, quietLines{})
			var writing sync.WaitGroup
			writers := newWriters(func(run func()) bool { writing.Go(run); return true }, alone)
			for range clients {
				sock := &wire.Socket{Conn: wire.NewConn(context.Background(), sink{}, time.Second)}
				out := &outbox{sock: sock, limit: 8 << 20, budget: newBudget(1<<30, 128<<20), writers: writers}
				if _, err := relay.Open(routing.Open{ID: "c"}, discardClient{out}); err != nil {
					b.Fatal(err)
				}
			}
			refs := func(first uint64) []byte { // encodes a packet that assigns actions to clients: see routing/refs.go
				p := []byte{11} // recordRefs
				p = binary.AppendUvarint(p, first)
				p = binary.AppendUvarint(p, clients)
				last := first
				for c := range uint64(clients) {
					from := first + c%uint64(spread)
					p = binary.AppendUvarint(p, 1)
					p = binary.AppendVarint(p, int64(from-last))
					p = binary.AppendUvarint(p, row-1)
					last = from + row
					p = append(p, 0, 1)
					p = binary.AppendUvarint(p, c+1)
					p = binary.AppendUvarint(p, 0)
				}
				return p
			}
			message := bytes.Repeat([]byte{'x'}, size)
			next := uint64(1)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				for n := range uint64(row + spread - 1) {
					body := append([]byte{1, 5}, "agent"...)
					body = binary.AppendUvarint(body, next+n)
					relay.Body(append(body, message...))
				}
				if ok, err := relay.Handle(uint64(i+1), refs(next)); !ok || err != nil {
					b.Fatal(ok, err)
				}
				next += uint64(row + spread - 1)
				writing.Wait()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*clients*row), "ns/delivery")
		})
	}
}
