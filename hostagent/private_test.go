package hostagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// hostWithSessions is a host with two sessions: s:/1 with a chat, a changeset and a terminal, and
// s:/2.
func hostWithSessions(env ahp.Envelope) string {
	result := "null"
	switch string(env.Method) {
	case "initialize":
		result = `{"protocolVersion":"1.0.0","serverSeq":1,"snapshots":[]}`
	case "listSessions":
		result = `{"items":[{"resource":"s:/1","title":"secret"},{"resource":"s:/2","title":"open"}]}`
	case "subscribe":
		state := `{"title":"open"}`
		switch string(env.Channel) {
		case "s:/1":
			state = `{"title":"secret","chats":[{"resource":"ahp-chat:/1","title":"secret"}],"defaultChat":"ahp-chat:/1"}`
		case "ahp-chat:/1":
			state = `{"turns":[{"id":"t","message":{"text":"secret"},"responseParts":[]}]}`
		case ahp.RootChannel:
			state = `{"agents":[],"terminals":[{"resource":"term:/1","title":"secret","claim":{"kind":"session","session":"s:/1"}}]}`
		}
		result = fmt.Sprintf(`{"snapshot":{"resource":%q,"state":%s,"fromSeq":1}}`, env.Channel, state)
	case "resourceRead":
		result = `{"data":"secret"}`
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, env.ID, result)
}

// TestStateThatCannotBeReadIsNotRemoved starts host-agents with files that cannot be read, and with damaged files. Only for a damaged
// file may the error advise to remove it: without the file, private sessions are visible.
func TestStateThatCannotBeReadIsNotRemoved(t *testing.T) {
	for _, name := range []string{"private.default.laptop.json", "waiting.default.laptop.json"} {
		dir := t.TempDir()
		start := func() error {
			_, err := newAgent(t, func(c *Config) { c.StateDir = dir })
			return err
		}
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := start(); err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "remove the file") {
			t.Errorf("a host-agent that cannot read its file ends with %v; want the path, and no advice to remove the file", err)
		}
		if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("{"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := start(); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("a host-agent with a damaged file ends with %v; want the path and the remedy", err)
		}
	}
}

