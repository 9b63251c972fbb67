package routing

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// TestClosesNeedNoCredit closes a connection at both sides in either order, while no credit is
// left. Each side must still receive the close from the other. Otherwise, the relay could never use
// the connection's number again.
func TestClosesNeedNoCredit(t *testing.T) {
	hostCloses := recordWith("bye", recordClose, 1, uint64(ahp.CloseResync))
	missing, _ := appendBodyList(record(recordRefs, 1, 1), []uint64{1}, 1)
	set := connSet{}
	set.add(1)
	missing = set.append(missing)
	for _, test := range []struct {
		name string
		do   func(r *RelayEnd, c *RelayConn)
	}{
		{"host first", func(r *RelayEnd, c *RelayConn) {
			handle(t, r, hostCloses)
		}},
		{"client first", func(r *RelayEnd, c *RelayConn) {
			c.Close(1000, "bye")
			handle(t, r, hostCloses)
		}},
		{"host first, behind a missing body", func(r *RelayEnd, c *RelayConn) {
			handle(t, r, missing, hostCloses)
			c.Close(1000, "bye")
		}},
		{"client first, and the host sends more than it has credit for", func(r *RelayEnd, c *RelayConn) {
			c.Close(1000, "bye")
			for range 5 {
				handle(t, r, recordWith(strings.Repeat("x", 900), recordFrame, 1))
				leave(r)
			}
			handle(t, r, hostCloses)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := NewRelayEnd(RelayEndConfig{Agent: "agent", Credit: 1000, Encode: func(piece []byte, _, _, _ bool) []byte { return piece }})
			r.Start(link.Hello{Credit: 10, MaxFrame: 1000}, &still{})
			c, err := r.Open(Open{ID: "x"}, &stillClient{})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Send(t.Context(), bytes.Repeat([]byte("x"), 100)); err != nil {
				t.Fatal(err)
			}
			leave(r) // send as much as the credit permits
			test.do(r, c)
			leave(r)
			if len(r.conns) != 0 {
				t.Errorf("the relay still has the connection %v after its close; want it removed", &c.stream)
			}
		})
	}
}

// TestClosedClientReturnsCredit closes a client that has not read a message. The relay must return
// credit for the message, and for everything that follows. Otherwise, the host-agent could not send
// its own close behind the messages.
func TestClosedClientReturnsCredit(t *testing.T) {
	r := NewRelayEnd(RelayEndConfig{Agent: "agent", Credit: 1000, Encode: func(piece []byte, _, _, _ bool) []byte { return piece }})
	r.Start(link.Hello{Credit: 10, MaxFrame: 1000}, &still{})
	c, err := r.Open(Open{ID: "x"}, &stillClient{})
	if err != nil {
		t.Fatal(err)
	}
	handle(t, r, recordWith(strings.Repeat("x", 900), recordFrame, 1))
	c.Close(1000, "bye")
	payload, _ := r.Next(1, 1000, time.Time{})
	if want := record(recordCredit, 1, maxCredit); !bytes.Contains(payload, want) {
		t.Errorf("the host-agent is told %x; want %x in it", payload, want)
	}
	c.Written(900 + pieceCost) // after the close, these calls must do nothing
	c.Progress()
	for range 3 {
		handle(t, r, recordWith(strings.Repeat("x", 900), recordFrame, 1))
	}
	if payload, _ := r.Next(1, 1000, time.Time{}); payload != nil {
		t.Errorf("after the client's close, Next = %x; want nothing", payload)
	}
}

// TestNumberIsReusedOnlyAfterBothCloses makes the host-agent close connection 1. The relay must not
// give number 1 to a new connection before it has sent its own close, because the host-agent would
// take both for the same connection.
func TestNumberIsReusedOnlyAfterBothCloses(t *testing.T) {
	r := NewRelayEnd(RelayEndConfig{Agent: "agent"})
	r.Start(link.Hello{Credit: 10, MaxFrame: 1000}, &still{})
	open := func() uint64 {
		t.Helper()
		c, err := r.Open(Open{ID: "x"}, &stillClient{})
		if err != nil {
			t.Fatal(err)
		}
		return c.stream.conn
	}
	if n := open(); n != 1 {
		t.Fatalf("the first connection's number is %d; want 1", n)
	}
	leave(r)
	handle(t, r, recordWith("bye", recordClose, 1, uint64(ahp.CloseResync)))
	if n := open(); n != 2 {
		t.Errorf("before the relay's close record is sent, a new connection gets the number %d; want 2", n)
	}
	leave(r)
	if n := open(); n != 1 {
		t.Errorf("after the relay's close record is sent, a new connection gets the number %d; want 1", n)
	}
}

func handle(t *testing.T, r *RelayEnd, records ...[]byte) {
	t.Helper()
	if _, err := r.Handle(1, bytes.Join(records, nil)); err != nil {
		t.Fatal(err)
	}
}

// leave makes the relay send all packets that it can.
func leave(r *RelayEnd) {
	for {
		if payload, _ := r.Next(1, 1000, time.Time{}); payload == nil {
			return
		}
	}
}

// TestCreditIsNotHeldBack passes packets to a relay with a Hold function, which waits while memory
// is short. The relay must call Hold before it passes on a message, but must take credit records
// before the first message without that.
func TestCreditIsNotHeldBack(t *testing.T) {
	var conn *RelayConn
	client, held := &stillClient{}, false
	r := NewRelayEnd(RelayEndConfig{Agent: "agent", Encode: func(piece []byte, _, _, _ bool) []byte { return piece }, Hold: func() {
		held = true
		if conn.stream.credit != 110 {
			t.Errorf("while sources are held back there is credit for %d bytes; want 110", conn.stream.credit)
		}
		if client.frames != 0 {
			t.Error("a message has passed while sources are held back; want none")
		}
	}})
	r.Start(link.Hello{Credit: 10, MaxFrame: 1000}, &still{})
	conn, err := r.Open(Open{ID: "x"}, client)
	if err != nil {
		t.Fatal(err)
	}
	handle(t, r, record(recordCredit, 1, 100))
	if held {
		t.Error("a record with only credit was held back; want it handled")
	}
	handle(t, r, recordWith("hello", recordFrame, 1), record(recordCredit, 1, 1))
	if !held || client.frames != 1 || conn.stream.credit != 111 {
		t.Errorf("held back %v, %d messages and credit for %d; want true, 1 and 111", held, client.frames, conn.stream.credit)
	}
}
