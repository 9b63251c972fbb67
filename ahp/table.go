package ahp

import "strings"

// This file is the one table of AHP's methods and actions. A row has no field names, so
// a missing column does not compile. To add a method, add its row here, and its
// verdicts to auth/gate/testdata/matrix.txt, which a test demands.

// RootChannel is the channel of the whole host.
const RootChannel = "ahp-root://"

// Schemes that begin channels with special meanings.
const (
	MCPScheme = "mcp:"     // messages of an MCP server
	TCPScheme = "ahp-tcp:" // a raw connection
)

// A Method is a request or notification clients send.
type Method struct {
	Kind   Kind
	Level  Level  // the level that allows it
	Class  Class  // how a token's list of methods applies to it
	Target Target // where the message names the channels or resources that it acts on
	Result Shape  // the parts of its result that a limited client may see; nil for a notification
	Shared bool   // an audience may send it once for all its viewers
	Audit  string // the word in the audit log; "": not logged
	Since  string // the first AHP version
}

// A Class determines whether a token's list of methods must name a method.
type Class uint8

const (
	Ordinary Class = iota // a token's list of methods must name it
	Basic                 // allowed without being listed: without it, a client has no connection or sees nothing
	Opening               // basic; its response also contains the host's serverSeq
)

// A Target is the place where a message names the channels or resources that its method
// acts on.
type Target uint8

const (
	OnChannel       Target = iota // the message's channel
	OnConnection                  // none: the method acts on the connection
	OnHost                        // none: the method acts on the whole host
	OnResources                   // URIs in the params
	OnSources                     // the channel, and URIs of sources in the params
	OnSubscriptions               // lists of channels
	OnList                        // none: the response is filtered
)

// Values for Method.Shared.
const (
	shared = true
	alone  = false
)

// AHP versions. Methods of 0.9 may be older.
const (
	v09       = "0.9"
	v010      = "0.10"
	v10       = "1.0"
	v11       = "1.1"
	extension = "extension" // of VS Code's host
)

// nothing is the shape of a result without visible members.
var nothing = Object{}.Seen

