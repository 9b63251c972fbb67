package hostagent

import (
	"errors"
	"fmt"
	"slices"

	"ahprelay/ahp"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
)

// An answering sends a person's answer to the host, on a new connection. Another person may answer
// the same question at the same moment. The host sends all clients every answer, and the first
// answer that it sends is the valid one:
//
//	host-agent                                      host
//	  initialize; subscribe chat; subscribe session  ──▶
//	  ◀── the session's state: is the question still open?
//	  dispatchAction                                 ──▶
//	  ◀── the first answer to the question on the chat: whose is it?
//	  ◀── session/inputNeededRemoved; then a ping proves that no answer follows
type answering struct {
	speaker
	answer *watch.Answer

	chat    []byte // JSON of the chat's URI
	kind    string // the type of the action that answers the question
	subject string // the id of the tool call or request that the action names
}

// Ids of the requests on an answering's connection.
const (
	answerInitialize = iota + 1
	answerChat
	answerSession
	answerPing
)

func newAnswering(sock hostSocket, answer *watch.Answer) *answering {
	a := &answering{speaker: newSpeaker(sock, "answer"), answer: answer, chat: quoted(answer.Chat)}
	a.kind, a.subject = answerOf(answer.Action)
	return a
}

// answerOf returns the type of an action, and the tool call or request that it names.
func answerOf(action []byte) (kind, subject string) {
	m := [...]ahp.Member{{Name: "type"}, {Name: "toolCallId"}, {Name: "requestId"}}
	if ahp.Members(action, m[:]) != nil {
		return "", ""
	}
	kind, _ = ahp.Text(m[0].Raw)
	if subject, _ = ahp.Text(m[1].Raw); subject == "" {
		subject, _ = ahp.Text(m[2].Raw)
	}
	return kind, subject
}

// run sends the answer, and returns Given, Answered or Unknown. If it returns an error, no byte of
// the answer was sent.
func (a *answering) run() (notice.Result, error) {
	open, err := a.isOpen()
	if err != nil {
		return notice.Away, err
	}
	if !open {
		return notice.Unknown, nil
	}
	if err := a.dispatch(a.chat, a.answer.Action); err != nil {
		return notice.Given, nil // part of the answer may have been sent
	}
	return a.outcome(), nil
}

// isOpen initializes the connection, subscribes to the chat and the session, and reports whether
// the question is still open. Every later answer appears as an action of the chat.
func (a *answering) isOpen() (bool, error) {
	if err := a.greet(answerInitialize); err != nil {
		return false, err
	}
	if err := errors.Join(a.request(answerChat, "subscribe", a.chat, ""), a.request(answerSession, "subscribe", quoted(a.answer.Event.Session), "")); err != nil {
		return false, err
	}
	for {
		env, err := a.next()
		switch {
		case err != nil:
			return false, err
		case env.Kind != ahp.Response:
		case env.Error != nil:
			return false, nil // chat or session has ended
		case ahp.SameID(env.ID, fmt.Append(nil, answerSession)):
			return a.isListed(env.Result), nil
		}
	}
}

func (a *answering) isListed(result []byte) bool {
	list := ahp.ElementsOf(ahp.RawOf(result, "snapshot", "state", "inputNeeded"))
	return slices.ContainsFunc(list, func(e ahp.Member) bool { return ahp.TextOf(e.Raw, "id") == a.answer.Question })
}

// outcome waits for the outcome of an answer that was sent. If the host shows no outcome in time,
// the answer counts as given.
func (a *answering) outcome() notice.Result {
	for {
		env, err := a.next()
		switch {
		case err != nil:
			return notice.Given
		case env.Kind == ahp.Response && ahp.SameID(env.ID, fmt.Append(nil, answerPing)):
			return notice.Unknown // the question ended without an answer
		case string(env.Method) == "action":
			if result := a.read(env.Params); result != "" {
				return result
			}
		}
	}
}

// read returns the outcome that an action shows, or "". After the question's removal, it sends the
// ping for which outcome waits.
func (a *answering) read(params []byte) notice.Result {
	m := [...]ahp.Member{{Name: "channel"}, {Name: "action"}, {Name: "origin"}, {Name: "rejectionReason"}}
	if ahp.Members(params, m[:]) != nil {
		return ""
	}
	own := ahp.TextOf(m[2].Raw, "clientId") == a.clientID
	switch channel, _ := ahp.Text(m[0].Raw); channel {
	case a.answer.Chat:
		kind, subject := answerOf(m[1].Raw)
		switch rejected := !ahp.IsNone(m[3].Raw); {
		case kind != a.kind || subject != a.subject, rejected && !own:
		case rejected:
			return notice.Unknown
		case own:
			return notice.Given
		default:
			return notice.Answered
		}
	case a.answer.Event.Session:
		if ahp.TextOf(m[1].Raw, "type") == "session/inputNeededRemoved" && ahp.TextOf(m[1].Raw, "id") == a.answer.Question {
			_ = a.request(answerPing, "ping", []byte(`"ahp-root://"`), "") // next reports an error
		}
	}
	return ""
}
