package notify_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/notify"
)

func event(n int, kind notice.Kind) notice.Event {
	return notice.Event{ID: notice.ID("s", fmt.Sprint(n)), Kind: kind, Session: "s:/1", At: time.Unix(int64(n), 0)}
}

// TestEachEventIsShownOnce: a host-agent reports events to a relay's Board, and reports
// are late, repeated or not confirmed. The Board raises each event once, withdraws it
// at most once, and has all open events in the end.
func TestEachEventIsShownOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		board := notify.NewBoard()
		raised, withdrawn := map[string]int{}, map[string]int{}
		board.Subscribe(func(item notify.Item) {
			if item.Change == notify.Raised {
				raised[item.Event.ID]++
			} else {
				withdrawn[item.Event.ID]++
			}
		})
		ledger := notice.NewLedger("agent-1")
		ledger.Ready()
		var old []notice.Report
		open := map[int]bool{}
		told, ended := map[int]bool{}, 0
		send := func(lost bool) {
			report, ok := ledger.Report(true)
			if !ok {
				return
			}
			old = append(old, report)
			ack := board.Take("t", "h", report)
			if lost {
				ledger.Sent(nil)
			} else {
				ledger.Sent(&ack)
			}
		}
		for n := range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"open", "open", "close", "done", "send", "lost", "late"}).Draw(t, "step") {
			case "open":
				open[n] = true
				ledger.Add(event(n, notice.Approval))
			case "close":
				for i := range open {
					delete(open, i)
					ledger.Withdraw(event(i, "").ID)
					break
				}
			case "done":
				told[n] = true
				ledger.Add(event(n, notice.Done))
			case "send":
				send(false)
			case "lost":
				send(true)
			case "late":
				if len(old) > 0 {
					board.Take("t", "h", old[rapid.IntRange(0, len(old)-1).Draw(t, "which")])
				}
			}
		}
		for range 4 {
			send(false)
		}
		for id, n := range raised {
			if n != 1 || withdrawn[id] > 1 {
				t.Fatalf("%s was told %d times, and withdrawn %d times; want once at most", id, n, withdrawn[id])
			}
		}
		for n := range told {
			ended += raised[event(n, "").ID]
		}
		if ended != len(told) {
			t.Fatalf("%d of the %d raised events were ended; want all", ended, len(told))
		}
		items, _, _, _ := board.After("t", 1<<63)
		var got, want []string
		for _, item := range items {
			got = append(got, item.Event.ID)
		}
		for n := range open {
			want = append(want, event(n, "").ID)
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("open (-want +got):\n%s", diff)
		}
	})
}

// TestBoardReturnsTheItemsAfterANumber adds events of two tenants. After returns a
// tenant's items after a number and whether earlier items are lost, and closes its
// channel when the next item comes.
func TestBoardReturnsTheItemsAfterANumber(t *testing.T) {
	board := notify.NewBoard()
	const n = 5000
	for i := range n {
		board.Add("t", "h", event(i, notice.Joined), false)
		board.Add("other", "h", event(i, notice.Joined), false)
	}
	_, last, more, lost := board.After("t", 0)
	if !lost {
		t.Error("the first of 5,000 items is still on the Board; want the latest 4,096 only")
	}
	items, next, _, lost := board.After("t", last-20)
	if lost || next != last || len(items) != 10 {
		t.Errorf("After(%d) = %d items, %d, %v; want the tenant's 10 items", last-20, len(items), next, lost)
	}
	select {
	case <-more:
		t.Error("After reports further items; want none")
	default:
	}
	board.Add("t", "h", event(n, notice.Offline), true)
	<-more
	if items, _, _, _ := board.After("t", last); len(items) != 1 || items[0].Event.Kind != notice.Offline {
		t.Errorf("After(last) = %v; want the host offline", items)
	}
	board.Remove("t", "h", event(n, "").ID)
	if _, open := board.Open("t", "h", event(n, "").ID); open {
		t.Error("a removed event is open; want it gone")
	}
}

// TestAnsweredQuestionEndsBeforeNewEvents: a late host-agent reports in a single report
// that an approval was given and that its session is done. The Board withdraws the
// approval before it raises the new event.
func TestAnsweredQuestionEndsBeforeNewEvents(t *testing.T) {
	board := notify.NewBoard()
	ledger := notice.NewLedger("agent-1")
	ledger.Ready()
	report := func() {
		t.Helper()
		r, ok := ledger.Report(true)
		if !ok {
			t.Fatal("the ledger has nothing to report; want a report")
		}
		ack := board.Take("t", "h", r)
		ledger.Sent(&ack)
	}
	ledger.Add(event(1, notice.Approval))
	report()
	ledger.Withdraw(event(1, "").ID)
	ledger.Add(event(2, notice.Done))
	report()
	items, _, _, _ := board.After("t", 0)
	var got []string
	for _, item := range items {
		got = append(got, fmt.Sprint(item.Change, " ", item.Event.Kind))
	}
	want := []string{"event approval", "withdrawn approval", "event done"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of the events (-want +got):\n%s", diff)
	}
}

