package agenthost

import (
	"encoding/json"
	"slices"
	"strings"

	"ahprelay/ahp"
)

type dispatchParams struct {
	Channel   string          `json:"channel"`
	ClientSeq json.RawMessage `json:"clientSeq"`
	Action    json.RawMessage `json:"action"`
}

// unsupported lists the types of clients' actions that the host rejects.
var unsupported = []string{
	"chat/workingDirectorySet", "chat/workingDirectoryRemoved", "session/workingDirectorySet", "session/workingDirectoryRemoved",
	"session/customizationsChanged", "session/customizationUpdated", "session/customizationRemoved", "session/mcpServerStateChanged",
}

// activeClientActions are the actions with which a client declares its
// contributions.
var activeClientActions = []string{"session/activeClientChanged", "session/activeClientSet", "session/activeClientRemoved"}

// dispatchLocked handles dispatchAction. It sends a valid action to all subscribers
// with its origin, unchanged except for white space, even if it has no effect at
// the host. A malformed action gets no answer.
func (h *Host) dispatchLocked(c *conn, raw json.RawMessage) {
	params, err := decodeParams[dispatchParams](raw)
	if err != nil || !ahp.IsObject(params.Action) {
		return
	}
	kind := actionType(params.Action)
	env := envelope{
		channel: params.Channel,
		action:  encode(params.Action), // without white space
		kind:    kind,
		origin:  &origin{ClientID: c.client.id, ClientSeq: params.ClientSeq},
	}
	if slices.Contains(unsupported, kind) {
		env.rejected = "Unsupported action: " + kind
		h.publishLocked(env, nil)
		return
	}
	switch family(kind) {
	case "chat":
		h.sessions.chatActionLocked(env)
	case "session":
		h.sessions.sessionActionLocked(c, env)
	case "terminal":
		h.terminals.terminalActionLocked(env)
	case "changeset":
		h.changesets.changesetActionLocked(env)
	case "canvas":
		h.canvases.canvasActionLocked(c, env)
	case "root":
		if kind == "root/configChanged" {
			h.publishLocked(env, nil)
		}
	}
}

// deleted is the reason why a deleted session takes no requests and actions.
func deleted(session string) string { return "Session was explicitly deleted: " + session }

// chatActionLocked handles an action on a chat. An action on an unknown chat is
// rejected if the chat's session was deleted, and otherwise gets no answer.
func (ss *sessionTable) chatActionLocked(env envelope) {
	h := ss.host
	ch := h.chats[env.channel]
	if ch == nil {
		if session := sessionOfChat(env.channel); ss.deletedLocked(session) {
			env.rejected = deleted(session)
			h.publishLocked(env, nil)
		}
		return
	}
	switch env.kind {
	case "chat/turnStarted":
		ch.clientTurnLocked(env)
	case "chat/turnCancelled":
		ch.clientCancelLocked(env)
	case "chat/toolCallConfirmed":
		ch.clientConfirmLocked(env)
	case "chat/inputCompleted":
		ch.clientAnswerLocked(env)
	case "chat/inputAnswerChanged":
		ch.clientFieldLocked(env)
	case "chat/pendingMessageSet", "chat/pendingMessageRemoved":
		ch.clientPendingLocked(env)
	case "chat/queuedMessagesReordered":
		ch.clientOrderLocked(env)
	case "chat/truncated":
		if info := ch.seat.provider.info; info.Scripted == nil {
			env.rejected = info.Name + " cannot forget turns"
		}
		h.publishLocked(env, nil)
	case "chat/draftChanged":
		var a struct {
			Draft *json.RawMessage `json:"draft"`
		}
		if json.Unmarshal(env.action, &a) != nil {
			return
		}
		ch.draft = nil
		if a.Draft != nil {
			ch.draft = *a.Draft
		}
		ch.session.saveLocked()
		h.publishLocked(env, nil)
	default:
		h.publishLocked(env, nil)
	}
}

// clientTurnLocked starts a turn, which replaces the active turn. A client that has
// missed the echo may send the start of a turn a second time. The second start is
// rejected.
func (ch *chat) clientTurnLocked(env envelope) {
	var a turnStartedAction
	var message struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(env.action, &a) != nil || a.TurnID == "" || a.StartedAt == "" ||
		!ahp.IsObject(a.Message) || json.Unmarshal(a.Message, &message) != nil {
		return
	}
	if ch.knowsLocked(a.TurnID) {
		env.rejected = "Turn already exists: " + a.TurnID
		ch.session.host.publishLocked(env, nil)
		return
	}
	ch.startTurnLocked(a, env, message.Text)
}

// knowsLocked reports whether the chat has or had a turn with this id.
func (ch *chat) knowsLocked(turnID string) bool {
	if ch.active != nil && ch.active.ID == turnID {
		return true
	}
	ch.loadLocked()
	defer ch.unloadLocked()
	return slices.ContainsFunc(ch.turns, func(t *turn) bool { return t.ID == turnID })
}

