package notice_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"ahprelay/broker/notice"
)

// TestFittedEventIsValid calls Fit on events with arbitrary texts. The event must then be
// printable, keep all options or none, and be accepted unchanged by ReadReport.
func TestFittedEventIsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringN(0, 3000, 8000), rapid.Just("\u202egnp.exe\x00\xff"))
		e := notice.Event{
			ID: notice.ID("s", "q"), Kind: notice.Approval, Session: "s:/1", At: time.Unix(1, 0).UTC(), Answer: notice.Choice,
			Title: text.Draw(t, "title"), Text: text.Draw(t, "text"), Detail: text.Draw(t, "detail"),
		}
		for range rapid.IntRange(0, 10).Draw(t, "options") {
			e.Options = append(e.Options, notice.Option{ID: rapid.StringN(0, 300, -1).Draw(t, "id"), Label: text.Draw(t, "label")})
		}
		n := len(e.Options)
		e.Fit()
		for _, s := range []string{e.Title, e.Text, e.Detail} {
			if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) || strings.ContainsRune(s, '\u202e') {
				t.Fatalf("Fit leaves %q in the event; want printable text", s)
			}
		}
		if len(e.Options) != n && (e.Options != nil || e.Answer != notice.NoForm) {
			t.Fatal("some of the options are left out; want all or none")
		}
		data, err := json.Marshal(notice.Report{Instance: "a", Seq: 1, Open: []string{e.ID}, Events: []notice.Event{e}})
		if err != nil {
			t.Fatal(err)
		}
		read, err := notice.ReadReport(data)
		if err != nil || read.Events[0].Digest() != e.Digest() {
			t.Fatalf("ReadReport = %v; want the event as it was told", err)
		}
	})
}

// TestLateAnswersAreIgnored confirms reports in the wrong order. A ledger must send an event again
// until the newest report is confirmed; an Ack for an earlier report must change nothing.
func TestLateAnswersAreIgnored(t *testing.T) {
	l := notice.NewLedger("a")
	e := notice.Event{ID: "1", Kind: notice.Done}
	l.Add(e)
	if _, ok := l.Report(true); ok {
		t.Fatal("Report before the list of open events is known; want none")
	}
	l.Ready()
	first, _ := l.Report(false)
	l.Sent(nil)
	second, ok := l.Report(false)
	if !ok || len(second.Events) != 1 {
		t.Fatalf("report after none was confirmed = %v; want the event again", second)
	}
	l.Sent(&notice.Ack{Seq: first.Seq})
	third, ok := l.Report(false)
	if !ok || len(third.Events) != 1 {
		t.Fatalf("report after a late answer = %v; want the event again", third)
	}
	l.Sent(&notice.Ack{Seq: third.Seq})
	if r, ok := l.Report(false); ok {
		t.Fatalf("report when all is confirmed: %v; want none", r)
	}
}

