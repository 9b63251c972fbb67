package gateway

import (
	"testing"
	"testing/synctest"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/routing"

	"github.com/google/go-cmp/cmp"
)

func TestHostAgentGetsTheTokensAuthority(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(func(c *auth.Client) {
			c.Access, c.Channels, c.Methods, c.Files, c.Reverse = auth.AccessRead, []string{"mock:/1", "ahp-chat:/*"}, []string{"resource*"}, true, true
		}))
		c.send(`{"id":0,"method":"initialize"}`)
		got := w.hostConn(1).open
		want := routing.Open{
			Subject: "ada", Access: "read", Channels: []string{"mock:/1", "ahp-chat:/*"}, Methods: []string{"resource*"}, Files: true, Reverse: true,
			ID: got.ID, Token: got.Token, Expires: got.Expires, Remote: got.Remote, // the connection's own fields
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("open (-want +got):\n%s", diff)
		}
	})
}

// A host-agent without the feature "authority" gets only clients with full authority.
func TestOldHostAgentGetsOnlyFullAuthority(t *testing.T) {
	for name, change := range map[string]func(*auth.Client){
		"read":     func(c *auth.Client) { c.Access = auth.AccessRead },
		"channels": func(c *auth.Client) { c.Channels = []string{"mock:/1"} },
		"methods":  func(c *auth.Client) { c.Methods = []string{"listSessions"} },
		"":         nil,
	} {
		inWorld(t, Config{}, func(w *world) {
			w.old = true
			w.startAgent(routing.AgentEndConfig{})
			c := w.dial(w.token(change))
			if change == nil {
				c.send(`{"id":0,"method":"initialize"}`)
				w.hostConn(1)
				return
			}
			c.wantClosed(ahp.CloseForbidden, "forbidden: the host-agent is too old to enforce this token's limits; upgrade it")
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.conns) != 0 {
				t.Errorf("%s: the host has a connection; want none", name)
			}
		})
	}
}
