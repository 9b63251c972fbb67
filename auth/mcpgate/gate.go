package mcpgate

import (
	"maps"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
)

// An Event reports a gate's finding about a message, for counters and logs.
type Event struct {
	Kind   string // Warning, Rejection or Observation
	Class  string // the reason, one of [Classes]
	Method string // the message's method, truncated; "" if it has none
}

// Event kinds.
const (
	Warning     = "warning"     // the message has passed
	Rejection   = "rejection"   // the message has not passed
	Observation = "observation" // the gate knows too little to decide
)

// Event classes besides those for missing capabilities.
const (
	methodNotServed       = "method_not_served"
	notificationNotServed = "notification_not_served"
	channelUnavailable    = "channel_unavailable"
	listChangedNotServed  = "list_changed_not_served"
	unknownCapabilitySet  = "unknown_capability_set"
	capabilitiesUnknown   = "client_capabilities_unknown"
	notKept               = "state_not_kept"
	progressUndeclared    = "progress_without_client_capability"
)

// Classes returns an event kind's classes.
func Classes(kind string) (list []string) {
	switch kind {
	case Warning:
		list = append(missing(), progressUndeclared)
	case Rejection:
		list = append(missing(), methodNotServed, notificationNotServed, channelUnavailable, listChangedNotServed)
	case Observation:
		list = []string{unknownCapabilitySet, capabilitiesUnknown, notKept}
	}
	slices.Sort(list)
	return list
}

func missing() []string { return slices.Collect(maps.Values(classOf)) }

// Config configures a connection's gate.
type Config struct {
	Strict bool // strict mode, see the package documentation

	// Event is called for each finding, and Changed after the result of [Gate.State] has
	// changed. Both may be nil. They run in calls of FromClient and FromHost.
	Event   func(Event)
	Changed func()
}

// A Gate is the gate for a client's connection to the host. It implements [gate.Gate].
type Gate struct {
	cfg  Config
	view *view.Conn

	register *register // the fields below are guarded by its lock
	client   declared
	greeted  bool    // the host has accepted initialize or reconnect
	asked    bool    // the client has sent a progressToken on an mcp:// channel
	events   []Event // reported when the lock is free
	changed  bool
}

// New returns the gate for a new connection with view v.
func New(v *view.Conn, cfg Config) *Gate {
	return &Gate{cfg: cfg, view: v, register: &register{sessions: map[string]*session{}, channels: map[string]*channel{}, silent: map[string]bool{}}}
}

// Leave ends the connection. The host's facts about servers are kept for the client's return.
func (g *Gate) Leave() {
	g.register.mu.Lock()
	servers := g.register.servers
	g.register.channels = nil
	g.register.mu.Unlock()
	g.view.Weigh(g.register, servers)
}

func (g *Gate) unlock() {
	events, changed := g.events, g.changed
	g.events, g.changed = nil, false
	g.register.mu.Unlock()
	if g.cfg.Event != nil {
		for _, e := range events {
			g.cfg.Event(e)
		}
	}
	if changed && g.cfg.Changed != nil {
		g.cfg.Changed()
	}
}

// maxMethod is the longest method in an event, in bytes.
const maxMethod = 64

func (g *Gate) note(kind, class string, method []byte) {
	g.events = append(g.events, Event{kind, class, string(method[:min(len(method), maxMethod)])})
}

// FromClient implements [gate.Gate].
func (g *Gate) FromClient(_ []byte, env *ahp.Envelope) gate.Decision {
	switch {
	case env.Kind == ahp.Response:
		return gate.Decision{}
	case isMCP(env.Channel):
		g.register.mu.Lock()
		defer g.unlock()
		g.asked = g.asked || asksForProgress(env.Params)
		return g.toServer(env)
	case env.Kind == ahp.Request && (opens(string(env.Method)) || string(env.Method) == "subscribe"): // the response may describe servers
		if _, full := g.view.Waits(env.ID); full { // the response will be unknown
			g.register.mu.Lock()
			defer g.unlock()
			g.note(Observation, notKept, env.Method)
		}
	}
	return gate.Decision{}
}

