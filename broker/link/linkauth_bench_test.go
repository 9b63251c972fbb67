package link

import (
	"fmt"
	"testing"

	"ahprelay/auth"
)

// BenchmarkLinkTag measures how long it takes to make and check a packet's tag.
func BenchmarkLinkTag(b *testing.B) {
	relay, agent := newShare(), newShare()
	id := auth.LinkID{
		Tenant: "t", Host: "h", Agent: "a", Relay: "r", Epoch: 1,
		RelayShare: relay.PublicKey().Bytes(), AgentShare: agent.PublicKey().Bytes(),
	}
	from, err := newLinkSeal(relay, id.AgentShare, id, "down", "up")
	if err != nil {
		b.Fatal(err)
	}
	to, err := newLinkSeal(agent, id.RelayShare, id, "up", "down")
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{50, 500, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			packet := make([]byte, size, size+linkCount+linkTag)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := to.open(from.seal(packet)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
