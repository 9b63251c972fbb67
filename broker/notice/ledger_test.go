package notice_test

import (
	"testing"
	"time"

	"ahprelay/broker/notice"
)

// TestAnsweredQuestionStaysAnsweredDuringJudge withdraws a question while Judge asks who may see the
// open events. Afterwards, the question must not be open.
func TestAnsweredQuestionStaysAnsweredDuringJudge(t *testing.T) {
	l := notice.NewLedger("a")
	withdrawn := make(chan struct{})
	judging := false
	l.Limit(func(string) string {
		if judging {
			judging = false
			go func() {
				defer close(withdrawn)
				l.Withdraw("2")
			}()
			select { // the withdrawal may have to wait for Judge
			case <-withdrawn:
			case <-time.After(20 * time.Millisecond):
			}
		}
		return ""
	})
	for _, id := range []string{"1", "2"} {
		l.Add(notice.Event{ID: id, Kind: notice.Question, Session: "s:/1"})
	}
	judging = true
	l.Judge()
	<-withdrawn
	if e, open := l.Open("2"); open {
		t.Errorf("the withdrawn question %+v is open again; want it closed", e)
	}
}

// TestWaitingNewsOfAPrivateSessionIsForItsOwner: a session becomes private while no relay can be
// reached, after its agent has finished. The next report must have the event for the owner only.
func TestWaitingNewsOfAPrivateSessionIsForItsOwner(t *testing.T) {
	l, owner := notice.NewLedger("a"), ""
	l.Limit(func(string) string { return owner })
	l.Ready()
	l.Add(notice.Event{ID: "1", Kind: notice.Done, Session: "s:/1"})
	l.Add(notice.Event{ID: "2", Kind: notice.Undelivered, Session: "s:/1", Only: "bob"})
	owner = "ada"
	l.Judge()
	r, _ := l.Report(false)
	if len(r.Events) != 2 || r.Events[0].Only != "ada" || r.Events[1].Only != "bob" {
		t.Errorf("the report has %+v; want the first event for ada, and the second still for bob", r.Events)
	}
}
