package hostagent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/waiting"
	"ahprelay/hostagent/remembering"
	waitbook "ahprelay/hostagent/waiting"
)

// An errand gives one waiting item (a message, answer or order that a person left while the host
// was away) to the host, on a new connection:
//
//	host-agent                                       host
//	  initialize; subscribe session; subscribe chat  ──▶
//	  ◀── states: does the turn exist already? is the question still open?
//	  (journal entry: sending)
//	  dispatchAction                                 ──▶
//	  ◀── the host's echo of the action
//
// After an error before the journal entry, nothing was sent. After a later error, the result is
// unknown; the next errand for the item asks the host.
type errand struct {
	speaker
	content *waiting.Content
	had     bool // an earlier errand may have sent the item
	entry   waitbook.Entry
	mark    func(waitbook.Stage) error
	looks   bool     // only find out whether an earlier errand succeeded; send nothing
	greeted bool     // the host has answered initialize
	answers givenKey // the question that the item answers

	id int // the id of the last request to the host
}

const noQuestion = "the question no longer exists"

// Times of an errand.
const (
	chatTries  = 40 // attempts to read the first chat of a new session
	chatPause  = 250 * time.Millisecond
	turnsAsked = 50 // how many of the latest turns are searched for a message
)

// unknown returns the result for an item that may have been sent before the host or its agent ended.
func unknown() waiting.Result {
	return waiting.Because(waiting.Unknown, "the host or its agent ended at that moment")
}

func refused(why string) waiting.Result { return waiting.Because(waiting.Refused, why) }

// run performs the errand. If a gate refuses the action, that is a result and no error.
func (e *errand) run() (r waiting.Result, err error) {
	if err := e.greet(1); err != nil {
		return r, err
	}
	e.id, e.greeted = 1, true
	switch e.content.Kind {
	case waiting.Session:
		r, err = e.createSession()
	case waiting.Message:
		r, err = e.message()
	case waiting.Stop:
		r, err = e.stop()
	case waiting.Approve:
		r, err = e.approve()
	default:
		r, err = e.reply()
	}
	if forbidden, ok := errors.AsType[*forbiddenError](err); ok {
		if e.had {
			return unknown(), nil
		}
		return refused(forbidden.why), nil
	}
	return r, err
}

func (e *errand) call(method, channel, more string) (ahp.Envelope, error) {
	e.id++
	if err := e.request(e.id, method, quoted(channel), more); err != nil {
		return ahp.Envelope{}, err
	}
	for {
		env, err := e.next()
		if err != nil || env.Kind == ahp.Response && ahp.SameID(env.ID, strconv.AppendInt(nil, int64(e.id), 10)) {
			return env, err
		}
	}
}

// state subscribes to a channel and returns its state, or nil if the host returns none.
func (e *errand) state(channel, more string) (json.RawMessage, error) {
	env, err := e.call("subscribe", channel, more)
	if err != nil || env.Error != nil {
		return nil, err
	}
	state := ahp.RawOf(env.Result, "snapshot", "state")
	if !ahp.IsObject(state) {
		return nil, nil
	}
	return slices.Clone(state), nil
}

func (e *errand) chatState(channel string) (json.RawMessage, error) {
	return e.state(channel, fmt.Sprintf(`,"view":{"turns":%d}`, turnsAsked))
}

// createSession creates the item's session unless it exists, and sends its first message.
func (e *errand) createSession() (r waiting.Result, err error) {
	c := e.content
	session, err := e.state(c.Session, "")
	if err != nil {
		return r, err
	}
	if session == nil {
		if e.had {
			return unknown(), nil
		}
		if err := e.mark(waitbook.Creating); err != nil {
			return r, err
		}
		more := fmt.Sprintf(`,"provider":%s`, quoted(c.Provider))
		if c.Directory != "" {
			more += fmt.Sprintf(`,"workingDirectories":[%s]`, quoted(c.Directory))
		}
		if len(c.Model) > 0 {
			more += fmt.Sprintf(`,"model":%s`, c.Model)
		}
		env, err := e.call("createSession", c.Session, more)
		switch {
		case err != nil:
			return r, err
		case env.Error != nil:
			return refused("the host refused the session: " + ahp.TextOf(env.Error, "message")), nil
		}
		e.had = false
	} else if e.had && e.entry.Stage == waitbook.Creating {
		e.had = false // the session exists, but its message was not sent
	}
	if c.Text == "" {
		return waiting.Result{State: waiting.Done}, nil
	}
	for range chatTries {
		if session, err = e.state(c.Session, ""); err != nil {
			return r, err
		}
		if c.Chat = remembering.ChatOf(session); c.Chat != "" {
			return e.message()
		}
		time.Sleep(chatPause)
	}
	return refused("the session was created, and its agent does not answer"), nil
}