// ClientMethods are the requests and notifications that clients send in AHP. All others are
// unknown. The map is read-only.
var ClientMethods = map[string]Method{
	"initialize":  {Request, Look, Opening, OnSubscriptions, initializeResult, alone, "", v09},
	"reconnect":   {Request, Look, Opening, OnSubscriptions, reconnectResult, alone, "", v09},
	"ping":        {Request, Look, Basic, OnConnection, nothing, alone, "", v09},
	"subscribe":   {Request, Look, Opening, OnChannel, subscribeResult, alone, "", v09},
	"unsubscribe": {Notification, Look, Basic, OnConnection, nil, alone, "", v09},

	// Flow control for a subscription.
	"channel/ack":    {Notification, Look, Basic, OnChannel, nil, alone, "", v11},
	"channel/credit": {Notification, Look, Basic, OnChannel, nil, alone, "", v11},
	"channel/reset":  {Notification, Operate, Ordinary, OnChannel, nil, alone, "", v11},
	"channel/frame":  {Notification, Operate, Ordinary, OnChannel, nil, alone, "", v11},

	"listSessions": {Request, Look, Ordinary, OnList, Object{"items": each(summary), "nextCursor": plain}.Seen, shared, "", v09},
	"fetchTurns": {Request, Look, Ordinary, OnChannel,
		Object{"turns": Whole, "turnsNextCursor": plain, "nextCursor": plain, "hasMore": plain}.Seen, shared, "", v09},
	"canvasReadResource": {Request, Look, Ordinary, OnChannel, Object{"contents": Whole}.Seen, shared, "canvas", v010},
	"resourceRead":       {Request, Look, Ordinary, OnResources, Object{"data": Whole, "encoding": plain, "contentType": plain}.Seen, shared, "", v09},
	"resourceList":       {Request, Look, Ordinary, OnResources, Object{"entries": Whole}.Seen, shared, "", v09},
	"resourceResolve": {Request, Look, Ordinary, OnResources,
		Object{"uri": plain, "type": plain, "size": plain, "mtime": plain, "ctime": plain, "contentType": plain, "etag": plain}.Seen, shared, "", v09},

	"dispatchAction": {Notification, Talk, Ordinary, OnChannel, nil, alone, "", v09}, // Actions has each action's level and audit word
	"createSession":  {Request, Operate, Ordinary, OnSources, nothing, alone, "session", v09},
	"disposeSession": {Request, Operate, Ordinary, OnChannel, nothing, alone, "session", v09},
	"createChat":     {Request, Operate, Ordinary, OnSources, nothing, alone, "", v09},
	"moveChat":       {Request, Operate, Ordinary, OnSources, Object{"session": plain}.Seen, alone, "", v10},
	"disposeChat":    {Request, Operate, Ordinary, OnChannel, nothing, alone, "", v09},
	"completions":    {Request, Operate, Ordinary, OnChannel, Object{"items": Whole}.Seen, alone, "", v09},

	"createTerminal":  {Request, Operate, Ordinary, OnChannel, nothing, alone, "terminal", v09},
	"disposeTerminal": {Request, Operate, Ordinary, OnChannel, nothing, alone, "terminal", v09},
	"invokeChangesetOperation": {Request, Operate, Ordinary, OnChannel,
		Object{"message": Whole, "followUp": Whole}.Seen, alone, "changeset", v09},
	"createTcpConnection": {Request, Operate, Ordinary, OnChannel, nothing, alone, "port", v11},
	"tcp/data":            {Notification, Operate, Ordinary, OnChannel, nil, alone, "", v11},
	"tcp/eof":             {Notification, Operate, Ordinary, OnChannel, nil, alone, "", v11},

	"resourceWrite":       {Request, Operate, Ordinary, OnResources, nothing, alone, "file", v09},
	"resourceCopy":        {Request, Operate, Ordinary, OnResources, nothing, alone, "file", v09},
	"resourceDelete":      {Request, Operate, Ordinary, OnResources, nothing, alone, "file", v09},
	"resourceMove":        {Request, Operate, Ordinary, OnResources, nothing, alone, "file", v09},
	"resourceMkdir":       {Request, Operate, Ordinary, OnResources, nothing, alone, "file", v09},
	"resourceRequest":     {Request, Operate, Ordinary, OnResources, nothing, alone, "", v09},
	"createResourceWatch": {Request, Operate, Ordinary, OnResources, Object{"channel": plain}.Seen, alone, "", v09},

	"authenticate":                     {Request, Operate, Ordinary, OnHost, nothing, alone, "authenticate", v09},
	"resolveSessionConfig":             {Request, Operate, Ordinary, OnHost, nothing, alone, "", v09},
	"sessionConfigCompletions":         {Request, Operate, Ordinary, OnHost, nothing, alone, "", v09},
	"listAutomationTriggerDefinitions": {Request, Look, Ordinary, OnHost, nothing, shared, "", v09},
	"runAutomation":                    {Request, Operate, Ordinary, OnSources, Object{"resource": plain}.Seen, alone, "automation", v09},
	"fetchAutomationRuns":              {Request, Look, Ordinary, OnSources, nothing, shared, "", v09},

	// Hosts send these requests to clients that provide canvases. From a client, a host
	// refuses them.
	"canvasOpen":            {Request, Operate, Ordinary, OnChannel, nothing, alone, "", v010},
	"canvasInvokeAction":    {Request, Operate, Ordinary, OnChannel, nothing, alone, "", v010},
	"canvasInvokeOperation": {Request, Operate, Ordinary, OnChannel, nothing, alone, "", v010},
	"canvasClose":           {Request, Operate, Ordinary, OnChannel, nothing, alone, "", v010},
}

