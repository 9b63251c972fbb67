package routing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

const mib = 1 << 20

// message returns a message with n bytes. It begins with the given number. A large message has
// bytes only at some places, which show where a part belongs; filling it would take longer than
// sending it.
func message(number, n int) []byte {
	if n <= 4096 {
		m := bytes.Repeat([]byte{'x'}, n)
		copy(m, fmt.Sprint(number, " "))
		return m
	}
	m := make([]byte, n)
	for i := 0; i < n; i += 251 {
		m[i] = byte(1 + i/251%255)
	}
	copy(m, fmt.Sprint(number, " "))
	return m
}

// stall makes a client stop returning credit, so that it gets nothing beyond its current credit.
func (c *clientConn) stall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stalled = true
}

// takeAll makes a stalled client return all credit, and read everything from now on.
func (c *clientConn) takeAll() {
	c.mu.Lock()
	c.stalled = false
	credit := c.untaken
	c.untaken = 0
	c.mu.Unlock()
	c.conn.Written(credit)
}

func (c *clientConn) closed() ahp.CloseCode {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.code
}

func (c *clientConn) send(t *testing.T, m []byte) {
	t.Helper()
	if err := c.conn.Send(context.Background(), m); err != nil {
		t.Fatal(err)
	}
	c.sent = append(c.sent, m)
}

// TestLargestMessageFits stalls a client, and queues a message for it that is longer than the
// queue's bound of 4 MiB, behind other messages of various sizes. The host must still be read
// until messages totalling almost 3.5 MiB are queued beside it. When the client reads again, it
// must receive everything.
func TestLargestMessageFits(t *testing.T) {
	const limit, largest = 4 * mib, 9 * mib
	for name, before := range map[string][]int{
		"first":                 {},
		"behind small ones":     {100, 100, 100},
		"behind what is large":  {mib, 3 * mib / 2},
		"behind what is larger": {3 * mib, 100},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorldWith(1, routing.AgentEndConfig{QueueLimit: limit}, routing.RelayEndConfig{Credit: mib / 2})
				defer w.end()
				c := w.dial(0)
				c.stall()
				number, queued := 0, 0
				send := func(size int) error {
					number++
					return c.host.send(message(number, size), false, "")
				}
				if err := send(mib); err != nil { // this message uses all credit
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				for _, size := range append(before, largest) {
					if err := send(size); err != nil {
						t.Fatal(err)
					}
					if size < largest {
						queued += size
					}
				}
				for ; queued < limit*7/8; queued += 64 << 10 {
					if c.host.conn.HeldBack() {
						t.Fatalf("the host is not read beside the largest message, with %d KiB queued; want it read", queued>>10)
					}
					if err := send(64 << 10); err != nil {
						t.Fatal(err)
					}
				}
				c.takeAll()
				time.Sleep(time.Second)
				c.wantAll(t, name)
			})
		})
	}
}

