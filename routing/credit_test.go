package routing

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ahprelay/broker/link"
)

// A creditLine is a connection at a relay. The test plays the host, which uses all its credit in
// each round trip.
type creditLine struct {
	*testing.T
	relay  *RelayEnd
	conn   *RelayConn
	credit int
}

const creditWindow = 8 << 10

// newCreditLines returns n connections at one relay. The relay can lend them lent bytes of credit
// beyond their initial windows, and reduces lent by what it lends.
func newCreditLines(t *testing.T, n int, lent *int) (lines []*creditLine) {
	scarce := false
	r := NewRelayEnd(RelayEndConfig{
		Agent: "agent", Credit: creditWindow, MostCredit: 16 * creditWindow, Encode: func(piece []byte, _, _, _ bool) []byte { return piece },
		Lend: func(n int) bool {
			if n == 0 {
				return !scarce
			}
			if scarce = n > *lent; !scarce {
				*lent -= n
			}
			return !scarce
		},
	})
	r.Start(link.Hello{Credit: 10, MaxFrame: 1 << 20}, &still{})
	for range n {
		c, err := r.Open(Open{ID: "x"}, &stillClient{})
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, &creditLine{t, r, c, creditWindow})
	}
	leave(r)
	return lines
}

// send passes a message from the host to the relay. The message uses all credit; send returns its
// length.
func (l *creditLine) send() (n int) {
	l.Helper()
	if n = l.credit - pieceCost; n <= 0 {
		return 0
	}
	l.credit = 0
	handle(l.T, l.relay, recordWith(strings.Repeat("x", n), recordFrame, l.conn.stream.conn))
	return n
}

// take makes the client read n bytes, and gives the host the credit which the relay then returns.
func (l *creditLine) take(n int) {
	l.Helper()
	for ; n > 0; n -= 1000 { // in pieces, as a socket reports its writes
		l.conn.Written(min(n, 1000))
	}
	payload, _ := l.relay.Next(1, 1000, time.Time{})
	f := link.Fields{B: payload[min(len(payload), link.HeaderRoom):]}
	for len(f.B) > 0 {
		kind, conn, credit := recordKind(f.Uvarint()), f.Uvarint(), f.Uvarint()
		if f.Bad || kind != recordCredit || conn != l.conn.stream.conn {
			l.Fatalf("the host-agent got the record %x; want credit for this connection", payload)
		}
		l.credit += int(credit)
	}
}

// TestCreditGrowsWithAReader lets a client read everything, round trip by round trip. Within ten
// round trips its credit must grow to at least twelve times the initial window, and never beyond
// sixteen times. A client which reads nothing must get no credit beyond its initial window.
func TestCreditGrowsWithAReader(t *testing.T) {
	lent := 1 << 20
	lines := newCreditLines(t, 2, &lent)
	reads, stalled := lines[0], lines[1]
	stalled.send()
	last, rounds := 0, 0
	for ; last < 12*creditWindow && rounds < 20; rounds++ {
		last = reads.send()
		reads.take(last + pieceCost)
	}
	if rounds > 10 {
		t.Errorf("it took %d round trips until a reading client got %d bytes in each; want at most 10 until %d", rounds, last, 12*creditWindow)
	}
	if n := stalled.send(); n != 0 {
		t.Errorf("the host-agent sends %d more bytes to a client that reads nothing; want 0", n)
	}
	for range 50 {
		n := reads.send()
		reads.take(n + pieceCost)
		if n > 16*creditWindow {
			t.Fatalf("a client gets %d bytes in a round trip; want at most %d", n, 16*creditWindow)
		}
	}
	if 1<<20-lent != 15*creditWindow {
		t.Errorf("%d bytes of credit are lent; want %d", 1<<20-lent, 15*creditWindow)
	}
	reads.conn.Close(1000, "bye")
	if lent != 1<<20 {
		t.Errorf("a client that has ended keeps %d bytes of lent credit; want 0", 1<<20-lent)
	}
}

// TestLentCreditMoves lets one client take all credit that the relay can lend: in one case less
// than the maximum for a client, in the other exactly the maximum. Then a second client reads too.
// The first must give credit back until the second has at least two windows, and keep its initial
// window.
func TestLentCreditMoves(t *testing.T) {
	for _, windows := range []int{8, 15} {
		t.Run(fmt.Sprintf("%d windows", windows), func(t *testing.T) { testLentCreditMoves(t, windows) })
	}
}

func testLentCreditMoves(t *testing.T, lentWindows int) {
	lent := lentWindows * creditWindow
	lines := newCreditLines(t, 2, &lent)
	sent := make([]int, 2)
	round := func(i int) {
		sent[i] = lines[i].send()
		lines[i].take(sent[i] + pieceCost)
	}
	for range 20 {
		round(0)
	}
	if want := lentWindows * creditWindow * 3 / 4; sent[0] < want {
		t.Fatalf("a client alone gets %d bytes in a round trip; want %d", sent[0], want)
	}
	most := 0
	for range 40 {
		round(0)
		round(1)
		most = max(most, sent[1])
		if sent[0] < creditWindow/2 || sent[1] < creditWindow/2 {
			t.Fatalf("%d and %d bytes in a round trip; want half of %d at least", sent[0], sent[1], creditWindow)
		}
		all := lines[0].conn.stream.window + lines[1].conn.stream.window + lent
		if want := (lentWindows + 2) * creditWindow; all != want {
			t.Fatalf("windows and credit to lend are %d bytes; want %d", all, want)
		}
	}
	if most < 2*creditWindow {
		t.Errorf("the second client gets at most %d bytes in a round trip; want twice its first %d", most, creditWindow)
	}
}
