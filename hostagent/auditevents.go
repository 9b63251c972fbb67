package hostagent

import (
	"ahprelay/ahp"
)

// The audit log records client actions that may have to be explained later:
// approved tool calls, changed files and configuration, terminal input, opened
// canvases. It never contains message texts or file contents.

// auditEventsAtOnce is how many events of one kind get a line each; later ones
// are coalesced.
const auditEventsAtOnce = 20

// auditSent writes an audit line for a client message that is about to be sent to the
// host, if the message has an audit word.
func (c *hostConn) auditSent(env *ahp.Envelope) {
	method := string(env.Method)
	if method != "dispatchAction" {
		if event := ahp.AuditWord(method); event != "" && env.Kind == ahp.Request {
			c.auditEvent(event, env, "method", method)
		}
		return
	}
	kind := ahp.TextOf(env.Params, "action", "type")
	switch event := ahp.Actions[kind].Audit; {
	case kind == "chat/toolCallConfirmed":
		event = "deny"
		if string(ahp.RawOf(env.Params, "action", "approved")) == "true" {
			event = "approve"
		}
		c.auditEvent(event, env, "tool_call", shorten(ahp.TextOf(env.Params, "action", "toolCallId")))
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
