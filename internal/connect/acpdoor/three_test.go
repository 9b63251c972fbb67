package acpdoor_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/hostagent/watch"
	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// TestThreeClientsShareASession opens a session in an editor, in a window (a plain AHP client at
// the relay) and on a phone, which sees only the session's questions. In each of three rounds, a
// different client answers first. The others then answer the opposite: this must change nothing,
// and they must show the first answer.
func TestThreeClientsShareASession(t *testing.T) {
	s := newSite(t, agenthost.Config{})
	e := s.open(t, everything, nil)
	id := e.create()

	token, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	window, err := refclient.Dial(t.Context(), s.URL(stack.Host), refclient.Options{Token: token, TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	defer window.Close()
	if _, err := window.Initialize(t.Context(), refclient.InitializeParams{ClientID: "window", ProtocolVersions: []string{"0.9.0"}}); err != nil {
		t.Fatal(err)
	}
	phone, err := client.Open(t.Context(), client.Config{Relay: s.relay, Host: stack.Host, Name: "phone", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer phone.Close()
	at, err := phone.Session(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, channel := range []string{id, at.DefaultChat} {
		if _, err := window.Subscribe(t.Context(), channel); err != nil {
			t.Fatal(err)
		}
	}

	byWindow := func(turn string, approved bool) {
		t.Helper()
		action := map[string]any{"type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": "tc-perm", "approved": approved, "reason": "denied", "confirmed": "user-action"}
		if _, err := window.Dispatch(at.DefaultChat, action); err != nil {
			t.Fatal(err)
		}
	}
	byPhone := func(option string) {
		t.Helper()
		now, err := phone.Session(t.Context(), id)
		if err != nil || len(now.Questions(id)) != 1 {
			t.Fatalf("the phone sees the questions %v, %v; want 1", now.InputNeeded, err)
		}
		action, err := now.Questions(id)[0].Action(watch.Reply{Option: option})
		if err != nil {
			t.Fatal(err)
		}
		if err := phone.Dispatch(t.Context(), at.DefaultChat, json.RawMessage(action)); err != nil {
			t.Fatal(err)
		}
	}
	for round, first := range []string{"editor", "window", "phone"} {
		pending := e.conn.Begin("session/prompt", promptOf(id, "permission"))
		r := e.next("session/request_permission")
		var started [][]byte
		natssite.Eventually(t, "the window shows the turn", func() bool {
			started = slices.DeleteFunc(window.Frames(), func(frame []byte) bool { return !bytes.Contains(frame, []byte(`"chat/turnStarted"`)) })
			return len(started) == round+1
		})
		_, rest, _ := strings.Cut(string(started[round]), `"turnId":"`)
		turn, _, _ := strings.Cut(rest, `"`)
		want := "Allowed."
		switch first {
		case "editor":
			r.Reply(selected("allow-once"), nil)
		case "window":
			want = "Denied."
			byWindow(turn, false)
		case "phone":
			byPhone("allow-once")
		}
		if err := pending.Wait(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		byWindow(turn, first == "window") // the opposite answer, too late
		if first != "editor" {
			e.await("the editor's request is withdrawn", func() bool { return len(e.withdrawn()) == round })
			r.Reply(selected(map[bool]string{true: "allow-once", false: "skip"}[first == "window"]), nil)
		}
		if got := said(e.seen(), acp.UpdateAgentMessageChunk); !strings.HasSuffix(got, want) {
			t.Errorf("after the %s's answer, the editor shows %q; want %q", first, got, want)
		}
		if _, err := window.WaitFor(t.Context(), func(frame []byte) bool {
			return bytes.Contains(frame, []byte(turn)) && bytes.Contains(frame, []byte(`"`+want+`"`))
		}); err != nil {
			t.Errorf("after the %s's answer, the window does not receive it: %v", first, err)
		}
		if now, err := phone.Session(t.Context(), id); err != nil || len(now.Questions(id)) != 0 {
			t.Errorf("after the %s's answer, the phone shows the questions %v, %v; want none", first, now.InputNeeded, err)
		}
	}
	chat, err := phone.Chat(t.Context(), at.DefaultChat)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(history(chat), "")
	if strings.Count(all, "Allowed.") != 2 || strings.Count(all, "Denied.") != 1 || len(chat.Turns) != 3 {
		t.Errorf("the host's history is\n%s\nwant three turns: two allowed, one denied", all)
	}
}
