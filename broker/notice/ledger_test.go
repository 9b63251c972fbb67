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
