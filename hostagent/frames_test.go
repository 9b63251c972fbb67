package hostagent

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// TestExactlyTheAddedFramesAreFound adds messages to the cache. find must return an added message,
// even if the caller then changes its bytes, and no other message. After cachedFrames later
// messages, the cache must have forgotten the message.
func TestExactlyTheAddedFramesAreFound(t *testing.T) {
	f := new(frameCache)
	message := []byte(`{"method":"action","params":{"channel":"ahp-chat:/1"}}`)
	want, err := ahp.Peek([]byte(string(message)))
	if err != nil {
		t.Fatal(err)
	}
	known, at := f.find(message, 7)
	if known != nil || at != 7 {
		t.Error("find returns a message before it is added; want none")
	}
	_, slot := f.add([]byte(string(message)), &want, 0)
	again := []byte(string(message))
	clear(message)
	for _, after := range []uint32{0, 1, slot} {
		known, at := f.find(again, after)
		if known == nil || at != slot {
			t.Fatalf("find after slot %d misses the added message; want it", after)
		}
		if diff := cmp.Diff(want, known.env); diff != "" {
			t.Errorf("the envelope after the caller changed the message (-want +got):\n%s", diff)
		}
	}
	again[len(again)-4] = '2'
	if known, _ := f.find(again, 0); known != nil {
		t.Error("find returns a message that was not added; want none")
	}
	for i := range cachedFrames - 1 { // each follows the same frame, so the frame has many successors
		f.add(fmt.Append(nil, i), &ahp.Envelope{}, slot)
	}
	again[len(again)-4] = '1'
	if known, at := f.find(again, 0); known == nil || at != slot {
		t.Error("the message is forgotten before the cache is full; want it known")
	}
	f.add([]byte("one more"), &ahp.Envelope{}, slot)
	if known, _ := f.find(again, 0); known != nil {
		t.Error("the message is known after cachedFrames later messages; want it forgotten")
	}
}

// TestLongFramesAreNotKept parses messages of cachedSize and more. The cache must keep the message
// of cachedSize, and not the longer message.
func TestLongFramesAreNotKept(t *testing.T) {
	c := benchConn(t, routing.Open{ID: "c", Subject: "ada", Access: "write"})
	c.agent.clients.open.Store(2)
	for n, kept := range map[int]bool{cachedSize: true, cachedSize + 1: false} {
		frame := []byte(`{"method":"","params":{"channel":"ahp-chat:/1"}}`)
		frame = bytes.Replace(frame, []byte(`""`), []byte(`"`+strings.Repeat("x", n-len(frame))+`"`), 1)
		known, env, err := c.reader.parse(frame)
		if (known != nil) != kept || string(env.Channel) != "ahp-chat:/1" || err != nil {
			t.Errorf("parse of a message of %d bytes: in the cache %v, %v; want only short messages in it, with the channel ahp-chat:/1", n, known != nil, err)
		}
	}
}

// TestFrameCacheIsShared adds and finds messages in four goroutines, in different orders. Each
// goroutine must get the envelope of the message it looks for.
func TestFrameCacheIsShared(t *testing.T) {
	f := new(frameCache)
	var wg sync.WaitGroup
	for step := range 4 {
		wg.Go(func() {
			at := uint32(0)
			for i := range 3 * cachedFrames {
				uri := fmt.Sprintf("ahp-chat:/%d", i*(1+step%2))
				message := []byte(`{"method":"m","params":{"channel":"` + uri + `"}}`)
				known, slot := f.find(message, at)
				if known == nil {
					known, slot = f.add(message, &ahp.Envelope{Channel: []byte(uri)}, at)
				}
				if at = slot; string(known.env.Channel) != uri {
					t.Errorf("the cached message's channel is %s; want %s", known.env.Channel, uri)
				}
			}
		})
	}
	wg.Wait()
}

// TestNoMessageIsKept sends a request and waits for the host's answer. After that, the idle
// connection must hold no part of the answer in memory.
func TestNoMessageIsKept(t *testing.T) {
	inWorld(t, func(w *world) {
		w.open().send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://"}}`)
		synctest.Wait()
		all := w.agent.clients.every()
		if len(all) != 1 || all[0].counts.out.Load() == 0 {
			t.Fatalf("%d connections; want one that has got a message from the host", len(all))
		}
		if c := all[0]; c.reader.env.Kind != 0 || c.reader.env.Result != nil || len(c.reader.row) > 0 {
			t.Errorf("the idle connection keeps the message %+v; want nothing", c.reader.env)
		}
	})
}
