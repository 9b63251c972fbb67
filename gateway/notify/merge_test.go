package notify

import (
	"encoding/json"
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

// TestOpenEventsOfASealedHostAreReadable gives a Board more open events of a sealed host than one
// report of a host-agent may contain. A different relay must be able to read the Board's reports.
func TestOpenEventsOfASealedHostAreReadable(t *testing.T) {
	board, want := NewBoard(), 3*notice.MaxSealed
	open := []string{}
	for n := range want {
		e := notice.Event{
			ID: fmt.Sprint("event", n), Kind: notice.Sealed, At: time.Unix(1, 0), Pushes: []notice.Push{{Target: "browser", Data: []byte("secret")}},
		}
		open = append(open, e.ID)
		board.Take("t", "h", notice.Report{Instance: "agent", Seq: uint64(n + 1), Open: open, Events: []notice.Event{e}})
	}
	events := 0
	for _, r := range board.reports("t")["h"] {
		body, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		read, err := notice.ReadReport(body)
		if err != nil {
			t.Errorf("a report of open events is refused: %v", err)
		}
		events += len(read.Events)
	}
	if events != want {
		t.Errorf("the reports have %d events; want %d", events, want)
	}
}

// TestChangedQuestionIsMerged reports a question to a Board directly, and reports it again through
// a different relay, with a new text and for one subject only. The Board must then have the
// question for this subject only, and give it to followers without a second notification.
func TestChangedQuestionIsMerged(t *testing.T) {
	board := NewBoard()
	e := notice.Event{ID: "q", Kind: notice.Question, Session: "s:/1", Text: "before", At: time.Unix(1, 0)}
	r := notice.Report{Instance: "agent", Seq: 1, Open: []string{e.ID}, Events: []notice.Event{e}}
	board.Take("t", "h", r)
	var items []Item
	board.Subscribe(func(item Item) { items = append(items, item) })
	e.Text, e.Only = "after", "ada"
	r.Seq, r.Events = 2, []notice.Event{e}
	board.merge("t", "h", r)
	if now, _ := board.Open("t", "h", e.ID); now.Only != "ada" || now.Text != "after" {
		t.Errorf("the Board has the question %q for subject %q; want %q for ada", now.Text, now.Only, e.Text)
	}
	board.merge("t", "h", r)
	if len(items) != 2 || items[0].Change != Withdrawn || items[1].Change != Raised || !items[0].handled || !items[1].handled {
		t.Errorf("followers got %+v; want the former question's end and the changed question, as handled by the other relay", items)
	}
}
