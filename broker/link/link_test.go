package link_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ahprelay/broker/link"
)

// testEpoch is the epoch of links in these tests.
const testEpoch = 7

var testStart = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// A wire carries packets in one direction. Each takes delay.
type wire struct {
	delay   time.Duration
	flying  []flight
	sent    int // number of packets
	dropped int
}

type flight struct {
	at     time.Time
	packet []byte
}

// An end is one end of a link, and the packets that the test sends and receives on it.
type end struct {
	link *link.Link
	out  *wire

	queue    [][]byte // payloads to send
	sent     [][]byte
	got      [][]byte
	undone   []uint64
	done     map[uint64]bool
	released uint64
}

func newEnd(cfg link.Config, out *wire) *end {
	return &end{link: link.New(cfg, 1, testEpoch, testStart), out: out, done: map[uint64]bool{}}
}

// flush does what a link's writer does: it resends, sends and acknowledges packets. The function
// lose decides for each packet whether the wire loses it.
func (e *end) flush(now time.Time, lose func() bool) {
	put := func(packet []byte) {
		e.out.sent++
		if lose() {
			e.out.dropped++
			return
		}
		e.out.flying = append(e.out.flying, flight{now.Add(e.out.delay), bytes.Clone(packet)})
	}
	for {
		packet := e.link.Resend(now)
		if packet == nil && e.link.CanSend() && len(e.queue) > 0 {
			payload := append(make([]byte, link.HeaderRoom), e.queue[0]...)
			e.sent = append(e.sent, e.queue[0])
			e.queue = e.queue[1:]
			packet = e.link.Seal(payload, now)
		}
		if packet != nil {
			put(packet)
		}
		ack, _, _ := e.link.Tick(now)
		if ack != nil {
			put(ack)
		}
		if packet == nil {
			return
		}
	}
}

// take passes to the link all packets that have arrived from the other end, and checks the results.
func (e *end) take(t *rapid.T, from *end, now time.Time) {
	in := from.out
	for len(in.flying) > 0 && !in.flying[0].at.After(now) {
		packet := in.flying[0].packet
		in.flying = in.flying[1:]
		got, err := e.link.Receive(packet, now)
		if err != nil {
			t.Fatalf("Receive: %v; want no error", err)
		}
		if got.Number != 0 {
			e.got = append(e.got, got.Payload)
			if got.Number != uint64(len(e.got)) {
				t.Fatalf("Receive gave number %d after %d packets; want the next number", got.Number, len(e.got)-1)
			}
			e.undone = append(e.undone, got.Number)
		}
		if got.Released < e.released {
			t.Fatalf("Released fell from %d to %d; want it never lower", e.released, got.Released)
		}
		for e.released < got.Released {
			e.released++
			if !from.done[e.released] {
				t.Fatalf("packet %d is released before it is done; want it done first", e.released)
			}
		}
	}
}

// finish calls Done for the i-th packet that is not done.
func (e *end) finish(i int, now time.Time) {
	n := e.undone[i]
	e.undone = append(e.undone[:i], e.undone[i+1:]...)
	e.done[n] = true
	e.link.Done(n, now)
}

func (e *end) wantGot(t *rapid.T, name string, sent [][]byte) {
	if len(e.got) != len(sent) {
		t.Fatalf("%s got %d packets; want %d", name, len(e.got), len(sent))
	}
	for i := range sent {
		if !bytes.Equal(e.got[i], sent[i]) {
			t.Fatalf("%s: packet %d = %q; want %q", name, i+1, e.got[i], sent[i])
		}
	}
}

