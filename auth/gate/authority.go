package gate

import (
	"bytes"
	"fmt"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth"
)

// An Authority is the gate for a client with limited authority; see the package
// documentation. [Policy.Gate] returns it.
type Authority struct {
	policy   Policy
	view     *view.Conn
	reach    *reach     // nil: all channels
	files    *fileReach // nil: all files
	mentions *mentions  // nil: the client may name anything
	claims   []claim    // active clients' entries that the host has not echoed yet, the oldest first
}

func newAuthority(p Policy, v *view.Conn) *Authority {
	a := &Authority{policy: p, view: v}
	if len(p.Channels) > 0 || len(p.Hidden) > 0 {
		a.reach = newReach(p.Channels, p.Hidden, v.Host())
	}
	if len(p.files) > 0 {
		a.mentions = newMentions(a.reach)
		a.files = newFileReach(p, a.reach, v, a.mentions)
	}
	return a
}

// FromClient implements [Gate].
func (a *Authority) FromClient(message []byte, env *ahp.Envelope) Decision {
	if env.Kind == ahp.Response {
		return a.answered(env)
	}
	no := a.judge(env)
	if no == nil && env.Kind == ahp.Request && (a.reach != nil || a.files != nil || opens(string(env.Method))) {
		no = a.tellApart(env)
	}
	if no != nil {
		return a.refuse(env, no)
	}
	if a.reach != nil {
		a.reach.gives(env)
	}
	return a.withoutTools(message, env)
}

// Refusals for requests whose responses could not be matched.
var (
	sameID  = &refusal{ahp.CodeInvalidRequest, "a request with this id is still open"}
	tooMany = &refusal{ahp.CodeRateLimited, "too many open requests"}
)

// tellApart refuses a request whose response could not be matched to it.
func (a *Authority) tellApart(env *ahp.Envelope) *refusal {
	switch waits, full := a.view.Waits(env.ID); {
	case full:
		return tooMany
	case waits:
		return sameID
	}
	return nil
}

// A refusal is the reason why a message may not pass.
type refusal struct {
	code   int
	reason string
}

func no(format string, args ...any) *refusal {
	return &refusal{ahp.CodePermissionDenied, fmt.Sprintf(format, args...)}
}

var (
	noMethod = no("this token does not allow this method")
	noCase   = no("a key differs only in case from a key of AHP")
	noFrame  = no("this token allows frames on raw connections only")
	noWord   = no("unknown method: a limited token allows known methods only")
	noAsk    = no("unknown method: a limited client gets known methods only")
)

// judge returns the reason why a client's message may not pass, or nil. Each branch is a
// rule, and the first rule that refuses decides.
func (a *Authority) judge(env *ahp.Envelope) *refusal {
	m, known := ahp.MethodOn(string(env.Channel), string(env.Method))
	switch {
	case env.Misspelt:
		return noCase
	case known && !a.allows(m.Level), !a.allows(ahp.Look):
		return a.noAccess(accessOf[m.Level])
	case !known && (!a.policy.Writes() || a.reach != nil):
		return noWord
	case m.Class == ahp.Ordinary && !a.policy.allowsMethod(string(env.Method)):
		return noMethod
	case string(env.Method) == "channel/frame" && !bytes.HasPrefix(env.Channel, []byte(ahp.TCPScheme)):
		return noFrame // see Windows: only raw connections have frames
	}
	if !a.policy.Writes() {
		if no := a.judgeAction(env); no != nil {
			return no
		}
	}
	if a.reach != nil && m.Target == ahp.OnResources {
		if no := a.reach.judgeContent(env); no != nil {
			return no
		}
	}
	if a.files != nil {
		if m.Target == ahp.OnResources {
			return a.files.judgeResource(env)
		}
		if no := a.files.judgeOthers(env); no != nil {
			return no
		}
	}
	if a.reach != nil {
		if no := a.reach.judge(m.Target, env); no != nil {
			return no
		}
	}
	if a.reach == nil && a.files == nil {
		return nil
	}
	return a.judgeAttachments(env)
}

// accessOf maps the levels in package ahp's table to those in tokens.
var accessOf = map[ahp.Level]auth.Access{
	ahp.Look: auth.AccessRead, ahp.Talk: auth.AccessTalk, ahp.Approve: auth.AccessApprove, ahp.Operate: auth.AccessWrite, ahp.Own: auth.AccessAdmin,
}

func (a *Authority) allows(level ahp.Level) bool { return a.policy.Access.Includes(accessOf[level]) }

// noAccess returns the refusal for a message that needs a higher level than the token's.
func (a *Authority) noAccess(needs auth.Access) *refusal {
	if !a.policy.Speaks() {
		return no("this token allows the level look only")
	}
	return no("this needs the level %s; this token has %s", needs.Level(), a.policy.Access.Level())
}

// refuse responds to a refused message: to a request with an error, and to dispatchAction
// with the action's echo. Other notifications are dropped.
func (a *Authority) refuse(env *ahp.Envelope, no *refusal) Decision {
	switch {
	case env.Kind == ahp.Request:
		return Decision{Answer, ahp.AppendError(nil, env.ID, no.code, no.reason, nil)}
	case string(env.Method) == "dispatchAction":
		echo, settled := TakeBack(env, a.view.ClientID(), a.view.Seq(), no.reason)
		if settled {
			return Decision{Settle, echo}
		}
		return Decision{Answer, echo}
	}
	return Decision{Verdict: Answer}
}

// FromHost implements [Gate].
func (a *Authority) FromHost(message []byte, env *ahp.Envelope, reading *view.Reading) Decision {
	d := a.judgeHost(message, env, reading)
	if d.Verdict == Pass {
		if echo, ok := a.withOwnEntry(message, env); ok {
			return Decision{Replace, echo}
		}
	}
	return d
}

func (a *Authority) judgeHost(message []byte, env *ahp.Envelope, reading *view.Reading) Decision {
	if a.files != nil {
		a.mentions.learn(reading)
		a.files.learn(reading)
	}
	switch {
	case a.reach == nil:
		return Decision{}
	case env == nil:
		return Decision{Verdict: Answer}
	case env.Kind == ahp.Request:
		if no := a.reach.request(env); no != nil {
			return Decision{Answer, ahp.AppendError(nil, env.ID, no.code, no.reason, nil)}
		}
		return Decision{}
	case env.Kind == ahp.Notification:
		return a.reach.notification(message, env, reading)
	}
	return a.reach.response(message, env, reading)
}

// answered judges a client's response. If the result could grant a permission, the host
// gets an error instead.
func (a *Authority) answered(env *ahp.Envelope) Decision {
	if env.Misspelt { // the message may be a request
		return Decision{Replace, ahp.AppendError(nil, env.ID, noCase.code, noCase.reason, nil)}
	}
	if a.policy.Writes() || env.Error != nil {
		return Decision{}
	}
	call, known := a.view.Answering(env.ID)
	if answer := ahp.HostMethods[call.Method].Answer; known && (answer == ahp.AnswerAny || answer == ahp.AnswerReverse && a.policy.Reverse) {
		return Decision{}
	}
	return Decision{Replace, ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "a response that could grant a permission needs the level operate", nil)}
}