// MCPMethods are the requests and notifications that clients send on mcp:// channels: MCP
// methods, whose results are visible unchanged, and AHP's subscribe and unsubscribe. The
// map is read-only.
var MCPMethods = map[string]Method{
	"ping":                     {Request, Look, Ordinary, OnChannel, Whole, shared, "", v09},
	"tools/list":               {Request, Look, Ordinary, OnChannel, Whole, shared, "", v09},
	"resources/list":           {Request, Look, Ordinary, OnChannel, Whole, shared, "", v09},
	"resources/templates/list": {Request, Look, Ordinary, OnChannel, Whole, shared, "", v09},
	"resources/read":           {Request, Look, Ordinary, OnChannel, Whole, shared, "", v09},
	"prompts/list":             {Request, Look, Ordinary, OnChannel, Whole, shared, "", v09},
	"prompts/get":              {Request, Look, Ordinary, OnChannel, Whole, shared, "", v09},

	"tools/call":              {Request, Operate, Ordinary, OnChannel, Whole, alone, "tool", v09},
	"logging/setLevel":        {Request, Operate, Ordinary, OnChannel, Whole, alone, "", v09},
	"sampling/createMessage":  {Request, Operate, Ordinary, OnChannel, Whole, alone, "", v09},
	"completion/complete":     {Request, Operate, Ordinary, OnChannel, Whole, alone, "", v09},
	"notifications/message":   {Notification, Operate, Ordinary, OnChannel, nil, alone, "", v09},
	"notifications/cancelled": {Notification, Operate, Ordinary, OnChannel, nil, alone, "", v09},
	"notifications/progress":  {Notification, Operate, Ordinary, OnChannel, nil, alone, "", v09},

	"subscribe":   ClientMethods["subscribe"],
	"unsubscribe": ClientMethods["unsubscribe"],
}

// MethodOn returns the row for a client's method on a channel.
func MethodOn(channel, method string) (Method, bool) {
	table := ClientMethods
	if strings.HasPrefix(channel, MCPScheme) {
		table = MCPMethods
	}
	m, ok := table[method]
	return m, ok
}

// AuditWord returns the audit word for a client's request, on any channel, or "" if it is
// not logged.
func AuditWord(method string) string {
	if m, ok := ClientMethods[method]; ok {
		return m.Audit
	}
	return MCPMethods[method].Audit
}

// A HostMethod is a request or notification hosts send.
type HostMethod struct {
	Kind   Kind
	Where  Where  // the channels on which a limited client gets it
	Params Shape  // the parts of a notification's params that a limited client may see; nil for a request
	Answer Answer // the clients that may answer a request
	Since  string // the first AHP version
}

// A Where describes on which channels a limited client gets a host's message. Requests pass
// on channels in reach, on the root, and without a channel.
type Where uint8

const (
	InReach Where = iota // channels in reach
	OrRoot               // channels in reach, and the root
	OnMCP                // mcp:// channels in reach
)

// An Answer describes which clients may answer a host's request.
type Answer uint8

const (
	NoAnswer      Answer = iota // a notification
	AnswerAny                   // every client may answer
	AnswerReverse               // the client operates, or its token allows reverse access
	AnswerOperate               // the client operates
)

