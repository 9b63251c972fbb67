package mcpgate_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ahprelay/ahp/view"
	"ahprelay/auth/mcpgate"
	_ "ahprelay/test/fixedseed"
)

// The model is a simple gate: it decodes each message fully, keeps whole states as clients do, and
// searches them for each message.

type object = map[string]any

// A model has the state of the simple gate.
type model struct {
	strict   bool
	sessions map[string]*modelSession
	named    map[string]bool // all channels that the host has named on this connection
	used     map[string]bool
	client   object // the client's capabilities; nil if unknown

	greeted    bool // the client has sent its clientId
	advertised bool // the host has named channels on an earlier connection
}

type modelSession struct {
	full bool
	list []any // the session's customizations
}

func newModel(strict bool) *model {
	return &model{strict: strict, sessions: map[string]*modelSession{}, named: map[string]bool{}, used: map[string]bool{}}
}

func (m *model) session(uri string) *modelSession {
	if m.sessions[uri] == nil {
		m.sessions[uri] = new(modelSession)
	}
	return m.sessions[uri]
}

// note adds the channels in the current states to named.
func (m *model) note() {
	for _, s := range m.sessions {
		for _, c := range s.servers() {
			if uri, _ := c["channel"].(string); strings.HasPrefix(uri, "mcp:") {
				m.named[uri] = true
			}
		}
	}
}

// servers returns a session's MCP servers. Each has "off" true if the server or its container is
// disabled.
func (s *modelSession) servers() (list []object) {
	for _, one := range s.list {
		top := one.(object)
		if top["type"] == "mcpServer" {
			list = append(list, object{"of": top, "off": isOff(top), "channel": top["channel"], "id": top["id"]})
			continue
		}
		children, _ := top["children"].([]any)
		for _, one := range children {
			c := one.(object)
			if c["type"] == "mcpServer" {
				list = append(list, object{"of": c, "off": isOff(top) || isOff(c), "channel": c["channel"], "id": c["id"]})
			}
		}
	}
	return list
}

// isOff reports whether a customization is disabled, in the old or the new form.
func isOff(o object) bool {
	list, ok := o["enablement"].([]any)
	switch {
	case !ok:
		return o["enabled"] == false
	case len(list) == 0:
		return false
	}
	return list[0].(object)["enabled"] == false
}

func (m *model) snapshot(v any) {
	o := v.(object)
	uri := o["resource"].(string)
	state, _ := o["state"].(object)
	list, _ := state["customizations"].([]any)
	if list == nil && m.sessions[uri] == nil {
		return
	}
	m.sessions[uri] = &modelSession{true, list}
	m.note()
}

func (m *model) action(v any) {
	o := v.(object)
	a, uri := o["action"].(object), o["channel"].(string)
	clients := a["type"] == "session/customizationToggled" || a["type"] == "session/mcpServerStartRequested" || a["type"] == "session/mcpServerStopRequested"
	if o["rejectionReason"] != nil || o["origin"] != nil && !clients {
		return
	}
	id, _ := a["id"].(string)
	switch a["type"] {
	case "session/customizationsChanged":
		m.sessions[uri] = &modelSession{true, a["customizations"].([]any)}
	case "session/customizationUpdated":
		m.session(uri).upsert(a["customization"].(object))
	case "session/customizationRemoved":
		if s := m.sessions[uri]; s != nil {
			s.remove(id)
		}
	case "session/customizationToggled":
		if s := m.sessions[uri]; s != nil {
			if c := s.find(id); c != nil {
				off := isOff(a)
				delete(c, "enablement")
				c["enabled"] = !off
			}
		}
	case "session/mcpServerStateChanged":
		m.moved(uri, id, a["state"], a["channel"])
	case "session/mcpServerStartRequested":
		m.moved(uri, id, object{"kind": "starting"}, nil)
	case "session/mcpServerStopRequested":
		m.moved(uri, id, object{"kind": "stopped"}, nil)
	}
	m.note()
}

// find returns the customization with this id, at the top or in a container.
func (s *modelSession) find(id string) object {
	for _, one := range s.list {
		if top := one.(object); top["id"] == id {
			return top
		}
	}
	for _, one := range s.list {
		children, _ := one.(object)["children"].([]any)
		for _, c := range children {
			if c.(object)["id"] == id {
				return c.(object)
			}
		}
	}
	return nil
}

func (s *modelSession) upsert(c object) {
	children, _ := c["children"].([]any)
	for _, child := range children {
		s.list = slices.DeleteFunc(s.list, func(o any) bool {
			return o.(object)["partial"] == true && o.(object)["id"] == child.(object)["id"] && child.(object)["type"] == "mcpServer"
		})
	}
	for i, one := range s.list {
		if one.(object)["id"] == c["id"] {
			s.list[i] = c
			return
		}
	}
	s.list = append(s.list, c)
}

