package agenthost

import (
	"encoding/json"
	"errors"
	"io"

	"ahprelay/ahp"
)

// A method is a request served by the host.
type method struct {
	// locked handles the request with the host's lock held.
	locked handler

	// unlocked handles a request that reads files, without the lock. It delays only the
	// requesting connection.
	unlocked handler

	// remote handles a request that waits for a client or an agent, in a goroutine, so
	// that the connection is served meanwhile. If unlocked is set too, the params
	// decide which is called. If locked is set too, locked is for hosts with only
	// scripted agents.
	remote handler
}

// A handler answers a request.
type handler = func(h *Host, c *conn, params json.RawMessage) (any, error)

// in makes a handler from a method of one of the host's tables. The handler decodes
// the params.
func in[T, P any](table func(*Host) T, serve func(T, *conn, P) (any, error)) handler {
	return func(h *Host, c *conn, raw json.RawMessage) (any, error) {
		params, err := decodeParams[P](raw)
		if err != nil {
			return nil, err
		}
		return serve(table(h), c, params)
	}
}

// inRaw is like in, for a method that needs no params or decodes them later.
func inRaw[T any](table func(*Host) T, serve func(T, *conn, json.RawMessage) (any, error)) handler {
	return func(h *Host, c *conn, params json.RawMessage) (any, error) { return serve(table(h), c, params) }
}

func sessionsOf(h *Host) *sessionTable     { return &h.sessions }
func terminalsOf(h *Host) *terminalTable   { return &h.terminals }
func canvasesOf(h *Host) *canvasTable      { return &h.canvases }
func changesetsOf(h *Host) *changesetTable { return &h.changesets }
func mcpOf(h *Host) *mcpServers            { return &h.mcp }
func resourcesOf(h *Host) *resources       { return &h.resources }

// methods are served after initialize.
var methods = map[string]method{
	"subscribe":                {locked: (*Host).subscribeLocked},
	"listSessions":             {locked: inRaw(sessionsOf, (*sessionTable).listSessionsLocked)},
	"createSession":            {locked: in(sessionsOf, (*sessionTable).createSessionLocked), remote: in(sessionsOf, (*sessionTable).createAgentSession)},
	"disposeSession":           {locked: in(sessionsOf, (*sessionTable).disposeSessionLocked)},
	"createChat":               {locked: in(sessionsOf, (*sessionTable).createChatLocked)},
	"disposeChat":              {locked: in(sessionsOf, (*sessionTable).disposeChatLocked)},
	"moveChat":                 {locked: inRaw(sessionsOf, (*sessionTable).moveChatLocked)},
	"resolveSessionConfig":     {locked: in(sessionsOf, (*sessionTable).resolveSessionConfigLocked), remote: in(sessionsOf, (*sessionTable).resolveConfig)},
	"completions":              {locked: in(sessionsOf, (*sessionTable).completionsLocked)},
	"authenticate":             {locked: in(mcpOf, (*mcpServers).authenticateLocked)},
	"fetchTurns":               {locked: in(sessionsOf, (*sessionTable).fetchTurnsLocked)},
	"invokeChangesetOperation": {locked: in(changesetsOf, (*changesetTable).invokeChangesetOperationLocked), remote: in(changesetsOf, (*changesetTable).invokeGit)},
	"createTerminal":           {locked: in(terminalsOf, (*terminalTable).createTerminalLocked)},
	"disposeTerminal":          {locked: in(terminalsOf, (*terminalTable).disposeTerminalLocked)},
	"createResourceWatch":      {locked: in(resourcesOf, (*resources).createResourceWatchLocked)},
	"resourceRequest":          {locked: in(resourcesOf, (*resources).resourceRequestLocked)},
	"resourceRead":             {unlocked: in(resourcesOf, (*resources).resourceRead), remote: in(resourcesOf, (*resources).resourceReadRemote)},
	"resourceList":             {unlocked: in(resourcesOf, (*resources).resourceList)},
	"resourceResolve":          {unlocked: in(resourcesOf, (*resources).resourceResolve)},
	"resourceWrite":            {unlocked: in(resourcesOf, (*resources).resourceWrite)},
	"resourceDelete":           {unlocked: in(resourcesOf, (*resources).resourceDelete)},
	"resourceMkdir":            {unlocked: in(resourcesOf, (*resources).resourceMkdir)},

	"canvasReadResource": {unlocked: inRaw(canvasesOf, (*canvasTable).canvasReadResource)},
	"canvasOpen":         {locked: inRaw(canvasesOf, (*canvasTable).refuseProviderCallLocked)},
	"canvasInvokeAction": {locked: inRaw(canvasesOf, (*canvasTable).refuseProviderCallLocked)},
	"canvasClose":        {locked: inRaw(canvasesOf, (*canvasTable).refuseProviderCallLocked)},

	"vscode/devContainers/connect": {remote: (*Host).connectDevContainer},
}