func opens(method string) bool { return method == "initialize" || method == "reconnect" }

// served returns the capabilities that a channel serves in this connection's mode, and
// whether the channel is ready.
func (g *Gate) served(ch *channel) (all surface, ready bool) {
	all, ready = ch.served()
	if g.cfg.Strict {
		all &^= laterFlag | laterSet
	}
	return all, ready
}

// toServer judges a client's message on an mcp:// channel.
func (g *Gate) toServer(env *ahp.Envelope) gate.Decision {
	ch := g.register.channels[string(env.Channel)]
	if ch == nil {
		return g.toUnknown(env)
	}
	sets, ready := g.served(ch)
	yes, unsure := sets.serves(env.Method)
	switch {
	case g.cfg.Strict && g.client.lacks(mcpApps):
		return g.reject(env, classOf[mcpApps], ahp.CodeMethodNotFound, "the client has not declared the capability mcpApps")
	case belongsToRequest(env.Method) && ch.used:
		return gate.Decision{}
	case !ready:
		return g.reject(env, channelUnavailable, ahp.CodeNotFound, unavailable(ch))
	case !yes && env.Kind == ahp.Notification:
		return g.reject(env, notificationNotServed, 0, "")
	case !yes:
		return g.reject(env, methodNotServed, ahp.CodeMethodNotFound, "the MCP server's channel does not serve this method")
	}
	if unsure && sets&partial == 0 {
		g.note(Observation, unknownCapabilitySet, env.Method)
	}
	ch.used = ch.used || env.Kind == ahp.Request
	return gate.Decision{}
}

// toUnknown judges a client's message on an mcp:// channel that the host has not named to
// this client.
func (g *Gate) toUnknown(env *ahp.Envelope) gate.Decision {
	if !g.view.Host().HasServers() && !g.cfg.Strict || belongsToRequest(env.Method) {
		return gate.Decision{}
	}
	return g.reject(env, channelUnavailable, ahp.CodeNotFound, "the host has not named this MCP server's channel to the client")
}

func unavailable(ch *channel) string {
	why := "the MCP server's channel is not available"
	switch {
	case len(ch.named) == 0:
		return why + " any more"
	case ch.named[0].off:
		return why + ": the server is disabled"
	}
	return why + ": the server's state is " + ch.named[0].state
}

func (g *Gate) reject(env *ahp.Envelope, class string, code int, message string) gate.Decision {
	g.note(Rejection, class, env.Method)
	if env.Kind == ahp.Notification {
		return gate.Decision{Verdict: gate.Answer}
	}
	return gate.Decision{Verdict: gate.Answer, Message: refusal(env, code, message)}
}

// refusal returns an error response to a request. On an mcp:// channel the response names
// the channel, as MCP messages there do.
func refusal(env *ahp.Envelope, code int, message string) []byte {
	answer := ahp.AppendError(nil, env.ID, code, message, nil)
	if !isMCP(env.Channel) {
		return answer
	}
	return ahp.AppendChannel(answer, env.Channel)
}

// FromHost implements [gate.Gate].
func (g *Gate) FromHost(_ []byte, env *ahp.Envelope, reading *view.Reading) gate.Decision {
	switch {
	case env == nil:
		return gate.Decision{}
	case env.Kind == ahp.Request:
		if need := neededFor[string(env.Method)]; need != 0 {
			g.register.mu.Lock()
			defer g.unlock()
			return g.toClient(env, need)
		}
	case reading != nil:
		g.learn(env, reading)
	case env.Kind == ahp.Notification && isMCP(env.Channel) && isListChanged(env.Method):
		g.register.mu.Lock()
		defer g.unlock()
		return g.listChanged(env)
	case env.Kind == ahp.Notification && isMCP(env.Channel) && string(env.Method) == mcpProgress:
		g.register.mu.Lock()
		defer g.unlock()
		if g.client.lacks(progress) && !g.asked {
			g.note(Warning, progressUndeclared, env.Method)
		}
	}
	return gate.Decision{}
}

