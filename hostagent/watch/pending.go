package watch

import (
	"encoding/json"

	"ahprelay/broker/notice"
)

// A Pending is an entry of a session's inputNeeded that a person must answer.
type Pending struct {
	Event notice.Event // the event for people, still without title and time
	Chat  string       // the chat on which an answer must be dispatched

	question *question
}

// ReadPending reads an entry of a session's inputNeeded. It returns false if the entry
// needs no person or is malformed.
func ReadPending(session string, raw []byte) (Pending, bool) {
	q, e, ok := readQuestion(session, raw)
	return Pending{e, e.Chat, q}, ok
}

// Action returns the action that gives this answer, to be dispatched on the chat.
func (p *Pending) Action(said Reply) ([]byte, error) {
	action, err := p.question.action(&p.Event, said)
	if err != nil {
		return nil, err
	}
	return json.Marshal(action)
}