// TestPrivateSessionIsHidden makes a session private that a hostile client has used before. Each
// request of this client that could show the session must fail or omit it, also after the
// host-agent has restarted.
func TestPrivateSessionIsHidden(t *testing.T) {
	dir := t.TempDir()
	inWorld(t, func(w *world) {
		w.host.set(func() { w.host.answers = hostWithSessions })
		if err := w.agent.private.open(dir, "default", "laptop"); err != nil {
			t.Fatal(err)
		}
		enter := func(subject, access string) *remote {
			r := w.openAs(w.relay, routing.Open{ID: "c-" + subject, Subject: subject, Access: access})
			r.send(greeting("initialize", "client-"+subject+access))
			return r
		}
		ada, eve := enter("ada", "admin"), enter("eve", "write")
		for _, r := range []*remote{ada, eve} { // eve knows the names of the session and its chat
			r.asks("listSessions", `{"channel":"ahp-root://"}`)
			r.subscribes("s:/1")
			if got := r.subscribes("ahp-chat:/1"); !strings.Contains(got, "secret") {
				t.Fatalf("the chat of a session before it is private: %s; want its text", got)
			}
		}
		if got := eve.asks("relay/private", `{"channel":"s:/1","private":true}`); !strings.Contains(got, "-32009") {
			t.Errorf("eve, without the level own, makes a session private: %s; want error -32009", got)
		}
		if got := ada.asks("relay/private", `{"channel":"s:/1","private":true}`); !strings.Contains(got, `"sessions":["s:/1"]`) {
			t.Fatalf("ada, making s:/1 private, gets %s; want s:/1 in the list", got)
		}
		w.wantRefused("eve", 1)
		if _, code := eve.said(); code != ahp.CloseResync {
			t.Errorf("eve's connection ends with %d; want %d", code, ahp.CloseResync)
		}
		if _, code := ada.said(); code != 0 {
			t.Errorf("ada's connection ends with %d; want it open", code)
		}

		tries := func(when string, eve *remote) {
			t.Helper()
			side := w.hostSide()
			for _, try := range [][2]string{
				{"listSessions", `{"channel":"ahp-root://"}`}, {"subscribe", `{"channel":"ahp-root://"}`},
				{"subscribe", `{"channel":"s:/1"}`}, {"subscribe", `{"channel":"S:/1"}`}, {"subscribe", `{"channel":"s:/%31"}`}, {"subscribe", `{"channel":"s:/1/changeset/session"}`},
				{"subscribe", `{"channel":"ahp-chat:/1"}`}, {"subscribe", `{"channel":"ahp-chat://x/czovMQ"}`}, {"fetchTurns", `{"channel":"ahp-chat:/1"}`},
				{"createChat", `{"channel":"s:/2","chat":"ahp-chat:/9","source":{"kind":"fork","chat":"ahp-chat:/1","turnId":"t"}}`},
				{"moveChat", `{"channel":"ahp-chat:/1","destination":{"kind":"session","session":"s:/2"}}`},
				{"createTerminal", `{"channel":"term:/9","claim":{"kind":"session","session":"s:/1"}}`},
				{"disposeSession", `{"channel":"s:/1"}`}, {"resourceRead", `{"channel":"ahp-root://","uri":"s:/1/changeset/x"}`}, {"unknown/method", `{"channel":"s:/1"}`},
			} {
				if got := eve.asks(try[0], try[1]); strings.Contains(got, "secret") || strings.Contains(got, "s:/1") && !strings.Contains(got, "error") {
					t.Errorf("%s: eve sees the private session by %s %s: %s; want nothing of it", when, try[0], try[1], got)
				}
			}
			eve.send(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"ahp-chat:/1","clientSeq":1,"action":{"type":"chat/turnStarted","turnId":"x"}}}`)
			for _, message := range side.messages() {
				if env, err := ahp.Peek([]byte(message)); err != nil || strings.Contains(message, `/1"`) || string(env.Method) == "unknown/method" {
					t.Errorf("%s: eve's request %s reaches the host; want none about the private session", when, message)
				}
			}
			side.toUs <- `{"jsonrpc":"2.0","method":"root/sessionSummaryChanged","params":{"channel":"ahp-root://","session":"s:/1","changes":{"title":"secret"}}}`
			side.toUs <- `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","serverSeq":9,"action":{"type":"chat/delta","content":"secret"}}}`
			if got := eve.hear(); strings.Contains(got, "secret") {
				t.Errorf("%s: eve receives %s about the private session; want nothing", when, got)
			}
			if got := eve.subscribes("s:/2"); !strings.Contains(got, "open") {
				t.Errorf("%s: eve gets %s when she subscribes to a visible session; want its state", when, got)
			}
		}
		tries("after", enter("eve", "write"))
		tries("another owner", enter("mallory", "admin"))
		if got := enter("ada", "read").subscribes("s:/1"); strings.Contains(got, "secret") {
			t.Errorf("a connection that viewers of a link share receives %s; want no private session", got)
		}
		if got := enter("mallory", "admin").asks("relay/private", `{"channel":"s:/1","private":false}`); !strings.Contains(got, "-32009") {
			t.Errorf("mallory makes ada's session visible: %s; want error -32009", got)
		}

		// A host-agent that has just started has heard nothing from the host yet.
		w.agent.known.Ended()
		w.agent.private.of = nil
		if err := w.agent.private.open(dir, "default", "laptop"); err != nil {
			t.Fatal(err)
		}
		tries("after a restart", enter("eve", "write"))

		if letsAnswer(w.agent.policy(routing.Open{Subject: "eve", Access: "write"}), &notice.Event{Kind: notice.Approval, Session: "s:/1"}) {
			t.Error("eve may answer questions of ada's private session; want no")
		}
		ada.subscribes("s:/1")
		if got := ada.asks("relay/private", `{"channel":"s:/1","private":false}`); !strings.Contains(got, `"sessions":[]`) {
			t.Errorf("ada, ending the privacy, gets %s; want an empty list", got)
		}
		if got := enter("eve", "write").subscribes("s:/1"); !strings.Contains(got, "secret") {
			t.Errorf("eve gets %s when she subscribes to a session that is no longer private; want its text", got)
		}
	})
	data, err := os.ReadFile(dir + "/private.default.laptop.json")
	if err != nil || !json.Valid(data) {
		t.Errorf("the file of private sessions has %s, %v; want valid JSON", data, err)
	}
}

