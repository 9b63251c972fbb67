package agenthost

import (
	"context"
	"encoding/json"
	"maps"
)

// maxQuestions bounds the open questions of a turn.
const maxQuestions = 16

// Question asks people, and waits for the first answer of any client. It returns
// [ErrEnded] at the turn's end, if maxQuestions are open, or if ctx has ended already.
func (t *Turn) Question(ctx context.Context, q Question) (Answer, error) {
	answer := make(chan inputCompletedAction, 1)
	id := ""
	t.update(func() {
		if t.past || len(t.questions) >= maxQuestions || ctx.Err() != nil {
			return
		}
		id = t.host.cfg.NewID()
		t.questions[id] = answer
		t.closeTextLocked()
		t.emitLocked(InputRequestedAction{"chat/inputRequested", q.request(id)})
	})
	if id == "" {
		return Answer{}, ErrEnded
	}
	select {
	case a := <-answer:
		return q.answer(a), nil
	case <-t.ctx.Done():
		return Answer{}, ErrEnded
	case <-ctx.Done():
		t.update(func() {
			if t.questions[id] == nil {
				return
			}
			delete(t.questions, id)
			t.emitLocked(inputCompletedAction{Type: "chat/inputCompleted", RequestID: id, Response: "cancel"})
		})
		if t.ctx.Err() != nil {
			return Answer{}, ErrEnded
		}
		return Answer{}, ctx.Err()
	}
}

// request converts a question for the wire.
func (q Question) request(id string) map[string]any {
	request := map[string]any{"id": id, "message": q.Message}
	if q.URL != "" {
		request["url"] = q.URL
	}
	questions := []map[string]any{}
	for _, f := range q.Fields {
		questions = append(questions, f.question())
	}
	if len(questions) > 0 {
		request["questions"] = questions
	}
	return request
}

func (f Field) question() map[string]any {
	q := map[string]any{"id": f.ID, "kind": string(f.Kind), "message": f.Message}
	set := func(name string, value any, present bool) {
		if present {
			q[name] = value
		}
	}
	set("title", f.Title, f.Title != "")
	set("required", true, f.Required)
	set("defaultValue", f.Default, f.Default != nil)
	set("allowFreeformInput", true, f.Freeform)
	if f.Min != nil {
		q["min"] = *f.Min
	}
	if f.Max != nil {
		q["max"] = *f.Max
	}
	if f.Kind == FieldOne || f.Kind == FieldMany {
		options := []map[string]any{}
		for _, c := range f.Choices {
			option := map[string]any{"id": c.ID, "label": c.Label}
			if c.Description != "" {
				option["description"] = c.Description
			}
			if c.Recommended {
				option["recommended"] = true
			}
			options = append(options, option)
		}
		q["options"] = options
	}
	return q
}

// answer translates an answer of a client. It drops values of unknown fields.
func (q Question) answer(a inputCompletedAction) Answer {
	values := map[string]any{}
	for _, f := range q.Fields {
		answered, _ := a.Answers[f.ID].(map[string]any)
		value, _ := answered["value"].(map[string]any)
		if v := f.value(value); v != nil {
			values[f.ID] = v
		}
	}
	response := a.Response
	if response != "accept" && response != "decline" {
		response = "cancel"
	}
	return Answer{Response: response, Values: values}
}

// value returns a field's value in its type, or nil if it does not fit. Each type of
// JSON has its branch.
func (f Field) value(v map[string]any) any {
	free := ""
	if texts, _ := v["freeformValues"].([]any); len(texts) > 0 {
		free, _ = texts[0].(string)
	}
	switch value := v["value"].(type) {
	case string:
		if value == "" && free != "" {
			return free
		}
		if f.Kind == FieldText || f.Kind == FieldOne {
			return value
		}
	case float64:
		switch f.Kind {
		case FieldNumber:
			return value
		case FieldInteger:
			return int64(value)
		}
	case bool:
		if f.Kind == FieldBoolean {
			return value
		}
	case []any:
		if f.Kind != FieldMany {
			return nil
		}
		many := []string{}
		for _, item := range value {
			if s, ok := item.(string); ok {
				many = append(many, s)
			}
		}
		if free != "" {
			many = append(many, free)
		}
		return many
	}
	return nil
}

