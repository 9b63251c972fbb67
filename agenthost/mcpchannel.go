package agenthost

import (
	"encoding/json"
	"fmt"
	"strings"

	"ahprelay/ahp"
)

// mcpChannelOf returns the mcp:// channel that a client's message names at the top
// level or in params, or "". agree is false if the two places differ.
func mcpChannelOf(msg message) (channel string, agree bool) {
	var inParams struct {
		Channel string `json:"channel"`
	}
	_ = json.Unmarshal(msg["channel"], &channel)
	_ = json.Unmarshal(msg["params"], &inParams) // params may be anything
	isTop, isIn := strings.HasPrefix(channel, mcpScheme), strings.HasPrefix(inParams.Channel, mcpScheme)
	switch {
	case isTop && inParams.Channel != "" && inParams.Channel != channel:
		return channel, false
	case isTop:
		return channel, true
	case isIn:
		return inParams.Channel, msg["channel"] == nil
	}
	return "", true
}

// mcpFrame encodes an answer on an mcp:// channel, with a result or an error.
func mcpFrame(channel string, id, result json.RawMessage, err error) []byte {
	name, value := "result", result
	if err != nil {
		name, value = "error", encode(asRPCError(err))
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","channel":%s,"id":%s,"%s":%s}`, encode(channel), id, name, value)
}

func mcpNotificationFrame(channel, method string, params json.RawMessage) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","channel":%s,"method":%s,"params":%s}`, encode(channel), encode(method), params)
}

// mcpMessageLocked handles a client's message on an mcp:// channel. It returns false
// for other messages.
func (ms *mcpServers) mcpMessageLocked(c *conn, msg message) bool {
	channel, agree := mcpChannelOf(msg)
	if channel == "" {
		return false
	}
	if !agree {
		if msg.isRequest() {
			c.queueLocked(errorFrame(msg["id"], &rpcError{Code: ahp.CodeInvalidParams, Message: "Two channels in one message"}))
		}
		return true
	}
	ms.host.logLocked(levelTrace, "mcp: method=%s", msg.method())
	m, err := ms.mcpServedLocked(c, channel, msg.method(), msg.isNotification())
	switch {
	case msg.isRequest() && err != nil:
		c.queueLocked(mcpFrame(channel, msg["id"], nil, err))
	case msg.isRequest():
		ms.mcpRequestLocked(c, m, channel, msg)
	case err == nil:
		ms.mcpNotifiedLocked(c, m, msg)
	}
	return true
}

// mcpServedLocked returns the server behind a channel if it serves the method to this
// client.
func (ms *mcpServers) mcpServedLocked(c *conn, channel, method string, notification bool) (*mcpServer, error) {
	m := ms.mcpAtLocked(channel)
	switch {
	case c.client == nil || !c.offer.mcpApps:
		return nil, methodNotFound(method)
	case m == nil:
		return nil, fail(ahp.CodeNotFound, "No MCP server is ready on this channel: %s", channel)
	case notification && (method == "notifications/cancelled" || method == "notifications/progress"):
		return m, nil // permitted on each channel
	case !isServed(*m.up.cfg.Capabilities, method):
		return nil, methodNotFound(method)
	}
	return m, nil
}

// mcpAtLocked returns the server at this channel now, or nil.
func (ms *mcpServers) mcpAtLocked(channel string) *mcpServer {
	for _, s := range ms.host.sessions.all() {
		for _, m := range s.mcp {
			if m.channel() == channel {
				return m
			}
		}
	}
	return nil
}

