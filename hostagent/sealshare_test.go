package hostagent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// Kinds of WebSocket messages on a sealed connection.
const (
	sealedRecord = 6
	sealedBody   = 7
)

// A sharedReader is a client of a sealed host, with its connection at the host.
type sharedReader struct {
	*sealedRemote
	sock *fakeSocket

	got    []string
	bodies [][]byte
	own    int // messages in the connection's own stream
}

// openReader connects a client, which asks for shared messages unless it is older than they
// are.
func (w *world) openReader(known vaultDevice, old bool) *sharedReader {
	w.Helper()
	r := w.openSealedAs(known, sealed.Greeting{Window: 615})
	if !old {
		r.post(sealed.Ask, `{"id":0,"do":"share","parts":true}`)
	}
	return &sharedReader{sealedRemote: r, sock: w.hostSide()}
}

// hear opens the frames that have come.
func (r *sharedReader) hear() {
	r.w.Helper()
	for _, frame := range r.take() {
		kind := frame[0]
		if kind == sealedBody {
			r.bodies = append(r.bodies, bytes.Clone(frame))
		}
		content, body, done, err := r.session.Open(frame)
		if err != nil {
			r.w.Fatalf("open: %v", err)
		}
		for ; done; content, body, done = r.session.Next() {
			if content == sealed.Message {
				r.got = append(r.got, string(body))
				if kind == sealedRecord {
					r.own++
				}
			}
		}
	}
}

// hostEnd returns the reader's connection at the host-agent.
func (r *sharedReader) hostEnd() *hostConn {
	r.w.Helper()
	for _, c := range r.w.agent.clients.every() {
		if c.conn.seal.device.Chain[0] == r.device {
			return c
		}
	}
	r.w.Fatal("the reader is not connected")
	return nil
}

// removed removes the reader's device.
func (r *sharedReader) removed() {
	r.w.Helper()
	if err := r.w.agent.seals.removeDevice(r.device.String(), false); err != nil {
		r.w.Fatal(err)
	}
	r.w.agent.seals.endRemoved()
}

// unsubscribes ends the reader's subscription.
func (r *sharedReader) unsubscribes() {
	r.w.Helper()
	frames, err := r.session.Seal(sealed.Message, []byte(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"s:/1"}}`))
	if err != nil {
		r.w.Fatal(err)
	}
	r.send(frames...)
}

// epoch returns the epoch of the last body.
func (r *sharedReader) epoch() uint32 {
	r.w.Helper()
	if len(r.bodies) == 0 {
		r.w.Fatal("nothing was shared")
	}
	return binary.BigEndian.Uint32(r.bodies[len(r.bodies)-1][1:])
}

// A sealedCrowd is a sealed host that sends the same notifications to readers.
type sealedCrowd struct {
	*world
	sent []string
}

// say makes the host send a notification on each reader's connection, and waits.
func (c *sealedCrowd) say(wait time.Duration, readers ...*sharedReader) {
	c.Helper()
	c.sayThis(fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":"s:/1","n":%d}}`, len(c.sent)), wait, readers...)
}

func (c *sealedCrowd) sayThis(message string, wait time.Duration, readers ...*sharedReader) {
	c.Helper()
	c.sent = append(c.sent, message)
	for _, r := range readers {
		r.sock.toUs <- message
		synctest.Wait()
	}
	time.Sleep(wait)
	for _, r := range readers {
		r.hear()
		if r.got[len(r.got)-1] != message {
			c.Fatalf("the last message is %s; want %s", r.got[len(r.got)-1], message)
		}
	}
}

func inCrowd(t *testing.T, levels []auth.Access, test func(c *sealedCrowd, readers []*sharedReader)) {
	t.Helper()
	inCrowdOf(t, Upstream{}, levels, test)
}

// inCrowdOf runs a test with readers of a host that is reached as the upstream states.
func inCrowdOf(t *testing.T, upstream Upstream, levels []auth.Access, test func(c *sealedCrowd, readers []*sharedReader)) {
	t.Helper()
	inWorldOf(t, routing.AgentEndConfig{Sealed: true}, func(w *world) {
		w.agent.cfg.Upstream = upstream
		w.host.set(func() { w.host.answers = nil })
		var readers []*sharedReader
		for _, level := range levels {
			readers = append(readers, w.openReader(vaultDevice{Level: level}, false))
		}
		test(&sealedCrowd{world: w}, readers)
	})
}

var three = []auth.Access{auth.AccessWrite, auth.AccessWrite, auth.AccessWrite}

