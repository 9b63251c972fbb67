package contentproxy

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/test/carriers"
)

// passes passes messages of client and host. It returns what the client gets for the last message.
func (c *client) passes(list []carriers.Message) (got string) {
	c.t.Helper()
	for _, m := range list {
		if !m.FromHost {
			c.sends("%s", m.Text)
			continue
		}
		env, err := ahp.Peek([]byte(m.Text))
		if err != nil {
			c.t.Fatal(err)
		}
		out, _ := c.FromHost([]byte(m.Text), &env)
		got = string(out.Bytes)
	}
	return got
}

// forms lists the forms in which hosts describe a canvas, each as a state and as an action.
var forms = []struct{ name, state, action string }{
	{"as first proposed", `{"instanceId":"i","canvasId":"c","provider":{"kind":"server"},"url":%q}`, `{"type":"canvas/updated","url":%q}`},
	{"with contentUri", `{"instanceId":"i","canvasId":"c","provider":{"kind":"server"},"contentUri":%q}`, `{"type":"canvas/updated","contentUri":%q}`},
	{"as registered since 0.10", `{"instanceId":"i","extensionId":"team.kanban","canvasId":"c","url":%q}`,
		`{"type":"canvas/stateChanged","canvas":{"instanceId":"i","extensionId":"team.kanban","canvasId":"c","url":%q}}`},
}

// TestEachCarrierMintsTheHostsAddresses has the host describe a canvas in each form and message.
// The client must get a minted address and can read it. An address from a client or a rejected
// action must not be minted. Messages in pieces stay unchanged, but their address can be read.
func TestEachCarrierMintsTheHostsAddresses(t *testing.T) {
	t.Parallel()
	s, _ := site(t)
	const address = "ahp-canvas-content:/i/app/index.html"
	for _, version := range carriers.Versions {
		for _, carrier := range carriers.Of(version) {
			for _, form := range forms {
				t.Run(version+" "+carrier.Name+" "+form.name, func(t *testing.T) {
					for _, more := range []string{"", `,"origin":{"clientId":"x","clientSeq":1}`, `,"rejectionReason":"no"`} {
						if more != "" && !carrier.Action {
							continue
						}
						c := newHost(t, Config{}).client(t)
						c.passes(carriers.Greeting(version, "c", "{}"))
						c.opens("1", fmt.Sprintf(form.state, "https://example.com/"))
						json := form.state
						if carrier.Action {
							json = form.action
						}
						json = fmt.Sprintf(json, s.URL+"/app/index.html")
						got := c.passes(carrier.Wrap(carriers.Part{Channel: "ahp-canvas:/1", JSON: json, Seq: 7, More: more, ID: 1}))
						if minted := strings.Contains(got, address); minted != (more == "" && !carrier.Pieces) {
							t.Errorf("the client gets %s; want ahp-canvas-content: in place of the address only for a whole message without unknown members", got)
						}
						a := c.reads("1", address, -32601)
						if served := a.Error.Code == 0; served != (more == "") {
							t.Errorf("with the unknown member %q, the answer to a read is %+v; want content only without such a member", more, a)
						}
					}
				})
			}
		}
	}
}

// TestCanvasInAnAnswerIsMinted has a host name a canvas's address in the answer to
// resolveCanvasSource. The client must get a minted address, and can read it.
func TestCanvasInAnAnswerIsMinted(t *testing.T) {
	t.Parallel()
	s, _ := site(t)
	c := newHost(t, Config{}).client(t)
	c.opens("k7", `{"resource":"ahp-canvas:/k7","identity":{"instanceId":"i"},"extensionId":"e"}`)
	c.sends(`{"id":1,"method":"resolveCanvasSource","params":{"channel":"ahp-canvas:/k7"}}`)
	if got := c.gets(`{"id":1,"result":{"availability":"ready","source":{"kind":"url","url":%q}}}`, s.URL+"/app/index.html"); !strings.Contains(got, `"ahp-canvas-content:/i/app/index.html"`) {
		t.Errorf("the client gets %s; want ahp-canvas-content: in place of the address", got)
	}
	c.reads("k7", "ahp-canvas-content:/i/app/index.html?x=1", -32601).wantText(t, "text/html; charset=utf-8", "<p>ä &amp; \u2028</p>x=1")
}

// TestCanvasIsClosedInEachForm closes a canvas in each form that hosts use. A read of the closed
// canvas must fail.
func TestCanvasIsClosedInEachForm(t *testing.T) {
	t.Parallel()
	s, _ := site(t)
	for owner, forms := range map[string][4]string{
		"ahp-session:/s": {`{"openCanvases":[{"channel":"ahp-canvas:/1"}]}`, `{"openCanvases":[]}`,
			`{"type":"session/openCanvasesChanged","openCanvases":[{"channel":"ahp-canvas:/1"}]}`, `{"type":"session/openCanvasesChanged","openCanvases":[]}`},
		"ahp-chat:/c": {`{"turns":[],"canvases":[{"resource":"ahp-canvas:/1"}]}`, `{"turns":[]}`,
			`{"type":"chat/canvasesChanged","canvases":[{"resource":"ahp-canvas:/1"}]}`, `{"type":"chat/canvasesChanged"}`},
	} {
		for _, carrier := range carriers.All {
			t.Run(owner+" "+carrier.Name, func(t *testing.T) {
				c := newHost(t, Config{}).client(t)
				c.opens("1", serverState("i", s.URL+"/app/index.html"))
				at := 0
				if carrier.Action {
					at = 2
				}
				c.passes(carrier.Wrap(carriers.Part{Channel: owner, JSON: forms[at], Seq: 5, ID: 1}))
				c.reads("1", "ahp-canvas-content:/i/app/style.css", -32601).wantText(t, "text/css; charset=utf-8", "p{}")
				c.passes(carrier.Wrap(carriers.Part{Channel: owner, JSON: forms[at+1], Seq: 6, ID: 2}))
				c.reads("1", "ahp-canvas-content:/i/app/style.css", -32601).wantRefused(t, ahp.CodeNotFound, "closed")
			})
		}
	}
}
