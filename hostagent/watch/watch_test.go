package watch_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ahprelay/agenthost"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
)

var protocols = []agenthost.Protocol{agenthost.Protocol08, agenthost.Protocol09, agenthost.Protocol010, agenthost.Protocol10, agenthost.Protocol11}

// settle is longer than any action takes at the host in these tests, and than the Watch is ever
// disconnected.
const settle = 20 * time.Second

func sessionURI(n int) string { return fmt.Sprintf("demo:/%d", n) }

// chatURI returns the URI that the scripted host gives a session's chat.
func chatURI(session string) string {
	return "ahp-chat://default/" + base64.RawURLEncoding.EncodeToString([]byte(session))
}

func (w *world) begin(session, turn, prompt string) {
	w.dispatch(chatURI(session), map[string]any{
		"type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-11-22T00:00:00.000Z", "message": map[string]any{"text": prompt, "origin": map[string]any{"kind": "user"}},
	})
}

func (w *world) confirm(session, turn string, approved bool) {
	w.dispatch(chatURI(session), map[string]any{"type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": "tc-perm", "approved": approved, "confirmed": "user-action"})
}

func (w *world) create(session string) {
	w.say("createSession", fmt.Sprintf(`{"channel":%q,"provider":"demo"}`, session))
}

// TestSessionEventsAreReported has hosts with each protocol version. The Watch must report an
// approval, its withdrawal after the answer, the turn's end, and a failed turn.
func TestSessionEventsAreReported(t *testing.T) {
	for _, p := range protocols {
		t.Run(string(p), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, p)
				defer w.close()
				s := sessionURI(1)
				w.create(s)
				time.Sleep(settle)
				w.begin(s, "t1", "permission")
				time.Sleep(time.Second)
				open, over := w.state()
				if len(open) != 1 || len(over) != 0 {
					t.Fatalf("the open events are %v, those over are %v; want one open question", open, over)
				}
				e := slices.Collect(maps.Values(open))[0]
				want := notice.Event{
					ID: e.ID, Kind: notice.Approval, Session: s, Chat: chatURI(s), Title: e.Title, Text: "Run a test command", Detail: "echo test", At: e.At,
					Answer: notice.Choice, Options: []notice.Option{
						{ID: "allow-once", Label: "Allow Once"}, {ID: "skip", Label: "Skip", Deny: true}, {ID: "allow-session", Label: "Allow in this Session"},
					},
				}
				if diff := cmp.Diff(want, e); diff != "" {
					t.Errorf("event (-want +got):\n%s", diff)
				}
				w.confirm(s, "t1", true)
				time.Sleep(time.Second)
				w.begin(s, "t2", "error")
				time.Sleep(settle)
				open, over = w.state()
				kinds := []notice.Kind{}
				for _, e := range over {
					kinds = append(kinds, e.Kind)
				}
				if diff := cmp.Diff([]notice.Kind{notice.Done, notice.Failed}, kinds); diff != "" || len(open) != 0 {
					t.Errorf("the open events are %v, want none; those over (-want +got):\n%s", open, diff)
				}
				want2 := map[string]bool{"initialize": true, "listSessions": true, "subscribe": true, "unsubscribe": true}
				if diff := cmp.Diff(want2, w.methods()); diff != "" {
					t.Errorf("the changes that the Watch has reported (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestEachQuestionIsReportedOnce runs random actions at a host while the Watch's connection breaks.
// At the end, the Watch must have reported each question once, and withdrawn each answered question
// once.
func TestEachQuestionIsReportedOnce(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		protocol := rapid.SampledFrom(protocols).Draw(r, "protocol")
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{
			"ask", "ask", "ask", "allow", "allow", "deny", "hello", "error", "cut", "away", "back", "back", "dispose", "cancel",
		}), 1, 25).Draw(r, "steps")
		which := rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 1}), len(steps), len(steps)).Draw(r, "sessions")
		var failure string
		synctest.Test(t, func(t *testing.T) { failure = play(t, protocol, steps, which) })
		if failure != "" {
			r.Fatal(failure)
		}
	})
}

// A fact is what the test expects about a session.
type fact struct {
	there bool
	turn  string // the turn whose question is open; "" for none
}

