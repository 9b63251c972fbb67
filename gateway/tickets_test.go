package gateway

import (
	"strconv"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/canvashttp"
	"ahprelay/routing"
)

// TestWhyThereIsNoTicket: whoever asks is told why the host-agent cannot be.
func TestWhyThereIsNoTicket(t *testing.T) {
	inWorld(t, Config{CanvasDomain: "canvas.example.com"}, func(w *world) {
		ask := func(want string) {
			t.Helper()
			env, err := ahp.Peek([]byte(`{"id":1,"method":"relay/canvasTicket","params":{"channel":"ahp-canvas:/c","uri":"ahp-canvas-content:/i/"}}`))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := w.server.canvases.Answer(&env, canvashttp.Asker{Grant: func(channel string) (auth.CanvasGrant, error) {
				return auth.CanvasGrant{Tenant: testTenant, CanvasClaims: auth.CanvasClaims{Host: testHost, Channel: channel}}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			result, err := answer(w.Context())
			said := string(canvashttp.AppendAnswer(nil, env.ID, result, err))
			if !strings.Contains(said, want) || !strings.Contains(said, `"code":`+strconv.Itoa(ahp.CodeHostOffline)) {
				t.Errorf("got %s; want code %d and %q", said, ahp.CodeHostOffline, want)
			}
		}
		ask(canvashttp.ErrHostAway.Error())
		w.startAgent(routing.AgentEndConfig{})
		ask(canvashttp.ErrOldAgent.Error())
	})
}
