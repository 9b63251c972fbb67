package routing

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// A heardClient records the frames and the bytes that it receives.
type heardClient struct {
	frames []Frame
	got    []byte
}

func (c *heardClient) Event(Event) {}
func (c *heardClient) Deliver(frames []Frame) {
	c.frames = append(c.frames, frames...)
	for _, f := range frames {
		c.got = append(c.got, f.Data...)
	}
}
func (c *heardClient) Closed(ahp.CloseCode, string) {}

// TestJoinedMessagesKeepOrderAndCredit passes to a relay a packet with messages and pieces for
// several clients. The relay may join messages for a client into one frame. Each client must get
// its messages in order, with the credit for all of them.
func TestJoinedMessagesKeepOrderAndCredit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRelayEnd(RelayEndConfig{Encode: func(piece []byte, first, last, binary bool) []byte {
			return append(bytes.Clone(piece), map[bool]byte{true: '.', false: '-'}[last])
		}})
		r.Start(link.Hello{Credit: 1 << 20}, &still{})
		clients := make([]*heardClient, 3)
		for i := range clients {
			clients[i] = &heardClient{}
			if _, err := r.Open(Open{ID: "x"}, clients[i]); err != nil {
				t.Fatal(err)
			}
		}
		want, credit, messages := make([][]byte, 3), make([]int, 3), make([]int, 3)
		var packet []byte
		for range rapid.IntRange(1, 40).Draw(t, "records") {
			i := rapid.IntRange(0, 2).Draw(t, "client")
			data := bytes.Repeat([]byte{byte('a' + i)}, rapid.SampledFrom([]int{0, 1, 100, mostOfRun, mostOfRun + 1}).Draw(t, "size"))
			if rapid.IntRange(0, 9).Draw(t, "piece") == 0 { // the message is sent in two pieces
				packet = appendBytes(appendRecord(packet, recordFragment, uint64(i+1), fragmentFirst), data)
				packet = appendBytes(appendRecord(packet, recordFragment, uint64(i+1), fragmentLast), data)
				want[i] = append(append(append(append(want[i], data...), '-'), data...), '.')
				credit[i] += 2 * (len(data) + pieceCost)
			} else {
				packet = appendBytes(appendRecord(packet, recordFrame, uint64(i+1)), data)
				want[i] = append(append(want[i], data...), '.')
				credit[i] += len(data) + pieceCost
			}
			messages[i]++
		}
		if done, err := r.Handle(1, packet); !done || err != nil {
			t.Fatalf("Handle = %v, %v; want true and no error", done, err)
		}
		for i, c := range clients {
			n := 0
			for _, f := range c.frames {
				n += f.Messages
			}
			if !bytes.Equal(c.got, want[i]) || creditOf(c.frames) != credit[i] || n != messages[i] {
				t.Errorf("client %d got %d bytes in %d messages with credit %d; want %d, %d, %d, or others", i, len(c.got), n, creditOf(c.frames), len(want[i]), messages[i], credit[i])
			}
		}
	})
}

// TestConsecutiveMessagesAreOneFrame sends a client five consecutive messages. They must arrive as
// one frame. A packet beyond the client's credit, or cut short, must be refused.
func TestConsecutiveMessagesAreOneFrame(t *testing.T) {
	r := NewRelayEnd(RelayEndConfig{Encode: func(piece []byte, _, _, _ bool) []byte { return slices.Clone(piece) }, Credit: 10 * (100 + pieceCost)})
	r.Start(link.Hello{Credit: 1 << 20}, &still{})
	c := &heardClient{}
	if _, err := r.Open(Open{ID: "x"}, c); err != nil {
		t.Fatal(err)
	}
	var packet []byte
	for range 5 {
		packet = appendBytes(appendRecord(packet, recordFrame, 1), make([]byte, 100))
	}
	if _, err := r.Handle(1, packet); err != nil || len(c.frames) != 1 || c.frames[0].Messages != 5 {
		t.Errorf("five consecutive messages reach the client in %d frames, %v; want one", len(c.frames), err)
	}
	if _, err := r.Handle(2, append(packet, packet...)); !errors.Is(err, link.ErrBadPacket) {
		t.Errorf("Handle of messages beyond the credit = %v; want %v", err, link.ErrBadPacket)
	}
	if _, err := r.Handle(3, packet[:len(packet)-1]); !errors.Is(err, link.ErrBadPacket) {
		t.Errorf("Handle of a truncated packet = %v; want %v", err, link.ErrBadPacket)
	}
}
