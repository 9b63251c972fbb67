package hostagent

import (
	"ahprelay/ahp"
)

// What clients do at the host that somebody may be asked about later stands in the
// host-agent's log, in lines of the audit: who approved which tool call, who wrote which file or into which
// terminal, who changed what is configured, who opened which canvas. Never what was said or
// written.

// deedsAtOnce is how many of a kind have a line each, before they are counted together.
const deedsAtOnce = 20

// did notes a message of the client's that has gone to the host. Canvases are opened once, and read
// often: one line for each connection and time.
func (c *hostConn) did(env *ahp.Envelope) {
	method := string(env.Method)
	if method != "dispatchAction" {
		if event := ahp.AuditWord(method); event != "" && env.Kind == ahp.Request {
			c.note(event, env, "method", method)
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
		c.note(event, env, "tool_call", shorten(ahp.TextOf(action.Raw, "toolCallId")))
	case event != "":
		c.note(event, env, "action", kind)
	}
}

// note writes a line, with what the message names.
func (c *hostConn) note(event string, env *ahp.Envelope, fields ...any) {
	if len(env.Channel) > 0 {
		fields = append(fields, "channel", shorten(string(env.Channel)))
	}
	for _, key := range []string{"uri", "source", "destination"} {
		if uri := ahp.TextOf(env.Params, key); uri != "" {
			fields = append(fields, key, shorten(uri))
		}
	}
	fields = append(fields, "token", c.open.Token)
	c.often(deedsAtOnce, event, "", fields...)
}