// TestEachPacketArrivesOnceAndInOrder sends packets in both directions over wires that lose some.
// Each must arrive once and in order. It must not be released before the receiver has called Done,
// and must be released when losses have ended.
func TestEachPacketArrivesOnceAndInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := link.Config{Window: rapid.SampledFrom([]int{1, 2000, 1 << 20}).Draw(t, "window")}
		now := testStart
		a := newEnd(cfg, &wire{delay: drawDelay(t)})
		b := newEnd(cfg, &wire{delay: drawDelay(t)})
		loss := 0
		lose := func() bool { return loss > 0 && rapid.IntRange(1, loss).Draw(t, "lost") == 1 }
		step := func(d time.Duration) {
			now = now.Add(d)
			a.flush(now, lose)
			b.flush(now, lose)
			a.take(t, b, now)
			b.take(t, a, now)
		}
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				e := rapid.SampledFrom([]*end{a, b}).Draw(t, "end")
				for range rapid.IntRange(1, 5).Draw(t, "packets") {
					next++
					e.queue = append(e.queue, fmt.Appendf(nil, "%d", next))
				}
				step(0)
			},
			"done": func(t *rapid.T) {
				e := rapid.SampledFrom([]*end{a, b}).Draw(t, "end")
				if len(e.undone) > 0 {
					e.finish(rapid.IntRange(0, len(e.undone)-1).Draw(t, "which"), now)
				}
			},
			"lose": func(t *rapid.T) { loss = rapid.SampledFrom([]int{0, 1, 2, 5}).Draw(t, "one in") },
			"wait": func(t *rapid.T) { step(time.Duration(rapid.IntRange(1, 700).Draw(t, "ms")) * time.Millisecond) },
		})
		loss = 0
		for until := now.Add(10 * time.Minute); now.Before(until); {
			for _, e := range []*end{a, b} {
				for len(e.undone) > 0 {
					e.finish(0, now)
				}
			}
			step(100 * time.Millisecond)
			if len(a.queue)+len(b.queue) == 0 && a.link.Settled() && b.link.Settled() {
				break
			}
		}
		b.wantGot(t, "b", a.sent)
		a.wantGot(t, "a", b.sent)
		if len(a.queue)+len(b.queue) > 0 || !a.link.Settled() || !b.link.Settled() {
			t.Fatalf("not all packets are sent and released: %d and %d wait; want 0", len(a.queue), len(b.queue))
		}
	})
}

func drawDelay(t *rapid.T) time.Duration {
	return rapid.SampledFrom([]time.Duration{0, time.Millisecond, 80 * time.Millisecond, 900 * time.Millisecond}).Draw(t, "delay")
}

// TestResendUnderWayIsNotRepeated loses one packet on a slow network, where the repair takes long.
// Meanwhile the link must not resend the same packets again and again, because that would delay the
// repair.
func TestResendUnderWayIsNotRepeated(t *testing.T) {
	for _, delay := range []time.Duration{time.Millisecond, 120 * time.Millisecond, 2 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				const packets = 500
				now := testStart
				a, b := newEnd(link.Config{}, &wire{delay: delay}), newEnd(link.Config{}, &wire{delay: delay})
				// The wire loses none of the first packets, during which the link does not know the
				// round trip.
				n, lost := 0, rapid.IntRange(50, packets).Draw(t, "lost")
				lose := func() bool { n++; return n == lost }
				keep := func() bool { return false }
				for len(b.got) < packets {
					if len(a.sent) < packets {
						a.queue = append(a.queue, []byte("x"))
					}
					a.flush(now, lose)
					b.flush(now, keep)
					a.take(t, b, now)
					b.take(t, a, now)
					for len(b.undone) > 0 {
						b.finish(0, now)
					}
					now = now.Add(50 * time.Millisecond)
				}
				b.wantGot(t, "b", a.sent)
				if limit := 3*packets + 100; a.out.sent > limit {
					t.Fatalf("%d packets sent to bring over %d; want at most %d", a.out.sent, packets, limit)
				}
			})
		})
	}
}

// TestLinkSurvivesAShortCut loses all packets for as long as the resume window, beginning at any
// moment, on an idle or a busy link. Neither end may count the link as lost.
func TestLinkSurvivesAShortCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = 15 * time.Second
		now := testStart
		delay := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 80 * time.Millisecond}).Draw(t, "delay")
		a, b := newEnd(link.Config{}, &wire{delay: delay}), newEnd(link.Config{}, &wire{delay: delay})
		cut := false
		const tick = 10 * time.Millisecond
		pass := func(d time.Duration) {
			for until := now.Add(d); now.Before(until); now = now.Add(tick) {
				a.flush(now, func() bool { return cut })
				b.flush(now, func() bool { return cut })
				a.take(t, b, now)
				b.take(t, a, now)
				for _, e := range []*end{a, b} {
					if _, _, lost := e.link.Tick(now); lost {
						t.Fatalf("the link is lost %v after the start; want it open", now.Sub(testStart))
					}
				}
			}
		}
		pass(time.Duration(rapid.IntRange(0, 400).Draw(t, "before")) * tick)
		if rapid.Bool().Draw(t, "busy") {
			a.queue = append(a.queue, []byte("x"))
		}
		cut = true
		pass(window)
		cut = false
		pass(3 * time.Second)
	})
}

