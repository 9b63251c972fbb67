package load

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"ahprelay/agenthost"
	"ahprelay/test/hostrecord"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func frames(list ...string) (frames [][]byte) {
	for _, f := range list {
		frames = append(frames, []byte(f))
	}
	return frames
}

const (
	greetA = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientId":"a","clientInfo":{"name":"load","version":"a.1"}}}`
	pingA  = `{"jsonrpc":"2.0","id":2,"method":"ping","params":{}}`
	pongA  = `{"jsonrpc":"2.0","id":2,"result":null}`
	answer = `{"jsonrpc":"2.0","id":1,"result":{"serverSeq":1,"snapshots":[]}}`
	away   = `{"jsonrpc":"2.0","id":1,"error":{"code":4100,"message":"host offline"}}`
)

func action(seq int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":%q,"action":{"type":"x"},"serverSeq":%d}}`, chat, seq)
}

// The test compares made-up records of a connection. Each fault in them must be
// counted, and nothing else.
func TestJudgeFindsEachFault(t *testing.T) {
	all := frames(answer, action(2), action(3), action(4))
	up := frames(greetA, pingA)
	for _, test := range []struct {
		name                     string
		sent, got                [][]byte // frames that the host sent; frames that the client received
		up, upGot                [][]byte // frames that the client sent; frames that the host received
		early                    bool     // the client sent the ping before the answer to its greeting
		answers                  bool     // a proxy before the host answers pings
		open                     bool
		lost, repeated, inFlight int
	}{
		{name: "all of it", sent: all, got: all, up: up, upGot: up},
		{name: "a beginning", sent: all, got: all[:2], up: up, upGot: up[:1], inFlight: 2},
		{name: "open", sent: all, got: all[:3], up: up, upGot: up, open: true},
		{name: "one missing", sent: all, got: frames(answer, action(2), action(4)), up: up, upGot: up, lost: 1},
		{name: "one twice", sent: all, got: frames(answer, action(2), action(2), action(3), action(4)), up: up, upGot: up, repeated: 1},
		{name: "out of order", sent: all, got: frames(answer, action(3), action(2), action(4)), up: up, upGot: up, lost: 1, repeated: 1},
		{name: "changed", sent: all, got: frames(answer, action(2), action(33), action(4)), up: up, upGot: up, lost: 1, repeated: 1},
		{name: "somebody else's", sent: all, got: append(frames(pongA), all...), up: up, upGot: up, repeated: 1},
		{name: "up: one missing", sent: all, got: all, up: frames(greetA, pingA, "x"), upGot: frames(greetA, "x"), lost: 1},
		{name: "up: one twice", sent: all, got: all, up: up, upGot: append(up, up[1]), repeated: 1},
		{name: "the relay's pong", sent: all, got: append(frames(pongA), all...), up: frames(greetA, pingA), upGot: up[:1], early: true},
		{name: "two pongs", sent: all, got: append(frames(pongA, pongA), all...), up: frames(greetA, pingA), upGot: up[:1], early: true, repeated: 1},
		{name: "ahp-connect's pong, before the host's", sent: frames(answer, action(2), pongA, action(3)), got: frames(answer, pongA, action(2), action(3)), up: up, upGot: up, early: true, answers: true},
		{name: "ahp-connect's pong alone", sent: all, got: append(frames(pongA), all...), up: up, upGot: up[:1], early: true, answers: true},
		{name: "ahp-connect's pong and the host's", sent: frames(answer, pongA), got: frames(answer, pongA, pongA), up: up, upGot: up, early: true, answers: true, repeated: 1},
		{name: "out of order behind ahp-connect", sent: all, got: frames(answer, action(3), action(2), action(4)), up: up, upGot: up, answers: true, lost: 1, repeated: 1},
		{name: "refused by the relay", got: frames(away), up: up[:1]},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := &wire{label: "a.1", sent: test.up, got: test.got, pings: map[int64]bool{2: test.early}, to: Target{AnswersPings: test.answers}}
			v := &Viewer{id: "a", wires: []*wire{w}}
			if test.open {
				v.open = w
			}
			var record []agenthost.Frame
			for _, f := range test.upGot {
				record = append(record, agenthost.Frame{Conn: 7, Received: true, Data: f})
			}
			for _, f := range test.sent {
				record = append(record, agenthost.Frame{Conn: 7, Data: f})
			}
			tr := &transcript{conns: map[string]*hostConn{}}
			tr.add(0, record)
			var r Report
			tr.judge(v, &r)
			if r.Lost != test.lost || r.Repeated != test.repeated || r.InFlight != test.inFlight {
				t.Errorf("%+v; want %d lost, %d repeated, %d in flight", r, test.lost, test.repeated, test.inFlight)
			}
			if (len(r.Faults) > 0) != (test.lost+test.repeated > 0) {
				t.Errorf("the faults are %q; want some only if messages are lost or repeated", r.Faults)
			}
		})
	}
}