// HostMethods are the requests and notifications of hosts, and of MCP servers. All others
// are unknown. The map is read-only.
var HostMethods = map[string]HostMethod{
	"action": {Notification, OrRoot, envelope, NoAnswer, v09},

	"root/sessionAdded":   {Notification, OrRoot, Object{"channel": plain, "summary": summary}.Seen, NoAnswer, v09},
	"root/sessionRemoved": {Notification, OrRoot, Object{"channel": plain, "session": reached}.Seen, NoAnswer, v09},
	"root/sessionSummaryChanged": {Notification, OrRoot,
		Object{"channel": plain, "session": reached, "changes": sessionSummary.Seen}.Seen, NoAnswer, v09},
	"root/progress": {Notification, OrRoot, Object{
		"channel": plain, "progressToken": plain, "progress": plain, "total": plain, "message": plain,
		"session": reached, "chat": reached, "resource": reached, "uri": reached, "source": reached, "automation": reached,
	}.Seen, NoAnswer, v09},

	// Clients use channel/frame, which carries anything, only on raw connections.
	"channel/frame":    {Notification, InReach, onTCP(Object{"channel": plain, "data": plain, "final": plain}.Seen), NoAnswer, v11},
	"channel/credit":   {Notification, InReach, Object{"channel": plain, "consumedBytes": plain}.Seen, NoAnswer, v11},
	"channel/ready":    {Notification, InReach, Object{"channel": plain}.Seen, NoAnswer, v11},
	"channel/reset":    {Notification, InReach, Object{"channel": plain, "reason": plain}.Seen, NoAnswer, v11},
	"channel/snapshot": {Notification, InReach, Object{"channel": plain, "snapshot": snapshot}.Seen, NoAnswer, v11},
	"tcp/data":         {Notification, InReach, Object{"channel": plain, "data": plain}.Seen, NoAnswer, v11},
	"tcp/eof":          {Notification, InReach, Object{"channel": plain}.Seen, NoAnswer, v11},

	"auth/required":      {Notification, InReach, Object{"channel": plain, "resource": plain, "reason": plain}.Seen, NoAnswer, v09},
	"otlp/exportLogs":    {Notification, InReach, Object{"channel": plain, "resourceLogs": Whole}.Seen, NoAnswer, v09},
	"otlp/exportTraces":  {Notification, InReach, Object{"channel": plain, "resourceSpans": Whole}.Seen, NoAnswer, v09},
	"otlp/exportMetrics": {Notification, InReach, Object{"channel": plain, "resourceMetrics": Whole}.Seen, NoAnswer, v09},

	"notifications/tools/list_changed":     {Notification, OnMCP, Whole, NoAnswer, v09},
	"notifications/resources/list_changed": {Notification, OnMCP, Whole, NoAnswer, v09},
	"notifications/prompts/list_changed":   {Notification, OnMCP, Whole, NoAnswer, v09},
	"notifications/resources/updated":      {Notification, OnMCP, Whole, NoAnswer, v09},
	"notifications/message":                {Notification, OnMCP, Whole, NoAnswer, v09},
	"notifications/progress":               {Notification, OnMCP, Whole, NoAnswer, v09},
	"notifications/cancelled":              {Notification, OnMCP, Whole, NoAnswer, v09},

	"ping":                  {Request, OrRoot, nil, AnswerAny, v09},
	"resourceRead":          {Request, OrRoot, nil, AnswerReverse, v09},
	"resourceList":          {Request, OrRoot, nil, AnswerReverse, v09},
	"resourceResolve":       {Request, OrRoot, nil, AnswerReverse, v09},
	"resourceWrite":         {Request, OrRoot, nil, AnswerOperate, v09},
	"resourceCopy":          {Request, OrRoot, nil, AnswerOperate, v09},
	"resourceMove":          {Request, OrRoot, nil, AnswerOperate, v09},
	"resourceDelete":        {Request, OrRoot, nil, AnswerOperate, v09},
	"resourceMkdir":         {Request, OrRoot, nil, AnswerOperate, v09},
	"resourceRequest":       {Request, OrRoot, nil, AnswerOperate, v09},
	"createResourceWatch":   {Request, OrRoot, nil, AnswerOperate, v09},
	"canvasOpen":            {Request, OrRoot, nil, AnswerOperate, v010},
	"canvasInvokeAction":    {Request, OrRoot, nil, AnswerOperate, v010},
	"canvasInvokeOperation": {Request, OrRoot, nil, AnswerOperate, v010},
	"canvasClose":           {Request, OrRoot, nil, AnswerOperate, v010},

	"sampling/createMessage":       {Request, OrRoot, nil, AnswerOperate, v09},
	"vscode/requestWorkspaceTrust": {Request, OrRoot, nil, AnswerOperate, extension},
}

