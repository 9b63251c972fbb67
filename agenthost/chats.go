package agenthost

import (
	"encoding/json"
	"slices"
	"strings"

	"ahprelay/ahp"
)

// maxChats bounds the chats in a session.
const maxChats = 64

type chatAddedAction struct {
	Type    string      `json:"type"`
	Summary chatSummary `json:"summary"`
}

type chatRemovedAction struct {
	Type string `json:"type"`
	Chat string `json:"chat"`
}

func (s *session) chatSummaries() []chatSummary {
	summaries := []chatSummary{}
	for _, ch := range s.listed {
		summaries = append(summaries, ch.summary())
	}
	return summaries
}

type createChatParams struct {
	Channel        string          `json:"channel"`
	Chat           string          `json:"chat"`
	InitialMessage json.RawMessage `json:"initialMessage"`
	Source         *struct {
		Chat   string `json:"chat"`
		TurnID string `json:"turnId"`
	} `json:"source"`
}

// createChatLocked answers createChat: a new chat in a session, empty or with a
// copy of a chat's turns.
func (ss *sessionTable) createChatLocked(_ *conn, params createChatParams) (any, error) {
	h := ss.host
	s, ok := ss.get(params.Channel)
	switch {
	case !ok:
		return nil, ss.noSessionLocked(params.Channel)
	case h.chats[params.Chat] != nil:
		return nil, fail(ahp.CodeAlreadyExists, "Chat already exists: %s", params.Chat)
	case !strings.HasPrefix(params.Chat, chatScheme) || len(s.listed) >= maxChats:
		return nil, fail(ahp.CodeInvalidParams, "Not the URI of a new chat, or too many chats: %s", params.Chat)
	}
	ch := &chat{session: s, uri: params.Chat, status: statusIdle, modified: h.cfg.Now()}
	if params.Source != nil {
		source := h.chats[params.Source.Chat]
		if source == nil {
			return nil, fail(ahp.CodeNotFound, "Chat not found: %s", params.Source.Chat)
		}
		source.loadLocked()
		end := slices.IndexFunc(source.turns, func(t *turn) bool { return t.ID == params.Source.TurnID })
		if end < 0 {
			return nil, fail(ahp.CodeNotFound, "Turn not found: %s", params.Source.TurnID)
		}
		ch.turns = slices.Clone(source.turns[:end+1])
		if err := forkable(source, end); err != nil {
			return nil, err
		}
	}
	if st := s.provider.newSeat(ch); params.Source != nil && s.provider.info.Scripted == nil {
		st.copyLocked(h.chats[params.Source.Chat].seat)
	}
	h.chats[ch.uri] = ch
	s.listed = append(s.listed, ch)
	for _, t := range ch.turns {
		ch.storeTurnLocked(t)
	}
	s.saveLocked()
	h.emitLocked(s.uri, chatAddedAction{"session/chatAdded", ch.summary()})
	s.touchLocked()
	var message struct {
		Text string `json:"text"`
	}
	if ahp.IsObject(params.InitialMessage) && json.Unmarshal(params.InitialMessage, &message) == nil {
		a := turnStarted(h, params.InitialMessage, "")
		ch.startTurnLocked(a, own(ch.uri, a), message.Text)
	}
	return nil, nil
}

// forkable returns an error unless the agent can continue a copy of a chat that
// ends at a turn.
func forkable(source *chat, end int) error {
	switch st := source.seat; {
	case st.provider.info.Scripted != nil:
	case !st.provider.info.Forks:
		return fail(ahp.CodeInvalidParams, "%s cannot continue in a new chat", st.provider.info.Name)
	case source.active != nil:
		return fail(ahp.CodeTurnInProgress, "A turn is in progress: %s", source.uri)
	case end != len(source.turns)-1:
		return fail(ahp.CodeInvalidParams, "%s continues in a new chat only from the latest turn", st.provider.info.Name)
	}
	return nil
}

// otherChatLocked returns a chat. It returns an error for a session's default
// chat, and during a turn.
func (ss *sessionTable) otherChatLocked(uri string) (*chat, error) {
	ch := ss.host.chats[uri]
	switch {
	case ch == nil:
		return nil, fail(ahp.CodeNotFound, "Chat not found: %s", uri)
	case ch == ch.session.chat:
		return nil, fail(ahp.CodeInvalidParams, "The default chat stays with its session: %s", uri)
	case ch.active != nil:
		return nil, fail(ahp.CodeTurnInProgress, "A turn is in progress: %s", uri)
	}
	return ch, nil
}

func (ss *sessionTable) disposeChatLocked(_ *conn, params channelParams) (any, error) {
	ch, err := ss.otherChatLocked(params.Channel)
	if err != nil {
		return nil, err
	}
	ch.leaveLocked()
	ch.seat.closeLocked()
	if disk := ch.session.disk; disk != nil {
		ss.storageFailed(disk.RemoveChat(ch.uri))
	}
	ch.session.saveLocked()
	delete(ss.host.chats, ch.uri)
	return nil, nil
}

func (ch *chat) leaveLocked() {
	s := ch.session
	s.listed = slices.DeleteFunc(s.listed, func(other *chat) bool { return other == ch })
	s.host.emitLocked(s.uri, chatRemovedAction{"session/chatRemoved", ch.uri})
	s.announcer.stopLocked()
	s.announceChangesLocked()
}

// moveChatLocked answers moveChat. The chat keeps its URI and its
// subscriptions.
func (ss *sessionTable) moveChatLocked(c *conn, raw json.RawMessage) (any, error) {
	h := ss.host
	if c.offer.version.compare(firstStable) < 0 {
		return nil, methodNotFound("moveChat")
	}
	params, err := decodeParams[struct {
		Channel     string `json:"channel"`
		Destination struct {
			Kind    string `json:"kind"` // session or newSession
			Session string `json:"session"`
			After   string `json:"after"`
		} `json:"destination"`
	}](raw)
	if err != nil {
		return nil, err
	}
	ch, err := ss.otherChatLocked(params.Channel)
	if err != nil {
		return nil, err
	}
	to, ok := ss.get(params.Destination.Session)
	switch {
	case params.Destination.Kind == "newSession" && len(ss.keys) < maxSessions:
		p := ch.session.provider
		to = ss.addSessionWithLocked(p, p.name+":/"+h.cfg.NewID(), ch.session.directories, h.cfg.Now(), ch)
		ch.leaveLocked()
		ch.moveDiskLocked(to)
		ss.announceLocked(to)
		return struct {
			Session string `json:"session"`
		}{to.uri}, nil
	case params.Destination.Kind != "session":
		return nil, fail(ahp.CodeInvalidParams, "Not a destination: %s", params.Destination.Kind)
	case !ok:
		return nil, ss.noSessionLocked(params.Destination.Session)
	}
	if to != ch.session {
		ch.leaveLocked()
	} else {
		to.listed = slices.DeleteFunc(to.listed, func(other *chat) bool { return other == ch })
	}
	at := 1 + slices.IndexFunc(to.listed, func(other *chat) bool { return other.uri == params.Destination.After })
	to.listed = slices.Insert(to.listed, at, ch)
	if to != ch.session {
		ch.moveDiskLocked(to)
		h.emitLocked(to.uri, chatAddedAction{"session/chatAdded", ch.summary()})
	}
	var order []string
	for _, listed := range to.listed {
		order = append(order, listed.uri)
	}
	h.emitLocked(to.uri, struct {
		Type  string   `json:"type"`
		Chats []string `json:"chats"`
	}{"session/chatsReordered", order})
	to.touchLocked()
	return struct {
		Session string `json:"session"`
	}{to.uri}, nil
}
