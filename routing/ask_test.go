package routing_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// TestAnswersComeAside has relays ask on a connection while its client gets
// messages, some of which hold the same content.
func TestAnswersComeAside(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(1, routing.AgentEndConfig{})
		defer w.end()
		c, other := w.dial(0), w.dial(0)
		got := map[int]string{}
		for i, size := range []int{1, 5000, 3 * mib, 3 * mib, 100_000} {
			request := content(fmt.Sprint(i%3), size)
			if err := c.conn.Ask(request, func(response []byte) { got[i] = string(response) }); err != nil {
				t.Fatal(err)
			}
			for _, to := range []*clientConn{c, other} {
				if err := errors.Join(
					to.host.send(message(i, 300_000), false, ""), to.host.send(message(i, 100), false, "ahp-chat:/1"),
					to.host.sendContent(i, content(fmt.Sprint(i%3), size)),
				); err != nil {
					t.Fatal(err)
				}
			}
			c.send(t, message(i, 10))
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		for i, request := range c.host.asked {
			if want, _, _ := answer(i+1, []byte(request)); got[i] != string(want) {
				t.Errorf("answer %d: %d bytes, %.60q; want %d, %.60q", i, len(got[i]), got[i], len(want), want)
			}
		}
		if len(got) != 5 {
			t.Errorf("%d answers; want 5", len(got))
		}
		c.wantAll(t, "client")
		other.wantAll(t, "the other client")
	})
}

// TestAsksEnd has no question without an answer, and bounds them.
func TestAsksEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(1, routing.AgentEndConfig{})
		defer w.end()
		c := w.dial(0)
		c.host.mu.Lock() // the host answers nothing
		answers, asked := 0, 0
		var err error
		for ; err == nil; asked++ {
			err = c.conn.Ask([]byte("x"), func(response []byte) {
				if response == nil {
					answers++
				}
			})
		}
		if !errors.Is(err, routing.ErrTooManyAsks) || asked > 100 {
			t.Errorf("after %d questions: %v", asked, err)
		}
		c.conn.Close(ahp.CloseResync, "")
		if answers != asked-1 {
			t.Errorf("%d questions of %d have heard of the end", answers, asked-1)
		}
		if err := c.conn.Ask([]byte("x"), nil); !errors.Is(err, routing.ErrConnClosed) {
			t.Errorf("afterwards: %v", err)
		}
		c.host.mu.Unlock()
		time.Sleep(time.Second)
	})
}