// TestSealedReadersShareOneCopy sends notifications to three readers with equal authority.
// After the first ones, all receive the same bytes, in order.
func TestSealedReadersShareOneCopy(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 20 {
			c.say(10*time.Millisecond, readers...)
		}
		for i, r := range readers {
			if !slices.Equal(r.got, c.sent) {
				t.Errorf("reader %d received %d messages; want %d", i, len(r.got), len(c.sent))
			}
			if r.own > 2 || len(r.bodies) < 18 {
				t.Errorf("reader %d received %d messages of its own, and %d bodies", i, r.own, len(r.bodies))
			}
			last := readers[0].bodies
			for j := range 18 {
				if !bytes.Equal(r.bodies[len(r.bodies)-1-j], last[len(last)-1-j]) {
					t.Fatalf("reader %d has other bytes", i)
				}
			}
		}
		if n := len(c.agent.seals.shared.sets); n != 1 {
			t.Errorf("%d sets; want 1", n)
		}
	})
}

// TestOlderReadersShareNothing sends notifications to three clients. Two are like 1.0.0-rc.1
// and do not support shared messages, so nothing is shared: every client gets records.
func TestOlderReadersShareNothing(t *testing.T) {
	inCrowd(t, three[:1], func(c *sealedCrowd, readers []*sharedReader) {
		for range 2 {
			readers = append(readers, c.openReader(vaultDevice{Level: auth.AccessWrite}, true))
		}
		for range 5 {
			c.say(10*time.Millisecond, readers...)
		}
		for i, r := range readers {
			if !slices.Equal(r.got, c.sent) || len(r.bodies) != 0 || r.own != len(c.sent) {
				t.Errorf("reader %d received %d messages, %d in records, and %d bodies; want %d in records", i, len(r.got), r.own, len(r.bodies), len(c.sent))
			}
		}
	})
}

// TestSealedSetsHaveEqualAuthority sends the same notifications to readers with different
// levels. They share nothing.
func TestSealedSetsHaveEqualAuthority(t *testing.T) {
	inCrowd(t, []auth.Access{auth.AccessWrite, auth.AccessTalk, auth.AccessAdmin}, func(c *sealedCrowd, readers []*sharedReader) {
		for range 20 {
			c.say(10*time.Millisecond, readers...)
		}
		for i, r := range readers {
			if len(r.bodies) > 0 || len(r.got) != 20 {
				t.Errorf("reader %d received %d messages, and %d bodies", i, len(r.got), len(r.bodies))
			}
		}
	})
}

// wantNewEpoch warms a crowd up, lets a reader leave, and fails unless the others have a new
// epoch in time. Messages come every interval.
func wantNewEpoch(t *testing.T, interval, within time.Duration, leave func(c *sealedCrowd, r *sharedReader)) {
	t.Helper()
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 5 {
			c.say(interval, readers...)
		}
		before, left := readers[0].epoch(), time.Now()
		leave(c, readers[2])
		for time.Since(left) < within {
			c.say(interval, readers[:2]...)
		}
		c.say(interval, readers[:2]...)
		if after := readers[0].epoch(); after == before {
			t.Errorf("the epoch is the same %v after a reader has left", time.Since(left))
		}
		c.say(interval, readers[:2]...)
		if readers[0].epoch() != readers[1].epoch() || !bytes.Equal(readers[0].bodies[len(readers[0].bodies)-1], readers[1].bodies[len(readers[1].bodies)-1]) {
			t.Error("the others no longer share")
		}
	})
}

// TestEpochEndsWithAReader ends epochs as readers leave: at once for a removal, and within
// 5 s otherwise.
func TestEpochEndsWithAReader(t *testing.T) {
	t.Run("removed", func(t *testing.T) {
		wantNewEpoch(t, 100*time.Millisecond, 0, func(_ *sealedCrowd, r *sharedReader) { r.removed() })
	})
	t.Run("removed just behind its unsubscription", func(t *testing.T) {
		wantNewEpoch(t, 100*time.Millisecond, 0, func(_ *sealedCrowd, r *sharedReader) {
			r.unsubscribes()
			r.removed()
		})
	})
	t.Run("ended by the host's owner", func(t *testing.T) {
		wantNewEpoch(t, 100*time.Millisecond, 0, func(c *sealedCrowd, r *sharedReader) {
			client := r.hostEnd()
			client.conn.Abort(ahp.CloseForbidden, kickedReason)
			client.cancel()
		})
	})
	t.Run("gone", func(t *testing.T) {
		wantNewEpoch(t, 100*time.Millisecond, 5*time.Second, func(_ *sealedCrowd, r *sharedReader) { r.conn.Close(ahp.CloseShuttingDown, "") })
	})
	t.Run("unsubscribed", func(t *testing.T) {
		wantNewEpoch(t, 6*time.Second, 5*time.Second, func(_ *sealedCrowd, r *sharedReader) { r.unsubscribes() })
	})
	t.Run("not heard of", func(t *testing.T) {
		wantNewEpoch(t, 200*time.Millisecond, 5*time.Second, func(*sealedCrowd, *sharedReader) {})
	})
}

