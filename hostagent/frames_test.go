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
	if f.find(message) != nil {
		t.Error("something is found before it is added")
	}
	f.add(message)
	got := f.find(message)
	if got == nil {
		t.Fatal("what was added is not found")
	}
	again := []byte(string(message))
	clear(message)
	if diff := cmp.Diff(want, *got); diff != "" {
		t.Errorf("after the bytes have changed (-want +got):\n%s", diff)
	}
	again[len(again)-4] = '2'
	if f.find(again) != nil {
		t.Error("another message is found")
	}
	long := []byte(`{"method":"` + strings.Repeat("x", cachedSize) + `"}`)
	f.add(long)
	if f.find(long) != nil {
		t.Error("a long message is kept")
	}
}

// TestFrameCacheIsShared adds and finds at once.
func TestFrameCacheIsShared(t *testing.T) {
	f := new(frameCache)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 3 * cachedFrames {
				message := fmt.Appendf(nil, `{"method":"m","params":{"channel":"ahp-chat:/%d"}}`, i)
				if env := f.find(message); env == nil {
					f.add(message)
				} else if want := fmt.Sprintf("ahp-chat:/%d", i); string(env.Channel) != want {
					t.Errorf("the channel is %s; want %s", env.Channel, want)
				}
			}
		})
	}
	wg.Wait()
}