// toClient judges a host's request for which the client needs a capability.
func (g *Gate) toClient(env *ahp.Envelope, need capability) gate.Decision {
	switch {
	case !g.client.known:
		g.note(Observation, capabilitiesUnknown, env.Method)
	case !g.client.lacks(need):
	case g.cfg.Strict:
		g.note(Rejection, classOf[need], env.Method)
		text := "the client has not declared the capability " + nameOf[need]
		return gate.Decision{Verdict: gate.Answer, Message: refusal(env, ahp.CodeMethodNotFound, text)}
	default:
		g.note(Warning, classOf[need], env.Method)
	}
	return gate.Decision{}
}

// listChanged judges a host's notification on an mcp:// channel.
func (g *Gate) listChanged(env *ahp.Envelope) gate.Decision {
	ch := g.register.channels[string(env.Channel)]
	if ch == nil {
		return gate.Decision{}
	}
	sets, _ := g.served(ch)
	yes, unsure := sets.forwards(env.Method)
	switch {
	case !yes:
		g.note(Rejection, listChangedNotServed, env.Method)
		return gate.Decision{Verdict: gate.Answer}
	case unsure && sets&partial == 0:
		g.note(Observation, unknownCapabilitySet, env.Method)
	}
	return gate.Decision{}
}

func (g *Gate) learn(env *ahp.Envelope, reading *view.Reading) {
	method := reading.Call.Method
	if !reading.Answers {
		method = string(env.Method)
	}
	greets := reading.Accepted && opens(method)
	var before map[string]*session
	if greets {
		if kept, _ := g.view.Kept().(*register); kept != nil && kept != g.register && method == "reconnect" {
			before = kept.some(reading.Granted)
		}
		g.view.Keep(g.register)
	}
	g.register.mu.Lock()
	defer g.unlock()
	if greets {
		g.greet(method)
		g.resume(before, reading)
	}
	unstated := reading.Unstated()
	l := findings{lost: reading.Lost}
	for i := range reading.Facts {
		g.register.learn(&l, &reading.Facts[i])
	}
	for _, uri := range unstated {
		if mayHaveServers(uri, unstated) && !g.register.knows(uri) {
			reading.Ask(uri)
		}
	}
	g.reportFindings(l, method)
}

// mayHaveServers reports whether a URI may be a session: it is not a chat, and not below
// another channel in the list.
func mayHaveServers(uri string, others []string) bool {
	below := func(other string) bool { return strings.HasPrefix(uri, other+"/") }
	return !strings.HasPrefix(uri, "ahp-chat:") && !slices.ContainsFunc(others, below)
}

// greet records the client's capabilities when the host has accepted initialize or
// reconnect.
func (g *Gate) greet(method string) {
	if capabilities, earlier, known := g.view.Declared(); earlier {
		g.client = readDeclared(capabilities, fromEarlier)
	} else if known {
		g.client = readDeclared(capabilities, method)
	}
	g.greeted, g.changed = true, true
}

// resume adopts an earlier connection's facts about the client's sessions, except for
// sessions whose state is in this message.
func (g *Gate) resume(before map[string]*session, reading *view.Reading) {
	if reading.Anew {
		return
	}
	for _, uri := range reading.Stated {
		delete(before, uri)
	}
	for uri, s := range before {
		switch {
		case g.register.sessions[uri] != nil:
		case s == nil:
			g.register.recordNone(uri)
		default:
			g.register.put(uri, s)
		}
	}
}

func (g *Gate) reportFindings(l findings, method string) {
	g.changed = g.changed || l.changed
	if l.lost {
		g.note(Observation, notKept, []byte(method))
	}
	if l.apps > 0 && g.client.lacks(mcpApps) {
		g.note(Warning, classOf[mcpApps], []byte(method))
	}
}