// answeredLocked passes a client's answer to the waiting agent.
func (t *Turn) answeredLocked(a inputCompletedAction) {
	answer := t.questions[a.RequestID]
	if answer == nil {
		return
	}
	delete(t.questions, a.RequestID)
	answer <- a // the capacity is 1, and there is one answer
}

// A questionPart is the agent's question to the user.
type questionPart struct {
	Kind     string         `json:"kind"`
	Request  map[string]any `json:"request"`
	Response string         `json:"response,omitempty"`
}

// An InputRequestedAction asks the user.
type InputRequestedAction struct {
	Type    string         `json:"type"`
	Request map[string]any `json:"request"`
}

// inputCompletedAction is a client's answer.
type inputCompletedAction struct {
	Type      string         `json:"type"`
	RequestID string         `json:"requestId"`
	Response  string         `json:"response"`
	Answers   map[string]any `json:"answers"`
}

// inputAnswerChangedAction is a client's answer to a field of a question that is still open.
type inputAnswerChangedAction struct {
	RequestID  string `json:"requestId"`
	QuestionID string `json:"questionId"`
	Answer     any    `json:"answer"` // nil: none any more
}

// reduceQuestion applies an action to a turn's questions.
func (t *turn) reduceQuestion(action any) {
	switch a := action.(type) {
	case InputRequestedAction:
		t.ResponseParts = append(t.ResponseParts, &questionPart{Kind: "inputRequest", Request: a.Request})
	case inputCompletedAction:
		if q := t.question(a.RequestID); q != nil {
			q.Response = a.Response
			for field, answer := range a.Answers {
				q.setAnswer(field, answer)
			}
		}
	case inputAnswerChangedAction:
		if q := t.question(a.RequestID); q != nil {
			q.setAnswer(a.QuestionID, a.Answer)
		}
	}
}

// setAnswer sets the answer to a field; nil removes it.
func (q *questionPart) setAnswer(field string, answer any) {
	had, _ := q.Request["answers"].(map[string]any)
	answers := map[string]any{}
	maps.Copy(answers, had)
	if answers[field] = answer; answer == nil {
		delete(answers, field)
	}
	if q.Request["answers"] = answers; len(answers) == 0 {
		delete(q.Request, "answers")
	}
}

// questions returns the open questions.
func (t *turn) questions() (open []*questionPart) {
	for _, part := range t.ResponseParts {
		if q, ok := part.(*questionPart); ok && q.Response == "" {
			open = append(open, q)
		}
	}
	return open
}

// question returns the open question with this id; nil if there is none.
func (t *turn) question(id string) *questionPart {
	for _, q := range t.questions() {
		if q.Request["id"] == id {
			return q
		}
	}
	return nil
}

// clientAnswerLocked handles chat/inputCompleted. The first answer counts; later
// answers are only echoed.
func (ch *chat) clientAnswerLocked(env envelope) {
	var a inputCompletedAction
	if json.Unmarshal(env.action, &a) != nil || a.RequestID == "" || a.Response == "" {
		return
	}
	var asked *questionPart
	if ch.active != nil {
		asked = ch.active.question(a.RequestID)
	}
	ch.applyLocked(a, env)
	if asked != nil && ch.seat.turn != nil {
		a.Answers, _ = asked.Request["answers"].(map[string]any) // with those given before
		ch.seat.turn.answeredLocked(a)
	}
}

// clientFieldLocked handles chat/inputAnswerChanged.
func (ch *chat) clientFieldLocked(env envelope) {
	var a inputAnswerChangedAction
	if json.Unmarshal(env.action, &a) == nil && a.RequestID != "" && a.QuestionID != "" {
		ch.applyLocked(a, env)
	}
}
