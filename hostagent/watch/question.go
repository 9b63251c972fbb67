package watch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/broker/notice"
)

// A question is a session's pending question, with the ids that an answer needs.
type question struct {
	event string // the event's ID
	name  string // the host's id of the question
	chat  string
	kind  notice.Kind

	// Set for a tool call.
	turn, call string
	result     bool // the confirmation concerns the tool's result
	offered    bool // the options come from the host

	// Set for an agent's question.
	request, asks, form string // ids of the request and of its only question, and the question's kind
}

// Options if the host offers none.
const (
	allow = "allow"
	deny  = "deny"
	yes   = "true"
	no    = "false"
)

// readQuestion reads an entry of inputNeeded. It returns false if the entry needs no
// person or is malformed.
func readQuestion(session string, raw []byte) (*question, notice.Event, bool) {
	q := &question{name: ahp.TextOf(raw, "id"), chat: ahp.TextOf(raw, "chat"), turn: ahp.TextOf(raw, "turnId")}
	if q.name == "" || len(q.chat) > notice.MaxURI {
		return nil, notice.Event{}, false
	}
	q.event = notice.ID(session, q.name)
	e := notice.Event{ID: q.event, Session: session, Chat: q.chat}
	call := ahp.RawOf(raw, "toolCall")
	switch ahp.TextOf(raw, "kind") {
	case "toolConfirmation":
		e.Kind = notice.Approval
		q.tool(&e, call)
		if q.result { // VS Code uses the id of the call's own approval again
			q.event = notice.ID(session, q.name+"\x00result")
			e.ID = q.event
		}
	case "toolAuthentication": // its auth member may contain secrets and is not read
		e.Kind, e.Text = notice.SignIn, ahp.TextOf(call, "displayName")
	case "chatInput":
		e.Kind = notice.Question
		q.asked(&e, ahp.RawOf(raw, "request"))
	case "toolClientExecution":
		return nil, notice.Event{}, false
	default:
		e.Kind = notice.Input
	}
	q.kind = e.Kind
	return q, e, true
}

// tool reads a tool call with a pending confirmation.
func (q *question) tool(e *notice.Event, raw []byte) {
	m := [...]ahp.Member{
		{Name: "toolCallId"}, {Name: "status"}, {Name: "confirmationTitle"}, {Name: "invocationMessage"}, {Name: "displayName"},
		{Name: "toolInput"}, {Name: "options"}, {Name: "edits"}, {Name: "riskAssessment"}, {Name: "pastTenseMessage"},
	}
	if !ahp.IsObject(raw) || ahp.Members(raw, m[:]) != nil {
		return
	}
	q.call, _ = ahp.Text(m[0].Raw)
	status, _ := ahp.Text(m[1].Raw)
	q.result = status == "pending-result-confirmation"
	title := m[2].Raw
	if q.result {
		title = m[9].Raw
	}
	e.Text = cmp.Or(ahp.WordsOf(title), ahp.WordsOf(m[3].Raw), ahp.WordsOf(m[4].Raw))
	input, here := ahp.Text(m[5].Raw)
	if e.Detail = input; !here || input == "" { // the message is the only description
		e.Detail = ahp.WordsOf(m[3].Raw)
	}
	elsewhere := !here && !ahp.IsNone(m[5].Raw)
	e.Hidden = elsewhere || !ahp.IsNone(m[7].Raw) || q.result || e.Detail == ""
	if e.Detail == e.Text {
		e.Detail = ""
	}
	e.Detail = withFiles(e.Detail, m[7].Raw)
	e.Risky = isRisky(m[8].Raw)
	if q.turn == "" || q.call == "" || q.chat == "" {
		return
	}
	e.Answer = notice.Choice
	if q.result {
		q.options(e, nil) // the options of the call belong to its earlier confirmation
	} else {
		q.options(e, m[6].Raw)
	}
}

// maxNamed bounds the files that a question names.
const maxNamed = 5