// mcpRequestLocked forwards a request to the server, and the answer to the client, in
// a goroutine that ends with the connection.
func (ms *mcpServers) mcpRequestLocked(c *conn, m *mcpServer, channel string, msg message) {
	h := ms.host
	id, method := msg["id"], msg.method()
	answer := func(result json.RawMessage, err error) { c.queueLocked(mcpFrame(channel, id, result, err)) }
	if c.inFlight >= maxInFlight {
		answer(nil, fail(ahp.CodeInternalError, "More than %d requests in flight", maxInFlight))
		return
	}
	params, err := ms.mcpAdmitLocked(m, method, msg["params"])
	if err != nil {
		answer(nil, err)
		return
	}
	if method == "sampling/createMessage" {
		result, err := sample(params)
		answer(encode(result), err)
		return
	}
	call, err := m.up.startCallLocked(method, params, func(progress message) {
		c.queueLocked(mcpNotificationFrame(channel, "notifications/progress", encode(progress)))
	})
	if err != nil {
		answer(nil, err)
		return
	}
	if c.mcpCalls == nil {
		c.mcpCalls = make(map[string]*mcpCall)
	}
	key := string(id)
	c.mcpCalls[key] = call
	c.inFlight++
	up := m.up
	h.goLocked(func() {
		result, err := call.wait(c.done)
		if err == nil && len(result) > h.cfg.MaxFrame-maxEnvelope {
			err = fail(ahp.CodeInternalError, "The result of %d bytes does not fit into a frame", len(result))
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(up.progress, call.id)
		if c.mcpCalls[key] == call {
			delete(c.mcpCalls, key)
		}
		c.inFlight--
		answer(result, err)
	})
}

// maxEnvelope is the room for a frame's bytes besides its result.
const maxEnvelope = 16 << 10

// mcpAdmitLocked checks a request before the server gets it, and returns the params
// for the server.
func (*mcpServers) mcpAdmitLocked(m *mcpServer, method string, raw json.RawMessage) (json.RawMessage, error) {
	params := message{}
	if raw != nil && json.Unmarshal(raw, &params) != nil {
		return nil, fail(ahp.CodeInvalidParams, "Invalid params: not an object")
	}
	delete(params, "channel") // AHP's field, if present
	if method == "tools/call" {
		var name string
		_ = json.Unmarshal(params["name"], &name) // the server refuses other types
		for _, t := range m.up.tools {
			if t.Name == name && !m.grants(t.scope()) {
				m.requireScopeLocked(t.scope())
				return nil, mcpAuthError(m.up.cfg)
			}
		}
	}
	return encode(params), nil
}

// startCallLocked sends a request to the server, with a unique progress token in place
// of the client's. progress, if not nil, receives progress notifications with the
// client's token.
func (up *mcpUpstream) startCallLocked(method string, raw json.RawMessage, progress func(message)) (*mcpCall, error) {
	if up.link == nil {
		return nil, errMCPNotReady
	}
	return up.link.start(method, raw, func(id int64) json.RawMessage {
		params, meta := message{}, message{}
		if json.Unmarshal(raw, &params) != nil || json.Unmarshal(params["_meta"], &meta) != nil || meta["progressToken"] == nil {
			return raw
		}
		own := meta["progressToken"]
		up.progress[id] = func(told message) {
			told["progressToken"] = own
			progress(told)
		}
		meta["progressToken"] = encode(id)
		params["_meta"] = encode(meta)
		return encode(params)
	})
}

// mcpNotifiedLocked forwards a client's notification. A client can cancel only its own
// requests.
func (*mcpServers) mcpNotifiedLocked(c *conn, m *mcpServer, msg message) {
	params := message{}
	if msg["params"] != nil && json.Unmarshal(msg["params"], &params) != nil {
		return
	}
	delete(params, "channel")
	switch method := msg.method(); method {
	case "notifications/cancelled":
		if call := c.mcpCalls[string(params["requestId"])]; call != nil {
			var reason string
			_ = json.Unmarshal(params["reason"], &reason) // it may be absent
			call.cancel(reason)
		}
	case "notifications/progress":
		// The host sends clients no MCP requests whose progress they could report.
	default:
		if link, err := m.linkLocked(); err == nil {
			link.notify(method, encode(params))
		}
	}
}

// A sampled message is the output of a model. AHP handles sampling/createMessage
// inside the host.
type sampled struct {
	Role       string      `json:"role"`
	Content    TextContent `json:"content"`
	Model      string      `json:"model"`
	StopReason string      `json:"stopReason"`
}

// sample answers sampling/createMessage by repeating the last message.
func sample(raw json.RawMessage) (sampled, error) {
	params, err := decodeParams[struct {
		Messages []struct {
			Content struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"messages"`
	}](raw)
	if err != nil {
		return sampled{}, err
	}
	if len(params.Messages) == 0 {
		return sampled{}, fail(ahp.CodeInvalidParams, "Invalid params: no messages")
	}
	said := params.Messages[len(params.Messages)-1].Content.Text
	return sampled{Role: "assistant", Content: TextContent{"text", "You said: " + said}, Model: "demo-model", StopReason: "endTurn"}, nil
}

// isServed reports whether the capabilities enable an MCP method, according to AHP's
// table for mcp:// channels.
func isServed(caps MCPCapabilities, method string) bool {
	switch method {
	case "tools/list", "tools/call":
		return caps.ServerTools != nil
	case "resources/list", "resources/templates/list", "resources/read":
		return caps.ServerResources != nil
	case "logging/setLevel", "notifications/message":
		return caps.Logging != nil
	case "sampling/createMessage":
		return caps.Sampling != nil
	}
	return false
}
