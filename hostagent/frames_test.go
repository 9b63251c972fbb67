package hostagent

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ahprelay/ahp"
)

// TestFrameCache finds what was added, and nothing else, whatever becomes of the
// bytes that were added.
func TestFrameCache(t *testing.T) {
	f := new(frameCache)
	message := []byte(`{"method":"action","params":{"channel":"ahp-chat:/1"}}`)
	want, err := ahp.Peek([]byte(string(message)))
	if err != nil {
		t.Fatal(err)
	}
	known, slot := f.find(message, 0)
	if known != nil {
		t.Error("something is found before it is added")
	}
	if f.add(message, slot, 0) == nil {
		t.Fatal("it is not added")
	}
	again := []byte(string(message))
	clear(message)
	for _, after := range []uint32{0, 1, slot} {
		known, at := f.find(again, after)
		if known == nil || at != slot {
			t.Fatalf("after slot %d, what was added is not found", after)
		}
		if diff := cmp.Diff(want, known.env); diff != "" {
			t.Errorf("after the bytes have changed (-want +got):\n%s", diff)
		}
	}
	again[len(again)-4] = '2'
	if known, _ := f.find(again, 0); known != nil {
		t.Error("another message is found")
	}
	long := []byte(`{"method":"` + strings.Repeat("x", cachedSize) + `"}`)
	if _, slot := f.find(long, 0); f.add(long, slot, 0) != nil {
		t.Error("a long message is kept")
	}
}

// TestFrameCacheIsShared adds and finds at once, in orders of their own.
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
					known = f.add(message, slot, at)
				}
				if at = slot; string(known.env.Channel) != uri {
					t.Errorf("the channel is %s; want %s", known.env.Channel, uri)
				}
			}
		})
	}
	wg.Wait()
}
