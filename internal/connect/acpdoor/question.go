package acpdoor

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"ahprelay/ahp"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
)

// A question is a question in the session which waits for an answer.
type question struct {
	session *session
	raw     string
	pending watch.Pending
	over    bool         // answered, withdrawn or replaced
	sent    *acp.Pending // the pending request to the editor; nil: none

	action json.RawMessage // answers the question; nil: the user has not answered
	via    *client.Client  // the connection on which action was sent; nil: none
}

// readQuestions asks the open questions of a state, and withdraws all others.
func (s *session) readQuestions(list []json.RawMessage) {
	open := map[string]bool{}
	for _, raw := range list {
		open[ahp.TextOf(raw, "id")] = true
	}
	for id := range s.asked {
		if !open[id] {
			s.withdraw(id)
		}
	}
	for _, raw := range list {
		s.ask(raw)
	}
}

// ask asks the editor's user. A changed question replaces the previous one.
func (s *session) ask(raw json.RawMessage) {
	id := ahp.TextOf(raw, "id")
	if old := s.asked[id]; old != nil {
		if old.raw == string(raw) {
			s.door.spawn(old.deliver)
			return
		}
		s.withdraw(id)
	}
	pending, ok := watch.ReadPending(s.id, raw)
	if !ok || pending.Chat != s.chat {
		return // no person can answer, or not in this chat
	}
	q := &question{session: s, raw: string(raw), pending: pending}
	s.asked[id] = q
	s.door.spawn(q.run)
}

// withdraw withdraws a question which was answered or has ended.
func (s *session) withdraw(id string) {
	q := s.asked[id]
	if q == nil {
		return
	}
	delete(s.asked, id)
	q.over = true
	if q.sent != nil {
		q.sent.Cancel()
	}
}

// run asks the question, and sends the answer to the host.
func (q *question) run() {
	s := q.session
	var action []byte
	switch {
	case q.pending.Event.Kind == notice.Approval:
		action = q.permission()
	case q.form():
		action = q.elicit()
	case q.pending.Event.Answer == notice.Choice:
		action = q.choice()
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		if e := q.pending.Event; !q.over && s.turn != nil {
			s.turn.say(acp.UpdateAgentMessageChunk, "", "\n\n(The agent waits: "+cmp.Or(e.Text, "it needs an answer")+" — answer in the console; this editor has no form for it.)\n\n")
		}
		return
	}
	s.mu.Lock()
	q.action = action
	s.mu.Unlock()
	q.deliver()
}

// deliver sends the user's answer to the host, once on each connection, because the previous connection may have ended
// before the host had the answer.
func (q *question) deliver() {
	s := q.session
	s.mu.Lock()
	c := s.client()
	send := q.action != nil && !q.over && c != nil && c != q.via
	if send {
		q.via = c
	}
	s.mu.Unlock()
	if !send {
		return
	}
	ctx, cancel := context.WithTimeout(s.door.life, callTime)
	defer cancel()
	if err := c.Dispatch(ctx, q.pending.Chat, q.action); err != nil {
		s.door.cfg.Log.Info("answer not sent", "effect", "the next connection sends it", "error", err)
	}
}

// send sends a request to the editor, and waits for the answer. It returns false if
// there is none.
func (q *question) send(method string, params, result any) bool {
	s := q.session
	s.mu.Lock()
	if q.over {
		s.mu.Unlock()
		return false
	}
	sent := s.door.conn.Begin(method, params)
	q.sent = sent
	s.mu.Unlock()
	err := sent.Wait(s.door.life, result)
	s.mu.Lock()
	q.sent = nil
	s.mu.Unlock()
	if err != nil {
		s.door.cfg.Log.Debug("question not answered by the editor", "error", err)
	}
	return err == nil
}

