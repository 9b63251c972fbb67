package gateway

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/routing"
)

// A feeder publishes pieces only to subjects with a listener, and looks for new
// listeners every hearAgain. While NATS is slow, the feeder drops pieces beyond mostFed
// bytes.
func TestFeederPublishesForReadersOnly(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		listens, slow := false, make(chan struct{})
		var got []string
		w.server.hosts.cfg.Listens = func(tenant, subject string) bool {
			return listens && tenant == testTenant && strings.HasSuffix(subject, ".chan.a")
		}
		f := w.server.hosts.newFeeder(hostKey{testTenant, testHost})
		f.publish = func(subject string, data []byte) error {
			<-slow
			return routing.ReadFeed(data, func(p routing.Piece) {
				got = append(got, subject[strings.LastIndex(subject, ".")+1:]+" "+string(p.Data[:1]))
			})
		}
		w.running.Go(func() { f.run(w.server.life) })
		f.take("a", routing.Piece{Number: 1, Last: true, Data: []byte("1")})
		listens = true
		f.take("a", routing.Piece{Number: 2, Last: true, Data: []byte("2")}) // the feeder has not looked for listeners again yet
		time.Sleep(hearAgain + time.Millisecond)
		f.take("b", routing.Piece{Number: 3, Last: true, Data: []byte("3")})
		f.take("a", routing.Piece{Number: 4, Last: true, Data: []byte("4")})
		synctest.Wait()
		for i := range 20 { // meanwhile, NATS takes no message
			f.take("a", routing.Piece{Number: uint64(i + 5), Last: true, Data: []byte(strings.Repeat("5", mib))})
		}
		if n := len(f.next.data); n > mostFed {
			t.Errorf("%d bytes wait to be published; want at most %d", n, mostFed)
		}
		close(slow)
		synctest.Wait()
		if len(got) < 2 || len(got) > 1+mostFed/mib || got[0] != "a 4" || got[1] != "a 5" {
			t.Errorf("the messages %q are published; want 4 of the first, and a few of the later ones", got)
		}
	})
}

// TestWaitingPiecesShareAMessage adds 300 pieces that wait for NATS. Consecutive pieces
// for the same subject share a message, up to a size, in their order.
func TestWaitingPiecesShareAMessage(t *testing.T) {
	var w fedPieces
	const pieces = 300
	for i := range uint64(pieces) {
		subject := "a"
		if i >= 200 {
			subject = "b"
		}
		w.add("relay", subject, routing.Piece{Number: i, Last: true, Data: []byte(strings.Repeat("x", 1000))})
	}
	if len(w.list) < 4 || len(w.list) > 8 {
		t.Errorf("the pieces were published in %d messages; want them joined in a few of up to 64 KiB", len(w.list))
	}
	next := uint64(0)
	for _, m := range w.list {
		if m.end-m.start > fullFed+2000 {
			t.Errorf("a message has %d bytes; want at most %d", m.end-m.start, fullFed+2000)
		}
		err := routing.ReadFeed(routing.SealFeed(w.data[m.start:m.end]), func(p routing.Piece) {
			if p.Number != next || p.Source != "relay" || len(p.Data) != 1000 || !p.Last || (m.subject == "b") != (next >= 200) {
				t.Errorf("piece %d of %s, %d bytes; want %d", p.Number, m.subject, len(p.Data), next)
			}
			next++
		})
		if err != nil {
			t.Error(err)
		}
	}
	if next != pieces {
		t.Errorf("%d pieces are published; want %d", next, pieces)
	}
}