// read acts like the goroutine that reads the host's socket for this connection: it sends messages
// from the host, each after Wait and Reserve. It returns how many messages it sent before an error,
// or before done is closed.
func (h *hostConn) read(done <-chan struct{}, messages, size int, channel string) (n int, err error) {
	for ; n < messages; n++ {
		if err := h.conn.Wait(done); err != nil {
			return n, err
		}
		if size > routing.Reserved {
			if err := h.conn.Reserve(done, size); err != nil {
				return n, err
			}
		}
		err := h.send(message(n, size), false, channel)
		h.conn.Unreserve()
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// TestSlowClientHoldsItsHostBack stalls a client with small, large and shared messages. The
// host-agent must stop reading this client's connection to the host at about the queue's bound, and
// go on for another client. If the client reads again in time, it must get everything. Otherwise,
// only its connection ends, with ErrStalled.
func TestSlowClientHoldsItsHostBack(t *testing.T) {
	for _, size := range []int{400, 64 << 10, 3 * mib / 2} {
		for _, channel := range []string{"", "ahp-chat:/1"} {
			for _, goesOn := range []bool{true, false} {
				t.Run(fmt.Sprint(size, channel, goesOn), func(t *testing.T) {
					inBubble(t, func(t *testing.T) { slowClient(t, size, channel, goesOn) })
				})
			}
		}
	}
}

func slowClient(t *testing.T, size int, channel string, goesOn bool) {
	limit, credit := 2*mib, mib/4
	if size < 64<<10 { // less, because many small messages make the test slow
		limit, credit = mib/8, mib/16
	}
	w := newWorldWith(1, routing.AgentEndConfig{QueueLimit: limit}, routing.RelayEndConfig{Credit: credit})
	defer w.end()
	slow, other := w.dial(0), w.dial(0)
	for range 100 { // until the relay subscribes to the channel's bodies
		for _, c := range []*clientConn{slow, other} {
			if err := c.host.send(message(1, 100), false, "ahp-chat:/1"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Millisecond)
	}
	slow.stall()
	messages := 4 * limit / size
	ended := make(chan error, 2)
	for _, c := range []*clientConn{slow, other} {
		w.wg.Go(func() {
			_, err := c.host.read(w.ctx.Done(), messages, size, channel)
			ended <- err
		})
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	time.Sleep(15 * time.Second)
	other.wantAll(t, "other")
	sent := 0
	slow.host.mu.Lock()
	for _, m := range slow.host.sent {
		sent += len(m)
	}
	slow.host.mu.Unlock()
	if most := limit + credit + 6*size; sent > most || sent < limit*3/8 {
		t.Errorf("the host's writes for the stalled client took %d bytes; want %d to %d", sent, limit*3/8, most)
	}
	if code := slow.closed(); code != 0 {
		t.Fatalf("the slow client was closed with %d; want it open", code)
	}
	if goesOn {
		slow.takeAll()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		slow.wantAll(t, "slow")
		return
	}
	time.Sleep(26 * time.Second)
	if err := <-ended; !errors.Is(err, routing.ErrStalled) {
		t.Errorf("Read of a stalled client = %v; want ErrStalled", err)
	}
	other.wantAll(t, "other")
}

// TestSlowReaderIsNotClosed lets a client read so slowly that its relay rarely sends a credit
// record. The relay reports progress to the host-agent instead, which must therefore not close the
// client.
func TestSlowReaderIsNotClosed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorldWith(1, routing.AgentEndConfig{QueueLimit: 2 * mib}, routing.RelayEndConfig{Credit: mib / 4})
		defer w.end()
		c := w.dial(0)
		c.stall()
		ended := make(chan error, 1)
		w.wg.Go(func() {
			_, err := c.host.read(w.ctx.Done(), 20, mib/4, "")
			ended <- err
		})
		for range 60 {
			time.Sleep(5 * time.Second)
			c.mu.Lock()
			c.untaken -= 1000
			c.mu.Unlock()
			c.conn.Written(1000)
			c.conn.Progress()
		}
		if code := c.closed(); code != 0 {
			t.Fatalf("the slow reader was closed with %d; want it open", code)
		}
		c.takeAll()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c.wantAll(t, "client")
	})
}

// TestLargeMessagesHaveTurns sends a message with 1 MiB to each of 12 clients at once, while the
// queues may hold 4 MiB. All messages must arrive, and the queues stay within the bound. In a
// second run, three stalled clients occupy memory too, and must not be closed before 6 s have
// passed.
func TestLargeMessagesHaveTurns(t *testing.T) {
	const clients, size, bound = 12, mib, 4 * mib
	for _, stalled := range []int{0, 3} {
		inBubble(t, func(t *testing.T) {
			w := newWorldWith(1, routing.AgentEndConfig{MaxQueued: bound, MaxFrame: size}, routing.RelayEndConfig{Credit: mib / 4})
			defer w.end()
			var slow []*clientConn
			for range stalled {
				c := w.dial(0)
				c.stall()
				w.wg.Go(func() { _, _ = c.host.read(w.ctx.Done(), 1, size, "") })
				slow = append(slow, c)
			}
			time.Sleep(time.Second)
			var good []*clientConn
			for range clients {
				c := w.dial(0)
				good = append(good, c)
				w.wg.Go(func() {
					if _, err := c.host.read(w.ctx.Done(), 1, size, ""); err != nil {
						t.Error(err)
					}
				})
			}
			for i := range 200 {
				time.Sleep(100 * time.Millisecond)
				if err := w.agent.Audit(false); err != nil {
					t.Fatal(err)
				}
				if i == 50 && stalled > 0 {
					for i, c := range slow {
						if code := c.closed(); code != 0 {
							t.Errorf("stalled client %d was closed with %d after 6 s; want it open", i, code)
						}
					}
				}
			}
			for i, c := range good {
				c.wantAll(t, fmt.Sprint("client ", i))
			}
		})
	}
}

// TestShortFreezeClosesNoClient stalls clients for 20 s while messages for them occupy all memory
// and messages for other clients wait. No client may be closed, and all must get their messages. In
// a second world, a client stalls for 30 s: it must be closed with 1013, so that the message for
// the waiting client arrives.
func TestShortFreezeClosesNoClient(t *testing.T) {
	const size, bound, credit = mib, 4 * mib, mib / 8
	inBubble(t, func(t *testing.T) {
		w := newWorldWith(1, routing.AgentEndConfig{MaxQueued: bound, MaxFrame: size}, routing.RelayEndConfig{Credit: credit})
		defer w.end()
		read := func(c *clientConn) {
			w.wg.Go(func() { _, _ = c.host.read(w.ctx.Done(), 1, size, "") })
		}
		var frozen, others []*clientConn
		for range bound / size {
			c := w.dial(0)
			c.stall()
			frozen = append(frozen, c)
			read(c)
		}
		time.Sleep(time.Second)
		for range 4 {
			c := w.dial(0)
			others = append(others, c)
			read(c)
		}
		time.Sleep(19 * time.Second)
		for i, c := range frozen {
			if code := c.closed(); code != 0 {
				t.Errorf("client %d, unreachable for 20 s, was closed with %d; want it open", i, code)
			}
			if i > 0 {
				c.takeAll()
			}
		}
		time.Sleep(5 * time.Second)
		for i, c := range append(others, frozen[1:]...) {
			c.wantAll(t, fmt.Sprint("client ", i))
		}
	})
	inBubble(t, func(t *testing.T) {
		w := newWorldWith(1, routing.AgentEndConfig{MaxQueued: size + size/2, MaxFrame: size}, routing.RelayEndConfig{Credit: credit})
		defer w.end()
		gone, waits := w.dial(0), w.dial(0)
		gone.stall()
		for _, c := range []*clientConn{gone, waits} {
			w.wg.Go(func() { _, _ = c.host.read(w.ctx.Done(), 1, size, "") })
			time.Sleep(time.Second)
		}
		time.Sleep(30 * time.Second)
		if code := gone.closed(); code != ahp.CloseOverloaded {
			t.Errorf("a client unreachable for 30 s while others wait was closed with %d; want CloseOverloaded", code)
		}
		waits.wantAll(t, "who has waited")
	})
}

// TestLongestStallIsClosedFirst stalls three clients one after the other, and then exhausts the
// memory for queues. The host-agent must close the two clients which have stalled for longest, and
// not the third, whose queue is longest.
func TestLongestStallIsClosedFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorldWith(1, routing.AgentEndConfig{MaxQueued: 25 * mib / 8}, routing.RelayEndConfig{Credit: mib / 8})
		defer w.end()
		var list []*clientConn
		for _, n := range []int{2 * mib / 8, 3 * mib / 8, 9 * mib / 8} {
			c := w.dial(0)
			c.stall()
			if err := c.host.send(message(1, n), false, ""); err != nil {
				t.Fatal(err)
			}
			list = append(list, c)
			time.Sleep(2 * time.Second)
		}
		first, second, most := list[0], list[1], list[2]
		good := w.dial(0)
		if err := good.host.send(message(1, 2*mib), false, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if first.closed() != ahp.CloseOverloaded || second.closed() != ahp.CloseOverloaded || most.closed() != 0 || good.closed() != 0 {
			t.Errorf("the four clients were closed with %d, %d, %d and %d; want the first two with CloseOverloaded, and 0 for the rest", first.closed(), second.closed(), most.closed(), good.closed())
		}
	})
}

