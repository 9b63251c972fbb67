package routing

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"ahprelay/broker/link"
)

// A feedRelay is a relay with a link to a host-agent and a feed. It joins the pieces in its feed as
// a reader does.
type feedRelay struct {
	link   *agentLink
	end    *RelayEnd
	client *payingClient
	number uint64
	fed    []string // channel token and message of each notification in the feed
	pieces int
	joiner Joiner
}

func newFeedRelay(t *testing.T, a *AgentEnd, name string, features ...string) *feedRelay {
	t.Helper()
	r := &feedRelay{client: &payingClient{}}
	r.link = a.Accept(name, link.Hello{Credit: 4 << 20, MaxFrame: 4 << 20, Features: features}, &still{}).(*agentLink)
	r.end = NewRelayEnd(RelayEndConfig{
		Agent: "agent", Credit: 4 << 20, Encode: func(piece []byte, _, _, _ bool) []byte { return bytes.Clone(piece) },
		Feed: func(token string, p Piece) {
			err := ReadFeed(SealFeed(AppendPiece(AppendFeed(nil, name), p)), func(p Piece) {
				r.pieces++
				if message := r.joiner.Add(p); message != nil {
					r.fed = append(r.fed, token+" "+string(message))
				}
			})
			if err != nil {
				t.Error(err)
			}
		},
	})
	r.end.Start(link.Hello{Credit: 4 << 20, MaxFrame: 4 << 20}, &still{})
	if _, err := r.end.Open(Open{ID: name}, r.client); err != nil {
		t.Fatal(err)
	}
	if _, err := r.link.Handle(1, appendOpen(nil, 1, Open{ID: name})); err != nil {
		t.Fatal(err)
	}
	return r
}

// sent delivers to the relay all packets that the host-agent has for it.
func (r *feedRelay) sent(t *testing.T, a *AgentEnd) {
	t.Helper()
	drain(a, r.link, func([]byte) {}, func(packet []byte) {
		r.number++
		if _, err := r.end.Handle(r.number, packet); err != nil {
			t.Fatal(err)
		}
	})
}

// say sends a notification from the host on the connection of each relay.
func say(t *testing.T, relays []*feedRelay, message, channel string) {
	t.Helper()
	for _, r := range relays {
		if err := r.link.conns[1].FromHost([]byte(message), false, []byte(channel)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEachNotificationIsFedOnce sends notifications of all sizes to one viewer, and to two viewers
// at two relays. None of them is published as a body. The relays' feeds together must contain each
// notification exactly once, complete and on its channel, and no answers.
func TestEachNotificationIsFedOnce(t *testing.T) {
	text := make([]byte, 700<<10)
	dice := rand.New(rand.NewPCG(1, 2))
	for i := range text {
		text[i] = 'a' + byte(dice.IntN(26))
	}
	for viewers := range 3 {
		if viewers == 0 {
			continue
		}
		a := NewAgentEnd(AgentEndConfig{Instance: "agent", Connect: func(*AgentConn, Open) HostConn { return &stillHost{} }})
		var relays []*feedRelay
		for i := range viewers {
			relays = append(relays, newFeedRelay(t, a, fmt.Sprint("relay", i), link.FeatureFeed))
		}
		var want []string
		for i, size := range []int{10, 100, 3000, 70_000, 600_000, 650_000} {
			message, channel := fmt.Sprint(i, string(text[:size])), fmt.Sprintf("ahp-chat:/%d", i%2)
			say(t, relays, message, channel)
			want = append(want, ChannelToken(channel)+" "+message)
			if err := relays[0].link.conns[1].FromHost([]byte("an answer"), false, nil); err != nil {
				t.Fatal(err)
			}
			for _, r := range relays {
				r.sent(t, a)
			}
		}
		var got []string
		pieces := 0
		for _, r := range relays {
			got, pieces = append(got, r.fed...), pieces+r.pieces
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || pieces < len(want)+2*(600_000>>16) {
			t.Errorf("with %d viewers, readers of the feed receive %.40q in %d pieces; want %.40q", viewers, got, pieces, want)
		}
	}
}

// TestNoFeedWithoutReaders sends a notification to a viewer at a relay without the feature feed.
// The viewer must get it, and the relay's feed must stay empty.
func TestNoFeedWithoutReaders(t *testing.T) {
	a := NewAgentEnd(AgentEndConfig{Instance: "agent", Connect: func(*AgentConn, Open) HostConn { return &stillHost{} }})
	r := newFeedRelay(t, a, "relay")
	say(t, []*feedRelay{r}, strings.Repeat("x", 1000), "ahp-chat:/1")
	r.sent(t, a)
	if len(r.fed) > 0 || r.client.credit < 1000 {
		t.Errorf("the feed published %d notifications, and the client received %d bytes; want 0, and all", len(r.fed), r.client.credit)
	}
}

// TestJoinerDropsIncompleteMessages omits a piece of the first message, at each place. The joiner
// must drop that message and return the second. It must keep at most mostJoining incomplete
// messages.
func TestJoinerDropsIncompleteMessages(t *testing.T) {
	for lost := range 4 {
		var j Joiner
		var got []string
		for number := range uint64(2) {
			for i := range uint64(4) {
				if number == 0 && int(i) == lost {
					continue
				}
				if m := j.Add(Piece{Source: "r", Number: number, Index: i, Last: i == 3, Data: []byte{'0' + byte(i)}}); m != nil {
					got = append(got, string(m))
				}
			}
		}
		if !slices.Equal(got, []string{"0123"}) {
			t.Errorf("without piece %d of the first message, the joined messages are %q; want only the second message", lost, got)
		}
	}
	var j Joiner
	for i := range uint64(10 * mostJoining) {
		j.Add(Piece{Source: "r", Number: i})
	}
	if len(j.open) > mostJoining {
		t.Errorf("%d incomplete messages are kept; want at most %d", len(j.open), mostJoining)
	}
}

// FuzzFeed reads arbitrary messages as a feed. ReadFeed must not return more bytes than it was
// given, nothing from a message with an error, and an error for a damaged message.
func FuzzFeed(f *testing.F) {
	f.Add(encodeBody("agent", 7, []byte("frame"))[bodySum:])
	f.Add(encodeBodies("agent", []*body{{number: 7, frame: []byte("frame")}, {number: 8, frame: []byte("x")}})[bodySum:])
	one := AppendPiece(AppendFeed(nil, "relay"), Piece{Number: 3, Index: 1, Data: []byte("piece")})
	f.Add(one[bodySum:])
	f.Add(AppendPiece(one, Piece{Number: 4, Last: true, Data: []byte("other")})[bodySum:])
	f.Fuzz(func(t *testing.T, data []byte) {
		var j Joiner
		size := 0
		message := sealBodies(append(make([]byte, bodySum), data...))
		err := ReadFeed(message, func(p Piece) { size += len(p.Data); j.Add(p) })
		if size > len(data) || err != nil && size > 0 {
			t.Fatalf("ReadFeed of %x: %d bytes, %v; want at most the input's, and none with an error", data, size, err)
		}
		message[len(message)-1] ^= 1
		if ReadFeed(message, func(Piece) { t.Fatal("a damaged message reaches the feed; want none") }) == nil {
			t.Fatal("ReadFeed accepts a damaged message; want an error")
		}
	})
}
