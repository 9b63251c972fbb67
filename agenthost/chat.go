package agenthost

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
)

// A chat is a sequence of turns in a session. The host's lock guards its state.
type chat struct {
	session     *session
	uri         string
	status      int
	failed      bool // the last turn has ended with an error
	interrupted bool // the error is the end of the host's previous run
	modified    time.Time
	turns       []*turn
	active      *turn    // turn that runs; nil: none
	seat        *seat    // the agent's conversation for this chat
	log         *chatLog // nil until it is needed
	draft       json.RawMessage
	queued      []pendingMessage
	steering    *pendingMessage

	// Empty for a chat that was created with its session.
	title         string
	origin        chatOrigin
	interactivity string
}

// chatOrigin names the creator of a chat.
type chatOrigin struct {
	Kind       string `json:"kind"`
	Chat       string `json:"chat,omitempty"`
	ToolCallID string `json:"toolCallId,omitempty"`
}

type chatSummary struct {
	Resource      string     `json:"resource"`
	Title         string     `json:"title"`
	Status        int        `json:"status"`
	ModifiedAt    string     `json:"modifiedAt"`
	Origin        chatOrigin `json:"origin"`
	Interactivity string     `json:"interactivity,omitempty"`
	Movable       bool       `json:"movable,omitempty"` // since 1.0
}

// plainOrigin names the author of a message.
type plainOrigin struct {
	Kind string `json:"kind"`
}

type chatState struct {
	chatSummary
	Turns           []*turn         `json:"turns"`
	TurnsNextCursor string          `json:"turnsNextCursor,omitempty"`
	ActiveTurn      *turn           `json:"activeTurn,omitempty"`
	Draft           json.RawMessage `json:"draft,omitempty"`

	QueuedMessages  []pendingMessage `json:"queuedMessages,omitempty"`
	SteeringMessage *pendingMessage  `json:"steeringMessage,omitempty"`

	// Only for clients of a version with canvases.
	Canvases []canvasResource `json:"canvases,omitzero"`
}

// A turn is a user message and the agent's response.
type turn struct {
	ID            string          `json:"id"`
	StartedAt     string          `json:"startedAt"`
	Duration      *int64          `json:"duration,omitempty"` // ms, set at the end
	Message       json.RawMessage `json:"message"`
	ResponseParts []any           `json:"responseParts"` // *markdownPart, *toolPart, *questionPart, *errorPart, or JSON
	Usage         *usage          `json:"usage,omitempty"`
	State         string          `json:"state,omitempty"` // complete, cancelled or error, set at the end

	started time.Time
	raw     json.RawMessage // bytes of a completed turn on disk; all other fields except ID are then empty
}

// MarshalJSON implements [json.Marshaler].
func (t *turn) MarshalJSON() ([]byte, error) {
	if t.raw != nil {
		return t.raw, nil
	}
	type plain turn
	return encode((*plain)(t)), nil
}

func (ch *chat) summary() chatSummary {
	origin := ch.origin
	origin.Kind = cmp.Or(origin.Kind, "user")
	return chatSummary{
		Resource:      ch.uri,
		Title:         ch.title,
		Status:        ch.status,
		ModifiedAt:    timestamp(ch.modified),
		Origin:        origin,
		Interactivity: ch.interactivity,
		Movable:       ch != ch.session.chat && ch.session.host.dialect.own[0].compare(firstStable) >= 0,
	}
}

func (ch *chat) state(v view) chatState {
	ch.loadLocked()
	state := chatState{chatSummary: ch.summary(), Turns: ch.turns, ActiveTurn: ch.active, Draft: ch.draft,
		QueuedMessages: ch.queued, SteeringMessage: ch.steering}
	if v.Turns != nil {
		state.Turns = ch.turns[max(0, len(ch.turns)-max(0, *v.Turns)):]
		if len(state.Turns) < len(ch.turns) {
			state.TurnsNextCursor = cursorBefore(len(ch.turns)-len(state.Turns), ch.turns)
		}
	}
	if state.Turns == nil {
		state.Turns = []*turn{}
	}
	return state
}

// cursorPrefix stands at the beginning of a cursor of fetchTurns. The rest is the ID of
// the oldest turn that the client has, or empty if the client has no turn.
const cursorPrefix = "before:"

func cursorBefore(index int, turns []*turn) string {
	if index == len(turns) {
		return cursorPrefix
	}
	return cursorPrefix + turns[index].ID
}

// turnsPerPage bounds the turns loaded by a fetchTurns.
const turnsPerPage = 20

type fetchTurnsParams struct {
	Channel string `json:"channel"`
	Cursor  string `json:"cursor"`
}

// fetchTurnsLocked answers fetchTurns. It publishes the turns before the cursor in an
// action to all subscribers. Without a cursor, the action has no turns.
func (ss *sessionTable) fetchTurnsLocked(_ *conn, params fetchTurnsParams) (any, error) {
	h := ss.host
	ch := h.chats[params.Channel]
	if ch == nil {
		return nil, fail(ahp.CodeSessionNotFound, "Session not found: %s", params.Channel)
	}
	ch.loadLocked()
	loaded := turnsLoadedAction{Type: "chat/turnsLoaded", Turns: []*turn{}}
	if params.Cursor != "" {
		end, ok := ch.turnAt(params.Cursor)
		if !ok {
			return nil, fail(ahp.CodeInvalidParams, "Unrecognized fetchTurns cursor")
		}
		start := max(0, end-turnsPerPage)
		loaded.Turns = ch.turns[start:end]
		if start > 0 {
			loaded.TurnsNextCursor = cursorBefore(start, ch.turns)
		}
	}
	h.emitLocked(ch.uri, loaded)
	return struct{}{}, nil
}