func (s *modelSession) remove(id string) {
	is := func(o any) bool { return o.(object)["id"] == id }
	s.list = slices.DeleteFunc(s.list, is)
	for _, one := range s.list {
		if children, ok := one.(object)["children"].([]any); ok {
			one.(object)["children"] = slices.DeleteFunc(slices.Clone(children), is)
		}
	}
}

func (m *model) moved(uri, id string, state, channel any) {
	if text, _ := channel.(string); !strings.HasPrefix(text, "mcp:") {
		channel = nil // a channel outside MCP
	}
	m.advertised = m.advertised || channel != nil // even if the action has no effect
	if m.sessions[uri] == nil && channel == nil {
		return
	}
	s := m.session(uri)
	c := s.find(id)
	switch {
	case c != nil && c["type"] == "mcpServer":
		c["state"], c["channel"] = state, channel
	case c == nil && !s.full && channel != nil:
		s.list = append(s.list, object{"type": "mcpServer", "id": id, "partial": true, "state": state, "channel": channel})
	}
}

// judge returns the verdict that the gate must give a client's message.
func (m *model) judge(channel, method string, request bool) string {
	if !m.named[channel] {
		switch {
		case len(m.named) == 0 && !m.advertised && !m.strict, method == "notifications/progress", method == "notifications/cancelled":
			return "pass"
		case request:
			return "-32008"
		}
		return "drop"
	}
	ready, table, later := m.look(channel)
	_, apps := m.client["mcpApps"]
	if m.strict && m.client != nil && !apps {
		if request {
			return "-32601"
		}
		return "drop"
	}
	strict := m.strict
	if later == "partial" { // the capabilities are unknown, so any method may be served
		later, strict = "set", false
	}
	got := expected(method, request, table, later, ready, strict, m.used[channel])
	if got == "pass" && request {
		m.used[channel] = true
	}
	return got
}

// look returns whether a channel is ready, which known methods it serves, and whether it has
// unknown capabilities: "set", "flag" or "partial".
func (m *model) look(channel string) (ready bool, table, later string) {
	served := map[string]string{
		"serverTools": "tools/list tools/call", "serverResources": "resources/list resources/templates/list resources/read",
		"logging": "logging/setLevel notifications/message", "sampling": "sampling/createMessage",
	}
	for _, s := range m.sessions {
		for _, c := range s.servers() {
			of := c["of"].(object)
			state, _ := of["state"].(object)
			if c["channel"] != channel || c["off"] == true || state != nil && state["kind"] != "ready" {
				continue
			}
			ready = true
			if of["partial"] == true {
				later = "partial"
			}
			app, _ := of["mcpApp"].(object)
			sets, _ := app["capabilities"].(object)
			for name, v := range sets {
				if _, ok := v.(object); !ok {
					continue
				}
				if known, ok := served[name]; ok {
					table += " " + known
				} else if later == "" {
					later = "flag"
				}
			}
			if kit, _ := of["kit"].(object); kit["capabilities"] != nil && later != "partial" {
				later = "set"
			}
		}
	}
	return ready, table, later
}

// script draws random messages of hosts and clients.
type script struct{ dice *rand.Rand }

func (s script) oneOf(list ...string) string { return list[s.dice.IntN(len(list))] }

func (s script) uri() string {
	return s.oneOf("mcp://h/1", "mcp://h/2", "mcp://h/3", "mcp://h/ü 4", "ahp-chat:/1")
}

func (s script) session() string { return s.oneOf("ahp-session:/1", "mock:/2", "ahp-session:/3") }

func (s script) state() object {
	return object{"kind": s.oneOf("ready", "ready", "ready", "starting", "authRequired", "stopped")}
}

func (s script) server(id string) object {
	o := object{"type": "mcpServer", "id": id, "name": "customization \"mcpServer\""}
	if s.dice.IntN(3) > 0 {
		o["state"] = s.state()
	}
	if s.dice.IntN(4) > 0 {
		o["channel"] = s.uri()
	}
	if s.dice.IntN(6) == 0 {
		s.able(o)
	}
	if s.dice.IntN(4) > 0 {
		sets := object{}
		for _, name := range []string{"serverTools", "serverResources", "logging", "sampling", "later"} {
			switch s.dice.IntN(8) {
			case 0, 1:
				sets[name] = object{}
			case 2:
				sets[name] = object{"listChanged": s.dice.IntN(2) == 0}
			case 3:
				sets[name] = nil
			}
		}
		if s.dice.IntN(2) == 0 {
			delete(sets, "later")
		}
		o["mcpApp"] = object{"capabilities": sets}
	}
	if s.dice.IntN(10) == 0 {
		o["kit"] = object{"capabilities": object{}}
	}
	return o
}

