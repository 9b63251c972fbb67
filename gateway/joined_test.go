package gateway

import (
	"testing"
	"testing/synctest"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/routing"
)

// TestOnlyAdmittedClientsHaveJoined connects with a link to a session. While the host is away, or
// refuses the client, as after a kick, there is no event that the session is being watched. When the
// host answers the client, there is one. For a client with a token for several sessions, there is none.
func TestOnlyAdmittedClientsHaveJoined(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		link := func(c *auth.Client) { c.Subject, c.Channels = "link-1", []string{"demo:/one"} }
		want := func(when string, want int) {
			w.Helper()
			synctest.Wait()
			items, _, _, _ := w.server.board.After(testTenant, 0)
			n := 0
			for _, item := range items {
				if item.Event.Kind == notice.Joined {
					n++
				}
			}
			if n != want {
				w.Errorf("%s, there are %d events; want %d", when, n, want)
			}
		}
		c := w.dial(w.token(link))
		c.request(1, "reconnect")
		c.wantOpen()
		want("while the host is away", 0)
		w.refuse = "blocked"
		w.startAgent(routing.AgentEndConfig{})
		want("when the host refuses the client", 0)
		w.mu.Lock()
		w.refuse = ""
		w.mu.Unlock()
		c = w.dial(w.token(link))
		c.request(1, "initialize")
		synctest.Wait()
		want("before the host's answer", 0)
		w.conns[len(w.conns)-1].accept(1)
		want("after the host's answer", 1)
		c = w.dial(w.token(func(c *auth.Client) { c.Subject, c.Channels = "link-2", []string{"demo:/one", "demo:/two"} }))
		c.request(1, "initialize")
		synctest.Wait()
		w.conns[len(w.conns)-1].accept(1)
		want("when the host has admitted a client with two sessions", 1)
	})
}