// An Action is an action clients dispatch.
type Action struct {
	Level   Level    // the level that allows it
	Members []string // known members besides type; a client below operate may send no other members
	Message string   // member that is a message to an agent, or ""
	Audit   string   // the word in the audit log; "": not logged
}

// Actions are the actions that clients dispatch. All others need the level operate. The map is
// read-only.
var Actions = map[string]Action{
	"chat/turnStarted":             {Talk, []string{"turnId", "startedAt", "message", "queuedMessageId"}, "message", ""},
	"chat/turnCancelled":           {Talk, []string{"turnId", "duration"}, "", ""},
	"chat/pendingMessageSet":       {Talk, []string{"kind", "id", "message", "pendingMessage"}, "message", ""},
	"chat/pendingMessageRemoved":   {Talk, []string{"kind", "id"}, "", ""},
	"chat/queuedMessagesReordered": {Talk, []string{"order"}, "", ""},
	"chat/draftChanged":            {Talk, []string{"draft"}, "draft", ""},
	"chat/inputAnswerChanged":      {Talk, []string{"requestId", "questionId", "answer"}, "", ""},
	"chat/inputCompleted":          {Talk, []string{"requestId", "response", "answers"}, "", ""},
	"chat/isReadChanged":           {Talk, []string{"isRead"}, "", ""},
	"session/isReadChanged":        {Talk, []string{"isRead"}, "", ""},
	"session/activeClientSet":      {Talk, []string{"activeClient"}, "", ""}, // below operate, the gate removes the tools

	"chat/toolCallConfirmed": {Approve, []string{
		"turnId", "toolCallId", "approved", "confirmed", "reason", "reasonMessage", "selectedOptionId", "userSuggestion",
	}, "userSuggestion", "approve"}, // the audit word is "deny" for a refusal
	"chat/toolCallResultConfirmed": {Approve, []string{"turnId", "toolCallId", "approved"}, "", "approve"},

	"root/configChanged": {Operate, nil, "", "configure"},

	"session/titleChanged":                 {Operate, nil, "", ""},
	"session/activeClientRemoved":          {Operate, nil, "", ""},
	"session/workingDirectorySet":          {Operate, nil, "", "configure"},
	"session/workingDirectoryRemoved":      {Operate, nil, "", ""},
	"session/workingDirectoryReplaced":     {Operate, nil, "", ""},
	"session/customizationToggled":         {Operate, nil, "", "configure"},
	"session/mcpServerStartRequested":      {Operate, nil, "", ""},
	"session/mcpServerStopRequested":       {Operate, nil, "", ""},
	"session/mcpServerBackgroundRequested": {Operate, nil, "", ""},
	"session/isArchivedChanged":            {Operate, nil, "", ""},
	"session/configChanged":                {Operate, nil, "", "configure"},

	"chat/toolCallComplete":        {Operate, nil, "", ""},
	"chat/toolCallContentChanged":  {Operate, nil, "", ""},
	"chat/turnResume":              {Operate, nil, "", ""},
	"chat/truncated":               {Operate, nil, "", "chat"},
	"chat/workingDirectorySet":     {Operate, nil, "", "configure"},
	"chat/workingDirectoryRemoved": {Operate, nil, "", ""},
	"chat/isArchivedChanged":       {Operate, nil, "", ""},

	"changeset/filesReviewChanged": {Operate, nil, "", ""},
	"terminal/input":               {Operate, nil, "", "terminal"},
	"terminal/resized":             {Operate, nil, "", ""},
	"terminal/claimed":             {Operate, nil, "", "terminal"},
	"terminal/titleChanged":        {Operate, nil, "", ""},
	"terminal/cleared":             {Operate, nil, "", ""},

	"annotations/set":          {Operate, nil, "", ""},
	"annotations/updated":      {Operate, nil, "", ""},
	"annotations/removed":      {Operate, nil, "", ""},
	"annotations/entrySet":     {Operate, nil, "", ""},
	"annotations/entryRemoved": {Operate, nil, "", ""},

	"automation/createRequested":    {Operate, nil, "", ""},
	"automation/updateRequested":    {Operate, nil, "", ""},
	"automation/removed":            {Operate, nil, "", ""},
	"automationRun/cancelRequested": {Operate, nil, "", ""},

	"canvas/message":        {Operate, nil, "", ""},
	"canvas/closeRequested": {Operate, nil, "", ""},
}