// TestJudgeFindsActionsAcrossConnections reads records from disk, and finds missing
// actions of a viewer that has had several connections.
func TestJudgeFindsActionsAcrossConnections(t *testing.T) {
	file := filepath.Join(t.TempDir(), "record")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	record := hostrecord.To(f)
	record(agenthost.Frame{Conn: 1, Received: true, Data: []byte(greetA)})
	for seq := 1; seq <= 9; seq++ {
		record(agenthost.Frame{Conn: 2, Data: []byte(action(seq))})
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	tr, err := readTranscript([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		from    int64
		applied []int64
		lost    int
	}{
		{0, []int64{1, 2, 3, 4}, 0},
		{4, []int64{5, 6, 7}, 0},
		{4, nil, 0},
		{4, []int64{6, 7}, 1},
		{0, []int64{1, 9}, 7},
	} {
		var r Report
		tr.judge(&Viewer{epochs: []*epoch{{label: "a.1", from: test.from, applied: test.applied}}}, &r)
		if r.Lost != test.lost {
			t.Errorf("%v after %d: %d lost; want %d", test.applied, test.from, r.Lost, test.lost)
		}
	}
}

// A viewer itself detects messages that come twice, too early, or for another client.
func TestViewerDetectsRepeatedMessages(t *testing.T) {
	see := func(list ...string) string {
		v, w := &Viewer{id: "a"}, &wire{}
		for _, f := range list {
			in, _ := read([]byte(f))
			v.see(w, &in)
		}
		return strings.Join(v.faults, "; ")
	}
	if got := see(answer, action(2), action(3)); got != "" {
		t.Errorf("the faults are %q; want none", got)
	}
	for want, list := range map[string][]string{
		"action 2 after 2": {answer, action(2), action(2)},
		"action 1 after 1": {answer, action(1)}, // the snapshot already contains action 1
		"before":           {action(2), answer},
		"not subscribed":   {answer, strings.ReplaceAll(action(2), chat, "demo:/other")},
	} {
		if got := see(list...); !strings.Contains(got, want) {
			t.Errorf("%v: faults %q; want %q", list, got, want)
		}
	}
}

// difference must return a text for each pair of different states.
func TestDifferentStatesDiffer(t *testing.T) {
	state := func(raw string, actions ...string) *chatState {
		s := &chatState{}
		if err := s.load([]byte(raw)); err != nil {
			t.Fatal(err)
		}
		for _, a := range actions {
			if err := s.apply([]byte(a)); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	want := state(`{"turns":[{"id":"1","responseParts":[{"id":"p","content":"abc"}]}],"activeTurn":{"id":"2"},"draft":{"text":"d"}}`)
	same := state(`{"turns":[{"id":"1","responseParts":[{"id":"p","content":"a"}]}]}`,
		`{"type":"chat/delta","turnId":"1","partId":"p","content":"bc"}`,
		`{"type":"chat/turnStarted","turnId":"2"}`,
		`{"type":"chat/draftChanged","draft":{"text":"d"}}`)
	if diff := same.difference(want); diff != "" {
		t.Error(diff)
	}
	for _, a := range []string{
		`{"type":"chat/delta","turnId":"1","partId":"p","content":"c"}`,
		`{"type":"chat/responsePart","turnId":"2","part":{"id":"q"}}`,
		`{"type":"chat/turnStarted","turnId":"3"}`,
		`{"type":"chat/draftChanged"}`,
	} {
		if err := same.apply([]byte(a)); err != nil {
			t.Fatal(err)
		}
		if same.difference(want) == "" {
			t.Errorf("difference is empty after the action %s; want one", a)
		}
	}
}
