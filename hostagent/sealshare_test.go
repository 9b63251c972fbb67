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

// The first byte of a frame on a sealed connection: a record is for one connection, a body for all
// that share it.
const (
	sealedRecord = 6
	sealedBody   = 7
)

// A sharedReader is a client of a sealed host. sock is its connection at the host.
type sharedReader struct {
	*sealedRemote
	sock *fakeSocket

	got    []string
	bodies [][]byte
	own    int // messages that came in records
}

// openReader connects a client. It asks for shared messages, unless old is set.
func (w *world) openReader(known vaultDevice, old bool) *sharedReader {
	w.Helper()
	r := w.openSealedAs(known, sealed.Greeting{Window: 615})
	if !old {
		r.post(sealed.Ask, `{"id":0,"do":"share","parts":true}`)
	}
	return &sharedReader{sealedRemote: r, sock: w.hostSide()}
}

// hear decrypts the frames since the last call, and keeps their messages in got and the bodies in
// bodies.
func (r *sharedReader) hear() {
	r.w.Helper()
	for _, frame := range r.take() {
		kind := frame[0]
		if kind == sealedBody {
			r.bodies = append(r.bodies, bytes.Clone(frame))
		}
		content, body, done, err := r.session.Open(frame)
		if err != nil {
			r.w.Fatalf("opening the reader's frame: %v; want no error", err)
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

// hostEnd returns the reader's connection to the host, as the host-agent keeps it.
func (r *sharedReader) hostEnd() *hostConn {
	r.w.Helper()
	for _, c := range r.w.agent.clients.every() {
		if c.conn.seal.device.Chain[0] == r.device {
			return c
		}
	}
	r.w.Fatal("the host-agent has no connection for the reader; want one")
	return nil
}

// removed removes the reader's device from the vault, and ends its connection.
func (r *sharedReader) removed() {
	r.w.Helper()
	if err := r.w.agent.seals.removeDevice(r.device.String(), false); err != nil {
		r.w.Fatal(err)
	}
	r.w.agent.seals.endRemoved()
}

// unsubscribes sends an unsubscribe from s:/1 as the reader.
func (r *sharedReader) unsubscribes() {
	r.w.Helper()
	frames, err := r.session.Seal(sealed.Message, []byte(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"s:/1"}}`))
	if err != nil {
		r.w.Fatal(err)
	}
	r.send(frames...)
}

// epoch returns the number in the last body that names its keys.
func (r *sharedReader) epoch() uint32 {
	r.w.Helper()
	if len(r.bodies) == 0 {
		r.w.Fatal("the reader has no shared frames; want at least one")
	}
	return binary.BigEndian.Uint32(r.bodies[len(r.bodies)-1][1:])
}

// A sealedCrowd is a world whose sealed host sends the same notifications to several readers. sent
// has all of them.
type sealedCrowd struct {
	*world
	sent []string
}

// say makes the host send a new notification on each reader's connection. After the time wait, it
// fails unless each reader got it.
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

// inCrowdOf runs test with a sealed host behind upstream, and with a reader for each level.
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

// TestSealedReadersShareOneCopy sends notifications to three readers with equal authority. After
// the first two, all must get the same encrypted bytes, in order.
func TestSealedReadersShareOneCopy(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 20 {
			c.say(10*time.Millisecond, readers...)
		}
		for i, r := range readers {
			if !slices.Equal(r.got, c.sent) {
				t.Errorf("reader %d received %d messages in all; want %d", i, len(r.got), len(c.sent))
			}
			if r.own > 2 || len(r.bodies) < 18 {
				t.Errorf("reader %d received %d messages alone, and %d shared; want at most 2, and at least 18", i, r.own, len(r.bodies))
			}
			last := readers[0].bodies
			for j := range 18 {
				if !bytes.Equal(r.bodies[len(r.bodies)-1-j], last[len(last)-1-j]) {
					t.Fatalf("reader %d received different bytes than the first reader; want the same", i)
				}
			}
		}
		if n := len(c.agent.seals.shared.sets); n != 1 {
			t.Errorf("%d sets; want 1", n)
		}
	})
}

// TestOlderReadersShareNothing sends notifications to three clients, of which two do not ask for
// shared messages, like version 1.0.0-rc.1. Every client must get each message in a record.
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

// TestSealedSetsHaveEqualAuthority sends the same notifications to readers with different levels.
// These readers must share no bytes.
func TestSealedSetsHaveEqualAuthority(t *testing.T) {
	inCrowd(t, []auth.Access{auth.AccessWrite, auth.AccessTalk, auth.AccessAdmin}, func(c *sealedCrowd, readers []*sharedReader) {
		for range 20 {
			c.say(10*time.Millisecond, readers...)
		}
		for i, r := range readers {
			if len(r.bodies) > 0 || len(r.got) != 20 {
				t.Errorf("reader %d received %d messages alone, and %d shared; want 20 and 0", i, len(r.got), len(r.bodies))
			}
		}
	})
}

// wantNewEpoch sends messages to three readers each interval, and then calls leave for the third
// reader. It fails unless the two others share messages under new keys within the given time.
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
			t.Errorf("%v after a reader has left, the epoch is the same; want a new one", time.Since(left))
		}
		c.say(interval, readers[:2]...)
		if readers[0].epoch() != readers[1].epoch() || !bytes.Equal(readers[0].bodies[len(readers[0].bodies)-1], readers[1].bodies[len(readers[1].bodies)-1]) {
			t.Error("the remaining readers share no messages; want one epoch, and the same bytes")
		}
	})
}

// TestEpochEndsWithAReader has a reader leave a set. The others must get new keys at once if its
// device was removed or its connection aborted, and within 5 s otherwise.
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

// TestEpochEndsInTime sends messages for longer than epochTime. The readers must get new keys after
// epochTime, and not at once.
func TestEpochEndsInTime(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 5 {
			c.say(time.Second, readers...)
		}
		before := readers[0].epoch()
		c.say(time.Second, readers...)
		if readers[0].epoch() != before {
			t.Error("the keys changed before epochTime; want the same epoch")
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
			t.Errorf("the epoch is the same after %v; want a new one", epochTime)
		}
	})
}

// holdBack sends five messages to all readers, and then 60 more within 12 s to the first two
// readers. It returns the third reader, and the index of the first message it lacks.
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

// TestLateReaderKeepsItsOrder delays the host's messages to a reader, while the others get new
// keys. When the delay ends, this reader must get all messages in order.
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
			t.Error("the late reader shares no messages with the first; want one epoch")
		}
	})
}

// TestLateReaderGetsNoKeyOfTheOthers delays messages to a reader. When this reader gets the old
// messages, it must not get the keys that the others use now. So no key has to change when the
// reader is removed.
func TestLateReaderGetsNoKeyOfTheOthers(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		late, from := c.holdBack(readers)
		for _, message := range c.sent[from : from+45] { // within 5 s, the others have got new keys
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
			t.Errorf("after the removal of a reader, the remaining readers use epoch %d, whose key it has; want a new epoch", now)
		}
	})
}

// TestAbortedReaderJoinsNoSet sends a notification on a connection after its abort. The connection
// must not join a set again, because the set's keys would not change a second time.
func TestAbortedReaderJoinsNoSet(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 5 {
			c.say(100*time.Millisecond, readers...)
		}
		aborted := readers[2].hostEnd().conn
		aborted.Abort(ahp.CloseForbidden, kickedReason)
		_, _, err := aborted.Notify([]*routing.Notification{routing.NewNotification([]byte(`{"jsonrpc":"2.0","method":"action","params":{"channel":"s:/1"}}`), []byte("s:/1"))})
		if !errors.Is(err, routing.ErrConnClosed) {
			t.Errorf("Notify after Abort = %v; want ErrConnClosed", err)
		}
		for _, set := range c.agent.seals.shared.sets {
			if _, ok := set.readers[aborted.seal]; ok || len(set.readers) != 2 {
				t.Errorf("a set has %d readers, with the aborted reader: %v; want 2, without it", len(set.readers), ok)
			}
		}
	})
}

// TestRepeatedMessageLooksNew sends the same message several times to each reader. All readers must
// share the message, and no reader may get the same encrypted bytes twice.
func TestRepeatedMessageLooksNew(t *testing.T) {
	inCrowd(t, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 5 {
			c.say(10*time.Millisecond, readers...)
		}
		for range 5 {
			c.sayThis(c.sent[3], 10*time.Millisecond, readers...)
		}
		late := readers[2]
		for range 3 { // the host repeats each message on a connection before it writes to the next
			for range 2 {
				c.sayThis(c.sent[4], 10*time.Millisecond, readers[:2]...)
			}
			for range 2 {
				late.sock.toUs <- c.sent[4]
				time.Sleep(10 * time.Millisecond) // a pause, so that each body has its own frame
			}
		}
		late.hear()
		for i, r := range readers {
			if !slices.Equal(r.got, c.sent) {
				t.Errorf("reader %d received %d messages; want %d", i, len(r.got), len(c.sent))
			}
			if len(r.bodies) < 14 {
				t.Errorf("reader %d received %d shared messages; want at least 14", i, len(r.bodies))
			}
			seen := map[string]bool{}
			for _, body := range r.bodies {
				if seen[string(body)] {
					t.Errorf("reader %d received the same bytes twice; want new bytes for a repeated message", i)
				}
				seen[string(body)] = true
			}
		}
		if shared := &c.agent.seals.shared; len(shared.sets) != 1 || shared.recent.Len() > len(c.sent) {
			t.Errorf("%d messages were sealed for %d sets; want at most %d for one", shared.recent.Len(), len(shared.sets), len(c.sent))
		}
	})
}

// TestReadersOfCommandsShareNothing has a host that is a command, started anew for each reader. The
// readers must share nothing, because equal channel names are different channels there.
func TestReadersOfCommandsShareNothing(t *testing.T) {
	inCrowdOf(t, Upstream{Command: []string{"host"}}, three, func(c *sealedCrowd, readers []*sharedReader) {
		for range 10 {
			c.say(10*time.Millisecond, readers...)
		}
		for i, r := range readers {
			if len(r.bodies) > 0 || !slices.Equal(r.got, c.sent) {
				t.Errorf("reader %d received %d messages alone, and %d shared; want all alone", i, len(r.got), len(r.bodies))
			}
		}
	})
}

// TestLinkOpensNothingEarlier has a third viewer join two who share messages. The third viewer must
// not get the keys of earlier messages, because a relay with the link may have kept them. All three
// must share messages within 5 s.
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
			t.Fatal("the viewers share no messages; want some")
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
			t.Error("the late viewer shares no messages with the first; want one epoch")
		}
		for _, body := range kept {
			if epoch := binary.BigEndian.Uint32(body[1:]); slices.Contains(late.hostEnd().conn.seal.epochs, epoch) {
				t.Fatalf("the late viewer has the key of epoch %d, which began before it came; want only later keys", epoch)
			}
		}
	})
}

// TestReadersShareTheStateTheyBeginWith has the host answer ten readers with the same snapshot,
// each with its own id. All readers must get whole answers, and the snapshot in the same encrypted
// bytes. If a reader asks again, it must not get these bytes a second time, and a reader with
// different authority must never get them.
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
				t.Fatalf("reader %d receives %d shared parts, which differ from the first reader's %d; want the same parts", i, len(parts), len(first))
			}
			if again := gives(r, 100+i); len(again) > 0 {
				t.Error("a reader receives the shared part of its state twice; want it once")
			}
		}
		other := gives(c.openReader(vaultDevice{Level: auth.AccessTalk}, false), 11)
		if len(other) == 0 || bytes.Equal(other[0], first[0]) {
			t.Error("a reader with a different authority shares a part; want its own")
		}
		old := c.openReader(vaultDevice{Level: auth.AccessWrite}, true)
		if parts := gives(old, 12); len(parts) > 0 {
			t.Error("an older client receives a shared part; want the whole state")
		}
	})
}

// TestPartsTakeTheRoomOfNoEpoch gives a reader as many different parts as it stores keys. The
// host-agent must not send the key in use again: the client would end the connection.
func TestPartsTakeTheRoomOfNoEpoch(t *testing.T) {
	inCrowd(t, three[:2], func(c *sealedCrowd, readers []*sharedReader) {
		for range 5 {
			c.say(0, readers...)
		}
		r, fill := readers[0], strings.Repeat("all work ", partLeast/8)
		epoch := r.epoch()
		for i := range sealed.MaxEpochs {
			r.sock.toUs <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"snapshot":{"text":"%d %s"}}}`, i, i, fill)
			synctest.Wait()
			before := len(r.bodies)
			if r.hear(); len(r.bodies) == before {
				t.Fatal("an answer comes without a part; want one")
			}
		}
		c.say(0, readers...)
		if now := r.epoch(); now != epoch {
			t.Errorf("the readers share epoch %d; want still %d", now, epoch)
		}
	})
}
