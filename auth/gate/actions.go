package gate

import (
	"slices"
	"strings"
	"unicode"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// What clients do at a host is mostly said in actions. The levels talk and
// approve are some of these, with the members that are known here and no
// others: a host reads more into an action some day than the level is about.
//
// Who may talk but not operate is not to come to a command by another way. A
// host runs what begins with its terminalCommandPrefix in a shell, without
// asking anybody, and takes what begins with a slash for a command to itself: such
// messages take the level operate. So do those that choose an agent, or say
// something that is the provider's own (_meta). Input of a tool that was changed
// before it was approved is somebody's own command too.

// An action is what is known of an action of clients.
type action struct {
	needs   auth.Access
	members []string // beside type
	message string   // which of them is a message to an agent; "": none
}

// actions are those that need less than the level operate.
var actions = map[string]action{
	"chat/turnStarted":             {auth.AccessTalk, []string{"turnId", "startedAt", "message", "queuedMessageId"}, "message"},
	"chat/turnCancelled":           {auth.AccessTalk, []string{"turnId", "duration"}, ""},
	"chat/pendingMessageSet":       {auth.AccessTalk, []string{"kind", "id", "message", "pendingMessage"}, "message"},
	"chat/pendingMessageRemoved":   {auth.AccessTalk, []string{"kind", "id"}, ""},
	"chat/queuedMessagesReordered": {auth.AccessTalk, []string{"order"}, ""},
	"chat/draftChanged":            {auth.AccessTalk, []string{"draft"}, "draft"},
	"chat/inputAnswerChanged":      {auth.AccessTalk, []string{"requestId", "questionId", "answer"}, ""},
	"chat/inputCompleted":          {auth.AccessTalk, []string{"requestId", "response", "answers"}, ""},
	"chat/isReadChanged":           {auth.AccessTalk, []string{"isRead"}, ""},
	"session/isReadChanged":        {auth.AccessTalk, []string{"isRead"}, ""},
	activeClientSet:                {auth.AccessTalk, []string{"activeClient"}, ""}, // goes on as withoutTools leaves it

	"chat/toolCallConfirmed": {auth.AccessApprove, []string{
		"turnId", "toolCallId", "approved", "confirmed", "reason", "reasonMessage", "selectedOptionId", "userSuggestion",
	}, "userSuggestion"},
	"chat/toolCallResultConfirmed": {auth.AccessApprove, []string{"turnId", "toolCallId", "approved"}, ""},
}

// operateActions are those of clients that take the level operate.
var operateActions = strings.Fields("root/configChanged " +
	"session/titleChanged session/activeClientRemoved session/workingDirectorySet session/workingDirectoryRemoved session/workingDirectoryReplaced " +
	"session/customizationToggled session/mcpServerStartRequested session/mcpServerStopRequested session/mcpServerBackgroundRequested " +
	"session/isArchivedChanged session/configChanged " +
	"chat/toolCallComplete chat/toolCallContentChanged chat/turnResume chat/truncated chat/workingDirectorySet chat/workingDirectoryRemoved chat/isArchivedChanged " +
	"changeset/filesReviewChanged terminal/input terminal/resized terminal/claimed terminal/titleChanged terminal/cleared " +
	"annotations/set annotations/updated annotations/removed annotations/entrySet annotations/entryRemoved " +
	"automation/createRequested automation/updateRequested automation/removed automationRun/cancelRequested " +
	"canvas/message canvas/closeRequested")

// OtherAction is the label of actions that are not known.
const OtherAction = "other"

// ActionLabel returns the type of an action of clients if it is known, or else [OtherAction]: metrics
// have so few labels whatever clients send.
func ActionLabel(kind string) string {
	if _, known := actions[kind]; known || slices.Contains(operateActions, kind) {
		return kind
	}
	return OtherAction
}

// Members of what carries actions, and of messages to agents.
var (
	dispatched     = []string{"channel", "clientSeq", "action"}
	messageMembers = []string{"text", "origin", "attachments", "model"}
	pendingMembers = []string{"id", "message"}
)

// judgeAction says why somebody who may not operate may not say an action.
func (a *Authority) judgeAction(env *ahp.Envelope) *refusal {
	if string(env.Method) != "dispatchAction" {
		return nil
	}
	params, ok := onlyMembers(env.Params, dispatched)
	if !ok {
		return unreadable
	}
	kind := ahp.TextOf(params["action"], "type")
	known, ok := actions[kind]
	switch {
	case !ok:
		return a.noAccess(auth.AccessWrite)
	case !a.policy.Access.Includes(known.needs):
		return a.noAccess(known.needs)
	}
	members, ok := onlyMembers(params["action"], known.members)
	if !ok {
		return no("%s here says more than is known of it, which takes the level operate", kind)
	}
	if kind == activeClientSet {
		return a.judgeActiveClient(members["activeClient"])
	}
	if option := members["selectedOptionId"]; !ahp.IsNone(option) && !a.told.offers(members["toolCallId"], option) {
		return no("the host has not offered this option for this tool call on this connection")
	}
	message := members[known.message]
	if pending := members["pendingMessage"]; !ahp.IsNone(pending) {
		inner, ok := onlyMembers(pending, pendingMembers)
		if !ok || !ahp.IsNone(message) {
			return unreadable
		}
		message = inner["message"]
	}
	return a.judgeMessage(message)
}

// judgeMessage wants a message to be words to an agent.
func (a *Authority) judgeMessage(raw []byte) *refusal {
	if ahp.IsNone(raw) {
		return nil
	}
	members, ok := onlyMembers(raw, messageMembers)
	if !ok {
		return no("a message that says more than text, attachments and model takes the level operate")
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
		return no("what begins like a command takes the level operate")
	}
	return nil
}

// anyCommand may begin commands of a host that has not said yet what does.
var anyCommand = strings.Split("$ % & > < | ; : \\ ^ ~ = + ? . # @", " ")

// isCommand reports whether a text begins a command to a host. Hosts drop blanks before a
// command, but each drops a set of its own: JavaScript drops U+FEFF too. So characters that
// are not visible do not count.
func isCommand(text string, prefixes ...string) bool {
	text = strings.TrimLeftFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsGraphic(r) })
	return slices.ContainsFunc(append(prefixes, "!", "/"), func(p string) bool { return p != "" && strings.HasPrefix(text, p) })
}

// onlyMembers returns the members of an object by their names; ok is false if it
// is none, or has others than the names and type.
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