// handle serves one frame. Calls for a connection do not overlap.
func (h *Host) handle(c *conn, frame []byte) {
	msg, err := parseMessage(frame)
	switch {
	case errors.Is(err, errNotMessage), errors.Is(err, errNested) && !msg.isRequest():
	case errors.Is(err, errNested):
		h.send(c, errorFrame(msg["id"], &rpcError{Code: ahp.CodeInvalidParams, Message: "Invalid params: " + err.Error()}))
	case err != nil:
		h.send(c, errorFrame(json.RawMessage("null"), &rpcError{Code: ahp.CodeParseError, Message: "Parse error"}))
	case msg.isRequest():
		h.request(c, msg)
	case msg.isNotification():
		h.mu.Lock()
		defer h.mu.Unlock()
		if c.client != nil && h.conns[c] && !h.mcp.mcpMessageLocked(c, msg) {
			h.notificationLocked(c, msg.method(), msg["params"])
		}
	case msg.isResponse():
		h.mu.Lock()
		defer h.mu.Unlock()
		h.reverse.answerLocked(c, msg)
	}
}

func (h *Host) send(c *conn, frame []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.queueLocked(frame)
}

// request answers a request, now or later.
func (h *Host) request(c *conn, msg message) {
	if h.mcpRequest(c, msg) {
		return
	}
	id, name, params := msg["id"], msg.method(), msg["params"]
	slow := h.requestQuick(c, id, name, params)
	if slow == nil {
		return
	}
	result, err := slow(h, c, params)
	frame, err := h.answerFrame(id, result, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answerLocked(c, name, frame, err)
}

// mcpRequest handles a request on an mcp:// channel. It returns false for other
// requests.
func (h *Host) mcpRequest(c *conn, msg message) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns[c] && c.client != nil && h.mcp.mcpMessageLocked(c, msg)
}

// requestQuick answers or starts requests that read no files. For other requests, it
// returns the function to call.
func (h *Host) requestQuick(c *conn, id json.RawMessage, name string, params json.RawMessage) func(*Host, *conn, json.RawMessage) (any, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.conns[c] {
		return nil // the connection has ended meanwhile
	}
	h.logLocked(levelTrace, "request: method=%s", name)
	m := methods[name]
	switch {
	case name == "ping":
		c.queueLocked(resultFrame(id, nil))
	case c.client == nil:
		h.openLocked(c, id, name, params)
	case m.locked != nil && (m.remote == nil || h.sessions.scripted()):
		result, err := m.locked(h, c, params)
		frame, err := h.answerFrame(id, result, err)
		h.answerLocked(c, name, frame, err)
		c.openedLocked()
	case m.remote != nil && (m.unlocked == nil || asksClient(params)):
		h.requestRemoteLocked(c, id, name, params, m)
	case m.unlocked != nil:
		return m.unlocked
	default:
		c.queueLocked(errorFrame(id, methodNotFound(name)))
	}
	return nil
}

// openLocked handles a connection's first request, which identifies the client.
func (h *Host) openLocked(c *conn, id json.RawMessage, name string, params json.RawMessage) {
	var result any
	var err error
	switch name {
	case "initialize":
		result, err = c.initializeLocked(params)
	case "reconnect":
		result, err = c.reconnectLocked(params)
	default:
		err = methodNotFound(name)
	}
	if err != nil {
		c.queueLocked(errorFrame(id, asRPCError(err)))
		if h.dialect.wide && asRPCError(err).Code == ahp.CodeUnsupportedProtocolVersion {
			c.out.finish(io.EOF)
		}
		return
	}
	c.queueLocked(resultFrame(id, result))
	c.openedLocked()
}

// requestRemoteLocked handles a request in a goroutine, at most maxInFlight for each
// connection.
func (h *Host) requestRemoteLocked(c *conn, id json.RawMessage, name string, params json.RawMessage, m method) {
	if c.inFlight >= maxInFlight {
		frame, err := h.answerFrame(id, nil, fail(ahp.CodeInternalError, "More than %d requests in flight", maxInFlight))
		h.answerLocked(c, name, frame, err)
		return
	}
	c.inFlight++
	h.goLocked(func() {
		result, err := m.remote(h, c, params)
		frame, err := h.answerFrame(id, result, err)
		h.mu.Lock()
		defer h.mu.Unlock()
		c.inFlight--
		h.answerLocked(c, name, frame, err)
	})
}

// answerFrame encodes an answer. A result that is too long becomes an error.
func (h *Host) answerFrame(id json.RawMessage, result any, err error) ([]byte, error) {
	if err == nil {
		frame := resultFrame(id, result)
		if len(frame) <= h.cfg.MaxFrame {
			return frame, nil
		}
		err = fail(ahp.CodeInternalError, "The result has %d bytes, and a frame has at most %d", len(frame), h.cfg.MaxFrame)
	}
	return errorFrame(id, asRPCError(err)), err
}

func (h *Host) answerLocked(c *conn, name string, frame []byte, err error) {
	if err != nil {
		h.logLocked(levelError, "Request '%s' failed: %v", name, err)
	}
	c.queueLocked(frame)
}

func methodNotFound(name string) *rpcError {
	return &rpcError{Code: ahp.CodeMethodNotFound, Message: "Method not found: " + name}
}

// notificationLocked handles a notification. Unknown notifications are ignored.
func (h *Host) notificationLocked(c *conn, name string, params json.RawMessage) {
	h.logLocked(levelTrace, "notification: method=%s", name)
	switch name {
	case "dispatchAction":
		h.dispatchLocked(c, params)
	case "unsubscribe":
		h.unsubscribeLocked(c, params)
	case "channel/frame":
		c.frameLocked(params)
	case "channel/credit":
		c.creditLocked(params)
	case "channel/reset":
		h.unsubscribeLocked(c, params)
	}
}
