package gate

import (
	"bytes"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// This file has the filters for a client with limited channels: see [ahp.Shape]. If the
// root is in reach, they remove only parts on channels out of reach, from responses and
// snapshots.

// response filters a response to a client's request. A response that matches no request
// is dropped, except the id-null error that reports an unreadable request.
func (r *reach) response(message []byte, env *ahp.Envelope, reading *view.Reading) Decision {
	own := new(view.Reading)
	if reading == nil {
		if env.Error == nil || string(env.ID) != "null" {
			return Decision{Verdict: Answer}
		}
		reading = own
	}
	opens := opens(reading.Call.Method) && env.Result != nil
	if channel := reading.Call.Channel; opens && reading.Call.Method == "subscribe" && channel != ahp.RootChannel {
		if no := r.judgeURI(channel); no != nil { // a hint has permitted the request, but the terminal belongs to a different session
			return Decision{Replace, ahp.AppendError(nil, env.ID, no.code, no.reason, nil)}
		}
	}
	s := sight{r, &reading.Edit, reading.Call.Resumed}
	if r.root && !opens || s.response(message, env, &reading.Call) {
		return changed(own, message)
	}
	return Decision{Replace, ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "the host's response is unreadable, so its visible parts are unknown", nil)}
}

// changed returns the decision about a message that a filter may have edited.
func changed(own *view.Reading, message []byte) Decision {
	if own.Edit.Changes() {
		return Decision{Replace, own.Edit.Apply(message)}
	}
	return Decision{}
}

func (r *reach) notification(message []byte, env *ahp.Envelope, reading *view.Reading) Decision {
	method, allowed := string(env.Method), r.allowsNext(env.Channel)
	carries := method == "channel/snapshot" || method == "channel/frame"
	switch {
	case method == "root/progress" && !r.root && !r.given(env.Params):
		return Decision{Verdict: Answer}
	case !allowed && (string(env.Channel) != ahp.RootChannel || ahp.HostMethods[method].Where != ahp.OrRoot):
		return Decision{Verdict: Answer}
	case allowed && (r.root && !carries || usual(message, env)):
		return Decision{}
	}
	own := new(view.Reading)
	if reading == nil {
		reading = own
	}
	s := sight{reach: r, Editor: &reading.Edit}
	if !s.notification(message, env) {
		return Decision{Verdict: Answer}
	}
	return changed(own, message)
}

// request returns the reason why a host's request may not pass, or nil. Known requests
// about the connection or the client itself pass.
func (r *reach) request(env *ahp.Envelope) *refusal {
	switch {
	case !r.root && ahp.HostMethods[string(env.Method)].Kind != ahp.Request:
		return noAsk
	case env.Channel == nil || string(env.Channel) == ahp.RootChannel:
		return nil
	}
	return r.judgeURI(string(env.Channel))
}

// A sight reduces a message to the parts that a client may see. It implements
// [ahp.Sight].
type sight struct {
	reach *reach
	*view.Editor
	named []string // channels that the client has named itself
}

// All implements [ahp.Sight]. It reports whether the client may see message parts that
// this package does not know, which requires that the root is in reach.
func (s *sight) All() bool { return s.reach.root }

func (s *sight) Reaches(uri string) bool { return s.reach.allows(uri) }

func (s *sight) Knows(uri string) bool {
	return s.reach.allows(uri) || uri == ahp.RootChannel || slices.Contains(s.named, uri)
}

// response removes the parts of a response that the client may not see, and reports
// whether anything remains.
func (s *sight) response(message []byte, env *ahp.Envelope, call *view.Call) bool {
	method, _ := ahp.MethodOn(call.Channel, call.Method)
	key, shape := "result", method.Result
	switch {
	case env.Result == nil && strings.HasPrefix(call.Channel, ahp.MCPScheme) && method.Class == ahp.Ordinary:
		key, shape = "error", ahp.Whole // an MCP server's own
	case env.Result == nil:
		key, shape = "error", ahp.ErrorShape
	case string(env.Result) == "null":
		shape = ahp.Whole
	}
	return ahp.MessageShape(key, shape)(s, ahp.Member{Raw: message})
}

// notification removes the parts of a notification that the client may not see, and
// reports whether anything remains.
func (s *sight) notification(message []byte, env *ahp.Envelope) bool {
	method := ahp.HostMethods[string(env.Method)]
	if method.Kind != ahp.Notification || method.Where == ahp.OnMCP && !bytes.HasPrefix(env.Channel, []byte(ahp.MCPScheme)) {
		return false
	}
	return ahp.MessageShape("params", method.Params)(s, ahp.Member{Raw: message})
}

// plainAction begins an action in the form that most hosts write.
const plainAction = `{"jsonrpc":"2.0","method":"action","params":`

// usual reports whether an action has only known members. It only compares lengths, so it
// is cheap.
func usual(message []byte, env *ahp.Envelope) bool {
	action := &env.Said
	if action.Action == nil {
		return false
	}
	length := len(`{"channel":"","action":}`) + len(env.Channel) + len(action.Action)
	if action.ServerSeq != nil {
		length += len(`,"serverSeq":`) + len(action.ServerSeq)
	}
	if action.Origin != nil {
		length += len(`,"origin":`) + len(action.Origin)
	}
	return len(env.Params) == length && len(message) == len(plainAction)+length+len(`}`) && bytes.HasPrefix(message, []byte(plainAction))
}

// opens reports whether the response to a request carries the host's serverSeq.
func opens(method string) bool { return ahp.ClientMethods[method].Class == ahp.Opening }