// TestFlushFollowsEarlierMessages flushes a client's connection while the network has lost a shared
// body. The host must get the flush after all earlier messages from the client. The client must get
// the answer after all earlier messages from the host, including the lost body. A flush after the
// close does nothing.
func TestFlushFollowsEarlierMessages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(1, routing.AgentEndConfig{})
		defer w.end()
		a, b := w.dial(0), w.dial(0)
		say := func(i int) {
			m := message(i, 1000)
			for _, c := range []*clientConn{a, b} {
				if err := c.host.send(m, false, "ahp-chat:/1"); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range 100 { // until the relay subscribes to the channel's bodies
			say(i)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		var lost atomic.Bool
		w.net.mu.Lock()
		w.net.lose = func(_, subject string, _ []byte) bool {
			return strings.Contains(subject, ".chan.") && lost.CompareAndSwap(false, true)
		}
		w.net.mu.Unlock()
		a.send(t, message(1, 300<<10))
		a.send(t, message(2, 10))
		for i := range 10 {
			say(100 + i)
		}
		a.conn.Flush()
		time.Sleep(5 * time.Second)
		if !lost.Load() {
			t.Fatal("no body was published before the flush; want one")
		}
		a.wantAll(t, "a")
		if fmt.Sprint(a.host.flushes, a.flushed) != "[2] [110]" {
			t.Errorf("the flush reached the host after %v messages, and was confirmed after %v messages at the client; want [2] and [110]", a.host.flushes, a.flushed)
		}
		a.conn.Close(1000, "")
		a.conn.Flush()
		time.Sleep(time.Second)
		if len(a.flushed) != 1 {
			t.Error("a flush was reported to a connection that had ended; want only the first")
		}
	})
}