func play(t *testing.T, protocol agenthost.Protocol, steps []string, which []int) string {
	w := newWorld(t, protocol)
	defer w.close()
	model := make([]fact, 2)
	watched, turns := true, 0
	for i := range model {
		w.create(sessionURI(i))
		model[i].there = true
	}
	time.Sleep(settle)
	for i, step := range steps {
		m, s := &model[which[i]], sessionURI(which[i])
		turns++
		turn := fmt.Sprintf("t%d", turns)
		switch {
		case step == "ask" && m.there && m.turn == "":
			w.begin(s, turn, "permission")
			m.turn = turn
		case (step == "allow" || step == "deny") && m.turn != "":
			w.confirm(s, m.turn, step == "allow")
			m.turn = ""
		case step == "cancel" && m.turn != "":
			w.dispatch(chatURI(s), map[string]any{"type": "chat/turnCancelled", "turnId": m.turn, "duration": 1})
			m.turn = ""
		case (step == "hello" || step == "error") && m.there && m.turn == "" && watched:
			w.begin(s, turn, step)
		case step == "dispose" && m.there:
			w.say("disposeSession", fmt.Sprintf(`{"channel":%q}`, s))
			*m = fact{}
		case step == "cut":
			w.cut(!watched)
		case step == "away":
			w.cut(true)
			watched = false
		case step == "back":
			w.cut(false)
			watched = true
		}
		if step != "cut" { // after a cut, the next action comes while the Watch reconnects
			time.Sleep(settle)
		}
	}
	w.cut(false)
	time.Sleep(settle)
	return judge(w, model)
}

// judge returns how the Watch's reports differ from the expected facts, or "".
func judge(w *world, model []fact) string {
	open, _ := w.state()
	for i, m := range model {
		asked, now := 0, 0
		for _, e := range open {
			if e.Session == sessionURI(i) {
				now++
			}
		}
		if m.turn != "" {
			asked = 1
		}
		if now != asked {
			return fmt.Sprintf("session %d: %d open events; want %d", i, now, asked)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, n := range w.opened {
		want := 1
		if _, isOpen := w.open[id]; isOpen {
			want = 0
		}
		if n != 1 || w.closed[id] != want {
			return fmt.Sprintf("event %s was told %d times, and withdrawn %d times; want once, and %d", id, n, w.closed[id], want)
		}
	}
	return ""
}

// TestEndedTurnsAreReported runs five turns, and breaks the Watch's connection during each. The
// Watch must report the end of every turn.
func TestEndedTurnsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, agenthost.Protocol10)
		defer w.close()
		s := sessionURI(1)
		w.create(s)
		time.Sleep(settle)
		const turns = 5
		for i := range turns {
			w.begin(s, fmt.Sprintf("t%d", i), "stream 50 100 8")
			time.Sleep(time.Second)
			w.cut(false) // the turn may end before the Watch has reconnected
			time.Sleep(settle)
		}
		if _, over := w.state(); len(over) != turns {
			t.Errorf("%d ends of turns were reported; want %d: %v", len(over), turns, over)
		}
	})
}

// TestWorkingSessionsAreCounted runs two turns and breaks the Watch's connection. Working must get
// each new number of sessions with a running turn.
func TestWorkingSessionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, agenthost.Protocol10)
		defer w.close()
		one, two := sessionURI(1), sessionURI(2)
		w.create(one)
		w.create(two)
		time.Sleep(settle)
		w.begin(one, "t1", "stream 100 100 8") // lasts 10 s
		time.Sleep(2 * time.Second)
		w.begin(two, "t2", "stream 20 100 8") // lasts 2 s
		time.Sleep(4 * time.Second)
		w.cut(false)
		time.Sleep(settle)
		time.Sleep(10 * time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if want := []int{1, 2, 1, 0, 1, 0}; !slices.Equal(w.works, want) {
			t.Errorf("the reported numbers of working sessions are %v; want %v", w.works, want)
		}
	})
}

// TestRelistGivesWholeSummaries calls Relist when the session of a Watch has not changed. Summary
// must get the session's whole summary again.
func TestRelistGivesWholeSummaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, agenthost.Protocol10)
		defer w.close()
		w.create(sessionURI(1))
		time.Sleep(settle)
		w.mu.Lock()
		w.listed = nil
		w.mu.Unlock()
		w.watch.Relist()
		time.Sleep(settle)
		w.mu.Lock()
		defer w.mu.Unlock()
		if want := []string{sessionURI(1)}; !slices.Equal(w.listed, want) {
			t.Errorf("after Relist, Summary gets whole summaries of %q; want %q", w.listed, want)
		}
	})
}

