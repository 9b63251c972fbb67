package hostagent

import (
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"ahprelay/broker/remember"
	"ahprelay/broker/waiting"
	waitbook "ahprelay/hostagent/waiting"
	"ahprelay/internal/sealed"
)

// TestHostClockADayOff has a host whose clock differs from the relay's by a day. Whether an item is
// late must depend on the relay's clock.
func TestHostClockADayOff(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, off := range map[string]time.Duration{"behind": day, "ahead": -day} { // relay minus host
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &Agent{access: &access{tenant: "default", host: "laptop"}, cfg: Config{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}}
			w, err := newWaitingItems(a)
			if err != nil {
				t.Fatal(err)
			}
			device := newDevice(t)
			now := time.Now().Add(off)
			if _, err := w.book.Enter(waitbook.Device{Subject: "ada", ID: "phone", Keys: base64.RawURLEncoding.EncodeToString(device.Identity().Bytes()), At: now}); err != nil {
				t.Fatal(err)
			}
			content, err := json.Marshal(waiting.Content{Kind: waiting.Message, Session: "demo:/1", Turn: "turn-1", Text: "hello"})
			if err != nil {
				t.Fatal(err)
			}
			judge := func(left time.Duration) waiting.Result {
				item := waiting.Item{
					ID: "00000000000000000000000000000001", Session: remember.IDOf("demo:/1"), Version: 1, Expires: now.Add(left).UnixMilli(),
					Device: device.Identity().Fingerprint().String(),
				}
				key := w.book.Secret().Public()
				letter, err := device.SealLetter(item.Head("default", "laptop", "ada"), content, map[sealed.Fingerprint]sealed.Key{sealed.HostFingerprint(key): key})
				if err != nil {
					t.Fatal(err)
				}
				item.Letter = *letter
				d := &delivering{items: w, offer: &waiting.Offer{Item: item, Subject: "ada", Device: "phone", Access: "write"}, now: now}
				d.open.Access = "write"
				return d.judge()
			}
			if got := judge(time.Hour); got.State != "" {
				t.Errorf("an item with an hour left is %s: %s; want it undecided", got.State, got.Why)
			}
			if got := judge(-time.Hour); got.State != waiting.Late {
				t.Errorf("an item that ended an hour ago is %q; want late", got.State)
			}
			// The journal must keep an entry as long as relays may offer its item.
			for i, left := range []time.Duration{time.Hour, -2 * day} {
				id := "0000000000000000000000000000000" + string(rune('a'+i))
				over := waitbook.Entry{Stage: waitbook.Over, Version: 1, Expires: now.Add(left).UnixMilli(), Reported: true, Result: &waiting.Result{ID: id, Version: 1, State: waiting.Done}}
				if err := w.book.Write(id, over, now); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.book.Write("0000000000000000000000000000000c", waitbook.Entry{Stage: waitbook.Sending, Version: 1, Expires: now.Add(time.Hour).UnixMilli()}, now); err != nil {
				t.Fatal(err)
			}
			if _, there := w.book.Entry("0000000000000000000000000000000a"); !there {
				t.Error("the journal has lost an item that relays may still offer; want it kept")
			}
			if _, there := w.book.Entry("0000000000000000000000000000000b"); there {
				t.Error("the journal keeps an item that relays have forgotten; want it removed")
			}
		})
	}
}