// TestProbeReachesOnlyItsClient probes a stalled client, which must get the probe. A closed client
// must get none, and neither must the next client, whose connection may have the same number.
func TestProbeReachesOnlyItsClient(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(1, routing.AgentEndConfig{})
		defer w.end()
		c := w.dial(0)
		c.stall()
		if err := c.host.send(message(1, 5*mib), false, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		c.host.conn.Probe()
		time.Sleep(time.Second)
		if n := c.probed.Load(); n != 1 {
			t.Errorf("the connection was probed %d times; want once", n)
		}
		c.host.conn.Close(ahp.CloseResync, "")
		c.host.conn.Probe()
		time.Sleep(time.Second)
		if n := c.probed.Load(); n != 1 {
			t.Errorf("the client got %d probes; want 1", n)
		}
		gone := w.dial(0)
		gone.host.conn.Probe()
		gone.conn.Close(1000, "")
		gone.host.conn.Close(ahp.CloseResync, "")
		next := w.dial(0)
		time.Sleep(time.Second)
		if n := next.probed.Load(); n != 0 {
			t.Errorf("the next connection with the same number got %d probes; want 0", n)
		}
	})
}

// TestHungHostHoldsTwoMessages sends four messages with 3 MiB to a host that reads nothing. Only
// the first may reach the host-agent's queue for the host; the others wait before that. All must
// arrive when the host reads again.
func TestHungHostHoldsTwoMessages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(1, routing.AgentEndConfig{})
		defer w.end()
		c := w.dial(0)
		h := c.host
		h.mu.Lock()
		h.stuck = true
		h.mu.Unlock()
		const size = 3 * mib // longer than the credit and all queues on the way
		all := make(chan [][]byte, 1)
		go func() {
			var sent [][]byte
			for i := range 4 {
				m := message(i, size)
				if c.conn.Send(w.ctx, m) == nil {
					sent = append(sent, m)
				}
			}
			all <- sent
		}()
		time.Sleep(time.Minute)
		h.mu.Lock()
		got := len(h.got)
		h.stuck = false
		credit := h.untaken
		h.untaken = 0
		h.mu.Unlock()
		if got != 1 {
			t.Errorf("%d messages of %d MiB wait for the host; want 1", got, size/mib)
		}
		h.conn.Written(credit)
		c.sent = <-all
		time.Sleep(time.Minute)
		c.wantAll(t, "client")
	})
}

