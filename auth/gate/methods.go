package gate

import (
	"bytes"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// A method describes a request or notification that clients send.
type method struct {
	needs auth.Access // the required level; "": the level operate
	basic bool        // lists of methods need not name it: without it a client has no connection, or sees nothing
	where target
}

// level returns the access level that a method needs.
func (m method) level() auth.Access {
	if m.needs == "" {
		return auth.AccessWrite
	}
	return m.needs
}

// A target is the place where a method names its subject.
type target int

const (
	onChannel   target = iota // the message's channel
	onAny                     // nowhere: the method concerns the connection
	onHost                    // the whole host
	onResource                // URIs in the params
	onSource                  // the channel, and URIs of sources in the params
	onSubscribe               // lists of channels
	onList                    // nowhere: the response is filtered
)

// methods are AHP's requests and notifications that clients send. All others are
// unknown.
var methods = map[string]method{
	"initialize":  {needs: auth.AccessRead, basic: true, where: onSubscribe},
	"reconnect":   {needs: auth.AccessRead, basic: true, where: onSubscribe},
	"ping":        {needs: auth.AccessRead, basic: true, where: onAny},
	"subscribe":   {needs: auth.AccessRead, basic: true, where: onChannel},
	"unsubscribe": {needs: auth.AccessRead, basic: true, where: onAny},

	// Flow control for a subscription.
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

	"dispatchAction": {needs: auth.AccessTalk, where: onChannel}, // the table actions has the level of each action
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

	// Only a provider gets these; hosts refuse them.
	"canvasOpen":            {where: onChannel},
	"canvasInvokeAction":    {where: onChannel},
	"canvasInvokeOperation": {where: onChannel},
	"canvasClose":           {where: onChannel},
}

// mcpMethods are MCP's requests and notifications that clients send on mcp://
// channels.
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

// mcpScheme begins MCP servers' channels.
const mcpScheme = "mcp:"

// methodOf returns the table's entry for a message.
func methodOf(env *ahp.Envelope) (method, bool) {
	if bytes.HasPrefix(env.Channel, []byte(mcpScheme)) {
		m, ok := mcpMethods[string(env.Method)]
		return m, ok
	}
	m, ok := methods[string(env.Method)]
	return m, ok
}