// message starts a turn with the item's message. If a turn is running, it queues the message.
func (e *errand) message() (r waiting.Result, err error) {
	c := e.content
	session, err := e.state(c.Session, "")
	if err != nil {
		return r, err
	}
	if session == nil {
		return e.missing("the session no longer exists")
	}
	c.Chat = cmp.Or(c.Chat, remembering.ChatOf(session))
	chat, err := e.chatState(c.Chat)
	switch {
	case err != nil:
		return r, err
	case chat == nil:
		return e.missing("the chat no longer exists")
	case hasMessage(chat, c.Turn):
		return waiting.Result{State: waiting.Done}, nil
	case e.had:
		return unknown(), nil
	}
	message := map[string]any{"text": c.Text, "origin": map[string]string{"kind": "user"}}
	if len(c.Model) > 0 {
		message["model"] = c.Model
	}
	action := map[string]any{"type": "chat/turnStarted", "turnId": c.Turn, "startedAt": time.Now().UTC().Format(time.RFC3339Nano), "message": message}
	if ahp.IsObject(ahp.RawOf(chat, "activeTurn")) {
		action = map[string]any{"type": "chat/pendingMessageSet", "kind": "queued", "id": c.Turn, "message": message}
	}
	return e.act(c.Chat, action)
}

// missing returns the result for an item whose session, chat, turn or question does not exist:
// unknown if an earlier errand may have sent the item, late otherwise.
func (e *errand) missing(why string) (waiting.Result, error) {
	if e.had {
		return unknown(), nil
	}
	return waiting.Because(waiting.Late, why), nil
}

// hasMessage reports whether a chat has a turn or a queued message with this ID.
func hasMessage(chat []byte, id string) bool {
	if ahp.TextOf(chat, "activeTurn", "id") == id || ahp.TextOf(chat, "steeringMessage", "id") == id {
		return true
	}
	for _, name := range []string{"turns", "queuedMessages"} {
		for _, one := range ahp.ElementsOf(ahp.RawOf(chat, name)) {
			if ahp.TextOf(one.Raw, "id") == id {
				return true
			}
		}
	}
	return false
}

// stop cancels the turn that the item names.
func (e *errand) stop() (r waiting.Result, err error) {
	turn, err := e.activeTurn()
	switch {
	case err != nil:
		return r, err
	case ahp.TextOf(turn, "id") != e.content.Turn:
		return e.missing("that turn is over")
	}
	took := int64(0)
	if began, err := time.Parse(time.RFC3339Nano, ahp.TextOf(turn, "startedAt")); err == nil {
		took = max(0, time.Since(began).Milliseconds())
	}
	return e.act(e.content.Chat, map[string]any{"type": "chat/turnCancelled", "turnId": e.content.Turn, "duration": took})
}

// activeTurn returns the running turn of the item's chat, or nil if no turn runs.
func (e *errand) activeTurn() ([]byte, error) {
	if _, err := e.state(e.content.Session, ""); err != nil {
		return nil, err
	}
	chat, err := e.chatState(e.content.Chat)
	if err != nil {
		return nil, err
	}
	return ahp.RawOf(chat, "activeTurn"), nil
}

// approve answers a tool call if it is still the one that the person saw. An answer may be sent
// twice, because the host accepts only the first.
func (e *errand) approve() (r waiting.Result, err error) {
	c := e.content
	turn, err := e.activeTurn()
	if err != nil {
		return r, err
	}
	var call []byte
	for _, p := range ahp.ElementsOf(ahp.RawOf(turn, "responseParts")) {
		if one := ahp.RawOf(p.Raw, "toolCall"); ahp.TextOf(one, "toolCallId") == c.Request && ahp.TextOf(one, "status") == "pending-confirmation" {
			call = one
		}
	}
	if call == nil || ahp.TextOf(turn, "id") != c.Turn {
		return e.missing(noQuestion)
	}
	if digest, ok := digestOfCall(call); !ok || digest != c.Input {
		return refused("the tool call is not the one that you saw"), nil
	}
	action := map[string]any{"type": "chat/toolCallConfirmed", "turnId": c.Turn, "toolCallId": c.Request, "approved": c.Approved}
	if c.Approved {
		action["confirmed"] = "user-action"
	} else {
		action["reason"] = "denied"
	}
	if c.Option != "" {
		if !offers(call, c.Option, c.Approved) {
			return refused("the host no longer offers this answer"), nil
		}
		action["selectedOptionId"] = c.Option
	}
	e.answers = givenKey{c.Chat, "chat/toolCallConfirmed", c.Request}
	return e.act(c.Chat, action)
}

