package gate

import (
	"slices"
	"strings"
	"unicode"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// Clients change a host's state mostly by actions. The levels talk and approve permit
// only a few of them, with the members that package ahp lists: a host could give any
// meaning to further members.
//
// Messages that run commands need the level operate: hosts run a message that begins with
// terminalCommandPrefix in a shell, without an approval, and treat a message with a leading
// slash as a command to themselves. Messages that choose an agent or have provider metadata
// (_meta), and approvals with changed tool input, need operate too.

// OtherAction is the label for unknown actions.
const OtherAction = "other"

// ActionLabel returns the type of a known client action, and otherwise [OtherAction]. So
// clients cannot create metric labels.
func ActionLabel(kind string) string {
	if _, known := ahp.Actions[kind]; known {
		return kind
	}
	return OtherAction
}

// The members that a client below the level operate may send in the params of
// dispatchAction, in a message to an agent, and in a pending message. Messages with other
// members are refused.
var (
	dispatched     = []string{"channel", "clientSeq", "action"}
	messageMembers = []string{"text", "origin", "attachments", "model"}
	pendingMembers = []string{"id", "message"}
)

// judgeAction returns the reason why a client below the level operate may not dispatch an
// action, or nil.
func (a *Authority) judgeAction(env *ahp.Envelope) *refusal {
	if string(env.Method) != "dispatchAction" {
		return nil
	}
	params, ok := onlyMembers(env.Params, dispatched)
	if !ok || params["channel"] == nil { // without it, env.Said is empty
		return unreadable
	}
	kind := ahp.TextOf(params["action"], "type")
	action, ok := ahp.Actions[kind]
	switch {
	case !ok:
		return a.noAccess(auth.AccessWrite)
	case !a.allows(action.Level):
		return a.noAccess(accessOf[action.Level])
	}
	members, ok := onlyMembers(params["action"], action.Members)
	if !ok {
		return no("%s has a member that needs the level operate", kind)
	}
	if kind == activeClientSet {
		return a.judgeActiveClient(members["activeClient"])
	}
	if option := members["selectedOptionId"]; !ahp.IsNone(option) && !a.mentions.offers(members["toolCallId"], option) {
		return no("the host has not offered this option for this tool call on this connection")
	}
	message := members[action.Message]
	if pending := members["pendingMessage"]; !ahp.IsNone(pending) {
		inner, ok := onlyMembers(pending, pendingMembers)
		if !ok || !ahp.IsNone(message) {
			return unreadable
		}
		message = inner["message"]
	}
	return a.judgeMessage(message)
}

// judgeMessage returns nil if a message is plain text for an agent, and otherwise the
// reason to refuse it.
func (a *Authority) judgeMessage(raw []byte) *refusal {
	if ahp.IsNone(raw) {
		return nil
	}
	members, ok := onlyMembers(raw, messageMembers)
	if !ok {
		return no("a message with members other than text, origin, attachments and model needs the level operate")
	}
	if no := attachmentsKnown(members["attachments"]); no != nil {
		return no
	}
	text, ok := ahp.Text(members["text"])
	if !ok && !ahp.IsNone(members["text"]) {
		return unreadable
	}
	prefix, known := a.view.Host().CommandPrefix()
	if isCommand(text, prefix) || !known && isCommand(text, anyCommand...) {
		return no("a message that begins like a command needs the level operate")
	}
	return nil
}

// anyCommand are the command prefixes that a host could have, for hosts that have not
// announced their prefix yet.
var anyCommand = strings.Split("$ % & > < | ; : \\ ^ ~ = + ? . # @", " ")

// isCommand reports whether a host could treat a text as a command. Hosts skip blanks
// before a command, but define blanks differently: JavaScript also skips U+FEFF. So
// isCommand skips all invisible characters.
func isCommand(text string, prefixes ...string) bool {
	text = strings.TrimLeftFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsGraphic(r) })
	return slices.ContainsFunc(append(prefixes, "!", "/"), func(p string) bool { return p != "" && strings.HasPrefix(text, p) })
}

// onlyMembers returns an object's members by name. ok is false if raw is not an object,
// or has a member that is neither in names nor "type".
func onlyMembers(raw []byte, names []string) (members map[string][]byte, ok bool) {
	list, err := ahp.AllMembers(raw)
	if err != nil {
		return nil, false
	}
	members = make(map[string][]byte, len(list))
	for _, m := range list {
		if m.Name != "type" && !slices.Contains(names, m.Name) {
			return nil, false
		}
		members[m.Name] = m.Raw
	}
	return members, true
}
