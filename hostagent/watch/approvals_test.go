package watch

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ahprelay/broker/notice"
)

// TestNotificationAllowsOnlyWhatItShows reads the table of tool calls that the console's tests use,
// too. A notification may offer to allow a call once if it shows the whole call, and the host does
// not report danger. Each notification must offer to deny the call, and none may offer to allow
// further calls.
func TestNotificationAllowsOnlyWhatItShows(t *testing.T) {
	data, err := os.ReadFile("testdata/approvals.json")
	if err != nil {
		t.Fatal(err)
	}
	var table []struct {
		Name string
		Call map[string]any
		Afar []string
	}
	if err := json.Unmarshal(data, &table); err != nil {
		t.Fatal(err)
	}
	for _, test := range table {
		test.Call["toolCallId"] = "c"
		entry, err := json.Marshal(map[string]any{"id": "q", "chat": "ahp-chat:/1", "kind": "toolConfirmation", "turnId": "t", "toolCall": test.Call})
		if err != nil {
			t.Fatal(err)
		}
		_, e, ok := readQuestion("s:/1", entry)
		if !ok {
			t.Fatalf("%s: readQuestion finds no question; want one", test.Name)
		}
		e.Fit()
		_, options := e.FromAfar()
		offered := []string{}
		for _, o := range options {
			offered = append(offered, o.ID)
		}
		if diff := cmp.Diff(test.Afar, offered); diff != "" {
			t.Errorf("%s: offered (-want +got):\n%s", test.Name, diff)
		}
	}
}

// TestCutInputIsNotAllowedFromAfar lists inputs. A notification may offer to allow only an input
// that it can display whole and unchanged.
func TestCutInputIsNotAllowedFromAfar(t *testing.T) {
	for _, test := range []struct {
		input string
		may   bool
	}{
		{strings.Repeat("x", notice.MaxDetail), true},
		{strings.Repeat("x", notice.MaxDetail+1), false},
		{"ls \u202e fdsa", false}, // letters are displayed in a different order
		{"ls\u200b", false},
		{" ls\n", true},
	} {
		e := notice.Event{Kind: notice.Approval, Detail: test.input, Answer: notice.Choice, Options: []notice.Option{{ID: "once"}}}
		e.Fit()
		if form, options := e.FromAfar(); e.MayAllow() != test.may || (len(options) == 1) != test.may || (form == notice.Choice) != test.may {
			t.Errorf("an input of %d bytes, %.20q: may allow %v, %q, %v; want %v", len(test.input), test.input, e.MayAllow(), form, options, test.may)
		}
	}
}

// TestQuestionNamesTheFilesThatChange reads tool calls that change files. The question must name the
// first files, with the lines that the host has counted.
func TestQuestionNamesTheFilesThatChange(t *testing.T) {
	file := func(name, more string) string { return `{"after":{"uri":"file:///shop/` + name + `"}` + more + `}` }
	for items, want := range map[string]string{
		file("session.go", `,"diff":{"added":2,"removed":2}`) + "," + file("a%20b.go", `,"diff":{"added":3,"removed":0}`): "Fix it: session.go +2 −2, a b.go +3",
		`{"before":{"uri":"file:///shop/old.go"},"diff":{"removed":7}}`:                                                   "Fix it: old.go −7",
		file("session.go", `,"diff":{"added":2.0,"removed":2e0}`):                                                         "Fix it: session.go +2 −2",
		strings.Repeat(file("x", "")+",", 6) + file("y", ""):                                                              "Fix it: x, x, x, x, x, and 2 more",
		`{"after":{"uri":7},"diff":{"added":"many"}}, null`:                                                               "Fix it: ?, ?",
		``: "Fix it",
	} {
		entry := `{"id":"q","chat":"ahp-chat:/1","kind":"toolConfirmation","turnId":"t","toolCall":{"toolCallId":"c","status":"pending-confirmation","confirmationTitle":"Change files?","invocationMessage":"Fix it","edits":{"items":[` + items + `]}}}`
		_, e, ok := readQuestion("s:/1", []byte(entry))
		if e.Fit(); !ok || e.Detail != want || e.MayAllow() {
			t.Errorf("%s: %v, %q, may allow %v; want %q", items, ok, e.Detail, e.MayAllow(), want)
		}
	}
}

// TestNullMembersOfAQuestionAreAbsent reads a question from a host that writes null for absent
// members. The question must take an answer, as without these members. With a url, it must not.
func TestNullMembersOfAQuestionAreAbsent(t *testing.T) {
	for members, want := range map[string]notice.Form{
		``:                             notice.Choice,
		`,"url":null,"questions":null`: notice.Choice,
		`,"url":"https://a.example"`:   notice.NoForm,
	} {
		_, e, ok := readQuestion("s:/1", []byte(`{"id":"q","chat":"ahp-chat:/1","kind":"chatInput","request":{"id":"r","message":"Go on?"`+members+`}}`))
		if !ok || e.Answer != want {
			t.Errorf("with the members %q, the form of the answer is %q; want %q", members, e.Answer, want)
		}
	}
}
