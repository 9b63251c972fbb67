package hostagent

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// An mcpHost is a host with a session that has an MCP server.
type mcpHost struct {
	customizations string
	replay, lost   string // of its answer to reconnect
	whole          bool   // it answers reconnect with snapshots, of which there are none
}

func (h *mcpHost) answers(env ahp.Envelope) string {
	result := "{}"
	switch string(env.Method) {
	case "subscribe":
		result = fmt.Sprintf(`{"snapshot":{"resource":%q,"state":{"customizations":[%s]},"fromSeq":1}}`, env.Channel, h.customizations)
	case "reconnect":
		result = fmt.Sprintf(`{"type":"replay","actions":[%s],"missing":[%s]}`, h.replay, h.lost)
		if h.whole {
			result = `{"type":"snapshot","snapshots":[]}`
		}
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, env.ID, result)
}

// tries sends a request on the server's channel, and returns "passes" if the
// host gets it, or the code with which it is refused.
func (r *remote) tries(method string) string {
	got := r.asks(method, `{"channel":"mcp://h/1"}`)
	if strings.Contains(got, `"result"`) {
		return "passes"
	}
	_, code, _ := strings.Cut(got, `"code":`)
	code, _, _ = strings.Cut(code, ",")
	return code
}

func (r *remote) wantTools(when string, want map[string]string) {
	r.w.Helper()
	for method, want := range want {
		if got := r.tries(method); got != want {
			r.w.Errorf("%s: %s %s; want %s", when, method, got, want)
		}
	}
}

// What a server that serves tools answers to; what is not served at all.
var (
	served = map[string]string{"tools/call": "passes", "tools/list": "passes", "resources/read": "-32601", "initialize": "-32601", "x": "-32601"}
	none   = map[string]string{"tools/call": "-32008", "tools/list": "-32008", "resources/read": "-32008", "initialize": "-32008", "x": "-32008"}
)

// TestMCPSurvivesAResume has clients come again with a replay that says nothing
// of the server: what the host has said to the same client before holds, and
// nothing else.
func TestMCPSurvivesAResume(t *testing.T) {
	const own, other = "ahp-session:/1", "ahp-session:/2"
	stopped := notifyParams(own, `{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"stopped"}}`, "")
	more := strings.Replace(tools, "serverTools", "serverResources", 1)
	for name, test := range map[string]struct {
		clientID, subject string
		channels          string // that it goes on with
		host              mcpHost
		left              bool // the earlier connection has ended
		want              map[string]string
	}{
		"the same":                        {"c1", "ada", own, mcpHost{}, false, served},
		"the same, after the end":         {"c1", "ada", own, mcpHost{}, true, served},
		"the same, with another session":  {"c1", "ada", other, mcpHost{}, true, none},
		"to whom the host denies it":      {"c1", "ada", own, mcpHost{lost: `"` + own + `"`}, true, none},
		"whose snapshots do not have it":  {"c1", "ada", own, mcpHost{whole: true}, true, none},
		"whose server stopped meanwhile":  {"c1", "ada", own, mcpHost{replay: stopped}, true, none},
		"another client":                  {"c2", "ada", own, mcpHost{}, true, none},
		"whose server has more, says one": {"c1", "ada", own, mcpHost{replay: notifyParams(own, `{"type":"session/customizationUpdated","customization":`+more+`}`, `,"origin":{"clientId":"mallory"}`)}, true, served},
		"whose server was asked to stop":  {"c1", "ada", own, mcpHost{replay: notifyParams(own, `{"type":"session/mcpServerStopRequested","id":"s"}`, `,"origin":{"clientId":"mallory"}`)}, true, none},
		"whom the host refuses a stop":    {"c1", "ada", own, mcpHost{replay: notifyParams(own, `{"type":"session/mcpServerStopRequested","id":"s"}`, `,"rejectionReason":"no"`)}, true, served},
	} {
		for _, strict := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, strict %v", name, strict), func(t *testing.T) {
				inWorld(t, func(w *world) {
					w.agent.cfg.Strict = strict
					host := mcpHost{customizations: tools}
					w.host.set(func() { w.host.answers = host.answers })
					c := w.open()
					c.asks("initialize", `{"channel":"ahp-root://","clientId":"c1","capabilities":{"mcpApps":{}}}`)
					c.subscribes(own)
					c.wantTools("at first", served)
					if test.left {
						c.conn.Close(1000, "")
						c.hear()
					}
					host = test.host
					again := w.openAs(w.relay, routing.Open{ID: "again", Subject: test.subject, Access: "write"})
					again.asks("reconnect", fmt.Sprintf(`{"channel":"ahp-root://","clientId":%q,"lastSeenServerSeq":1,"subscriptions":[%q,"ahp-root://"]}`, test.clientID, test.channels))
					again.wantTools("again", test.want)
				})
			})
		}
	}
}

// notifyParams are the params of an action.
func notifyParams(channel, action, more string) string {
	return fmt.Sprintf(`{"channel":%q,"serverSeq":2,"action":%s%s}`, channel, action, more)
}

// TestMCPOfWhichNothingIsKnown serves nothing to who resumes, where the host is
// known to have such servers.
func TestMCPOfWhichNothingIsKnown(t *testing.T) {
	for _, strict := range []bool{false, true} {
		inWorld(t, func(w *world) {
			w.agent.cfg.Strict = strict
			host := mcpHost{customizations: tools}
			w.host.set(func() { w.host.answers = host.answers })
			c := w.resumes("c", "ahp-session:/1")
			if got := c.tries("tools/call"); !strict && got != "passes" {
				t.Errorf("where the host has named no channel: %s; want it to pass, for it may use the scheme in its own way", got)
			}
			w.initializes("other").subscribes("ahp-session:/2")
			c.wantTools("where the host has named one to another", none)
			c.subscribes("ahp-session:/1")
			c.wantTools("once it is named to the client", served)
		})
	}
}
