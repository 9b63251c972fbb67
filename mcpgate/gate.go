package mcpgate

import (
	"slices"

	"ahprelay/ahp"
	"ahprelay/gate"
	"ahprelay/view"
)

// An Event is something that a gate has seen, to be counted and logged.
type Event struct {
	Kind   string // Warning, Rejection or Observation
	Class  string // why, one of [Classes]
	Method string // of the message, cut; "" if it has none
}

// Kinds of events.
const (
	Warning     = "warning"     // the message has passed
	Rejection   = "rejection"   // it has not
	Observation = "observation" // not enough is known to say whether it should
)

// Classes of events beside those of missing capabilities.
const (
	methodNotServed       = "method_not_served"
	notificationNotServed = "notification_not_served"
	channelUnavailable    = "channel_unavailable"
	listChangedNotServed  = "list_changed_not_served"
	unknownCapabilitySet  = "unknown_capability_set"
	capabilitiesUnknown   = "client_capabilities_unknown"
	notKept               = "state_not_kept"
)

// Classes returns the classes of a kind of events.
func Classes(kind string) (list []string) {
	switch kind {
	case Warning:
		list = missing()
	case Rejection:
		list = append(missing(), methodNotServed, notificationNotServed, channelUnavailable, listChangedNotServed)
	case Observation:
		list = []string{unknownCapabilitySet, capabilitiesUnknown, notKept}
	}
	slices.Sort(list)
	return list
}

func missing() (list []string) {
	for _, class := range classOf {
		list = append(list, class)
	}
	return list
}

// Config says how the gate of a connection is to work.
type Config struct {
	Strict bool

	// Event is told what the gate has seen, Changed that [Conn.State] is
	// another. Both may be nil, and are called by the callers of FromClient and
	// FromHost.
	Event   func(Event)
	Changed func()
}

// A Conn is the gate of a client's connection to the host. It implements
// [gate.Gate].
type Conn struct {
	cfg  Config
	view *view.Conn

	register *register // the fields below are guarded by its lock
	client   declared
	greeted  bool    // the host has accepted initialize or reconnect
	events   []Event // to be told when the lock is free
	changed  bool
}

// New returns the gate of a new connection, of which v reads what is said.
func New(v *view.Conn, cfg Config) *Conn {
	return &Conn{cfg: cfg, view: v, register: newRegister()}
}

// Leave says that the connection has ended. What the host has said to the client
// is kept for when it comes again.
func (c *Conn) Leave() {
	c.register.mu.Lock()
	servers := c.register.servers
	c.register.channels = nil
	c.register.mu.Unlock()
	c.view.Weigh(c.register, servers)
}

// unlock ends a call, and tells what has come of it.
func (c *Conn) unlock() {
	events, changed := c.events, c.changed
	c.events, c.changed = nil, false
	c.register.mu.Unlock()
	if c.cfg.Event != nil {
		for _, e := range events {
			c.cfg.Event(e)
		}
	}
	if changed && c.cfg.Changed != nil {
		c.cfg.Changed()
	}
}

// maxMethod is how much of a method is told, in bytes.
const maxMethod = 64

func (c *Conn) note(kind, class string, method []byte) {
	c.events = append(c.events, Event{kind, class, string(method[:min(len(method), maxMethod)])})
}

// FromClient implements [gate.Gate].
func (c *Conn) FromClient(_ []byte, env *ahp.Envelope) gate.Decision {
	switch {
	case env.Kind == ahp.Response:
		return gate.Decision{}
	case isMCP(env.Channel):
		c.register.mu.Lock()
		defer c.unlock()
		return c.toServer(env)
	case env.Kind == ahp.Request && saysState(string(env.Method)):
		if _, full := c.view.Waits(env.ID); full { // what the answer says will not be known
			c.register.mu.Lock()
			defer c.unlock()
			c.note(Observation, notKept, env.Method)
		}
	}
	return gate.Decision{}
}

// saysState reports whether the answer to a request may say what servers there
// are.
func saysState(method string) bool { return opens(method) || method == "subscribe" }

// opens reports whether a request is one that a connection begins with.
func opens(method string) bool { return method == "initialize" || method == "reconnect" }

// served returns what a channel serves in the mode of this connection, and
// whether it is ready at all.
func (c *Conn) served(ch *channel) (all surface, ready bool) {
	all, ready = ch.served()
	if c.cfg.Strict {
		all &^= laterFlag | laterSet
	}
	return all, ready
}

// toServer judges a message of the client's on a channel of the scheme mcp.
func (c *Conn) toServer(env *ahp.Envelope) gate.Decision {
	ch := c.register.channels[string(env.Channel)]
	if ch == nil {
		return c.toUnknown(env)
	}
	sets, ready := c.served(ch)
	yes, unsure := sets.serves(env.Method)
	switch {
	case c.cfg.Strict && c.client.lacks(mcpApps):
		return c.reject(env, classOf[mcpApps], ahp.CodeMethodNotFound, "the client has not declared the capability mcpApps")
	case belongsToRequest(env.Method) && ch.used:
		return gate.Decision{}
	case !ready:
		return c.reject(env, channelUnavailable, ahp.CodeNotFound, unavailable(ch))
	case !yes && env.Kind == ahp.Notification:
		return c.reject(env, notificationNotServed, 0, "")
	case !yes:
		return c.reject(env, methodNotServed, ahp.CodeMethodNotFound, "the MCP server's channel does not serve this method")
	}
	if unsure && sets&partial == 0 {
		c.note(Observation, unknownCapabilitySet, env.Method)
	}
	ch.used = ch.used || env.Kind == ahp.Request
	return gate.Decision{}
}

