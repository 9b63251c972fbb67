package hostagent

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/routing"
)

// dispatch returns a client's message that dispatches an action of this kind.
func dispatch(seq int, kind string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"mock:/s","clientSeq":%d,"action":{"type":%q}}}`, seq, kind)
}

// TestRepeatedRejectionsSlowTheClient sends 100 forbidden actions. After 64 rejections, the client
// may get at most one per second. Its later request must wait for them, and other clients must not.
func TestRepeatedRejectionsSlowTheClient(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.openAs(w.relay, routing.Open{ID: "c", Subject: "ada", Access: "talk"})
		host := w.hostSide()
		other := w.openAs(w.relay, routing.Open{ID: "d", Subject: "ada", Access: "talk"})
		otherHost := w.hostSide()
		rejected := func() (n int) {
			synctest.Wait()
			r.note(func() { n = strings.Count(r.got.String(), `"rejectionReason"`) })
			return n
		}
		for i := range 100 {
			r.send(dispatch(i, "session/configChanged"))
		}
		const ping = `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"channel":"ahp-root://"}}`
		r.send(ping)
		if got := rejected(); got != 65 { // the host-agent answers the 65th action before it waits
			t.Errorf("the client got %d rejections at once; want 65", got)
		}
		other.send(ping)
		if got := len(otherHost.messages()); got != 1 {
			t.Errorf("the host got %d messages from a different client meanwhile; want 1", got)
		}
		time.Sleep(10 * time.Second)
		if got := rejected(); got != 75 {
			t.Errorf("the client got %d rejections after 10 s; want 75", got)
		}
		if got := len(host.messages()); got != 0 {
			t.Errorf("the host got %d later messages of the slowed client before all its actions were rejected; want none", got)
		}
		time.Sleep(time.Minute)
		if got, passed := rejected(), len(host.messages()); got != 100 || passed != 1 {
			t.Errorf("in the end, the client got %d rejections, and the host %d of its messages; want 100 and 1", got, passed)
		}
	})
}

// TestRejectionsOfAWindowThatConnectsDoNotSlowIt counts rejections of two kinds of action, and
// rejections a minute apart. The host-agent must delay the client only when more than 64 of one
// kind follow each other.
func TestRejectionsOfAWindowThatConnectsDoNotSlowIt(t *testing.T) {
	var p pace
	now := time.Unix(0, 0)
	for i := range 64 {
		for _, action := range []string{"root/configChanged", "session/configChanged"} {
			if wait := p.wait(action, now); wait != 0 {
				t.Fatalf("%s, time %d: waits %v; want 0", action, i, wait)
			}
		}
	}
	if wait := p.wait("root/configChanged", now); wait != time.Second {
		t.Errorf("the wait after a rejection beyond the bound is %v; want 1s", wait)
	}
	now = now.Add(time.Minute)
	for i := range 50 {
		if wait := p.wait("root/configChanged", now); wait != 0 {
			t.Fatalf("a minute later, time %d: waits %v; want 0", i, wait)
		}
	}
}

// TestActionsWithoutTheUserAreNotRejections sends actions that VS Code's window sends without its
// user. The host-agent must not count these actions as rejections, not slow the client, and not
// pass them to the host.
func TestActionsWithoutTheUserAreNotRejections(t *testing.T) {
	inWorld(t, func(w *world) {
		w.agent.metrics = newMetrics(w.agent)
		r := w.openAs(w.relay, routing.Open{ID: "c", Subject: "ada", Access: "look"})
		host := w.hostSide()
		for i := range 200 {
			r.send(dispatch(i, "chat/draftChanged"))
		}
		synctest.Wait()
		echoes := 0
		r.note(func() { echoes = strings.Count(r.got.String(), `"action":{"type":"chat/draftChanged"}`) })
		if echoes != 200 {
			t.Errorf("the client got %d echoes at once; want 200", echoes)
		}
		if got := host.messages(); len(got) != 0 {
			t.Errorf("the host got %q; want none of the rejected actions", got)
		}
		if _, page := scrape(w.agent, loopbackAddr, "localhost"); strings.Contains(page, "\nahp_agent_rejected_actions_total") {
			t.Errorf("ahp_agent_rejected_actions_total counts actions that VS Code sends without the user; want none counted:\n%s", page)
		}
	})
}

// TestClientThatLeavesDoesNotWait has a client leave while its rejections wait. Its connection to
// the host must close within a second.
func TestClientThatLeavesDoesNotWait(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.openAs(w.relay, routing.Open{ID: "c", Subject: "ada", Access: "talk"})
		host := w.hostSide()
		for i := range 100 {
			r.send(dispatch(i, "session/configChanged"))
		}
		r.conn.Close(1000, "done")
		time.Sleep(time.Second)
		synctest.Wait()
		if !host.isClosed() {
			t.Error("the connection to the host is open a second after the client has left; want it closed")
		}
	})
}

// TestRejectionsAreCountedByActionAndClient sends forbidden actions from many clients. The metrics
// must count them by action and client name, with "other" for unknown actions and for names beyond
// a bound.
func TestRejectionsAreCountedByActionAndClient(t *testing.T) {
	inWorld(t, func(w *world) {
		w.agent.metrics = newMetrics(w.agent)
		as := func(name string, kinds ...string) {
			r := w.openAs(w.relay, routing.Open{ID: name, Subject: "ada", Access: "talk"})
			r.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":%q,"clientInfo":{"name":%q}}}`, name, name))
			for i, kind := range kinds {
				r.send(dispatch(i, kind))
			}
		}
		as("vscode-editor-window", "session/configChanged", "session/configChanged", "x/made-up")
		as("a name\nwith more", "session/configChanged")
		for i := range 20 {
			as(fmt.Sprint("client-", i), "session/titleChanged")
		}
		_, page := scrape(w.agent, loopbackAddr, "localhost")
		for _, line := range []string{
			`{action="session/configChanged",client="vscode-editor-window"} 2`,
			`{action="other",client="vscode-editor-window"} 1`,
			`{action="session/configChanged",client="other"} 1`,
			`{action="session/titleChanged",client="client-14"} 1`,
			`{action="session/titleChanged",client="other"} 5`,
		} {
			if !strings.Contains(page, "\nahp_agent_rejected_actions_total"+line+"\n") {
				t.Errorf("the line %s is missing in\n%s", line, page)
			}
		}
	})
}
