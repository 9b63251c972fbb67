package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// A mark is a gate that adds its name to messages, or answers messages that contain the text
// answers.
type mark struct {
	name    string
	answers string
}

func (m mark) judge(message []byte) gate.Decision {
	if m.answers != "" && strings.Contains(string(message), m.answers) {
		return gate.Decision{Verdict: gate.Answer, Message: []byte(m.name)}
	}
	if m.name == "" {
		return gate.Decision{}
	}
	return gate.Decision{Verdict: gate.Replace, Message: []byte(strings.Replace(string(message), "{", `{"`+m.name+`":1,`, 1))}
}

func (m mark) FromClient(message []byte, _ *ahp.Envelope) gate.Decision { return m.judge(message) }
func (m mark) FromHost(message []byte, _ *ahp.Envelope, _ *view.Reading) gate.Decision {
	return m.judge(message)
}

func marked(gates ...gate.Gate) *gate.Chain {
	return &gate.Chain{View: view.NewHost(nil).Conn(""), Gates: gates}
}

// TestGatesSeeEarlierReplacements fails unless each gate gets the message as the previous gate has
// changed it, and no gate gets an answered message.
func TestGatesSeeEarlierReplacements(t *testing.T) {
	const message = `{"id":1,"method":"ping"}`
	chain := marked(mark{name: "a"}, mark{}, mark{name: "b"})
	if d := chain.FromClient([]byte(message), peek(t, message)); d.Verdict != gate.Replace || string(d.Message) != `{"b":1,"a":1,"id":1,"method":"ping"}` {
		t.Errorf("a message from the client becomes %v %s; want the members b and a before its own", d.Verdict, d.Message)
	}
	if d := fromHost(chain, message, peek(t, message)); d.Verdict != gate.Replace || string(d.Message) != `{"a":1,"b":1,"id":1,"method":"ping"}` {
		t.Errorf("a message from the host becomes %v %s; want the members a and b before its own", d.Verdict, d.Message)
	}
	chain = marked(mark{name: "a"}, mark{name: "b", answers: `"a":1`}, mark{name: "c"})
	if d := chain.FromClient([]byte(message), peek(t, message)); d.Verdict != gate.Answer || string(d.Message) != "b" {
		t.Errorf("with a gate that answers, the verdict is %v %s; want its answer b", d.Verdict, d.Message)
	}
	if d := marked(mark{}).FromClient([]byte(message), peek(t, message)); d.Verdict != gate.Pass || d.Message != nil {
		t.Errorf("without a change, the verdict is %v %s; want Pass and no message", d.Verdict, d.Message)
	}
}

// An editor is a gate that replaces the snapshot in a host's answer.
type editor struct{ with string }

func (e editor) FromClient([]byte, *ahp.Envelope) gate.Decision { return gate.Decision{} }
func (e editor) FromHost(message []byte, _ *ahp.Envelope, said *view.Reading) gate.Decision {
	if said != nil {
		result, _ := ahp.MemberOf(message, "result")
		snapshot, _ := ahp.MemberOf(result.Raw, "snapshot")
		at := snapshot.In(result)
		said.Edit.Replace(view.Place{At: at.Offset(), End: at.Offset() + len(at.Raw)}, []byte(e.with))
	}
	return gate.Decision{}
}

// TestEditsOfSeveralGatesCombine has two gates replace the same snapshot. The second replacement
// must win.
func TestEditsOfSeveralGatesCombine(t *testing.T) {
	chain := marked(editor{"1"}, editor{"2"})
	const ask, answer = `{"id":1,"method":"subscribe"}`, `{"id":1, "result":{"snapshot":{"resource":"a:/1"} , "x":[]}}`
	chain.FromClient([]byte(ask), peek(t, ask))
	if d := fromHost(chain, answer, peek(t, answer)); d.Verdict != gate.Replace || string(d.Message) != `{"id":1, "result":{"snapshot":1 , "x":[]}}` {
		t.Errorf("two gates' edits make %v %s; want both edits", d.Verdict, d.Message)
	}
	if d := fromHost(chain, answer, peek(t, answer)); d.Verdict != gate.Pass {
		t.Errorf("an answer without a request: %v %s; want it to pass", d.Verdict, d.Message)
	}
}

// TestRequestAnsweredByALaterGateIsClosed has a gate behind the authority answer 3,000 requests.
// The authority must not count them as open, and so refuse later requests.
func TestRequestAnsweredByALaterGateIsClosed(t *testing.T) {
	chain := chainOf(gate.NewPolicy(auth.AccessWrite, []string{"mock:/1"}, nil, false), nil)
	chain.Gates = append(chain.Gates, mark{answers: "ping"})
	for i := range 3000 {
		message := fmt.Sprintf(`{"id":%d,"method":"ping"}`, i%7)
		if d := chain.FromClient([]byte(message), peek(t, message)); d.Verdict != gate.Answer || len(d.Message) != 0 {
			t.Fatalf("request %d: the verdict is %v %s; want Answer without a message", i, d.Verdict, d.Message)
		}
	}
}

// action is a notification as most hosts write it.
const action = `{"jsonrpc":"2.0","method":"action","params":{"channel":"mock:/1","action":{"type":"chat/delta","turnId":"a6c7a0d4","partId":"part-1","content":"You "},"serverSeq":2402}}`

func benchmarkFromHost(b *testing.B, policy gate.Policy) {
	env := peek(b, action)
	message, g := []byte(action), chainOf(policy, nil)
	b.ReportAllocs()
	for b.Loop() {
		if d, _ := g.FromHost(message, env); d.Verdict != gate.Pass {
			b.Fatal("the gate stops the action; want it to pass")
		}
	}
}

// BenchmarkWrite measures passing an action to a client with full authority.
func BenchmarkWrite(b *testing.B) {
	benchmarkFromHost(b, gate.NewPolicy(auth.AccessWrite, nil, nil, false))
}

func BenchmarkRead(b *testing.B) {
	benchmarkFromHost(b, gate.NewPolicy(auth.AccessRead, nil, nil, false))
}

func BenchmarkSession(b *testing.B) {
	benchmarkFromHost(b, gate.NewPolicy(auth.AccessWrite, []string{"mock:/1"}, nil, false))
}

// TestFullClientsCostNothing fails if an action for a client with full authority allocates memory.
func TestFullClientsCostNothing(t *testing.T) {
	env, message := peek(t, action), []byte(action)
	chain := marked(mark{}, mark{})
	if n := testing.AllocsPerRun(100, func() { chain.FromHost(message, env); chain.FromClient(message, env) }); n != 0 {
		t.Errorf("%v allocations for an action; want none", n)
	}
}
