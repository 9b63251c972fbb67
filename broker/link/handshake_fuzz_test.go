package link

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// A deafBus is a bus that records published messages, and delivers none.
type deafBus struct{ published [][]byte }

func (b *deafBus) Publish(_ string, data []byte) error {
	b.published = append(b.published, bytes.Clone(data))
	return nil
}

func (b *deafBus) Subscribe(string, chan *nats.Msg) (func(), error) { return func() {}, nil }

// Accept implements AgentTraffic.
func (b *deafBus) Accept(string, Hello, Lines) Traffic { return idleTraffic{} }

// Together implements Bus.
func (b *deafBus) Together(_ string, publish func()) { publish() }

// NextBody implements AgentTraffic.
func (b *deafBus) NextBody() (string, []byte) { return "", nil }

// Published implements AgentTraffic.
func (b *deafBus) Published() {}

type idleTraffic struct{}

func (idleTraffic) Next(uint64, int, time.Time) ([]byte, time.Time) { return nil, time.Time{} }
func (idleTraffic) Handle(uint64, []byte) (bool, error)             { return true, nil }
func (idleTraffic) Released(uint64) bool                            { return false }
func (idleTraffic) Ended(error)                                     {}

// FuzzHandshake passes an arbitrary packet to both ends before there is a link. The host-agent must
// answer with at most one short packet. The relay must accept only an answer with which data can be
// sent.
func FuzzHandshake(f *testing.F) {
	hello := Hello{Epoch: 3, Version: "test", Wire: [2]int{WireMax, WireMax}, Credit: 1, MaxFrame: 1}
	add := func(kind helloKind, h Hello) { // the fuzz function adds the checksum
		packet := appendHello(kind, h)
		f.Add(packet[:len(packet)-sumSize])
	}
	add(helloHello, hello)
	add(helloWelcome, hello)
	add(helloRefuse, Hello{Epoch: 3, Reason: strings.Repeat("x", 1000)})
	f.Add([]byte("\x00\x01" + `{"epoch":18446744073709551615,"wire":[1,999999],"credit":-1}`))
	f.Add([]byte{1, 1, 3, 1, 0})
	f.Fuzz(func(t *testing.T, packet []byte) {
		packet = appendSum(packet)
		bus := &deafBus{}
		agent := NewAgentLinks(bus, AgentLinksConfig{Agent: "agent1", Hello: hello, Log: slog.New(slog.DiscardHandler)}, bus)
		agent.receive(&nats.Msg{Subject: "ahp.v1.t.h.link.agent1.relay1.down", Data: packet})
		if len(bus.published) > 1 {
			t.Fatalf("%d answers to the packet %q; want at most 1", len(bus.published), packet)
		}
		for _, answer := range bus.published {
			if limit := 1000 + 6*len(packet); len(answer) > limit {
				t.Fatalf("an answer has %d bytes for a packet of %d; want at most 1000 and 6 times the packet", len(answer), len(packet))
			}
		}
		relay := NewRelayLink(bus, RelayLinkConfig{}, nil)
		relay.cfg.Hello.Epoch = 3
		answer, done, err := relay.answer(packet)
		if done && err == nil && (answer.Wire[0] != WireMax || answer.Credit < 1 || answer.MaxFrame < 1) {
			t.Fatalf("the relay accepts the answer %+v; want a refusal of other wires, and of no credit or frame size", answer)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Fatalf("an error text has %d bytes; want at most 1000", len(err.Error()))
		}
	})
}
