package gate

import (
	"bytes"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// A method is what is known of a request or notification of clients.
type method struct {
	needs auth.Access // the level that allows it; "": as what changes anything
	basic bool        // lists of methods need not name it: without it there is no connection, or nothing to see on it
	where target
}

// level is the level of access that a method needs.
func (m method) level() auth.Access {
	if m.needs == "" {
		return auth.AccessWrite
	}
	return m.needs
}

// A target is where a method names what it is about.
type target int

const (
	onChannel   target = iota // its channel
	onAny                     // nothing: it is about the connection
	onHost                    // the whole host
	onResource                // URIs in its params
	onSource                  // its channel, and URIs in its params that something is made from
	onSubscribe               // lists of channels
	onList                    // nothing: the answer is made to fit
)

// methods are the requests and notifications of AHP that clients send. All
// others are unknown.
var methods = map[string]method{
	"initialize":  {needs: auth.AccessRead, basic: true, where: onSubscribe},
	"reconnect":   {needs: auth.AccessRead, basic: true, where: onSubscribe},
	"ping":        {needs: auth.AccessRead, basic: true, where: onAny},
	"subscribe":   {needs: auth.AccessRead, basic: true, where: onChannel},
	"unsubscribe": {needs: auth.AccessRead, basic: true, where: onAny},

	// Flow control of a subscription.
	"channel/ack":    {needs: auth.AccessRead, basic: true, where: onChannel},
	"channel/credit": {needs: auth.AccessRead, basic: true, where: onChannel},
	"channel/reset":  {where: onChannel},
	"channel/frame":  {where: onChannel},

	"listSessions":       {needs: auth.AccessRead, where: onList},
	"fetchTurns":         {needs: auth.AccessRead, where: onChannel},
	"canvasReadResource": {needs: auth.AccessRead, where: onChannel},
	"resourceRead":       {needs: auth.AccessRead, where: onResource},
	"resourceList":       {needs: auth.AccessRead, where: onResource},
	"resourceResolve":    {needs: auth.AccessRead, where: onResource},

	"dispatchAction": {needs: auth.AccessTalk, where: onChannel}, // and as its action says, see actions
	"createSession":  {where: onSource},
	"disposeSession": {where: onChannel},
	"createChat":     {where: onSource},
	"moveChat":       {where: onSource},
	"disposeChat":    {where: onChannel},
	"completions":    {where: onChannel},

	"createTerminal":           {where: onChannel},
	"disposeTerminal":          {where: onChannel},
	"invokeChangesetOperation": {where: onChannel},
	"createTcpConnection":      {where: onChannel},
	"tcp/data":                 {where: onChannel},
	"tcp/eof":                  {where: onChannel},

	"resourceWrite":       {where: onResource},
	"resourceCopy":        {where: onResource},
	"resourceDelete":      {where: onResource},
	"resourceMove":        {where: onResource},
	"resourceMkdir":       {where: onResource},
	"resourceRequest":     {where: onResource},
	"createResourceWatch": {where: onResource},

	"authenticate":                     {where: onHost},
	"resolveSessionConfig":             {where: onHost},
	"sessionConfigCompletions":         {where: onHost},
	"listAutomationTriggerDefinitions": {needs: auth.AccessRead, where: onHost},
	"runAutomation":                    {where: onSource},
	"fetchAutomationRuns":              {needs: auth.AccessRead, where: onSource},

	// A provider's, which a client may not ask of a host.
	"canvasOpen":            {where: onChannel},
	"canvasInvokeAction":    {where: onChannel},
	"canvasInvokeOperation": {where: onChannel},
	"canvasClose":           {where: onChannel},
}

// mcpMethods are the requests and notifications of MCP that clients send on
// mcp:// channels.
var mcpMethods = map[string]method{
	"ping":                     {needs: auth.AccessRead},
	"tools/list":               {needs: auth.AccessRead},
	"resources/list":           {needs: auth.AccessRead},
	"resources/templates/list": {needs: auth.AccessRead},
	"resources/read":           {needs: auth.AccessRead},
	"prompts/list":             {needs: auth.AccessRead},
	"prompts/get":              {needs: auth.AccessRead},

	"tools/call":              {},
	"logging/setLevel":        {},
	"sampling/createMessage":  {},
	"completion/complete":     {},
	"notifications/message":   {},
	"notifications/cancelled": {},
	"notifications/progress":  {},

	// AHP's own, which concern the channel.
	"subscribe":   methods["subscribe"],
	"unsubscribe": methods["unsubscribe"],
}

// mcpScheme begins the channels that carry messages of MCP.
const mcpScheme = "mcp:"

// methodOf returns what is known of a message's method.
func methodOf(env *ahp.Envelope) (method, bool) {
	if bytes.HasPrefix(env.Channel, []byte(mcpScheme)) {
		m, ok := mcpMethods[string(env.Method)]
		return m, ok
	}
	m, ok := methods[string(env.Method)]
	return m, ok
}
