package hostagent

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/broker/notice"
	"ahprelay/routing"
)

// TestAnswersFromAfarAreLimited lists the options that a notification offers, by the owner's
// setting and the approval: a risky approval, or one with hidden input, permits only the denial.
func TestAnswersFromAfarAreLimited(t *testing.T) {
	more, yes, no := notice.Option{ID: "allow-session"}, notice.Option{ID: "allow-once"}, notice.Option{ID: "no", Deny: true}
	for _, test := range []struct {
		policy        NotifyAnswers
		risky, hidden bool
		want          []notice.Option
	}{
		{AnswersSafe, false, false, []notice.Option{yes, no}},
		{"", false, false, []notice.Option{yes, no}},
		{AnswersSafe, true, false, []notice.Option{no}},
		{AnswersSafe, false, true, []notice.Option{no}},
		{"", true, false, []notice.Option{no}},
		{AnswersAll, false, false, []notice.Option{yes, no}},
		{AnswersAll, true, false, []notice.Option{no}}, // never an approval with hidden input
		{AnswersAll, false, true, []notice.Option{no}},
		{AnswersNone, false, false, nil},
	} {
		a := &Agent{cfg: Config{NotifyAnswers: test.policy}}
		e := notice.Event{Kind: notice.Approval, Risky: test.risky, Hidden: test.hidden, Answer: notice.Choice, Options: []notice.Option{more, no, yes}}
		a.cfg.mayAnswer(&e)
		if diff := cmp.Diff(test.want, e.Options); diff != "" || (e.Answer == notice.NoForm) != (test.want == nil) {
			t.Errorf("policy %q, risky %v, hidden %v: the form is %q (-want +got):\n%s", test.policy, test.risky, test.hidden, e.Answer, diff)
		}
	}
	a := &Agent{cfg: Config{NotifyAnswers: AnswersSafe}}
	words := notice.Event{Kind: notice.Approval, Risky: true, Answer: notice.Text}
	if a.cfg.mayAnswer(&words); words.Answer != notice.NoForm {
		t.Error("mayAnswer permits an answer by text to a risky approval; want none")
	}
}

// TestOutcomesKeepTheirBound ends an answer whose nonce was removed for lack of room. The nonce
// does not return, because nothing would remove it again.
func TestOutcomesKeepTheirBound(t *testing.T) {
	var o outcomes
	for i := range maxOutcomes + 1 {
		o.begin(strconv.Itoa(i))
	}
	o.end(&notice.Outcome{Nonce: "0"})
	o.end(&notice.Outcome{Nonce: "1"})
	if kept, _ := o.of.Peek("1"); o.of.Len() != maxOutcomes || kept == nil {
		t.Errorf("%d outcomes are remembered; want %d", o.of.Len(), maxOutcomes)
	}
}

// TestOnlyPermittedPeopleAnswer lists who may answer approvals and questions, by the client's
// authority and the limits of the host's owner.
func TestOnlyPermittedPeopleAnswer(t *testing.T) {
	all := gate.NewPolicy(auth.AccessWrite, nil, nil, true)
	look := gate.NewPolicy(auth.AccessRead, nil, nil, true)
	one := gate.NewPolicy(auth.AccessWrite, []string{"s:/1"}, nil, true)
	for _, test := range []struct {
		name  string
		open  routing.Open
		allow gate.Policy
		only  []string
		tells bool // an approval may be answered
		asks  bool // a question may be answered
	}{
		{"write", routing.Open{Access: "write"}, all, nil, true, true},
		{"approve", routing.Open{Access: "approve"}, all, nil, true, true},
		{"talk", routing.Open{Access: "talk"}, all, nil, false, true},
		{"read", routing.Open{Access: "read"}, all, nil, false, false},
		{"nothing", routing.Open{}, all, nil, false, false},
		{"owner lets look", routing.Open{Access: "write"}, look, nil, false, false},
		{"owner names ada", routing.Open{Access: "write", Subject: "bob"}, all, []string{"ada"}, false, true},
		{"owner names bob", routing.Open{Access: "write", Subject: "bob"}, all, []string{"bob"}, true, true},
		{"owner shows another session", routing.Open{Access: "write"}, gate.NewPolicy(auth.AccessWrite, []string{"s:/2"}, nil, true), nil, false, false},
		{"owner shows the session", routing.Open{Access: "write"}, one, nil, true, true},
		{"token for another session", routing.Open{Access: "write", Channels: []string{"s:/2"}}, all, nil, false, false},
		{"token without dispatchAction", routing.Open{Access: "write", Methods: []string{"subscribe"}}, all, nil, false, false},
	} {
		a := &Agent{cfg: Config{Allow: &test.allow, ApproveOnly: test.only, Upstream: Upstream{URL: "ws://127.0.0.1:1"}}}
		for kind, want := range map[notice.Kind]bool{notice.Approval: test.tells, notice.Question: test.asks} {
			if got := letsAnswer(a.policy(test.open), &notice.Event{Kind: kind, Session: "s:/1"}); got != want {
				t.Errorf("%s: %s may be answered: %v; want %v", test.name, kind, got, want)
			}
		}
	}
}

// TestOnlySignedAnswersAreAccepted fails if the host-agent accepts an answer without the relay's
// signature, or an answer for another host-agent.
func TestOnlySignedAnswersAreAccepted(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	others, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAgent(t, func(cfg *Config) {
		token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: "laptop", Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Token = func() (string, error) { return token, nil }
	})
	if err != nil {
		t.Fatal(err)
	}
	good := notice.Answer{Tenant: "default", Host: "laptop", Agent: a.instance, Relay: "relay", Nonce: "n", Event: "e"}
	sign := func(keys *auth.Keys, what auth.Statement, change func(*notice.Answer)) []byte {
		answer := good
		if change != nil {
			change(&answer)
		}
		body, err := json.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(keys.Sign(what, body))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	if got, err := a.readAnswer(sign(keys, auth.AnswerRequest, nil)); err != nil || got.Event != "e" {
		t.Errorf("readAnswer of an answer signed by the relay = %v, %v; want the answer to event e", got, err)
	}
	for name, data := range map[string][]byte{
		"another relay":       sign(others, auth.AnswerRequest, nil),
		"another statement":   sign(keys, auth.AnswerCapability, nil),
		"another host":        sign(keys, auth.AnswerRequest, func(a *notice.Answer) { a.Host = "tower" }),
		"another tenant":      sign(keys, auth.AnswerRequest, func(a *notice.Answer) { a.Tenant = "other" }),
		"another host-agent":  sign(keys, auth.AnswerRequest, func(a *notice.Answer) { a.Agent = "former" }),
		"a relay of no name":  sign(keys, auth.AnswerRequest, func(a *notice.Answer) { a.Relay = "a.*.>" }),
		"a nonce of no form":  sign(keys, auth.AnswerRequest, func(a *notice.Answer) { a.Nonce = "" }),
		"an event of no form": sign(keys, auth.AnswerRequest, func(a *notice.Answer) { a.Event = "<" }),
		"no JSON":             []byte("{"),
		"too long":            make([]byte, notice.MaxAnswer+1),
	} {
		if _, err := a.readAnswer(data); err == nil {
			t.Errorf("readAnswer of %s = nil; want an error", name)
		}
	}
}