// Parts of messages. A part is Whole if it can only be about the channel of the request.
var (
	snapshot = about("resource",
		Object{"resource": plain, "state": Whole, "fromSeq": plain}.Seen,
		Object{"resource": plain, "state": rootState.Seen, "fromSeq": plain}.Seen)
	envelope = about("channel",
		Object{"channel": plain, "action": Whole, "serverSeq": plain, "origin": Whole, "rejectionReason": plain}.Seen,
		Object{"channel": plain, "action": oneOf("type", rootActions), "serverSeq": plain, "origin": Whole, "rejectionReason": plain}.Seen)
	summary  = about("resource", sessionSummary.Seen, Hidden)
	terminal = about("resource", Whole, Hidden)

	// Only members that AHP defines: a member of a later version could be about other
	// sessions.
	sessionSummary = Object{
		"resource": plain, "provider": plain, "title": plain, "status": plain, "activity": plain, "createdAt": plain, "modifiedAt": plain,
		"origin": flat, "project": flat, "workingDirectories": each(plain), "workingDirectory": plain, "repositories": each(flat),
		"annotations": flat, "changes": flat, "model": flat, "agent": flat, "defaultChat": plain, "_meta": Whole,
		"isRead": plain, "isArchived": plain, "isDone": plain,
		"chats": each(Object{
			"resource": plain, "title": plain, "status": plain, "activity": plain, "modifiedAt": plain, "origin": flat, "parentChat": plain,
			"interactivity": plain, "workingDirectories": each(plain),
		}.Seen),
	}

	// Every client needs the agents in the root's state. It also sees the terminals in
	// reach.
	rootState   = Object{"agents": Whole, "activeSessions": zero, "terminals": each(terminal)}
	rootActions = map[string]Object{
		"root/agentsChanged":    {"type": plain, "agents": Whole},
		"root/terminalsChanged": {"type": plain, "terminals": each(terminal)},
	}

	// An entry for one channel in the result of reconnect.
	resumed = Object{"kind": plain, "channel": known, "actions": each(envelope), "snapshot": snapshot}.Seen

	limits  = Object{"windowBytes": plain, "maximumFrameBytes": plain, "maximumMessageBytes": plain}.Seen
	control = Object{"clientReceive": limits, "hostReceive": limits}.Seen
	windows = Object{"items": each(Object{"channel": known, "recovery": plain, "flowControl": control}.Seen)}.Seen

	initializeResult = Object{
		"protocolVersion": plain, "serverSeq": plain, "snapshots": each(snapshot),
		"serverInfo":                  Object{"name": plain, "title": plain, "version": plain}.Seen,
		"completionTriggerCharacters": each(plain), "terminalCommandPrefix": plain,
	}.Seen
	reconnectResult = Object{
		"protocolVersion": plain, "serverSeq": plain, "type": plain, "actions": each(envelope), "missing": each(known),
		"snapshots": each(snapshot), "channels": each(resumed), "windows": windows,
	}.Seen
	subscribeResult = Object{"snapshot": orNull(snapshot), "flowControl": control}.Seen
)

// ErrorShape is the shape of the error in a response.
var ErrorShape Shape = Object{"code": plain, "message": plain, "data": orNull(Object{
	"supportedVersions": each(plain),
	"bytes":             plain, "limit": plain, // of a message above the size limit
}.Seen)}.Seen

// MessageShape returns the shape of a message whose payload is the member key.
func MessageShape(key string, of Shape) Shape {
	return Object{"jsonrpc": plain, "id": plain, "method": plain, "channel": plain, key: of}.Seen
}