func (ch *chat) startTurnLocked(a turnStartedAction, env envelope, prompt string) {
	ch.seat.endUnaskedLocked()
	ch.stopLocked()
	ch.applyLocked(a, env)
	if a.QueuedMessageID != "" {
		ch.session.saveLocked() // after the turn's beginning, so that no crash loses the message
	}
	if s := ch.session; s.title == "" {
		s.setTitleLocked(titleOf(prompt))
		s.saveLocked()
		s.host.emitLocked(s.uri, titleAction{"session/titleChanged", s.title})
	}
	if ch.title == "" && ch != ch.session.chat { // the default chat has the session's title
		ch.title = titleOf(prompt)
		ch.session.saveLocked()
		named := chatTitleAction{Type: "session/chatUpdated", Chat: ch.uri}
		named.Changes.Title = ch.title
		ch.session.host.emitLocked(ch.session.uri, named)
	}
	ch.seat.startLocked()
}

// maxTitle bounds the result of titleOf, in characters.
const maxTitle = 100

func titleOf(prompt string) string {
	runes := []rune(strings.TrimSpace(prompt))
	return string(runes[:min(len(runes), maxTitle)])
}

// clientCancelLocked cancels the turn that the action names. If that turn is not
// active, all subscribers get the action, without an effect.
func (ch *chat) clientCancelLocked(env envelope) {
	var a struct {
		TurnID   string   `json:"turnId"`
		Duration *float64 `json:"duration"`
	}
	if json.Unmarshal(env.action, &a) != nil {
		return
	}
	ch.flushLocked()
	isActive := ch.active != nil && ch.active.ID == a.TurnID
	if isActive && a.Duration == nil {
		return // malformed
	}
	if !isActive {
		ch.session.host.publishLocked(env, nil)
		return
	}
	ch.stopLocked()
	ch.applyLocked(turnEndAction{Type: "chat/turnCancelled", TurnID: a.TurnID, Duration: int64(*a.Duration)}, env)
	ch.nextLocked()
}

type toolConfirmedAction struct {
	TurnID           string `json:"turnId"`
	ToolCallID       string `json:"toolCallId"`
	Approved         *bool  `json:"approved"`
	Confirmed        string `json:"confirmed"`
	Reason           string `json:"reason"`
	SelectedOptionID string `json:"selectedOptionId"`

	ReasonMessage   json.RawMessage `json:"reasonMessage"`
	UserSuggestion  json.RawMessage `json:"userSuggestion"`
	EditedToolInput json.RawMessage `json:"editedToolInput"`
	Meta            json.RawMessage `json:"_meta"`
}

// clientConfirmLocked handles a client's answer to a request for permission. The first
// answer counts. Later answers are echoed and have no effect.
func (ch *chat) clientConfirmLocked(env envelope) {
	var a toolConfirmedAction
	if json.Unmarshal(env.action, &a) != nil || a.TurnID == "" || a.ToolCallID == "" || a.Approved == nil {
		return
	}
	if ch.active != nil {
		if tc := ch.active.tool(a.TurnID, a.ToolCallID); tc != nil && tc.Status == toolPending {
			if ch.seat.turn != nil {
				ch.seat.turn.confirmLocked(a)
			}
		}
	}
	ch.applyLocked(a, env)
}

// sessionActionLocked handles a session action. Each type that has an effect has its
// branch.
func (ss *sessionTable) sessionActionLocked(c *conn, env envelope) {
	h := ss.host
	var a struct {
		Title      *string `json:"title"`
		IsRead     *bool   `json:"isRead"`
		IsArchived *bool   `json:"isArchived"`
	}
	if json.Unmarshal(env.action, &a) != nil {
		return
	}
	if s, ok := ss.get(env.channel); ok {
		switch {
		case slices.Contains(activeClientActions, env.kind):
			s.activeClientLocked(c, env)
			return
		case env.kind == "session/customizationToggled":
			h.publishLocked(env, nil)
			s.toggleMCPLocked(env.action)
			return
		case env.kind == "session/mcpServerStartRequested" || env.kind == "session/mcpServerStopRequested":
			h.publishLocked(env, nil)
			s.runMCPLocked(env.action, env.kind == "session/mcpServerStartRequested")
			return
		case env.kind == "session/configChanged" && s.provider.info.Scripted == nil:
			s.clientConfigLocked(env)
			return
		case env.kind == "session/titleChanged" && a.Title != nil:
			s.named = true
			s.setTitleLocked(*a.Title)
		case env.kind == "session/isReadChanged" && a.IsRead != nil:
			s.setFlagLocked(statusRead, *a.IsRead)
		case env.kind == "session/isArchivedChanged" && a.IsArchived != nil:
			s.setFlagLocked(statusArchived, *a.IsArchived)
		}
		s.saveLocked()
	} else if ss.deletedLocked(env.channel) {
		env.rejected = deleted(env.channel)
	}
	h.publishLocked(env, nil)
}

func (s *session) setFlagLocked(flag int, on bool) {
	s.status = setFlag(s.status, flag, on)
	s.touchLocked()
}
