package bench

import (
	"fmt"
	"net"

	"ahprelay/test/must"
	"ahprelay/test/testca"
)

// tlsIdle measures how much memory an idle client with TLS takes in the relay, which
// terminates TLS, and in nats-server.
func tlsIdle(b *testbed) []Figure {
	n := b.many(5000)
	cert, key, err := testca.WriteFilesFor(net.IPv4(127, 0, 0, 1), b.dir)
	must.Do(err)
	var relay, nats series
	for round := range min(b.o.Rounds, 3) {
		other := b.startNATS(fmt.Sprintf("nats-tls-%d", round), cert, key)
		theirs := b.idle(other, n, other.pid)
		s, way := b.oneHost(siteConfig{name: fmt.Sprintf("tls-%d", round), tls: true})
		way.stop = s.end
		own := b.idle(way, n, s.relay.Pid())
		each := perClient(own, theirs)
		relay, nats = append(relay, each[0]), append(nats, each[1])
		leave(own, theirs)
	}
	return []Figure{newFigure("5000 idle clients with TLS, each at the relay", "KiB", relay).
		beside(natsName+" with TLS", relay, nats).want(ratioAtMost(0.5)).orient(atMost(24)).means("A relay that ends TLS itself needs no proxy in front for its memory's sake.")}
}