// permission asks for permission for a tool call. It returns the action which answers.
func (q *question) permission() []byte {
	s := q.session
	var call client.ToolCall
	if json.Unmarshal(ahp.RawOf([]byte(q.raw), "toolCall"), &call) != nil {
		return nil
	}
	whole := s.complete(&call)
	s.mu.Lock()
	update := s.toolUpdate(&call)
	s.mu.Unlock()
	update.Title = cmp.Or(ahp.WordsOf(call.Title), update.Title)
	if !whole {
		update.Content = append(update.Content, textContent("Not everything that would run can be shown here. You can refuse it, or answer in the console."))
	}
	return q.choose(update, !whole)
}

// complete fetches everything a person must see before answering. It returns false if
// something cannot be shown.
func (s *session) complete(call *client.ToolCall) bool {
	ctx, cancel := context.WithTimeout(s.door.life, callTime)
	defer cancel()
	_, shown := ahp.Text(call.Input)
	if !shown && !ahp.IsNone(call.Input) {
		text, err := s.read(ctx, ahp.TextOf(call.Input, "uri"))
		if err != nil {
			return false
		}
		call.Input, _ = json.Marshal(text) // a string always marshals
	}
	if call.Status == "pending-result-confirmation" {
		return true // the call's content is the result to confirm
	}
	list := ahp.ElementsOf(ahp.RawOf(call.Edits, "items"))
	for _, item := range list {
		before, after := sides(item.Raw)
		for _, one := range []*side{before, after} {
			if one == nil {
				continue
			}
			uri := one.Content.URI
			if _, ok := dataText(uri); ok {
				continue
			}
			text, err := s.read(ctx, uri)
			if err != nil {
				return false
			}
			s.mu.Lock()
			s.keep(uri, text)
			s.mu.Unlock()
		}
		if before == nil && after == nil {
			return false
		}
	}
	return len(list) > 0 || ahp.IsNone(call.Edits)
}

// choice asks a question with options.
func (q *question) choice() []byte {
	e := &q.pending.Event
	update := acp.ToolCallUpdate{ToolCallID: "question-" + e.ID, Title: e.Text, Kind: acp.ToolKindOther, Status: acp.ToolCallStatusPending}
	if e.Detail != "" {
		update.Content = []acp.ToolCallContent{textContent(e.Detail)}
	}
	return q.choose(update, false)
}

// choose lets the user choose an option: only a refusal if refuse is true. It returns the
// action which answers.
func (q *question) choose(update acp.ToolCallUpdate, refuse bool) []byte {
	e := &q.pending.Event
	once, deny, wider := notice.Arrange(e.Options)
	r := acp.RequestPermissionRequest{SessionID: q.session.id, ToolCall: update, Options: []acp.PermissionOption{}}
	for _, group := range []struct {
		options []notice.Option
		kind    string
	}{{once, acp.PermissionOptionKindAllowOnce}, {wider, acp.PermissionOptionKindAllowAlways}, {deny, acp.PermissionOptionKindRejectOnce}} {
		if e.Kind != notice.Approval && group.kind == acp.PermissionOptionKindAllowAlways {
			group.kind = acp.PermissionOptionKindAllowOnce
		}
		for _, o := range group.options {
			if !refuse || o.Deny {
				r.Options = append(r.Options, acp.PermissionOption{OptionID: o.ID, Name: o.Label, Kind: group.kind})
			}
		}
	}
	var answer acp.RequestPermissionResponse
	if !q.send("session/request_permission", r, &answer) || answer.Outcome.Outcome != acp.RequestPermissionOutcomeSelected {
		return nil
	}
	if !slices.ContainsFunc(r.Options, func(o acp.PermissionOption) bool { return o.OptionID == answer.Outcome.OptionID }) {
		return nil
	}
	action, err := q.pending.Action(watch.Reply{Option: answer.Outcome.OptionID})
	if err != nil {
		return nil
	}
	return action
}

// A form is an agent's question.
type form struct {
	ID        string  `json:"id"`
	Message   string  `json:"message"`
	URL       string  `json:"url"`
	Questions []field `json:"questions"`
}