// heap collects garbage, and returns the size of all live objects in bytes.
func heap() int {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int(sample[0].Value.Uint64())
}

// TestAllStreamsAreBounded sends to 40 stalled clients more than memory can hold. The host-agent
// must close some of them with 1013, and memory must stay within the bound. A client that reads
// must get everything.
func TestAllStreamsAreBounded(t *testing.T) {
	const (
		clients = 40
		bound   = 12 * mib
		frame   = 32 << 10
		credit  = mib / 4
		// Further memory for clients and link: each connection's credit, and a window.
		beside = clients*credit + 16*mib
	)
	inBubble(t, func(t *testing.T) {
		w := newWorldWith(1, routing.AgentEndConfig{MaxQueued: bound}, routing.RelayEndConfig{Credit: credit})
		defer w.end()
		good := w.dial(0)
		var slow []*clientConn
		for range clients {
			c := w.dial(0)
			c.stall()
			slow = append(slow, c)
		}
		before, most := heap(), 0
		for i := range 100 {
			for j, c := range slow {
				n := frame
				if j%2 == 0 { // half of the clients get twice as many bytes
					n = 2 * frame
				}
				if err := c.host.conn.FromHost(message(i, n), false, nil); err != nil && !errors.Is(err, routing.ErrConnClosed) {
					t.Fatal(err)
				}
			}
			if err := good.host.send(message(i, frame), false, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			if i%10 == 0 {
				most = max(most, heap()-before)
			}
		}
		t.Logf("most in use: %d MiB beyond %d MiB", most/mib, before/mib)
		if most > bound+beside {
			t.Errorf("the process used %d MiB; want at most %d", most/mib, (bound+beside)/mib)
		}
		good.wantAll(t, "the client that takes everything")
		cut := 0
		for _, c := range slow {
			switch c.closed() {
			case 0:
			case ahp.CloseOverloaded:
				cut++
				c.host.mu.Lock()
				if !c.host.closed {
					t.Error("a client was closed, but its connection to the host is open; want it closed")
				}
				c.host.mu.Unlock()
			default:
				t.Errorf("the connection was closed with %d; want %d", c.closed(), ahp.CloseOverloaded)
			}
		}
		if cut == 0 || cut == clients {
			t.Errorf("%d of %d clients were closed; want at least 1, and not all", cut, clients)
		}
	})
}

// TestFloodsToHungHostAreBounded sends a message with 1 MiB from each of 20 clients to a host that
// reads nothing. Memory must stay within the bound. With room for every client's credit, all
// messages must arrive when the host reads again. With less room, some clients must be closed with
// 1013.
func TestFloodsToHungHostAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T) { floodHungHost(t, 16*mib, false) })
	inBubble(t, func(t *testing.T) { floodHungHost(t, 6*mib, true) })
}