// TestEpochEndsInTime sends messages for longer than an epoch.
func TestEpochEndsInTime(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 5 {
			c.say(time.Second, readers...)
		}
		before := readers[0].epoch()
		c.say(time.Second, readers...)
		if readers[0].epoch() != before {
			t.Error("the epoch ends without a reason")
		}
		for range 120 {
			c.say(epochTime/100, readers...)
			for _, r := range readers {
				beat, err := r.session.Seal(sealed.Heartbeat, sealed.AppendHeartbeat(r.session.Opened()))
				if err != nil {
					t.Fatal(err)
				}
				r.send(beat...)
			}
		}
		if readers[0].epoch() == before {
			t.Errorf("the epoch goes on after %v", epochTime)
		}
	})
}

// holdBack sends a message to all readers, and 60 more within 12 s to all but the third. It
// returns the third reader, and the index of the first message that it lacks.
func (c *sealedCrowd) holdBack(readers []*sharedReader) (late *sharedReader, from int) {
	for range 5 {
		c.say(100*time.Millisecond, readers...)
	}
	from = len(c.sent)
	for range 60 {
		c.say(200*time.Millisecond, readers[:2]...)
	}
	return readers[2], from
}

// TestLateReaderKeepsItsOrder holds one reader's messages back, while the others go on with
// new epochs. It then receives all, in order.
func TestLateReaderKeepsItsOrder(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		late, from := c.holdBack(readers)
		for _, message := range c.sent[from:] {
			late.sock.toUs <- message
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		late.hear()
		c.say(100*time.Millisecond, readers...)
		c.say(100*time.Millisecond, readers...)
		if !slices.Equal(late.got, c.sent) {
			t.Errorf("the late reader received %d messages; want %d, in order", len(late.got), len(c.sent))
		}
		if late.epoch() != readers[0].epoch() {
			t.Error("the late reader shares no more")
		}
	})
}

// TestLateReaderGetsNoKeyOfTheOthers gives a reader the messages that the others received
// long before. It gets none of the keys that they use now, so nothing remains to be changed
// when it is removed.
func TestLateReaderGetsNoKeyOfTheOthers(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		late, from := c.holdBack(readers)
		for _, message := range c.sent[from : from+45] { // the others have changed keys within 5 s
			late.sock.toUs <- message
			time.Sleep(10 * time.Millisecond)
		}
		late.hear()
		if !slices.Equal(late.got, c.sent[:from+45]) {
			t.Fatalf("the late reader received %d messages; want %d, in order", len(late.got), from+45)
		}
		keys := late.hostEnd().conn.seal.epochs
		late.removed()
		c.say(100*time.Millisecond, readers[:2]...)
		if now := readers[0].epoch(); slices.Contains(keys, now) {
			t.Errorf("the others use epoch %d behind the removal of a reader that has its key", now)
		}
	})
}

// TestAbortedReaderJoinsNoSet sends a notification on a connection that has just been
// aborted. It joins no set any more: the key of that set would not change a second time.
func TestAbortedReaderJoinsNoSet(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 5 {
			c.say(100*time.Millisecond, readers...)
		}
		aborted := readers[2].hostEnd().conn
		aborted.Abort(ahp.CloseForbidden, kickedReason)
		_, _, err := aborted.Notify([]*routing.Notification{routing.NewNotification([]byte(`{"jsonrpc":"2.0","method":"action","params":{"channel":"s:/1"}}`), []byte("s:/1"))})
		if !errors.Is(err, routing.ErrConnClosed) {
			t.Errorf("a notification behind the abort: %v", err)
		}
		for _, set := range c.agent.seals.shared.sets {
			if _, ok := set.readers[aborted.seal]; ok || len(set.readers) != 2 {
				t.Errorf("a set has %d readers; the aborted one is among them: %v", len(set.readers), ok)
			}
		}
	})
}

// TestRepeatedMessageLooksNew sends the same message several times to each reader. All share
// it, and no reader gets the same bytes twice.
func TestRepeatedMessageLooksNew(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 5 {
			c.say(10*time.Millisecond, readers...)
		}
		for range 5 {
			c.sayThis(c.sent[3], 10*time.Millisecond, readers...)
		}
		late := readers[2]
		for range 3 { // twice on each connection, before the next one
			for range 2 {
				c.sayThis(c.sent[4], 10*time.Millisecond, readers[:2]...)
			}
			for range 2 {
				late.sock.toUs <- c.sent[4]
				time.Sleep(10 * time.Millisecond) // this relay gives each body a frame of its own then
			}
		}
		late.hear()
		for i, r := range readers {
			if !slices.Equal(r.got, c.sent) {
				t.Errorf("reader %d received %d messages; want %d", i, len(r.got), len(c.sent))
			}
			if len(r.bodies) < 14 {
				t.Errorf("reader %d received %d bodies: it shares no more", i, len(r.bodies))
			}
			seen := map[string]bool{}
			for _, body := range r.bodies {
				if seen[string(body)] {
					t.Errorf("reader %d received the same bytes twice", i)
				}
				seen[string(body)] = true
			}
		}
		if shared := &c.agent.seals.shared; len(shared.sets) != 1 || shared.recent.Len() > len(c.sent) {
			t.Errorf("%d messages were sealed for %d sets; want at most %d for one", shared.recent.Len(), len(shared.sets), len(c.sent))
		}
	})
}

