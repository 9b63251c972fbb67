package load

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A chatState is what a viewer knows about the chat: texts and draft.
type chatState struct {
	turns []*turnState
	draft string
}

type turnState struct {
	id    string
	parts []*partState
}

type partState struct {
	id   string
	text strings.Builder
}

// wireTurn and wirePart have the form in which the host sends turns and parts.
type wireTurn struct {
	ID            string     `json:"id"`
	ResponseParts []wirePart `json:"responseParts"`
}

type wirePart struct {
	ID      string `json:"id"`
	Content string `json:"content"`
}

type wireDraft struct {
	Text string `json:"text"`
}

// load replaces the state by the state in a snapshot.
func (s *chatState) load(raw json.RawMessage) error {
	var w struct {
		Turns      []wireTurn `json:"turns"`
		ActiveTurn *wireTurn  `json:"activeTurn"`
		Draft      wireDraft  `json:"draft"`
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return fmt.Errorf("reading the chat's state: %w", err)
	}
	if w.ActiveTurn != nil {
		w.Turns = append(w.Turns, *w.ActiveTurn)
	}
	*s = chatState{draft: w.Draft.Text}
	for _, t := range w.Turns {
		s.turns = append(s.turns, &turnState{id: t.ID})
		for _, p := range t.ResponseParts {
			s.add(t.ID, p)
		}
	}
	return nil
}

// apply changes the state as an action demands.
func (s *chatState) apply(raw json.RawMessage) error {
	var a struct {
		Type    string    `json:"type"`
		TurnID  string    `json:"turnId"`
		PartID  string    `json:"partId"`
		Part    wirePart  `json:"part"`
		Content string    `json:"content"`
		Draft   wireDraft `json:"draft"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return fmt.Errorf("reading an action: %w", err)
	}
	switch a.Type {
	case "chat/turnStarted":
		s.turns = append(s.turns, &turnState{id: a.TurnID})
	case "chat/responsePart":
		s.add(a.TurnID, a.Part)
	case "chat/delta":
		s.extend(a.TurnID, a.PartID, a.Content)
	case "chat/draftChanged":
		s.draft = a.Draft.Text
	}
	return nil
}

// add adds a new part to a turn.
func (s *chatState) add(turnID string, w wirePart) {
	if t := s.turn(turnID); t != nil {
		p := &partState{id: w.ID}
		p.text.WriteString(w.Content)
		t.parts = append(t.parts, p)
	}
}

// extend adds content to the end of a part.
func (s *chatState) extend(turnID, partID, content string) {
	t := s.turn(turnID)
	if t == nil {
		return
	}
	if i := slices.IndexFunc(t.parts, func(p *partState) bool { return p.id == partID }); i >= 0 {
		t.parts[i].text.WriteString(content)
	}
}

func (s *chatState) turn(id string) *turnState {
	if i := slices.IndexFunc(s.turns, func(t *turnState) bool { return t.id == id }); i >= 0 {
		return s.turns[i]
	}
	return nil
}

// difference describes how the state differs from want. It returns "" if both are
// equal.
func (s *chatState) difference(want *chatState) string {
	if s.draft != want.draft {
		return fmt.Sprintf("the draft is %q; want %q", s.draft, want.draft)
	}
	if len(s.turns) != len(want.turns) {
		return fmt.Sprintf("%d turns; want %d", len(s.turns), len(want.turns))
	}
	for i, t := range s.turns {
		w := want.turns[i]
		if t.id != w.id || len(t.parts) != len(w.parts) {
			return fmt.Sprintf("turn %d is %s with %d parts; want %s with %d", i, t.id, len(t.parts), w.id, len(w.parts))
		}
		for j, p := range t.parts {
			if p.id != w.parts[j].id || p.text.String() != w.parts[j].text.String() {
				return fmt.Sprintf("part %d of turn %s differs: %d bytes; want %d", j, t.id, p.text.Len(), w.parts[j].text.Len())
			}
		}
	}
	return ""
}
