package gateway

import (
	"testing"

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