// TestSealedEventsAreBare reads reports from sealed hosts. ReadReport must refuse an event with
// readable content, and too many, too large or misplaced pushes.
func TestSealedEventsAreBare(t *testing.T) {
	push := notice.Push{Target: "w1", Data: make([]byte, notice.MaxPush)}
	bare := notice.Event{ID: "0f", Kind: notice.Sealed, At: time.Now(), Pushes: slices.Repeat([]notice.Push{push}, notice.MaxPushes)}
	report := func(events int, ends map[string][]notice.Push, change func(*notice.Event)) error {
		t.Helper()
		e := bare
		e.Pushes = slices.Clone(bare.Pushes)
		if change != nil {
			change(&e)
		}
		data, err := json.Marshal(notice.Report{Instance: "a", Seq: 1, Open: slices.Repeat([]string{strings.Repeat("0", notice.MaxID)}, notice.MaxOpen), Events: slices.Repeat([]notice.Event{e}, events), Ends: ends})
		if err != nil {
			t.Fatal(err)
		}
		_, err = notice.ReadReport(data)
		return err
	}
	end := map[string][]notice.Push{"0f": bare.Pushes}
	if err := report(notice.MaxSealed-1, end, nil); err != nil {
		t.Errorf("the largest permitted report: %v; want no error", err)
	}
	if report(notice.MaxSealed, end, nil) == nil {
		t.Error("a report with too many events and ends is valid; want an error")
	}
	if report(1, map[string][]notice.Push{"0f": append(slices.Clone(bare.Pushes), push)}, nil) == nil {
		t.Error("an end with too many pushes is valid; want an error")
	}
	for name, change := range map[string]func(*notice.Event){
		"a session": func(e *notice.Event) { e.Session = "s:/1" }, "a chat": func(e *notice.Event) { e.Chat = "c:/1" },
		"a title": func(e *notice.Event) { e.Title = "t" }, "a text": func(e *notice.Event) { e.Text = "t" }, "a detail": func(e *notice.Event) { e.Detail = "t" },
		"an answer": func(e *notice.Event) { e.Answer = notice.Text }, "options": func(e *notice.Event) { e.Options = []notice.Option{{ID: "o", Label: "o"}} },
		"a subject": func(e *notice.Event) { e.Only = "ada" }, "a judgement": func(e *notice.Event) { e.Risky = true },
		"no time": func(e *notice.Event) { e.At = time.Time{} }, "no id": func(e *notice.Event) { e.ID = "" },
		"too many pushes": func(e *notice.Event) { e.Pushes = append(e.Pushes, push) },
		"a long push":     func(e *notice.Event) { e.Pushes[0].Data = make([]byte, notice.MaxPush+1) },
		"an empty push":   func(e *notice.Event) { e.Pushes[0].Data = nil },
		"a bad way":       func(e *notice.Event) { e.Pushes[0].Target = "../x" },
		"a readable kind": func(e *notice.Event) { e.Kind, e.Session = notice.Approval, "s:/1" },
	} {
		if report(1, nil, change) == nil {
			t.Errorf("a sealed event with %s is valid; want an error", name)
		}
	}
}

func FuzzReadReport(f *testing.F) {
	f.Add([]byte(`{"instance":"a","seq":1,"open":["0f"],"events":[{"id":"0f","kind":"sealed","at":"2026-11-22T06:12:01Z","pushes":[{"way":"w","data":"AAAA"}]}],"ends":{"1f":[{"way":"w","data":"AAAA"}]}}`))
	f.Add([]byte(`{"instance":"a","seq":1,"open":["0f"],"events":[{"id":"0f","kind":"approval","session":"s:/1","at":"2026-11-22T06:12:01Z"}]}`))
	f.Add([]byte(`{"instance":"a","open":[""]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := notice.ReadReport(data)
		if err != nil {
			return
		}
		for i := range r.Events {
			e := r.Events[i]
			if e.Fit(); e.Digest() != r.Events[i].Digest() {
				t.Errorf("ReadReport accepts an event which Fit changes: %+v", r.Events[i])
			}
		}
	})
}

func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte(`{"relay":"r","nonce":"0f","event":"0f","option":"allow","subject":"ada","access":"write"}`))
	f.Add([]byte(`{"relay":"*","nonce":"0f","event":"0f"}`))
	f.Add([]byte(`{"relay":"r","nonce":"","event":"../x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := notice.ReadAnswer(data)
		if err != nil {
			return
		}
		// The subject must address that relay only.
		if subject := notice.OutcomeSubject("acme", "laptop", a.Relay); strings.ContainsAny(subject, "*> \r\n\t") || strings.Count(subject, ".") != strings.Count(notice.OutcomeSubject("acme", "laptop", "r"), ".") {
			t.Errorf("the subject for an outcome is %q; want one relay's subject", subject)
		}
		if a.Event == "" && len(a.Letter) == 0 || a.Nonce == "" {
			t.Errorf("ReadAnswer accepts an answer without event or nonce: %+v", a)
		}
	})
}
