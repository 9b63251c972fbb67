package link_test

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/test/natssite"
)

// TestChangedBitsAreGaps changes bits in a third of all packets, of every kind. Each end must still
// receive exactly what its peer has sent, and the link stay open. The host-agent must log one line
// about it.
func TestChangedBitsAreGaps(t *testing.T) {
	keys := natssite.NewKeys(t)
	for name, proved := range map[string]bool{"with tags": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var trusted link.Trust
				if proved {
					trusted = trust(keys)
				}
				log := natssite.LogLines{Lines: make(chan string, 100)}
				e := newEndsThat(t, link.Config{}, trusted, slog.New(log))
				defer e.close()
				e.prove = proofIf(proved, keys)
				dice, turn := rand.New(rand.NewPCG(1, 2)), sync.Mutex{}
				damage := func(_ string, data []byte) ([]byte, error) {
					turn.Lock()
					defer turn.Unlock()
					if data = bytes.Clone(data); dice.IntN(3) == 0 {
						data[dice.IntN(len(data))] ^= 1 << dice.IntN(8)
					}
					return data, nil
				}
				e.net.intercept(damage)
				r := e.join("relay1")
				for i := range 300 {
					r.send(numbers(i, i)...)
					r.agent.send(numbers(i, i)...)
					time.Sleep(time.Millisecond)
				}
				time.Sleep(10 * time.Second)
				e.net.intercept(nil)
				time.Sleep(2 * time.Minute)
				r.agent.wantGot(t, numbers(0, 299)...)
				r.wantGot(t, numbers(0, 299)...)
				lines := 0
				for len(log.Lines) > 0 {
					if line := <-log.Lines; strings.HasPrefix(line, "WARN") && strings.Contains(line, "damaged message") {
						lines++
					}
				}
				if lines != 1 {
					t.Errorf("%d lines in the host-agent's log within a minute; want one", lines)
				}
			})
		})
	}
}

func proofIf(proved bool, keys *auth.Keys) link.Proof {
	if !proved {
		return nil
	}
	return keys.Links().Prove
}

// TestEveryChangedBitIsFound changes each bit in a packet of each kind. Receive must refuse the
// packet.
func TestEveryChangedBitIsFound(t *testing.T) {
	for name, packet := range map[string][]byte{
		"data": dataPacket(1, 0, "payload"), "ack": ackPacket(1, 0, 0, 5), "bye": link.Bye(1, testEpoch, "enough"),
	} {
		for bit := range 8 * len(packet) {
			changed := bytes.Clone(packet)
			changed[bit/8] ^= 1 << (bit % 8)
			l := link.New(link.Config{}, 1, testEpoch, testStart)
			if got, err := l.Receive(changed, testStart); err == nil {
				t.Errorf("Receive of %s with bit %d changed = %+v; want an error", name, bit, got)
			}
		}
	}
}