func floodHungHost(t *testing.T, bound int, some bool) {
	const (
		clients = 20
		size    = mib
		credit  = mib / 4
		beside  = clients*credit + 4*mib // the credit of each client, and pieces on the way
	)
	w := newWorld(1, routing.AgentEndConfig{MaxQueued: bound, MaxFrame: size, Credit: credit})
	defer w.end()
	m := message(1, size)
	before := heap()
	var list []*clientConn
	for range clients {
		c := w.dial(0)
		list = append(list, c)
		c.host.mu.Lock()
		c.host.stuck = true
		c.host.mu.Unlock()
		c.send(t, m)
		time.Sleep(time.Second)
		if err := w.agent.Audit(false); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(20 * time.Second)
	if used := heap() - before; used > bound+beside {
		t.Errorf("the process uses %d MiB; want at most %d", used/mib, (bound+beside)/mib)
	}
	for _, c := range list {
		c.host.mu.Lock()
		c.host.stuck = false
		credit := c.host.untaken
		c.host.untaken = 0
		c.host.mu.Unlock()
		c.host.conn.Written(credit)
	}
	time.Sleep(time.Minute)
	closed := 0
	for i, c := range list {
		if c.closed() == ahp.CloseOverloaded {
			closed++
			continue
		}
		c.wantAll(t, fmt.Sprint("client ", i))
	}
	if (closed > 0) != some || closed == clients {
		t.Errorf("%d connections were closed; want at least one: %v", closed, some)
	}
}

// TestUnreadAnswersOfACrowdStayAtTheHost lets 24 new clients request 8 answers each and read none.
// For them, the host-agent must read from the host little more than their initial credit. It must
// read all answers for a new client that reads, and for a client that has read before and then
// stalls. When 22 clients and that one read again, it must read all answers for the remaining two.
func TestUnreadAnswersOfACrowdStayAtTheHost(t *testing.T) {
	const stalled, answers, size, credit = 24, 8, 100 << 10, 64 << 10
	inBubble(t, func(t *testing.T) {
		w := newWorldWith(1, routing.AgentEndConfig{MaxQueued: 64 * mib}, routing.RelayEndConfig{Credit: credit, MostCredit: mib})
		defer w.end()
		ask := func(c *clientConn) {
			w.wg.Go(func() { _, _ = c.host.read(w.ctx.Done(), answers, size, "") })
		}
		good, paused, crowd := w.dial(0), w.dial(0), []*clientConn{}
		ask(paused)
		time.Sleep(time.Second)
		paused.stall()
		for range stalled {
			c := w.dial(0)
			c.stall()
			crowd = append([]*clientConn{c}, crowd...) // the latest client first
			ask(c)
		}
		time.Sleep(time.Second)
		ask(good)
		ask(paused)
		time.Sleep(time.Second)
		if n := good.host.hasSent() + paused.host.hasSent(); n != 3*answers {
			t.Errorf("the host-agent has read %d answers for clients that have read; want %d", n, 3*answers)
		}
		if n, most := hasSent(crowd), 2*stalled+2*mib/size; n > most {
			t.Errorf("the host-agent has read %d of %d answers that are not read; want at most %d", n, stalled*answers, most)
		}
		readers, rest := crowd[2:], crowd[:2]
		for _, c := range append(readers, paused) {
			c.takeAll()
		}
		time.Sleep(time.Second)
		if n := hasSent(rest); n != 2*answers {
			t.Errorf("without the crowd, the host-agent has read %d answers of clients that do not read yet; want %d", n, 2*answers)
		}
		for _, c := range rest {
			c.takeAll()
		}
		time.Sleep(time.Second)
		for _, c := range append(crowd, good, paused) {
			c.wantAll(t, "a client")
		}
		if n := hasSent(crowd); n != stalled*answers {
			t.Errorf("the crowd has got %d answers; want %d", n, stalled*answers)
		}
	})
}

// hasSent returns the number of messages that the host-agent has read from the host.
func (h *hostConn) hasSent() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sent)
}

func hasSent(clients []*clientConn) (n int) {
	for _, c := range clients {
		n += c.host.hasSent()
	}
	return n
}