// A saying is a connection to a host that sends the test's messages.
type saying chan string

func (s saying) Read() ([]byte, bool, error) {
	message, more := <-s
	if !more {
		return nil, false, io.EOF
	}
	return []byte(message), false, nil
}

func (s saying) Write([]byte, bool) error { return nil }
func (s saying) Close(string)             {}

// TestEventWithoutAQuestionIsCounted has a session that needs input and lists no question. Stats must
// count its event until the session needs no input.
func TestEventWithoutAQuestionIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		host, ledger := make(saying), notice.NewLedger("agent")
		w := watch.New(watch.Config{Ledger: ledger, Log: slog.New(slog.DiscardHandler), Dial: func(context.Context) (watch.Socket, error) { return host, nil }})
		go w.Run(ctx)
		defer synctest.Wait()
		defer close(host)
		defer cancel()
		wantNeeds := func(when string, want int) {
			t.Helper()
			report, _ := ledger.Report(true)
			if got := w.Stats().Needs; got != want || len(report.Open) != want {
				t.Errorf("%s: Needs is %d, and %d events are open; want %d", when, got, len(report.Open), want)
			}
		}
		host <- `{"jsonrpc":"2.0","id":1,"result":{}}`
		host <- `{"jsonrpc":"2.0","id":2,"result":{"items":[{"resource":"s:/1","status":24}]}}`
		host <- `{"jsonrpc":"2.0","id":3,"result":{"snapshot":{"resource":"s:/1","state":{"inputNeeded":[]}}}}`
		wantNeeds("at once", 0)
		time.Sleep(2 * time.Second)
		wantNeeds("a session needs input", 1)
		host <- `{"jsonrpc":"2.0","method":"root/sessionSummaryChanged","params":{"session":"s:/1","changes":{"status":8}}}`
		synctest.Wait()
		wantNeeds("afterwards", 0)
	})
}

// TestFirstAnswerIsDispatched sends many answers to a question. The Watch must accept the first
// valid answer. It must refuse later answers with an error that names the person with the accepted
// answer. The host must then act on the accepted answer.
func TestFirstAnswerIsDispatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, agenthost.Protocol10)
		defer w.close()
		s := sessionURI(1)
		w.create(s)
		time.Sleep(settle)
		w.begin(s, "t1", "permission")
		time.Sleep(time.Second)
		open, _ := w.state()
		e := slices.Collect(maps.Values(open))[0]
		for _, wrong := range []watch.Reply{{}, {Option: "other"}, {Text: "yes"}, {Option: "allow-once", Text: "yes"}} {
			if _, err := w.watch.Answer(e.ID, e.Digest(), "ada", wrong); !errors.Is(err, watch.ErrNoAnswer) {
				t.Errorf("Answer(%v) = %v; want %v", wrong, err, watch.ErrNoAnswer)
			}
		}
		if _, err := w.watch.Answer(e.ID, "other", "ada", watch.Reply{Option: "skip"}); !errors.Is(err, watch.ErrChanged) {
			t.Errorf("Answer with a different digest = %v; want %v", err, watch.ErrChanged)
		}
		first, err := w.watch.Answer(e.ID, e.Digest(), "ada", watch.Reply{Option: "allow-once"})
		if err != nil {
			t.Fatal(err)
		}
		first.Undo()
		answer, err := w.watch.Answer(e.ID, e.Digest(), "bob", watch.Reply{Option: "allow-once"})
		if err != nil {
			t.Fatal(err)
		}
		var by *watch.AnsweredError
		for range 1000 {
			if _, err := w.watch.Answer(e.ID, e.Digest(), "eve", watch.Reply{Option: "skip"}); !errors.As(err, &by) || by.By != "bob" {
				t.Fatalf("Answer again = %v; want answered by bob", err)
			}
		}
		w.dispatch(answer.Chat, json.RawMessage(answer.Action))
		time.Sleep(settle)
		if open, over := w.state(); len(open) != 0 || len(over) != 1 || over[0].Kind != notice.Done {
			t.Errorf("the open events are %v, those over are %v; want the turn done", open, over)
		}
		if _, err := w.watch.Answer(notice.ID(s, "x"), "", "eve", watch.Reply{Option: "skip"}); !errors.Is(err, watch.ErrUnknown) {
			t.Errorf("Answer to an unknown event = %v; want %v", err, watch.ErrUnknown)
		}
	})
}
