package gate

import (
	"bytes"

	"ahprelay/ahp"
)

// A method is what is known of a request or notification of clients.
type method struct {
	reads bool // it looks and changes nothing
	basic bool // lists of methods need not name it: without it there is no connection, or nothing to see on it
	where place
}

// A place is where a method names what it is about.
type place int

const (
	onChannel   place = iota // its channel
	onAny                    // nothing: it is about the connection
	onHost                   // the whole host
	onResource               // URIs in its params
	onSource                 // its channel, and URIs in its params that something is made from
	onSubscribe              // lists of channels
	onList                   // nothing: the answer is made to fit
)

// methods are the requests and notifications of AHP that clients send. All
// others are unknown.
var methods = map[string]method{
	"initialize":  {reads: true, basic: true, where: onSubscribe},
	"reconnect":   {reads: true, basic: true, where: onSubscribe},
	"ping":        {reads: true, basic: true, where: onAny},
	"subscribe":   {reads: true, basic: true, where: onChannel},
	"unsubscribe": {reads: true, basic: true, where: onAny},

	// Flow control of a subscription.
	"channel/ack":    {reads: true, basic: true, where: onChannel},
	"channel/credit": {reads: true, basic: true, where: onChannel},
	"channel/reset":  {where: onChannel},
	"channel/frame":  {where: onChannel},

	"listSessions":       {reads: true, where: onList},
	"fetchTurns":         {reads: true, where: onChannel},
	"canvasReadResource": {reads: true, where: onChannel},
	"resourceRead":       {reads: true, where: onResource},
	"resourceList":       {reads: true, where: onResource},
	"resourceResolve":    {reads: true, where: onResource},

	"dispatchAction": {where: onChannel},
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
	"listAutomationTriggerDefinitions": {reads: true, where: onHost},
	"runAutomation":                    {where: onSource},
	"fetchAutomationRuns":              {reads: true, where: onSource},

	// A provider's, which a client may not ask of a host.
	"canvasOpen":            {where: onChannel},
	"canvasInvokeAction":    {where: onChannel},
	"canvasInvokeOperation": {where: onChannel},
	"canvasClose":           {where: onChannel},
}

// mcpMethods are the requests and notifications of MCP that clients send on
// mcp:// channels.
var mcpMethods = map[string]method{
	"ping":                     {reads: true},
	"tools/list":               {reads: true},
	"resources/list":           {reads: true},
	"resources/templates/list": {reads: true},
	"resources/read":           {reads: true},
	"prompts/list":             {reads: true},
	"prompts/get":              {reads: true},

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