// TestLinkToAPrivateSessionIsRefused connects with tokens that name sessions, as links' do, before and
// after one of these is private. When a token names private sessions only, the client must be refused
// before the relay hears that it was admitted: the relay reports joined visitors to others.
func TestLinkToAPrivateSessionIsRefused(t *testing.T) {
	inWorld(t, func(w *world) {
		w.host.set(func() { w.host.answers = hostWithSessions })
		enter := func(subject string, channels ...string) *remote {
			r := w.openAs(w.relay, routing.Open{ID: "c-" + subject + fmt.Sprint(len(w.remotes)), Subject: subject, Access: "write", Channels: channels})
			if _, code := r.said(); code == 0 {
				r.send(greeting("initialize", "client-"+subject))
			}
			return r
		}
		if visitor := enter("link-1", "s:/1"); !visitor.ready {
			t.Fatal("a link's visitor is not admitted while the session is visible; want it admitted")
		}
		if _, err := w.agent.private.set("ada", "s:/1", true, []string{"ahp-chat:/1"}); err != nil {
			t.Fatal(err)
		}
		ada := enter("ada")
		ada.subscribes("s:/1")
		w.hostSide().toUs <- `{"jsonrpc":"2.0","method":"action","params":{"channel":"s:/1","serverSeq":9,"action":{"type":"session/chatAdded","chat":{"resource":"ahp-chat:/later"}}}}`
		ada.hear()
		for _, channels := range [][]string{{"s:/1"}, {"S:/1"}, {"s:/1", "ahp-chat:/1"}, {"s:/1/changeset/x"}, {"ahp-chat:/later"}} {
			visitor := enter("link-2", channels...)
			visitor.wantClosed(ahp.CloseForbidden, privateReason)
			if visitor.ready {
				t.Errorf("the visitor of a link to %q is admitted; want it refused", channels)
			}
		}
		for _, channels := range [][]string{{"s:/2"}, {"s:/1", "s:/2"}, {"s:/*"}, {ahp.RootChannel}, {"file:///work"}, nil} {
			if !enter("link-3", channels...).ready {
				t.Errorf("a client with a token for %q is refused; want it admitted", channels)
			}
		}
		if !enter("ada", "s:/1").ready {
			t.Error("the session's owner is refused; want her admitted")
		}
	})
}

// TestSealedLinkToAPrivateSessionIsRefused is TestLinkToAPrivateSessionIsRefused for a sealed host's link,
// whose channels only the host-agent knows.
func TestSealedLinkToAPrivateSessionIsRefused(t *testing.T) {
	inWorld(t, func(w *world) {
		w.host.set(func() { w.host.answers = hostWithSessions })
		if _, err := w.agent.private.set("bob", "s:/1", true, []string{"ahp-chat:/1"}); err != nil {
			t.Fatal(err)
		}
		for session, want := range map[string]bool{"s:/1": true, "s:/2": false} {
			visitor := w.openSealedAs(vaultDevice{Level: auth.AccessRead, Channels: []string{session}, People: 9}, sealed.Greeting{Window: 15})
			if got := strings.HasSuffix(string(visitor.greeted), privateReason); got != want {
				t.Errorf("the visitor of a link to %s is closed as private: %v; want %v", session, got, want)
			}
		}
	})
}