// TestTickReturnsALaterTime drives a link at random. Tick must always return a later time, because
// the writer would otherwise never sleep.
func TestTickReturnsALaterTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := link.New(link.Config{}, 1, testEpoch, testStart)
		now := testStart
		last := uint64(0)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			switch rapid.IntRange(0, 4).Draw(t, "do") {
			case 0:
				l.Seal(make([]byte, link.HeaderRoom+10), now)
			case 1:
				l.Probe()
			case 2:
				last += rapid.Uint64Range(1, 3).Draw(t, "skip")
				_, _ = l.Receive(dataPacket(last, 0, "x"), now)
			case 3:
				_, _ = l.Receive(ackPacket(byte(rapid.IntRange(0, 3).Draw(t, "flags")), 0, 0, last+2), now)
			case 4:
				l.Done(last, now)
			}
			_, next, lost := l.Tick(now)
			if !lost && !next.After(now) {
				t.Fatalf("Tick(now) returns a time %v from now; want a later time", next.Sub(now))
			}
		}
	})
}

func packetHeader(kind byte) []byte {
	return binary.AppendUvarint([]byte{1, kind}, testEpoch)
}

func dataPacket(number, released uint64, payload string) []byte {
	b := binary.AppendUvarint(packetHeader(1), number)
	return link.AppendSum(append(binary.AppendUvarint(b, released), payload...))
}

func ackPacket(flags byte, released, have, last uint64) []byte {
	b := append(packetHeader(2), flags)
	for _, n := range []uint64{released, have, last} {
		b = binary.AppendUvarint(b, n)
	}
	return link.AppendSum(b)
}

func TestLinkRefusesLies(t *testing.T) {
	overflow := link.AppendSum(append(packetHeader(1), bytes.Repeat([]byte{0xff}, 11)...))
	for _, test := range []struct {
		name   string
		packet []byte
		want   error
	}{
		{"nothing", link.AppendSum(nil), link.ErrBadPacket},
		{"version", link.AppendSum([]byte{2, 1, testEpoch, 1, 0}), link.ErrBadPacket},
		{"kind", link.AppendSum(packetHeader(9)), link.ErrBadPacket},
		{"epoch", link.AppendSum([]byte{1, 1, testEpoch + 1, 1, 0}), link.ErrOtherEpoch},
		{"cut short", link.AppendSum(packetHeader(1)), link.ErrBadPacket},
		{"number that is no number", overflow, link.ErrBadPacket},
		{"number zero", dataPacket(0, 0, "x"), link.ErrBadPacket},
		{"data that releases what was not sent", dataPacket(1, 4, "x"), link.ErrBadPacket},
		{"ack of what was not sent", ackPacket(0, 0, 4, 0), link.ErrBadPacket},
		{"ack that releases what it has not", ackPacket(0, 2, 1, 0), link.ErrBadPacket},
		{"ack", ackPacket(0, 1, 2, 0), nil},
		// The number is valid. The link asks for the packets before it.
		{"far ahead", dataPacket(1<<63, 0, "x"), nil},
		{"all there is", ackPacket(3, 0, 0, 1<<64-1), nil},
	} {
		l := link.New(link.Config{}, 1, testEpoch, testStart)
		for range 3 {
			l.Seal(make([]byte, link.HeaderRoom), testStart)
		}
		if _, err := l.Receive(test.packet, testStart); !errors.Is(err, test.want) {
			t.Errorf("%s: Receive = %v; want %v", test.name, err, test.want)
		}
	}
}

func TestByeHasAReasonOfBoundedLength(t *testing.T) {
	for _, test := range []struct{ reason, want string }{
		{"enough", "enough"},
		{"", "peer ended the link"},
		{strings.Repeat("x", 1<<20), strings.Repeat("x", 256)},
	} {
		l := link.New(link.Config{}, 1, testEpoch, testStart)
		got, err := l.Receive(link.Bye(1, testEpoch, test.reason), testStart)
		if err != nil || got.Bye != test.want {
			t.Errorf("Receive(bye %.20q) = %.20q, %v; want %.20q", test.reason, got.Bye, err, test.want)
		}
	}
}

