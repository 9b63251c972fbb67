package hostagent

import (
	"ahprelay/ahp"
)

// The audit log records the client actions that may need to be explained later:
// approvals of tool calls, writes to files and terminals, configuration changes,
// opened canvases. It never records message texts or contents.

// auditEventsAtOnce is how many events of a kind are written singly before they are
// coalesced.
const auditEventsAtOnce = 20

// auditSent writes an audit line for a client message that was sent to the host. A
// canvas is opened once and read often, so it has a single line per connection and
// interval.
func (c *hostConn) auditSent(env *ahp.Envelope) {
	method := string(env.Method)
	if method != "dispatchAction" {
		if event := ahp.AuditWord(method); event != "" && env.Kind == ahp.Request {
			c.auditEvent(event, env, "method", method)
		}
		return
	}
	action, _ := ahp.MemberOf(env.Params, "action")
	kind := ahp.TextOf(action.Raw, "type")
	switch event := ahp.Actions[kind].Audit; {
	case kind == "chat/toolCallConfirmed":
		event = "deny"
		if approved, ok := ahp.MemberOf(action.Raw, "approved"); ok && string(approved.Raw) == "true" {
			event = "approve"
		}
		c.auditEvent(event, env, "tool_call", shorten(ahp.TextOf(action.Raw, "toolCallId")))
	case event != "":
		c.auditEvent(event, env, "action", kind)
	}
}

// auditEvent writes a line with the ids in the message.
func (c *hostConn) auditEvent(event string, env *ahp.Envelope, fields ...any) {
	if len(env.Channel) > 0 {
		fields = append(fields, "channel", shorten(string(env.Channel)))
	}
	for _, key := range []string{"uri", "source", "destination"} {
		if uri := ahp.TextOf(env.Params, key); uri != "" {
			fields = append(fields, key, shorten(uri))
		}
	}
	fields = append(fields, "token", c.open.Token)
	c.auditOften(auditEventsAtOnce, event, "", fields...)
}
