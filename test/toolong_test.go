package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/test/stack"
)

// Clients and host send messages above the size limit. A request or a response becomes
// an error that names the sizes, and the connection stays open. After a notification
// above the limit, the connection ends.
func TestTooLongMessagesAreAnswered(t *testing.T) {
	const limit = 300 << 10
	host := newScriptedHost(t)
	s := startStack(t, stack.Config{
		Upstream: host.server.URL(),
		Agent:    hostagent.Config{Upstream: hostagent.Upstream{URL: host.server.URL()}, MaxFrame: limit},
		Relay:    gateway.RelayConfig{Gateway: gateway.Config{MaxFrame: limit}},
	})
	c := greet(t, s, stack.Host, "a", nil, nil)
	conn := host.conn("a", 0)
	pad := `"` + strings.Repeat(`{\"id\":1}`, 40_000) + `"`
	tooLong := func(what string, message string, id string) []string {
		return []string{`"id":` + id, `-32603`, fmt.Sprintf(`the %s is %d bytes long; at most %d pass`, what, len(message), limit)}
	}
	for _, m := range []struct {
		message, what, id string
		toClient, told    bool // toClient: the host sends the message to the client; told: the error goes to the client, otherwise to the host
	}{
		{`{"id":70,"result":{"id":9,"x":` + pad + `}}`, "response", "70", true, true},
		{`{"result":{"id":9,"x":` + pad + `},"id":71}`, "response", "71", true, true},
		{`{"error":{"code":9,"message":` + pad + `},"id":"z"}`, "response", `"z"`, true, true},
		{`{"id":72,"method":"resourceRead","params":{"id":9,"x":` + pad + `}}`, "request", "72", true, false},
		{`{"params":{"channel":"ahp-root://","id":9,"x":` + pad + `},"id":73,"method":"resourceWrite"}`, "request", "73", false, true},
		{`{"result":{"id":9,"x":` + pad + `},"id":74}`, "response", "74", false, false},
	} {
		if m.toClient {
			if err := conn.say(m.message); err != nil {
				t.Fatal(err)
			}
		} else if err := c.SendRaw([]byte(m.message)); err != nil {
			t.Fatal(err)
		}
		want := tooLong(m.what, m.message, m.id)
		heard := func() bool {
			list := conn.messages()
			if m.told {
				list = nil
				for _, f := range c.Frames() {
					list = append(list, string(f))
				}
			}
			last := list[len(list)-1]
			for _, part := range want {
				if !strings.Contains(last, part) {
					return false
				}
			}
			_, err := ahp.Peek([]byte(last))
			return err == nil
		}
		for deadline := time.Now().Add(stepTime); !heard(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("neither side got an error for the message %.60s…; want one", m.message)
			}
		}
		if _, err := c.Call(t.Context(), "ping", map[string]string{"channel": "ahp-root://"}); err != nil {
			t.Fatalf("ping after the long message %.60s…: %v; want an answer", m.message, err)
		}
	}
	for _, m := range conn.messages() {
		if len(m) > limit {
			t.Errorf("the host received a message of %d bytes; want at most the limit", len(m))
		}
	}
	notification := `{"method":"x/y","params":{"channel":"ahp-root://","x":` + pad + `}}`
	if err := conn.say(notification); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, c, ahp.CloseMessageTooBig, fmt.Sprintf("message too big: from the host, more than %d bytes", limit))
	other := greet(t, s, stack.Host, "b", nil, nil)
	if err := other.SendRaw([]byte(notification)); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, other, ahp.CloseMessageTooBig, fmt.Sprintf("message too big: more than %d bytes", limit))
}