// withFiles adds the files that a tool call changes to its description, with their
// numbers of lines: "Fix it: session.go +2 −2, session_test.go +3". Members that cannot
// be read are left out.
func withFiles(detail string, edits []byte) string {
	items := ahp.ElementsOf(ahp.RawOf(edits, "items"))
	var files []string
	for _, item := range items[:min(len(items), maxNamed)] {
		var edit struct {
			Before, After struct{ URI string }
			Diff          struct{ Added, Removed ahp.Int }
		}
		_ = json.Unmarshal(item.Raw, &edit)
		name := path.Base(cmp.Or(edit.After.URI, edit.Before.URI, "?"))
		if plain, err := url.PathUnescape(name); err == nil {
			name = plain
		}
		for _, lines := range []struct {
			sign string
			n    ahp.Int
		}{{"+", edit.Diff.Added}, {"−", edit.Diff.Removed}} {
			if lines.n > 0 {
				name += fmt.Sprint(" ", lines.sign, lines.n)
			}
		}
		files = append(files, name)
	}
	if more := len(items) - maxNamed; more > 0 {
		files = append(files, fmt.Sprintf("and %d more", more))
	}
	if len(files) == 0 {
		return detail
	}
	return strings.TrimPrefix(detail+": "+strings.Join(files, ", "), ": ")
}

// options reads the answers that the host offers. If the host offers none, a person may
// allow the call once or deny the call.
func (q *question) options(e *notice.Event, raw []byte) {
	for _, o := range ahp.ElementsOf(raw) {
		e.Options = append(e.Options, notice.Option{ID: ahp.TextOf(o.Raw, "id"), Label: ahp.TextOf(o.Raw, "label"), Deny: ahp.TextOf(o.Raw, "kind") != "approve"})
	}
	e.Options = slices.Concat(notice.Arrange(e.Options))
	if q.offered = len(e.Options) > 0; !q.offered {
		e.Options = []notice.Option{{ID: allow, Label: "Allow once"}, {ID: deny, Label: "Deny", Deny: true}}
	}
}

// isRisky reports whether the host's assessment of a call's risk is not complete, or does
// not find the call safe. Without an assessment, isRisky returns false.
func isRisky(raw []byte) bool {
	if ahp.IsNone(raw) {
		return false
	}
	var safety float64
	return ahp.TextOf(raw, "status") != "complete" || json.Unmarshal(ahp.RawOf(raw, "safety"), &safety) != nil || safety < safeEnough || safety > 1
}

// safeEnough is the least safety, from 0 to 1, at which a call counts as safe.
const safeEnough = 0.5

// asked reads an agent's question.
func (q *question) asked(e *notice.Event, raw []byte) {
	q.request = ahp.TextOf(raw, "id")
	e.Text = ahp.TextOf(raw, "message")
	list := ahp.ElementsOf(ahp.RawOf(raw, "questions"))
	switch {
	case q.request == "" || q.chat == "" || len(list) > 1 || !ahp.IsNone(ahp.RawOf(raw, "url")):
		return
	case len(list) == 0:
		e.Answer = notice.Choice
		e.Options = []notice.Option{{ID: allow, Label: "Accept"}, {ID: deny, Label: "Decline", Deny: true}}
		return
	}
	one := list[0].Raw
	q.asks, q.form = ahp.TextOf(one, "id"), ahp.TextOf(one, "kind")
	if text := ahp.TextOf(one, "message"); e.Text == "" || e.Text == text {
		e.Text = text
	} else {
		e.Detail = text
	}
	switch q.form {
	case "text":
		e.Answer = notice.Text
	case "boolean":
		e.Answer, e.Options = notice.Choice, []notice.Option{{ID: yes, Label: "Yes"}, {ID: no, Label: "No"}}
	case "single-select":
		for _, o := range ahp.ElementsOf(ahp.RawOf(one, "options")) {
			e.Options = append(e.Options, notice.Option{ID: ahp.TextOf(o.Raw, "id"), Label: ahp.TextOf(o.Raw, "label")})
		}
		e.Answer = notice.Choice
		if len(e.Options) == 0 {
			e.Answer = notice.NoForm
		}
	}
}

