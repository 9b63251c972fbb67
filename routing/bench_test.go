package routing

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"ahprelay/broker/link"
)

const benchClients = 100

// benchAgent returns a host-agent and its link to a relay with benchClients connections. All have
// received notifications on one channel, whose bodies are shared.
func benchAgent(b testing.TB) (*AgentEnd, *agentLink) { return benchAgentOf(b, benchClients) }

func benchAgentOf(b testing.TB, clients int) (*AgentEnd, *agentLink) {
	a := NewAgentEnd(AgentEndConfig{Instance: "agent", Connect: func(*AgentConn, Open) HostConn { return &stillHost{} }})
	l := a.Accept("relay", link.Hello{Credit: 1 << 30, MaxFrame: 1 << 20}, &still{}).(*agentLink)
	var start []byte
	for i := range clients {
		start = appendOpen(start, uint64(i+1), Open{ID: fmt.Sprint(i)})
	}
	if _, err := l.Handle(1, start); err != nil {
		b.Fatal(err)
	}
	fanOut(b, l, action(0))
	if len(l.watches) > 0 {
		if _, err := l.Handle(2, record(recordWatching, 1)); err != nil {
			b.Fatal(err)
		}
	}
	fanOut(b, l, action(1))
	drain(a, l, nil, nil)
	return a, l
}

// action returns a notification of 512 bytes.
func action(i int) []byte {
	frame := bytes.Repeat([]byte{'x'}, 512)
	binary.BigEndian.PutUint64(frame, uint64(i))
	return frame
}

// fanOut passes a frame from the host to the host-agent on each connection of the link.
func fanOut(b testing.TB, l *agentLink, frame []byte) {
	for _, c := range l.conns {
		if err := c.FromHost(frame, false, []byte("ahp-chat:/1")); err != nil {
			b.Fatal(err)
		}
	}
}

// drain sends all queued bodies and packets, passes each to body or packet if that is set, and
// releases the packets.
func drain(a *AgentEnd, l *agentLink, body, packet func(payload []byte)) {
	for {
		_, payload := a.NextBody()
		if payload == nil {
			break
		}
		if body != nil {
			body(payload)
		}
		a.Published()
	}
	for {
		payload, _ := l.Next(1, 64<<10, time.Now().Add(time.Second))
		if payload == nil {
			break
		}
		if packet != nil {
			packet(payload[link.HeaderRoom:])
		}
	}
	l.Released(1)
}

// BenchmarkAgentShared measures a host-agent that sends 20 actions of 512 bytes to 100
// clients.
func BenchmarkAgentShared(b *testing.B) {
	const together = 20 // notifications in one call of Notify
	a, l := benchAgent(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		var row []*Notification
		for j := range together {
			row = append(row, NewNotification(action(i*together+j+2), []byte("ahp-chat:/1")))
		}
		for _, c := range l.conns {
			if _, _, err := c.Notify(row); err != nil {
				b.Fatal(err)
			}
		}
		drain(a, l, nil, nil)
	}
	b.ReportMetric(float64(b.N)*benchClients*together/b.Elapsed().Seconds(), "deliveries/s")
}

// BenchmarkRelayShared measures a relay that receives an action of 512 bytes for 100 clients.
func BenchmarkRelayShared(b *testing.B) {
	a, l := benchAgent(b)
	encode := func(piece []byte, _, _, _ bool) []byte { return bytes.Clone(piece) }
	r := NewRelayEnd(RelayEndConfig{Agent: "agent", Encode: encode})
	r.Start(link.Hello{Credit: 1 << 20, MaxFrame: 1 << 20}, &still{})
	for i := range benchClients {
		if _, err := r.Open(Open{ID: fmt.Sprint(i)}, &stillClient{}); err != nil {
			b.Fatal(err)
		}
	}
	var body, packet []byte
	fanOut(b, l, action(2))
	drain(a, l, func(p []byte) { body = p }, func(p []byte) { packet = p })
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r.Body(body)
		if done, err := r.Handle(uint64(i+1), packet); !done || err != nil {
			b.Fatal(done, err)
		}
		r.bodies.forgetBelow(1 << 40) // the same body is new in the next round
	}
	b.ReportMetric(float64(b.N)*benchClients/b.Elapsed().Seconds(), "deliveries/s")
}

// A payingClient counts the credit of what it receives.
type payingClient struct {
	still
	credit int
}

func (c *payingClient) Deliver(frames []Frame) {
	for _, f := range frames {
		c.credit += f.Credit
	}
}

// BenchmarkSingleViewer measures host-agent and relay with a single client, which gets 4 actions of
// 512 bytes at a time: without a feed, with a feed that nobody reads, and with a feed being read.
// It does not include NATS.
func BenchmarkSingleViewer(b *testing.B) {
	const together = 4
	var read []byte
	for _, way := range []struct {
		name  string
		feeds bool
		feed  func(string, Piece)
	}{
		{"no feed", false, nil},
		{"unread feed", true, func(string, Piece) {}},
		{"read feed", true, func(_ string, p Piece) { read = SealFeed(AppendPiece(AppendFeed(read[:0], "relay"), p)) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			a, l := benchAgentOf(b, 1)
			l.feeds = way.feeds
			encode := func(piece []byte, _, _, _ bool) []byte { return bytes.Clone(piece) }
			r := NewRelayEnd(RelayEndConfig{Agent: "agent", Encode: encode, Feed: way.feed})
			r.Start(link.Hello{Credit: 1 << 20, MaxFrame: 1 << 20}, &still{})
			client := &payingClient{}
			conn, err := r.Open(Open{ID: "1"}, client)
			if err != nil {
				b.Fatal(err)
			}
			number, messages, size := uint64(0), 0, 0
			count := func(p []byte) { messages++; size += len(p) }
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				for j := range together {
					n := NewNotification(action(i*together+j+2), []byte("ahp-chat:/1"))
					if _, _, err := l.conns[1].Notify([]*Notification{n}); err != nil {
						b.Fatal(err)
					}
				}
				drain(a, l, func(p []byte) { count(p); r.Body(p) }, func(p []byte) {
					count(p)
					number++
					if done, err := r.Handle(number, p); !done || err != nil {
						b.Fatal(done, err)
					}
				})
				conn.Written(client.credit)
				client.credit = 0
				if _, err := l.Handle(number, record(recordCredit, 1, 1<<20)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(messages)/float64(b.N*together), "messages/action")
			b.ReportMetric(float64(size)/float64(b.N*together), "bytes/action")
		})
	}
}
