package hostagent

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"ahprelay/broker/notice"
)

// An asker reports the questions of a sealed host.
type asker struct {
	*testing.T
	dir string
	*seals
}

// restart opens the vault, as a new host-agent does.
func (r *asker) restart() {
	r.Helper()
	v, err := openVault(r.dir, "default", "laptop")
	if err != nil {
		r.Fatal(err)
	}
	r.seals = &seals{agent: &Agent{access: &access{host: "laptop"}, cfg: Config{Log: slog.New(slog.DiscardHandler)}}, vault: v}
}

// says reports new and repeated events, and confirms the
// report.
func (r *asker) says(open []string, events ...notice.Event) (out notice.Report, more bool) {
	r.Helper()
	out, ends, err := r.report(notice.Report{Instance: "a", Seq: 1, Open: open, Events: events})
	if err != nil {
		r.Fatal(err)
	}
	return out, r.reported(ends)
}

func questionOf(id, text string) notice.Event {
	return notice.Event{ID: id, Kind: notice.Question, Session: "s:/1", Text: text, At: time.Now()}
}

// TestQuestionsKeepTheirNonces reports a question again, to a forgetful relay and by
// a restarted host-agent. It has the same ID and nonce, unless it has changed or was
// answered. Ends are reported in turns.
func TestQuestionsKeepTheirNonces(t *testing.T) {
	r := &asker{T: t, dir: t.TempDir()}
	r.restart()
	only := func(out notice.Report) string {
		t.Helper()
		if len(out.Open) != 1 || len(out.Events) != 1 || out.Events[0].ID != out.Open[0] || out.Events[0].Kind != notice.Sealed || out.Events[0].Text != "" {
			t.Fatalf("reported is %+v; want one sealed question", out)
		}
		return out.Open[0]
	}
	first := questionOf("q1", "which?")
	out, _ := r.says([]string{"q1"}, first)
	id, nonce := only(out), r.state.Asked[0].Nonce
	if out, _ = r.says([]string{"q1"}); !slices.Equal(out.Open, []string{id}) {
		t.Errorf("open is %v; want %s", out.Open, id)
	}
	r.restart()
	if out, _ = r.says([]string{"q1"}, questionOf("q1", "which?")); only(out) != id || r.state.Asked[0].Nonce != nonce {
		t.Error("a restarted host-agent gives the same question a different ID or nonce")
	}
	if _, ok := r.asked(id, "x"); ok {
		t.Error("a different nonce counts")
	}
	if _, ok := r.asked(id, nonce); !ok {
		t.Fatal("the nonce does not count")
	}

	// Answered: the nonce is used up, also for a restarted host-agent. The host asks again.
	r.used(id)
	r.restart()
	if _, ok := r.asked(id, nonce); ok {
		t.Error("a nonce counts twice")
	}
	again := questionOf("q1", "which?")
	out, _ = r.says([]string{"q1"}, again)
	if next := r.state.Asked[len(r.state.Asked)-1]; next.ID == id || next.Nonce == nonce || out.Ends[id] != nil && len(out.Ends) != 1 {
		t.Errorf("the same question, asked again, is %+v, with the ends %v", next, out.Ends)
	}

	// A different question under the same name.
	id = only(notice.Report{Open: out.Open, Events: out.Events})
	out, _ = r.says([]string{"q1"}, questionOf("q1", "where?"))
	if _, ended := out.Ends[id]; !ended || only(notice.Report{Open: out.Open, Events: out.Events}) == id {
		t.Errorf("a changed question is reported as %+v", out)
	}

	// Many ends at once.
	for _, name := range []string{"q2", "q3", "q4", "q5"} {
		r.says([]string{"q1", "q2", "q3", "q4", "q5"}, questionOf(name, name))
	}
	out, more := r.says(nil)
	if len(out.Ends) != maxEnds || len(out.Open) != 3 || !more {
		t.Errorf("of five ends, %d are reported, %d wait, and more: %v", len(out.Ends), len(out.Open), more)
	}
	r.says(nil)
	if out, more = r.says(nil); len(out.Ends) != 1 || len(out.Open) != 0 || more {
		t.Errorf("the last report has %d ends and %d open questions", len(out.Ends), len(out.Open))
	}
	if len(r.state.Asked) != 0 {
		t.Errorf("%d questions are remembered after their end", len(r.state.Asked))
	}
}