// able adds a random member that enables or disables a customization, in the form before or after
// AHP 0.8.
func (s script) able(o object) {
	switch is := s.dice.IntN(2) == 0; s.dice.IntN(3) {
	case 0:
		o["enabled"] = is
	case 1:
		o["enablement"] = []any{object{"kind": "session", "enabled": is}, object{"kind": "global", "enabled": !is}}
	default:
		o["enablement"] = []any{}
	}
}

// container returns a random customization, perhaps with children.
func (s script) container() object {
	n := s.dice.IntN(4)
	id := fmt.Sprint("top", n)
	if n < 2 {
		return s.server(id)
	}
	o := object{"type": s.oneOf("plugin", "directory"), "id": id}
	if s.dice.IntN(5) == 0 {
		s.able(o)
	}
	var children []any
	for i := range s.dice.IntN(3) {
		child := s.server(fmt.Sprint(id, "-", i))
		if s.dice.IntN(4) == 0 {
			child = object{"type": "skill", "id": fmt.Sprint(child["id"], "-skill")}
		}
		children = append(children, child)
	}
	if children != nil {
		o["children"] = children
	}
	return o
}

func (s script) list() []any {
	list, taken := []any{}, map[any]bool{}
	for range s.dice.IntN(4) {
		if c := s.container(); !taken[c["id"]] {
			taken[c["id"]] = true
			list = append(list, c)
		}
	}
	return list
}

func (s script) id() string {
	return s.oneOf("top0", "top1", "top2", "top3", "top2-0", "top2-1", "top3-0")
}

func (s script) action() object {
	a := object{"type": s.oneOf("session/customizationsChanged", "session/customizationUpdated", "session/customizationUpdated",
		"session/customizationRemoved", "session/customizationToggled", "session/customizationToggled",
		"session/mcpServerStateChanged", "session/mcpServerStateChanged", "session/mcpServerStartRequested", "session/mcpServerStopRequested",
		"session/titleChanged")}
	switch a["type"] {
	case "session/customizationsChanged":
		a["customizations"] = s.list()
	case "session/customizationUpdated":
		a["customization"] = s.container()
	case "session/customizationToggled":
		a["id"] = s.id()
		s.able(a)
	case "session/mcpServerStateChanged":
		a["id"], a["state"] = s.oneOf("top0", "top1", "top2-0", "top2-1", "top3-0"), s.state()
		if s.dice.IntN(3) > 0 {
			a["channel"] = s.uri()
		}
	case "session/mcpServerStartRequested", "session/mcpServerStopRequested":
		a["id"] = s.oneOf("top0", "top1", "top2-0", "top2-1", "top3-0")
	default:
		a["id"] = s.id()
	}
	o := object{"channel": s.session(), "serverSeq": 3, "action": a}
	if s.dice.IntN(10) == 0 {
		o["rejectionReason"] = "no"
	}
	if s.dice.IntN(6) == 0 {
		o["origin"] = object{"clientId": "c", "clientSeq": 1}
	}
	return o
}

func (s script) snapshot() object {
	state := object{"title": "x"}
	if s.dice.IntN(4) > 0 {
		state["customizations"] = s.list()
	}
	return object{"resource": s.session(), "state": state, "fromSeq": 1}
}

// text encodes a message as JSON, sometimes with unnecessary escapes.
func (s script) text(v any) string {
	data, _ := json.Marshal(v)
	text := string(data)
	switch s.dice.IntN(5) {
	case 0:
		text = strings.ReplaceAll(text, "/", `\/`)
	case 1:
		text = strings.ReplaceAll(text, "mcpServer", `mcp\u0053erver`)
		text = strings.ReplaceAll(text, "customization", `c\u0075stomi\u007Aation`)
	case 2:
		text = strings.ReplaceAll(text, `":`, "\" :\t")
	}
	return text
}

// TestGateFollowsTheModel sends random messages to the gate and to the model. Their verdicts must
// be equal.
func TestGateFollowsTheModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed, steps := rapid.Uint64().Draw(rt, "seed"), rapid.IntRange(1, 60).Draw(rt, "steps")
		for i := range uint64(3) {
			converse(t, rt, script{rand.New(rand.NewPCG(seed, i))}, steps)
		}
	})
}