// offers reports whether a tool call has this option, and whether the option allows (or, if allows
// is false, denies) the call.
func offers(call []byte, id string, allows bool) bool {
	for _, o := range ahp.ElementsOf(ahp.RawOf(call, "options")) {
		if ahp.TextOf(o.Raw, "id") == id {
			return (ahp.TextOf(o.Raw, "kind") == "approve") == allows
		}
	}
	return false
}

// digestOfCall returns the digest of a tool call. It returns false for a call that edits files or
// whose input is stored elsewhere: a person cannot see all of it while the host is away.
func digestOfCall(call []byte) (digest string, ok bool) {
	m := [...]ahp.Member{{Name: "toolInput"}, {Name: "edits"}, {Name: "invocationMessage"}}
	if ahp.Members(call, m[:]) != nil {
		return "", false
	}
	input, isText := ahp.Text(m[0].Raw)
	if !isText && !ahp.IsNone(m[0].Raw) || !ahp.IsNone(m[1].Raw) {
		return "", false
	}
	return waiting.DigestOf(ahp.TextOf(call, "toolCallId"), ahp.TextOf(call, "toolName"), input, ahp.WordsOf(m[2].Raw)), true
}

// reply answers a question if it is still the one that the person saw.
func (e *errand) reply() (r waiting.Result, err error) {
	c := e.content
	turn, err := e.activeTurn()
	if err != nil {
		return r, err
	}
	var request []byte
	for _, p := range ahp.ElementsOf(ahp.RawOf(turn, "responseParts")) {
		if ahp.TextOf(p.Raw, "request", "id") == c.Request && ahp.IsNone(ahp.RawOf(p.Raw, "response")) {
			request = ahp.RawOf(p.Raw, "request")
		}
	}
	if request == nil {
		return e.missing(noQuestion)
	}
	texts := []string{c.Request, ahp.WordsOf(ahp.RawOf(request, "message"))}
	for _, q := range ahp.ElementsOf(ahp.RawOf(request, "questions")) {
		texts = append(texts, ahp.TextOf(q.Raw, "id"), ahp.TextOf(q.Raw, "kind"), ahp.WordsOf(ahp.RawOf(q.Raw, "message")))
	}
	if waiting.DigestOf(texts...) != c.Input {
		return refused("the question is not the one that you saw"), nil
	}
	action := map[string]any{"type": "chat/inputCompleted", "requestId": c.Request, "response": c.Response}
	if ahp.IsObject(c.Answers) {
		action["answers"] = c.Answers
	}
	e.answers = givenKey{c.Chat, "chat/inputCompleted", c.Request}
	return e.act(c.Chat, action)
}

// act writes to the journal that it is about to send an action, sends it, and waits for the host's
// echo.
func (e *errand) act(channel string, action map[string]any) (r waiting.Result, err error) {
	if e.looks {
		return unknown(), nil
	}
	data, err := json.Marshal(action)
	if err != nil {
		return r, err
	}
	if err := e.mark(waitbook.Sending); err != nil {
		return r, err
	}
	if err := e.dispatch(quoted(channel), data); err != nil {
		return r, err
	}
	for {
		env, err := e.next()
		if err != nil {
			return r, errors.Join(errLost, err)
		}
		if string(env.Method) != "action" {
			continue
		}
		m := [...]ahp.Member{{Name: "action"}, {Name: "origin"}, {Name: "rejectionReason"}}
		if ahp.Members(env.Params, m[:]) != nil || ahp.TextOf(m[1].Raw, "clientId") != e.clientID || ahp.TextOf(m[0].Raw, "type") != action["type"] {
			continue
		}
		if why := ahp.WordsOf(m[2].Raw); !ahp.IsNone(m[2].Raw) {
			return refused("the host refused the action: " + why), nil
		}
		return waiting.Result{State: waiting.Done}, nil
	}
}
