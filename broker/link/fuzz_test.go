package link_test

import (
	"bytes"
	"testing"
	"time"

	"ahprelay/broker/link"
)

// FuzzLinkReceive passes arbitrary packets to a link that has sent and received packets. The link
// must not count unsent packets as released, must receive only the next packet, and must be able to
// continue.
func FuzzLinkReceive(f *testing.F) {
	add := func(first, second []byte) { f.Add(first[:len(first)-4], second[:len(second)-4]) } // without checksums
	add(dataPacket(3, 1, "payload"), ackPacket(3, 1, 2, 9))
	add(dataPacket(9, 0, ""), ackPacket(1, 0, 0, 1<<64-1))
	add(link.Bye(1, testEpoch, "enough"), link.AppendSum([]byte{1, 2, testEpoch, 3}))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		first, second = link.AppendSum(first), link.AppendSum(second)
		l := link.New(link.Config{}, 1, testEpoch, testStart)
		now := testStart
		for i := range 4 {
			l.Seal(make([]byte, link.HeaderRoom+i), now)
			_, _ = l.Receive(dataPacket(uint64(i%2+1), 0, "x"), now)
		}
		l.Done(2, now)
		last := uint64(2)
		for _, packet := range [][]byte{first, second, first} {
			now = now.Add(time.Second)
			before := bytes.Clone(packet)
			got, err := l.Receive(packet, now)
			if err == nil && got.Released > 4 {
				t.Fatalf("Released = %d; want at most the 4 sent packets", got.Released)
			}
			if got.Number != 0 && got.Number != last+1 {
				t.Fatalf("Number = %d after packet %d; want the next number", got.Number, last)
			}
			last = max(last, got.Number)
			if !bytes.Equal(packet, before) {
				t.Fatalf("Receive changed its packet %x to %x; want it as it was", before, packet)
			}
			for n := 0; l.Resend(now) != nil; n++ {
				if n > 4 {
					t.Fatal("Resend still returns packets after 4 calls; want an end")
				}
			}
			l.Done(got.Number, now)
			if _, next, lost := l.Tick(now); !lost && !next.After(now) {
				t.Fatalf("Tick returns a time %v from now; want a later time", next.Sub(now))
			}
		}
		if last > 5 {
			t.Fatalf("%d packets are received in 3 deliveries; want at most 3", last-2)
		}
		l.Seal(make([]byte, link.HeaderRoom), now)
	})
}