// TestReadersOfCommandsShareNothing connects readers to a host that is started for each of
// them. Equal channel names are different channels there.
func TestReadersOfCommandsShareNothing(t *testing.T) {
	inCrowdOf(t, Upstream{Command: []string{"host"}}, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 10 {
			c.say(10*time.Millisecond, readers...)
		}
		for i, r := range readers {
			if len(r.bodies) > 0 || !slices.Equal(r.got, c.sent) {
				t.Errorf("reader %d received %d messages, and %d bodies", i, len(r.got), len(r.bodies))
			}
		}
	})
}

// TestLinkOpensNothingEarlier lets a third viewer of a link join two that share messages. A
// relay that has kept all bodies, and has the link, opens none from before that viewer came.
// The viewers share one copy again within 5 s.
func TestLinkOpensNothingEarlier(t *testing.T) {
	inCrowd(t, nil, func(c *sealedCrowd, _ []*sharedReader) {
		join := func() *sharedReader {
			return c.openReader(vaultDevice{Level: auth.AccessTalk, People: 9}, false)
		}
		readers := []*sharedReader{join(), join()}
		for range 60 {
			c.say(100*time.Millisecond, readers...)
		}
		kept, joined := slices.Clone(readers[0].bodies), time.Now()
		if len(kept) == 0 {
			t.Fatal("the viewers share nothing")
		}
		late := join()
		from := len(c.sent)
		readers = append(readers, late)
		for time.Since(joined) < 5*time.Second {
			c.say(100*time.Millisecond, readers...)
		}
		for range 10 {
			c.say(100*time.Millisecond, readers...)
		}
		if !slices.Equal(late.got, c.sent[from:]) {
			t.Fatalf("the late viewer received %d messages; want %d, in order", len(late.got), len(c.sent)-from)
		}
		if late.own == len(late.got) || late.epoch() != readers[0].epoch() {
			t.Error("the late viewer shares nothing with the others")
		}
		for _, body := range kept {
			if epoch := binary.BigEndian.Uint32(body[1:]); slices.Contains(late.hostEnd().conn.seal.epochs, epoch) {
				t.Fatalf("the late viewer has the key of epoch %d, which began before it came", epoch)
			}
		}
	})
}

// TestReadersShareTheStateTheyBeginWith has the host answer ten readers with the same
// snapshot, and each with its own id. All readers have whole answers, and the same bytes of
// the snapshot. A reader that asks once more gets none of these bytes again, nor does one
// with different authority.
func TestReadersShareTheStateTheyBeginWith(t *testing.T) {
	inCrowd(t, nil, func(c *sealedCrowd, _ []*sharedReader) {
		state := `{"resource":"s:/1","fromSeq":1,"state":{"text":"` + strings.Repeat("all work ", 2*partLeast) + `"}}`
		answer := func(id int) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"snapshot":%s}}`, id, state)
		}
		gives := func(r *sharedReader, id int) (parts [][]byte) {
			before := len(r.bodies)
			r.sock.toUs <- answer(id)
			synctest.Wait()
			r.hear()
			if got := r.got[len(r.got)-1]; got != answer(id) {
				t.Fatalf("the answer is %.200s; want %.200s", got, answer(id))
			}
			return r.bodies[before:]
		}
		var first [][]byte
		for i := range 10 {
			r := c.openReader(vaultDevice{Level: auth.AccessWrite}, false)
			parts := gives(r, i)
			if i == 0 {
				first = parts
			}
			if len(parts) == 0 || !slices.EqualFunc(parts, first, bytes.Equal) {
				t.Fatalf("reader %d receives %d bodies that differ from the first reader's %d", i, len(parts), len(first))
			}
			if again := gives(r, 100+i); len(again) > 0 {
				t.Error("a reader receives the same bytes twice")
			}
		}
		other := gives(c.openReader(vaultDevice{Level: auth.AccessTalk}, false), 11)
		if len(other) == 0 || bytes.Equal(other[0], first[0]) {
			t.Error("a reader with different authority shares a part")
		}
		old := c.openReader(vaultDevice{Level: auth.AccessWrite}, true)
		if parts := gives(old, 12); len(parts) > 0 {
			t.Error("an older client receives a part")
		}
	})
}