// toUnknown judges a message of the client's on a channel of the scheme mcp that
// the host has not named to it. Where the host names none to anybody, it may use
// that scheme in its own way.
func (c *Conn) toUnknown(env *ahp.Envelope) gate.Decision {
	if !c.view.Host().HasServers() && !c.cfg.Strict || belongsToRequest(env.Method) {
		return gate.Decision{}
	}
	return c.reject(env, channelUnavailable, ahp.CodeNotFound, "the host has not named this MCP server's channel to the client")
}

// unavailable says why a channel is not ready.
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

// reject refuses a message of the client's.
func (c *Conn) reject(env *ahp.Envelope, class string, code int, message string) gate.Decision {
	c.note(Rejection, class, env.Method)
	if env.Kind == ahp.Notification {
		return gate.Decision{Verdict: gate.Answer}
	}
	return gate.Decision{Verdict: gate.Answer, Message: refusal(env, code, message)}
}

// refusal answers a request. On a channel of the scheme mcp the answer names
// it, as MCP's own messages there do.
func refusal(env *ahp.Envelope, code int, message string) []byte {
	answer := ahp.AppendError(nil, env.ID, code, message, nil)
	if !isMCP(env.Channel) {
		return answer
	}
	return ahp.AppendChannel(answer, env.Channel)
}

// FromHost implements [gate.Gate].
func (c *Conn) FromHost(_ []byte, env *ahp.Envelope, said *view.Reading) gate.Decision {
	switch {
	case env == nil:
		return gate.Decision{}
	case env.Kind == ahp.Request:
		if need := neededFor[string(env.Method)]; need != 0 {
			c.register.mu.Lock()
			defer c.unlock()
			return c.toClient(env, need)
		}
	case said != nil:
		c.learn(env, said)
	case env.Kind == ahp.Notification && isMCP(env.Channel) && isListChanged(env.Method):
		c.register.mu.Lock()
		defer c.unlock()
		return c.listChanged(env)
	}
	return gate.Decision{}
}

// toClient judges a request of the host's that needs a capability.
func (c *Conn) toClient(env *ahp.Envelope, need capability) gate.Decision {
	switch {
	case !c.client.known:
		c.note(Observation, capabilitiesUnknown, env.Method)
	case !c.client.lacks(need):
	case c.cfg.Strict:
		c.note(Rejection, classOf[need], env.Method)
		text := "the client has not declared the capability " + nameOf[need]
		return gate.Decision{Verdict: gate.Answer, Message: refusal(env, ahp.CodeMethodNotFound, text)}
	default:
		c.note(Warning, classOf[need], env.Method)
	}
	return gate.Decision{}
}

// listChanged judges a notification of the host's on a channel of the scheme
// mcp.
func (c *Conn) listChanged(env *ahp.Envelope) gate.Decision {
	ch := c.register.channels[string(env.Channel)]
	if ch == nil {
		return gate.Decision{}
	}
	sets, _ := c.served(ch)
	yes, unsure := sets.forwards(env.Method)
	switch {
	case !yes:
		c.note(Rejection, listChangedNotServed, env.Method)
		return gate.Decision{Verdict: gate.Answer}
	case unsure && sets&partial == 0:
		c.note(Observation, unknownCapabilitySet, env.Method)
	}
	return gate.Decision{}
}

// learn takes note of what the host says.
func (c *Conn) learn(env *ahp.Envelope, said *view.Reading) {
	method := said.Call.Method
	if !said.Answers {
		method = string(env.Method)
	}
	greets := said.Accepted && opens(method)
	var before map[string]*session
	if greets {
		if kept, _ := c.view.Kept().(*register); kept != nil && kept != c.register && method == "reconnect" {
			before = kept.some(said.Granted)
		}
		c.view.Keep(c.register)
	}
	c.register.mu.Lock()
	defer c.unlock()
	if greets {
		c.greet(method)
		c.resume(before, said)
	}
	l := lesson{lost: said.Lost}
	for i := range said.Facts {
		c.register.learn(&l, &said.Facts[i])
	}
	c.learnt(l, method)
}

// greet takes what a client has declared that the host has let in.
func (c *Conn) greet(method string) {
	if capabilities, earlier, known := c.view.Declared(); earlier {
		c.client = readDeclared(capabilities, fromEarlier)
	} else if known {
		c.client = readDeclared(capabilities, method)
	}
	c.greeted, c.changed = true, true
}

// resume takes over what the host has said on an earlier connection of the
// sessions that the client goes on with, but of those whose state it tells anew.
func (c *Conn) resume(before map[string]*session, said *view.Reading) {
	if said.Anew {
		return
	}
	for _, told := range said.Told {
		delete(before, told)
	}
	for uri, s := range before {
		if c.register.sessions[uri] == nil {
			c.register.put(uri, s)
		}
	}
}

// learnt counts what came with a message.
func (c *Conn) learnt(l lesson, method string) {
	c.changed = c.changed || l.changed
	if l.lost {
		c.note(Observation, notKept, []byte(method))
	}
	if l.apps > 0 && c.client.lacks(mcpApps) {
		c.note(Warning, classOf[mcpApps], []byte(method))
	}
}