// TestQuestionOfASessionThatBecomesPrivateIsWithdrawn: a question is open when its session becomes
// private to ada. Eve, who was shown the question, gets its withdrawal. Afterwards, a client of
// eve's that asks for earlier items does not get the question, and ada's gets it.
func TestQuestionOfASessionThatBecomesPrivateIsWithdrawn(t *testing.T) {
	board := notify.NewBoard()
	e := event(1, notice.Question)
	e.Text = "secret"
	r := notice.Report{Instance: "agent", Seq: 1, Open: []string{e.ID}, Events: []notice.Event{e}}
	board.Take("t", "h", r)
	_, shown, _, _ := board.After("t", 0)
	e.Only = "ada"
	r.Seq, r.Events = 2, []notice.Event{e}
	board.Take("t", "h", r)
	after := func(subject string, number uint64) (got []notify.Change) {
		items, _, _, _ := board.After("t", number)
		for _, item := range items {
			if notify.MayHear(auth.Client{Tenant: "t", Hosts: []string{"*"}, Subject: subject, Access: auth.AccessTalk}, "t", "h", &item.Event) {
				got = append(got, item.Change)
			}
		}
		return got
	}
	if got := after("eve", shown); !slices.Equal(got, []notify.Change{notify.Withdrawn}) {
		t.Errorf("eve's open page gets %v; want the withdrawal", got)
	}
	if got := after("eve", 0); slices.Contains(got, notify.Raised) {
		t.Errorf("eve's next page gets %v; want no question", got)
	}
	if got := after("ada", shown); len(got) == 0 || got[len(got)-1] != notify.Raised {
		t.Errorf("ada's page gets %v; want the question at the end", got)
	}
}

// TestOnlyPermittedEventsAreHeard: for each token, MayHear permits or refuses the
// events of the session s:/1, of its host, and of the session s:/2.
func TestOnlyPermittedEventsAreHeard(t *testing.T) {
	full := auth.Client{Tenant: "t", Hosts: []string{"h*"}, Access: auth.AccessWrite}
	private := full
	private.Subject = "eve"
	if notify.MayHear(private, "t", "h1", &notice.Event{Session: "s:/1", Only: "ada"}) {
		t.Error("eve may hear events from ada's private session; want no")
	}
	if private.Subject = "ada"; !notify.MayHear(private, "t", "h1", &notice.Event{Session: "s:/1", Only: "ada"}) {
		t.Error("ada may not hear events from ada's private session; want yes")
	}
	if private.Access = auth.AccessRead; notify.MayHear(private, "t", "h1", &notice.Event{Session: "s:/1", Only: "ada"}) {
		t.Error("ada's token with the level look may hear events from ada's private session, which hosts hide from it; want no")
	}
	session, host := notice.Event{Session: "s:/1"}, notice.Event{}
	for _, test := range []struct {
		name                      string
		change                    func(*auth.Client)
		hears, hearsHost, another bool
	}{
		{"all", func(*auth.Client) {}, true, true, true},
		{"look", func(c *auth.Client) { c.Access = auth.AccessRead }, true, true, true},
		{"another tenant", func(c *auth.Client) { c.Tenant = "u" }, false, false, false},
		{"another host", func(c *auth.Client) { c.Hosts = []string{"g"} }, false, false, false},
		{"the session", func(c *auth.Client) { c.Channels = []string{"s:/1"} }, true, true, false},
		{"another session", func(c *auth.Client) { c.Channels = []string{"s:/2"} }, false, true, true},
		{"methods", func(c *auth.Client) { c.Methods = []string{"subscribe"} }, false, true, false},
		{"methods with the list", func(c *auth.Client) { c.Methods = []string{"list*"} }, true, true, true},
	} {
		who := full
		test.change(&who)
		other := notice.Event{Session: "s:/2"}
		if a, b, c := notify.MayHear(who, "t", "h1", &session), notify.MayHear(who, "t", "h1", &host), notify.MayHear(who, "t", "h1", &other); a != test.hears || b != test.hearsHost || c != test.another {
			t.Errorf("%s: hears of the session %v, the host %v, another session %v; want %v, %v, %v", test.name, a, b, c, test.hears, test.hearsHost, test.another)
		}
	}
}