// turnAt returns the index of the turn that a cursor names, or the number of turns for
// a cursor without a turn ID. It returns false if the cursor is invalid or the turn does
// not exist.
func (ch *chat) turnAt(cursor string) (int, bool) {
	id, ok := strings.CutPrefix(cursor, cursorPrefix)
	if !ok {
		return 0, false
	}
	if id == "" {
		return len(ch.turns), true
	}
	index := slices.IndexFunc(ch.turns, func(t *turn) bool { return t.ID == id })
	return index, index >= 0
}

// emitLocked applies and publishes a host action.
func (ch *chat) emitLocked(action any) {
	ch.applyLocked(action, own(ch.uri, action))
}

// applyLocked applies an action. It publishes the resulting status changes first and
// then the action, like VS Code's host.
func (ch *chat) applyLocked(action any, env envelope) {
	h := ch.session.host
	wasActive := ch.active != nil
	ch.reduce(action)
	ch.storeActionLocked(env.action)
	if isActive := ch.active != nil; isActive != wasActive {
		h.announceActiveLocked(h.sessions.activeLocked())
	}
	ch.updateStatusLocked()
	h.publishLocked(env, action)
	ch.session.updateWaitingLocked()
}

// updateStatusLocked computes the status of the chat and its session, and publishes
// changes.
func (ch *chat) updateStatusLocked() {
	status := statusIdle
	switch {
	case ch.active != nil && (len(ch.active.pending())+len(ch.active.blocked()) > 0 || len(ch.active.questions()) > 0):
		status = statusInputNeeded
	case ch.active != nil:
		status = statusInProgress
	case ch.failed:
		status = statusError
	}
	if status == ch.status {
		return
	}
	ch.status = status
	s := ch.session
	updated := chatUpdatedAction{Type: "session/chatUpdated", Chat: ch.uri}
	updated.Changes.Status = status
	s.host.emitLocked(s.uri, updated)
	unread := s.status&statusRead != 0 && status != statusInProgress
	s.status = s.status&statusFlags | s.chatsStatus()
	s.touchLocked()
	if unread { // there is an answer or a question
		s.status &^= statusRead
		s.saveLocked()
		s.host.emitLocked(s.uri, readAction{Type: "session/isReadChanged"})
	}
}

// chatsStatus returns the first status that a chat of the session has: input
// needed, in progress, error, or else idle.
func (s *session) chatsStatus() int {
	status := statusIdle
	for _, wanted := range []int{statusError, statusInProgress, statusInputNeeded} {
		if slices.ContainsFunc(s.listed, func(ch *chat) bool { return ch.status == wanted }) {
			status = wanted
		}
	}
	return status
}

// reduce applies an action to the state. An action that does not fit the state is
// ignored.
func (ch *chat) reduce(action any) {
	switch a := action.(type) {
	case turnStartedAction:
		now := ch.session.host.cfg.Now()
		ch.active = &turn{ID: a.TurnID, StartedAt: a.StartedAt, Message: a.Message, ResponseParts: []any{}, started: now}
		ch.failed = false
		ch.touch(now)
		if a.QueuedMessageID != "" {
			ch.takeLocked(a.QueuedMessageID)
		}
	case turnEndAction:
		if ch.active != nil && ch.active.ID == a.TurnID {
			ch.endTurn(a)
		}
	default:
		if ch.active != nil {
			ch.active.reduce(action)
		}
	}
}

func (ch *chat) endTurn(a turnEndAction) {
	t := ch.active
	t.end(a)
	ch.turns = append(ch.turns, t)
	ch.active = nil
	ch.failed = a.Type == "chat/error"
	ch.touch(ch.session.host.cfg.Now())
	ch.turnStoredLocked()
}

func (t *turn) end(a turnEndAction) {
	t.Duration = &a.Duration
	t.State = map[string]string{"chat/turnComplete": "complete", "chat/turnCancelled": "cancelled", "chat/error": "error"}[a.Type]
	t.cancelTools()
	if a.Part != nil {
		t.ResponseParts = append(t.ResponseParts, a.Part)
	}
}

// touch updates the modification times of the chat and its session.
func (ch *chat) touch(now time.Time) {
	ch.modified = now
	ch.session.modified = now
	ch.session.touchLocked()
}

// stopLocked cancels the agent's turn, if one runs.
func (ch *chat) stopLocked() {
	ch.flushLocked()
	ch.seat.stopLocked()
}

// flushLocked publishes the text that the host holds back from the running turn.
func (ch *chat) flushLocked() {
	if ch.seat.turn != nil {
		ch.seat.turn.flushLocked()
	}
}

// turnEndedLocked begins the next turn, if a message waits, after turn t has ended. After an error, messages go on waiting, because
// each of them could end in the same way.
func (ch *chat) turnEndedLocked(t *Turn) {
	if ch.seat.turn == t {
		ch.seat.turn = nil
		if !ch.failed {
			ch.nextLocked()
		}
	}
}

// addPastLocked adds a turn to the history that the agent reports while it opens.
func (ch *chat) addPastLocked(t *turn, end turnEndAction) {
	t.end(end)
	ch.seat.told = append(ch.seat.told, t)
}
