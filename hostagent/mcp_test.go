package hostagent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// An mcpHost is a host with sessions that have these customizations, such as an MCP server.
type mcpHost struct {
	customizations string
	replay, lost   string // the actions and the lost channels in its answer to reconnect
	whole          bool   // the host answers reconnect with an empty list of snapshots
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

// tries sends a request on the MCP server's channel. It returns "passes" if the host answers it, or
// else the code of the host-agent's error.
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

// served and none list what tries returns for each method: served if the server is ready and
// provides tools, none if the client has no such server.
var (
	served = map[string]string{"tools/call": "passes", "tools/list": "passes", "resources/read": "-32601", "initialize": "-32601", "x": "-32601"}
	none   = map[string]string{"tools/call": "-32008", "tools/list": "-32008", "resources/read": "-32008", "initialize": "-32008", "x": "-32008"}
)

// TestMCPSurvivesAResume resumes clients with a replay that does not mention the MCP server. The
// client may use the server if the host has shown it to this client before, and not if only another
// client knows it.
func TestMCPSurvivesAResume(t *testing.T) {
	const own, other = "ahp-session:/1", "ahp-session:/2"
	stopped := notifyParams(own, `{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"stopped"}}`, "")
	more := strings.Replace(tools, "serverTools", "serverResources", 1)
	for name, test := range map[string]struct {
		clientID, subject string
		channels          string // the subscriptions at reconnect
		host              mcpHost
		left              bool // the first connection has ended before the reconnect
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

// notifyParams returns the params of an action with serverSeq 2.
func notifyParams(channel, action, more string) string {
	return fmt.Sprintf(`{"channel":%q,"serverSeq":2,"action":%s%s}`, channel, action, more)
}

// TestMCPIsServedAfterAResumeAtANewHostAgent resumes a client at a host-agent that knows no
// session. The host-agent must request the session's state from the host, and then let the client
// use the MCP server.
func TestMCPIsServedAfterAResumeAtANewHostAgent(t *testing.T) {
	for _, strict := range []bool{false, true} {
		inWorld(t, func(w *world) {
			w.agent.cfg.Strict = strict
			host := mcpHost{customizations: tools}
			w.host.set(func() { w.host.answers = host.answers })
			c := w.resumes("c", "ahp-session:/1")
			if got := c.tries("tools/call"); !strict && got != "passes" {
				t.Errorf("a call after a host's state without MCP channels: %s; want it to pass, because the host may use such channels in its own way", got)
			}
			w.initializes("other").subscribes("ahp-session:/2")
			c.wantTools("where the host has named one to another", served)
			w.resumes("d", "ahp-session:/1").wantTools("at once, where the host has named one", served)
		})
	}
}

// TestOnlyUnknownStateIsRequested counts the host-agent's own subscribe requests. The host-agent
// must send a request for the session of a client that resumes, and none for a session whose state
// it knows.
func TestOnlyUnknownStateIsRequested(t *testing.T) {
	inWorld(t, func(w *world) {
		host := mcpHost{}
		w.host.set(func() { w.host.answers = host.answers })
		own := func() (list []string) {
			for _, sock := range w.host.all() {
				for _, message := range sock.messages() {
					if env, err := ahp.Peek([]byte(message)); err == nil && strings.Contains(string(env.ID), "host-agent-") {
						list = append(list, string(env.Channel))
					}
				}
			}
			return list
		}
		w.initializes("c").subscribes("mock:/1")
		if got := own(); got != nil {
			t.Errorf("for a new client, the host-agent requested the states of %q; want none", got)
		}
		all := []string{"ahp-root://", "mock:/2", "mock:/2/changeset/session", "ahp-chat:/1", "agenthost-terminal:/1"}
		got := w.resumes("d", all...).hear()
		if list := own(); !slices.Equal(list, []string{"mock:/2"}) {
			t.Errorf("for a resumed client, the host-agent requested the states of %q; want its session's", list)
		}
		w.resumes("d", all...)
		w.resumes("c", "mock:/1")
		if list := own(); !slices.Equal(list, []string{"mock:/2"}) {
			t.Errorf("for clients whose sessions are known, the host-agent requested the states of %q; want no further request", list)
		}
		if strings.Contains(got, "host-agent-") {
			t.Errorf("the client gets %s; want no answers to the host-agent's own requests", got)
		}
	})
}

// TestResumedClientsMessagesWaitForTheState resumes a client at a host that reports the session's
// state late or never. The client's request must wait for the state, and be refused after
// stateTime.
func TestResumedClientsMessagesWaitForTheState(t *testing.T) {
	for _, answers := range []bool{true, false} {
		inWorld(t, func(w *world) {
			host := mcpHost{customizations: tools}
			w.initializes("other") // a client without sessions
			w.host.set(func() { w.host.answers = host.answers })
			w.initializes("another").subscribes("ahp-session:/2")
			var late string
			w.host.set(func() {
				w.host.answers = func(env ahp.Envelope) string {
					if strings.Contains(string(env.ID), "host-agent-") {
						late = host.answers(env)
						return ""
					}
					return host.answers(env)
				}
			})
			c := w.resumes("c", "ahp-session:/1")
			if got := c.tries("tools/call"); got != "" {
				t.Errorf("before the host's answer about the state, the client got %s; want nothing", got)
			}
			want, begin := "-32008", time.Now()
			if answers {
				want = "passes"
				socks := w.host.all()
				socks[len(socks)-1].toUs <- late
			} else {
				time.Sleep(stateTime)
			}
			if got := c.hear(); want == "passes" != strings.Contains(got, `"result"`) {
				t.Errorf("%v later, when the host has sent the state: %v, the client got %s; want %s", time.Since(begin), answers, got, want)
			}
			if !answers {
				c.wantTools("when the host does not tell the state", none)
			}
		})
	}
}
