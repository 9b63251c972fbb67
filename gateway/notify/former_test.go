package notify_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/notify"
)

// TestFormerFilesAreTakenOver starts two relays with what each had kept for itself, the second
// while nothing can be written at first: ways of both are there, what was to be told is told, what
// was told is not, and browsers are sent what the key that they know has signed.
func TestFormerFilesAreTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, s := newNetwork(), newShelf()
		start := func(v *view, url string, events ...notice.Event) (*notify.Teller, notify.PushKey, notify.Former) {
			dir := t.TempDir()
			f := notify.Former{Queue: filepath.Join(dir, "q"), Ways: filepath.Join(dir, "w"), Key: filepath.Join(dir, "k")}
			key, err := notify.NewPushKey()
			if err != nil {
				t.Fatal(err)
			}
			write := func(path string, values ...any) {
				var b strings.Builder
				for _, value := range values {
					if err := json.NewEncoder(&b).Encode(value); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			way := url[len(url)-3:]
			write(f.Key, key)
			write(f.Ways, map[string]notify.Person{"notify.t.x": {Tenant: "t", Subject: "ada", Ways: []notify.Way{
				{ID: way, Kind: notify.Slack, URL: url, Who: ada}, {ID: "push" + way, Kind: notify.WebPush, URL: url, Who: ada},
			}}})
			var lines []any
			for _, e := range events {
				job := notify.Job{ID: e.ID + "." + way, Tenant: "t", Host: "h", Subject: "ada", Way: way, Event: e, Due: time.Now(), Until: time.Now().Add(time.Hour)}
				lines = append(lines, map[string]any{"put": job})
			}
			lines = append(lines, map[string]any{"done": events[0].ID + "." + way, "at": time.Now()})
			write(f.Queue, lines...)
			teller, err := notify.StartTeller(notify.TellerConfig{
				Board: notify.NewBoard(), Records: v, Instance: url, Log: slog.New(slog.DiscardHandler), Transport: net, Former: f,
				Standing: func(who auth.Client) (auth.Client, bool) { return who, true },
				Private:  []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
			})
			if err != nil {
				t.Fatal(err)
			}
			return teller, *key, f
		}
		first, key, f := start(s.view(), one, event(1, notice.Done), event(2, notice.Done))
		defer first.Close()
		late := s.view()
		late.leave()
		second, _, g := start(late, two, event(3, notice.Done), event(4, notice.Done), event(5, notice.Done))
		defer second.Close()
		if _, err := os.Stat(g.Ways); err != nil {
			t.Error("a file is gone before what was in it is kept:", err)
		}
		late.back()
		time.Sleep(time.Minute)
		synctest.Wait()
		if a, b := net.count("127.0.0.1"), net.count("127.0.0.2"); a != 1 || b != 2 {
			t.Errorf("told %d and %d times; want 1 and 2: %v", a, b, net.got["127.0.0.2"])
		}
		for _, path := range []string{f.Queue, f.Ways, f.Key, g.Queue, g.Ways, g.Key} {
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Errorf("%s is still there", path)
			}
		}
		keys := map[string]bool{}
		for _, teller := range []*notify.Teller{first, second} {
			ways := teller.Person("t", "ada").Ways
			if len(ways) != 4 || teller.PushKey() != key.Public {
				t.Fatalf("%d ways, key %s; want those of both relays, and the key of the first", len(ways), teller.PushKey())
			}
			for _, w := range ways {
				if w.Kind == notify.WebPush {
					keys[w.PushKey] = true
				}
			}
		}
		if len(keys) != 2 {
			t.Errorf("browsers know %d keys; want both", len(keys))
		}
		if _, err := first.SetWay(context.Background(), ada, notify.Way{Kind: notify.Slack, URL: one}); err != nil {
			t.Error(err)
		}
	})
}