// A Reply is a person's answer: an option or a text.
type Reply struct {
	Option string
	Text   string
}

// Reasons for a refused answer.
var (
	// ErrUnknown reports that the event has no open question.
	ErrUnknown = errors.New("the question is no longer open")
	// ErrChanged reports that the question has changed since it was shown.
	ErrChanged = errors.New("the question has changed; open it again")
	// ErrNoAnswer reports that the answer does not fit the question.
	ErrNoAnswer = errors.New("the answer does not fit the question")
)

// An AnsweredError reports that the question is already answered.
type AnsweredError struct{ By string }

// Error includes the name of the person, if known.
func (e *AnsweredError) Error() string {
	if e.By == "" {
		return "already answered"
	}
	return "already answered by " + e.By
}

func (q *question) action(e *notice.Event, said Reply) (map[string]any, error) {
	option, chosen := notice.Option{}, false
	for _, o := range e.Options {
		if o.ID == said.Option && o.ID != "" {
			option, chosen = o, true
		}
	}
	switch {
	case e.Answer == notice.NoForm, chosen == (said.Text != ""), said.Text != "" && e.Answer != notice.Text, len(said.Text) > maxReply:
		return nil, ErrNoAnswer
	case q.kind == notice.Approval && q.result:
		return map[string]any{"type": "chat/toolCallResultConfirmed", "turnId": q.turn, "toolCallId": q.call, "approved": !option.Deny}, nil
	case q.kind == notice.Approval:
		return q.confirmation(option), nil
	}
	action := map[string]any{"type": "chat/inputCompleted", "requestId": q.request, "response": "accept"}
	if option.Deny {
		action["response"] = "decline"
	} else if q.asks != "" {
		value := map[string]any{"kind": "text", "value": said.Text}
		switch q.form {
		case "boolean":
			value = map[string]any{"kind": "boolean", "value": option.ID == yes}
		case "single-select":
			value = map[string]any{"kind": "selected", "value": option.ID}
		}
		action["answers"] = map[string]any{q.asks: map[string]any{"state": "submitted", "value": value}}
	}
	return action, nil
}

// maxReply bounds a text answer, in bytes.
const maxReply = 4 << 10

func (q *question) confirmation(o notice.Option) map[string]any {
	action := map[string]any{"type": "chat/toolCallConfirmed", "turnId": q.turn, "toolCallId": q.call, "approved": !o.Deny}
	if q.offered {
		action["selectedOptionId"] = o.ID
	}
	if o.Deny {
		action["reason"] = "denied"
	} else {
		action["confirmed"] = "user-action"
	}
	return action
}

// An Answer is an action to dispatch on a chat.
type Answer struct {
	Chat     string
	Question string       // the host's id in the session's list of questions
	Action   []byte       // the action's JSON
	Event    notice.Event // the answered event

	watch *Watch
}

// Answer accepts an answer to an event that was shown with this digest. The first
// caller gets an Answer and dispatches it. If the host does not accept the Answer, the
// caller calls [Answer.Undo]. Later callers get an error.
func (w *Watch) Answer(id, digest, by string, said Reply) (*Answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if first, ok := w.answered.Peek(id); ok {
		return nil, &AnsweredError{first}
	}
	q := w.open[id]
	e, ok := w.cfg.Ledger.Open(id)
	switch {
	case q == nil || !ok:
		return nil, ErrUnknown
	case e.Digest() != digest:
		return nil, ErrChanged
	}
	action, err := q.action(&e, said)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(action)
	if err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	w.answered.Add(id, by)
	return &Answer{Chat: q.chat, Question: q.name, Action: data, Event: e, watch: w}, nil
}

// Undo permits another answer, because the host has not accepted this one.
func (a *Answer) Undo() {
	a.watch.mu.Lock()
	defer a.watch.mu.Unlock()
	a.watch.answered.Remove(a.Event.ID)
}