// TestWindowBoundsSmallPackets sends packets until the window is full. Each packet, however small,
// must use a minimum of the window. An empty window must admit a packet of any size.
func TestWindowBoundsSmallPackets(t *testing.T) {
	for _, test := range []struct{ size, window, want int }{
		{0, 1 << 20, 4000},
		{64 << 10, 1 << 20, 16},
		{1 << 20, 1000, 1},
	} {
		l := link.New(link.Config{Window: test.window}, 1, testEpoch, testStart)
		n := 0
		for l.CanSend() {
			l.Seal(make([]byte, link.HeaderRoom+test.size), testStart)
			n++
		}
		if n > test.want*11/10 || n < test.want*9/10 {
			t.Errorf("%d packets of %d bytes in a window of %d; want about %d", n, test.size, test.window, test.want)
		}
		if _, err := l.Receive(ackPacket(0, uint64(n), uint64(n), 0), testStart); err != nil || !l.Settled() || !l.CanSend() {
			t.Errorf("after an ack for all packets: settled %v, can send %v, %v; want true, true", l.Settled(), l.CanSend(), err)
		}
	}
}

// TestTimeStoodStillIsNotThePeersSilence stops an end for an hour after silence of any length. The
// link must survive that hour. It must be lost after the rest of the silence that is allowed, 7 s in
// all.
func TestTimeStoodStillIsNotThePeersSilence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := link.New(link.Config{Resume: 5 * time.Second, Heartbeat: time.Second}, 1, testEpoch, testStart)
		now, next, lost := testStart, testStart, false
		silent := func(d time.Duration) {
			for end := now.Add(d); now.Before(end) && !lost; {
				if now = next; now.After(end) {
					now = end
				}
				_, next, lost = l.Tick(now)
			}
		}
		silent(time.Duration(rapid.IntRange(1, 6000).Draw(t, "ms")) * time.Millisecond)
		left := 7*time.Second - next.Sub(testStart)
		now = next.Add(time.Hour)
		if _, next, lost = l.Tick(now); lost {
			t.Fatalf("the link is lost after an hour without a call, with %v of silence left; want it open", left)
		}
		if silent(left - time.Millisecond); lost {
			t.Fatal("the link is lost before 7 s of silence; want it open")
		}
		if silent(time.Millisecond); !lost {
			t.Fatal("the link is open after 7 s of silence; want it lost")
		}
	})
}

// TestLateOwnerNoticesASilentPeer calls Tick late each time, up to a minute. A peer that is silent from
// the start must be lost after the 7 s of silence that are allowed and twice that delay: the first is
// not the peer's silence, and the second is that of the call that reports the loss.
func TestLateOwnerNoticesASilentPeer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		late := time.Duration(rapid.IntRange(0, 60000).Draw(t, "ms")) * time.Millisecond
		l := link.New(link.Config{Resume: 5 * time.Second, Heartbeat: time.Second}, 1, testEpoch, testStart)
		limit := testStart.Add(7*time.Second + 2*late)
		_, next, lost := l.Tick(testStart)
		for !lost {
			now := next.Add(late)
			if now.After(limit) {
				t.Fatalf("the link is open %v after its peer was last heard; want it lost after %v", now.Sub(testStart), limit.Sub(testStart))
			}
			_, next, lost = l.Tick(now)
		}
	})
}

// TestSilentPeerIsLost receives nothing from the peer. The link must be lost after the resume
// window, a heartbeat and two probes (7 s here), not before, and no longer when the peer is heard.
func TestSilentPeerIsLost(t *testing.T) {
	cfg := link.Config{Resume: 5 * time.Second, Heartbeat: time.Second}
	l := link.New(cfg, 1, testEpoch, testStart)
	heard := testStart.Add(time.Second)
	if _, err := l.Receive(ackPacket(0, 0, 0, 0), heard); err != nil {
		t.Fatal(err)
	}
	for d := time.Duration(0); d <= 8*time.Second; d += 100 * time.Millisecond {
		ack, _, lost := l.Tick(heard.Add(d))
		if want := d >= 7*time.Second; lost != want {
			t.Fatalf("%v after the peer was heard: lost = %v; want %v", d, lost, want)
		}
		_ = ack
	}
	if _, err := l.Receive(ackPacket(0, 0, 0, 0), heard.Add(9*time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, _, lost := l.Tick(heard.Add(9 * time.Second)); lost {
		t.Error("Tick reports a lost peer 9 s after its last packet; want it present")
	}
}
