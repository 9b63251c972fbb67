package notify

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ahprelay/broker/notice"
)

// TestEventKnownFromAnotherRelayIsStillNotified gives a Board a host-agent's reports
// directly (Take), and by way of a different relay (merge), in any order. The different
// relay may end before it notifies anybody. So the Board offers each event that the
// host-agent reported directly to the Notifier once, even if merge had it before.
func TestEventKnownFromAnotherRelayIsStillNotified(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		board := NewBoard()
		offered := map[string]int{}
		board.Subscribe(func(item Item) {
			if item.Change == Raised && !item.handled {
				offered[item.Event.ID]++
			}
		})
		open := map[string]notice.Event{}
		var reports []notice.Report
		report := func() notice.Report {
			r := notice.Report{Instance: "agent", Seq: uint64(len(reports) + 1), Open: slices.Collect(maps.Keys(open)), Events: slices.Collect(maps.Values(open))}
			reports = append(reports, r)
			return r
		}
		for n := range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"open", "open", "close", "take", "merge", "late", "late merge"}).Draw(t, "step") {
			case "open":
				e := notice.Event{ID: fmt.Sprint("event-", n), Kind: notice.Approval, Session: "s:/1", At: time.Unix(int64(n), 0)}
				open[e.ID] = e
			case "close":
				for id := range open {
					delete(open, id)
					break
				}
			case "take":
				board.Take("t", "h", report())
			case "merge":
				board.merge("t", "h", report())
			case "late":
				if len(reports) > 0 {
					board.Take("t", "h", reports[rapid.IntRange(0, len(reports)-1).Draw(t, "report")])
				}
			case "late merge":
				if len(reports) > 0 {
					board.merge("t", "h", reports[rapid.IntRange(0, len(reports)-1).Draw(t, "report")])
				}
			}
		}
		board.Take("t", "h", report())
		for id := range open {
			if offered[id] != 1 {
				t.Fatalf("%s was given to the Notifier %d times; want once", id, offered[id])
			}
			if _, known := board.Open("t", "h", id); !known {
				t.Fatalf("%s is open at the host, but not on the board; want it on both", id)
			}
		}
		for id, n := range offered {
			if n > 1 {
				t.Fatalf("%s was given to the Notifier %d times; want at most once", id, n)
			}
		}
		if items, _, _, _ := board.After("t", 1<<63); len(items) != len(open) {
			t.Fatalf("%d events are open on the board; want %d", len(items), len(open))
		}
	})
}