// A field is a question of a form.
type field struct {
	ID       string          `json:"id"`
	Kind     string          `json:"kind"`
	Title    string          `json:"title"`
	Message  string          `json:"message"`
	Required bool            `json:"required"`
	Default  json.RawMessage `json:"defaultValue"`
	Min      json.RawMessage `json:"min"`
	Max      json.RawMessage `json:"max"`
	Options  []struct {
		ID          string `json:"id"`
		Label       string `json:"label"`
		Description string `json:"description"`
	} `json:"options"`
}

func (q *question) read() (f form, ok bool) {
	return f, json.Unmarshal(ahp.RawOf([]byte(q.raw), "request"), &f) == nil && f.ID != ""
}

// form reports whether the editor can show the question as a form or a URL.
func (q *question) form() bool {
	d := q.session.door
	d.mu.Lock()
	can := d.can.Elicitation
	d.mu.Unlock()
	f, ok := q.read()
	switch {
	case can == nil || !ok || q.pending.Event.Kind != notice.Question:
		return false
	case f.URL != "":
		return can.URL != nil && len(f.Questions) == 0
	}
	return can.Form != nil
}

// elicit asks with a form or a URL. It returns the action which answers.
func (q *question) elicit() []byte {
	f, _ := q.read()
	r := acp.CreateElicitationRequest{SessionID: q.session.id, Message: f.Message, Mode: acp.CreateElicitationRequestForm}
	if f.URL != "" {
		r.Mode, r.URL, r.ElicitationID = acp.CreateElicitationRequestURL, f.URL, f.ID
	} else {
		r.RequestedSchema = acp.ElicitationSchema{Type: acp.ElicitationSchemaTypeObject, Properties: map[string]acp.ElicitationPropertySchema{}}
		for _, one := range f.Questions {
			r.RequestedSchema.Properties[one.ID] = one.schema()
			if one.Required {
				r.RequestedSchema.Required = append(r.RequestedSchema.Required, one.ID)
			}
		}
	}
	var answer acp.CreateElicitationResponse
	if !q.send("elicitation/create", r, &answer) || answer.Action == "" {
		return nil
	}
	action := map[string]any{"type": "chat/inputCompleted", "requestId": f.ID, "response": answer.Action}
	answers := map[string]any{}
	for _, one := range f.Questions {
		if value := answer.Content[one.ID]; answer.Action == acp.CreateElicitationResponseAccept && value != nil {
			answers[one.ID] = map[string]any{"state": "submitted", "value": map[string]any{"kind": one.answer(), "value": value}}
		}
	}
	if len(answers) > 0 {
		action["answers"] = answers
	}
	text, err := json.Marshal(action)
	if err != nil {
		return nil
	}
	return text
}

func (f *field) answer() string {
	switch f.Kind {
	case "single-select":
		return "selected"
	case "multi-select":
		return "selected-many"
	case "integer", "number":
		return "number"
	}
	return f.Kind
}

func (f *field) schema() acp.ElicitationPropertySchema {
	p := acp.ElicitationPropertySchema{Type: acp.ElicitationPropertySchemaString, Title: cmp.Or(f.Title, f.Message), Default: f.Default}
	if f.Title != "" {
		p.Description = f.Message
	}
	var choices []acp.EnumOption
	for _, o := range f.Options {
		choices = append(choices, acp.EnumOption{Const: o.ID, Title: o.Label, Description: o.Description})
	}
	switch f.Kind {
	case "integer":
		p.Type, p.Minimum, p.Maximum = acp.ElicitationPropertySchemaInteger, f.Min, f.Max
	case "number":
		p.Type, p.Minimum, p.Maximum = acp.ElicitationPropertySchemaNumber, f.Min, f.Max
	case "boolean":
		p.Type = acp.ElicitationPropertySchemaBoolean
	case "single-select":
		p.OneOf = choices
	case "multi-select":
		p.Type, p.Items = acp.ElicitationPropertySchemaArray, acp.MultiSelectItems{AnyOf: choices}
	}
	return p
}