func converse(t *testing.T, rt *rapid.T, s script, steps int) {
	strict := s.dice.IntN(4) == 0
	host := view.NewHost(nil)
	m, w := newModel(strict), newWire(t, host, mcpgate.Config{Strict: strict})
	var said []string
	for id := range steps {
		switch s.dice.IntN(9) {
		case 8:
			if m.greeted {
				if s.dice.IntN(2) == 0 {
					w.gate.Leave() // otherwise the first connection still exists
				}
				w = newWire(t, host, mcpgate.Config{Strict: strict})
				said = append(said, m.resume(w, s, id))
			}
		case 0:
			said = append(said, m.greet(w, s, id))
		case 1, 2:
			o := s.action()
			text := s.text(object{"jsonrpc": "2.0", "method": "action", "params": o})
			said = append(said, text)
			w.host(text)
			m.action(decoded(o))
		case 3:
			list := []any{s.action(), s.action()}
			text := s.text(object{"method": "channel/frame", "params": object{"channel": "ahp-session:/1", "frame": 1, "actions": list}})
			said = append(said, text)
			w.host(text)
			for _, o := range list {
				m.action(decoded(o))
			}
		case 4:
			gone := s.session()
			if s.dice.IntN(3) == 0 {
				text := s.text(object{"method": "root/sessionRemoved", "params": object{"channel": "ahp-root://", "session": gone}})
				said = append(said, text)
				w.host(text)
				delete(m.sessions, gone)
			}
		default:
			channel, method, request := s.uri(), clientMethods[s.dice.IntN(len(clientMethods))], s.dice.IntN(3) > 0
			o := object{"method": method, "params": object{"channel": channel}}
			if s.dice.IntN(2) == 0 {
				o = object{"method": method, "channel": channel, "params": object{}}
			}
			if request {
				o["id"] = id
			}
			text := s.text(o)
			said = append(said, text)
			if got, want := verdict(w.client(text)), m.judge(channel, method, request); got != want && strings.HasPrefix(channel, "mcp") {
				rt.Fatalf("%s; want %s, after\n%s", got, want, strings.Join(said, "\n"))
			}
		}
	}
}

// resume continues the client on a new connection, with a replay from the host.
func (m *model) resume(w *wire, s script, id int) string {
	var subscriptions []string
	kept := map[string]*modelSession{}
	for _, uri := range []string{"ahp-session:/1", "mock:/2", "ahp-session:/3"} {
		if s.dice.IntN(3) > 0 {
			subscriptions = append(subscriptions, uri)
			if m.sessions[uri] != nil {
				kept[uri] = m.sessions[uri]
			}
		}
	}
	missing := s.session()
	delete(kept, missing)
	m.sessions, m.named, m.used, m.advertised = kept, map[string]bool{}, map[string]bool{}, m.advertised || len(m.named) > 0
	m.note()
	actions := []any{s.action(), s.action()}
	ask := s.text(object{"id": id, "method": "reconnect", "params": object{"clientId": "c", "subscriptions": subscriptions}})
	answer := s.text(object{"id": id, "result": object{"type": "replay", "actions": actions, "missing": []any{missing}}})
	w.client(ask)
	w.host(answer)
	for _, o := range actions {
		m.action(decoded(o))
	}
	return ask + "\n" + answer
}

// decoded returns what a client decodes from a host's message.
func decoded(v any) (copied any) {
	data, _ := json.Marshal(v)
	_ = json.Unmarshal(data, &copied)
	return copied
}

// greet sends a client's request whose answer has state, and applies the answer to the model.
func (m *model) greet(w *wire, s script, id int) string {
	method := s.oneOf("initialize", "subscribe", "subscribe", "reconnect")
	params, answer := object{"channel": "ahp-root://", "clientId": "c"}, object{}
	caps := object{}
	switch method {
	case "initialize":
		if s.dice.IntN(2) == 0 {
			caps["mcpApps"] = object{}
		}
		params["capabilities"] = caps
		answer["snapshots"] = []any{s.snapshot(), s.snapshot()}
	case "subscribe":
		o := s.snapshot()
		params["channel"] = o["resource"]
		answer["snapshot"] = o
	case "reconnect":
		answer["actions"] = []any{s.action(), s.action(), s.action()}
	}
	ask, reply := s.text(object{"id": id, "method": method, "params": params}), object{"id": id, "result": answer}
	if s.dice.IntN(6) == 0 {
		reply = object{"id": id, "error": object{"code": -1, "message": "no"}, "x": answer}
	}
	text := s.text(reply)
	w.client(ask)
	if w.host(text); reply["error"] != nil {
		return ask + "\n" + text
	}
	if method == "initialize" {
		m.client = caps
	}
	m.greeted = m.greeted || method != "subscribe"
	if o := answer["snapshot"]; o != nil {
		m.snapshot(decoded(o))
	}
	for _, list := range []any{answer["snapshots"], answer["actions"]} {
		list, _ := list.([]any)
		for _, o := range list {
			if o.(object)["action"] != nil {
				m.action(decoded(o))
			} else {
				m.snapshot(decoded(o))
			}
		}
	}
	return ask + "\n" + text
}
