package agenthost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"ahprelay/agenthost/transcript"
	"ahprelay/auth"
)

// A sessionRecord describes a session on disk.
type sessionRecord struct {
	URI         string       `json:"uri"`
	Provider    string       `json:"provider"`
	Title       string       `json:"title,omitempty"`
	Named       bool         `json:"named,omitempty"`
	Status      int          `json:"status"`
	Created     time.Time    `json:"created"`
	Modified    time.Time    `json:"modified"`
	Directories []string     `json:"directories,omitempty"`
	Work        *work        `json:"work,omitempty"`
	Chats       []chatRecord `json:"chats"` // the default chat first
}

// A chatRecord describes a chat on disk. The chat's turns are in separate logs.
type chatRecord struct {
	URI           string           `json:"uri"`
	Title         string           `json:"title,omitempty"`
	Failed        bool             `json:"failed,omitempty"`
	Modified      time.Time        `json:"modified"`
	Origin        chatOrigin       `json:"origin,omitzero"`
	Interactivity string           `json:"interactivity,omitempty"`
	Draft         json.RawMessage  `json:"draft,omitempty"`
	Queued        []pendingMessage `json:"queued,omitempty"`
	Steering      *pendingMessage  `json:"steering,omitempty"`

	// The agent's conversation.
	Conversation string         `json:"conversation,omitempty"`
	ForkOf       string         `json:"forkOf,omitempty"`
	Replay       bool           `json:"replay,omitempty"`
	Chosen       map[string]any `json:"chosen,omitempty"`
	Options      []Option       `json:"options,omitempty"`
}

// A chatLog holds a chat's logs on disk.
type chatLog struct {
	turns  *transcript.Log // nil until it is needed
	live   *transcript.Log // nil between turns
	loaded bool            // the chat's turns are in memory
}

// restoreLocked adds the sessions that are stored on disk.
func (ss *sessionTable) restoreLocked() error {
	h := ss.host
	if h.cfg.Storage == "" {
		return nil
	}
	store, err := transcript.Open(h.cfg.Storage)
	if err != nil {
		return err
	}
	if err := ss.lockStorage(); err != nil {
		return err
	}
	ss.store = store
	if ss.deleted, err = store.Removed(); err != nil {
		h.log.Warn("list of removed sessions unreadable", "error", err)
	}
	stored, err := store.Sessions()
	if err != nil {
		h.log.Warn("sessions unreadable", "error", err)
	}
	for _, disk := range stored {
		var rec sessionRecord
		err := json.Unmarshal(disk.Meta, &rec)
		if err == nil && len(rec.Chats) == 0 {
			err = errors.New("the session has no chats")
		}
		if err != nil {
			h.log.Warn("session unreadable", "error", err)
			continue
		}
		p, err := ss.providerLocked(rec.Provider)
		if err != nil {
			continue // the agent may be configured again later
		}
		ss.restoreSessionLocked(disk, rec, p)
	}
	slices.SortStableFunc(ss.keys, func(a, b string) int {
		return ss.values[a].created.Compare(ss.values[b].created)
	})
	return nil
}

// lockStorage locks the storage against other processes until the host closes.
func (ss *sessionTable) lockStorage() (err error) {
	if ss.lock, err = os.OpenFile(filepath.Join(ss.host.cfg.Storage, "lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if err = auth.AwaitLock(ss.lock); err != nil {
		return errors.Join(fmt.Errorf("another host-agent on this machine serves them; end it first (%w)", err), ss.lock.Close())
	}
	return nil
}

// forgetLocked removes a session from the disk and, if the agent can delete conversations,
// from the agent. The store remembers the removal, because the agent's list could bring the
// session back.
func (s *session) forgetLocked() {
	h := s.host
	if s.disk != nil {
		h.sessions.storageFailed(s.disk.Remove())
	}
	if h.sessions.store != nil && !slices.Contains(h.sessions.deleted, s.uri) {
		h.sessions.storageFailed(h.sessions.store.Remember(s.uri))
	}
	deleter, ok := s.provider.agent.(Deleter)
	for _, ch := range s.listed {
		if id := ch.seat.id; ok && id != "" {
			h.goLocked(func() {
				ctx, cancel := context.WithTimeout(h.ctx, listTimeout)
				defer cancel()
				if err := deleter.Delete(ctx, id); err != nil {
					h.log.Info("conversation not deleted at the agent", "session", s.uri, "error", err)
				}
			})
		}
	}
}

func (ss *sessionTable) restoreSessionLocked(disk *transcript.Session, rec sessionRecord, p *provider) {
	var s *session
	for i, c := range rec.Chats {
		ch := &chat{
			uri: c.URI, title: c.Title, failed: c.Failed, modified: c.Modified, origin: c.Origin, interactivity: c.Interactivity,
			draft: c.Draft, queued: c.Queued, steering: c.Steering, status: statusIdle, log: &chatLog{},
		}
		if ch.failed {
			ch.status = statusError
		}
		if i == 0 {
			s = ss.addSessionWithLocked(p, rec.URI, rec.Directories, rec.Created, ch)
		} else {
			ch.session = s
			p.newSeat(ch)
			s.listed = append(s.listed, ch)
			ss.host.chats[ch.uri] = ch
		}
		st := ch.seat
		st.id, st.forkOf, st.replay, st.kept = c.Conversation, c.ForkOf, c.Replay, c.Options
		if c.Chosen != nil {
			st.chosen = c.Chosen
		}
	}
	s.disk = disk
	s.title, s.named, s.modified = rec.Title, rec.Named, rec.Modified
	s.status = rec.Status&statusFlags | s.chatsStatus()
	for _, ch := range s.listed {
		if disk.HasLive(ch.uri) {
			ch.interruptedLocked()
		}
	}
	if s.work = rec.Work; s.work != nil && s.work.Base != "" {
		s.gitChangesLocked()
	}
	s.announced = s.summary()
}

// saveLocked writes the session's description if it has changed.
func (s *session) saveLocked() {
	h := s.host
	if h.sessions.store == nil || h.closed {
		return
	}
	if _, ok := h.sessions.get(s.uri); !ok {
		return
	}
	if s.disk == nil {
		disk, err := h.sessions.store.Session(s.uri)
		if err != nil {
			h.sessions.storageFailed(err)
			return
		}
		s.disk = disk
	}
	if meta := encode(s.record()); !bytes.Equal(meta, s.disk.Meta) {
		h.sessions.storageFailed(s.disk.Describe(meta))
	}
}

// canSaveLocked writes the description of a restored session again, and reports whether the storage has taken it.
func canSaveLocked(s *session) bool {
	err := s.disk.Describe(s.disk.Meta)
	s.host.sessions.storageFailed(err)
	return err == nil
}

// storageFailed logs an error of the storage. The host continues with its state in
// memory.
func (ss *sessionTable) storageFailed(err error) {
	if err != nil {
		ss.host.log.Error("session storage failed", "error", err)
	}
}

func (s *session) record() sessionRecord {
	rec := sessionRecord{URI: s.uri, Provider: s.provider.name, Title: s.title, Named: s.named, Status: s.status & statusFlags,
		Created: s.created, Modified: s.modified, Directories: s.directories, Work: s.work}
	rec.Chats = append(rec.Chats, s.chat.record())
	for _, ch := range s.listed {
		if ch != s.chat {
			rec.Chats = append(rec.Chats, ch.record())
		}
	}
	return rec
}

func (ch *chat) record() chatRecord {
	rec := chatRecord{URI: ch.uri, Title: ch.title, Failed: ch.failed, Modified: ch.modified, Origin: ch.origin,
		Interactivity: ch.interactivity, Draft: ch.draft, Queued: ch.queued, Steering: ch.steering}
	st := ch.seat
	rec.Conversation, rec.ForkOf, rec.Replay, rec.Chosen, rec.Options = st.id, st.forkOf, st.replay, st.chosen, st.keptOptions()
	return rec
}

// diskLocked returns the chat's logs, or nil without a storage.
func (ch *chat) diskLocked() *chatLog {
	if ch.session.host.sessions.store == nil {
		return nil
	}
	if ch.log == nil {
		ch.log = &chatLog{loaded: true}
	}
	if ch.session.disk == nil {
		ch.session.saveLocked()
	}
	if ch.session.disk == nil {
		return nil
	}
	return ch.log
}

// loadLocked reads the chat's turns, if they are not in memory.
func (ch *chat) loadLocked() {
	l := ch.diskLocked()
	if l == nil || l.loaded {
		return
	}
	log, records, err := ch.session.disk.Turns(ch.uri)
	if err != nil {
		ch.session.host.sessions.storageFailed(err)
		return // the next use tries again
	}
	l.loaded, l.turns = true, log
	past := make([]*turn, 0, len(records)+len(ch.turns))
	known := make(map[string]bool, len(records))
	for _, r := range records {
		if t := storedTurn(r); t != nil {
			past = append(past, t)
			known[t.ID] = true
		}
	}
	for _, t := range ch.turns {
		if !known[t.ID] {
			past = append(past, t)
		}
	}
	ch.turns = past
}

// storedTurn reads a completed turn. Clients get its bytes unchanged.
func storedTurn(raw []byte) *turn {
	var head struct {
		ID string `json:"id"`
	}
	const prefix = `{"id":"`
	if id, _, ok := bytes.Cut(bytes.TrimPrefix(raw, []byte(prefix)), []byte(`"`)); ok && bytes.HasPrefix(raw, []byte(prefix)) && !bytes.ContainsRune(id, '\\') {
		head.ID = string(id)
	} else if json.Unmarshal(raw, &head) != nil {
		return nil
	}
	return &turn{ID: head.ID, raw: raw}
}

// unloadLocked drops the chat's turns from memory if no turn runs, no client is
// subscribed, and all turns are on disk.
func (ch *chat) unloadLocked() {
	l := ch.log
	if l == nil || !l.loaded || ch.active != nil || len(ch.turns) == 0 {
		return
	}
	for c := range ch.session.host.conns {
		if c.subs[ch.uri] != nil {
			return
		}
	}
	if !slices.ContainsFunc(ch.turns, func(t *turn) bool { return t.raw == nil }) {
		l.loaded, ch.turns = false, nil
	}
}

// moveDiskLocked moves the chat and its turns to a different session.
func (ch *chat) moveDiskLocked(to *session) {
	from := ch.session
	ch.loadLocked()
	ch.session = to
	to.saveLocked()
	if from.disk == nil || to.disk == nil {
		return
	}
	// The logs have the previous session's paths, so they are closed; the next use opens them.
	from.host.sessions.storageFailed(errors.Join(ch.log.close(), from.disk.MoveChat(ch.uri, to.disk)))
	from.saveLocked()
}

func (l *chatLog) close() (err error) {
	if l == nil {
		return nil
	}
	for _, log := range []**transcript.Log{&l.turns, &l.live} {
		if *log != nil {
			err = errors.Join(err, (*log).Close())
		}
		*log = nil
	}
	return err
}

// storeActionLocked stores an action of the turn in progress.
func (ch *chat) storeActionLocked(action json.RawMessage) {
	l := ch.diskLocked()
	if l == nil || ch.active == nil {
		return
	}
	h := ch.session.host
	if l.live == nil {
		live, _, err := ch.session.disk.Live(ch.uri)
		if err != nil {
			h.sessions.storageFailed(err)
			return
		}
		l.live = live
	}
	h.sessions.storageFailed(l.live.Append(action))
}

// storeTurnLocked stores a completed turn, and reports whether it succeeded.
func (ch *chat) storeTurnLocked(t *turn) bool {
	l := ch.diskLocked()
	if l == nil {
		return false
	}
	h := ch.session.host
	if l.turns == nil {
		log, _, err := ch.session.disk.Turns(ch.uri)
		if err != nil {
			h.sessions.storageFailed(err)
			return false
		}
		l.turns = log
	}
	raw := encode(t)
	if err := l.turns.Append(raw); err != nil {
		h.sessions.storageFailed(err)
		return false
	}
	*t = turn{ID: t.ID, raw: raw}
	sync := l.turns.Sync()
	h.goLocked(func() { h.sessions.storageFailed(sync()) })
	return true
}

// turnStoredLocked stores the turn that has just ended, after earlier turns that could not be stored,
// and then removes its actions.
func (ch *chat) turnStoredLocked() {
	for _, t := range ch.turns {
		if t.raw == nil && !ch.storeTurnLocked(t) {
			return // its actions are kept
		}
	}
	if ch.log.live != nil {
		ch.session.host.sessions.storageFailed(ch.log.live.Clear())
		ch.log.live = nil
	}
	ch.session.saveLocked()
	if !ch.log.loaded {
		ch.turns = nil
	}
	ch.unloadLocked()
}

// errorInterrupted is the error type of a turn that was in progress when the host
// ended.
const errorInterrupted = "interrupted"

// interruptedLocked ends the turn that was in progress when the host ended.
func (ch *chat) interruptedLocked() {
	h := ch.session.host
	live, records, err := ch.session.disk.Live(ch.uri)
	if err != nil {
		h.sessions.storageFailed(err)
		return
	}
	ch.loadLocked()
	ch.log.live = live
	var t *turn
	for _, r := range records {
		action := storedAction(r)
		if started, ok := action.(turnStartedAction); ok {
			at, _ := time.Parse(time.RFC3339, started.StartedAt)
			t = &turn{ID: started.TurnID, StartedAt: started.StartedAt, Message: started.Message, ResponseParts: []any{}, started: at}
			ch.takeLocked(started.QueuedMessageID) // which may wait still if the host has ended just then
		} else if t != nil {
			t.reduceStored(action)
		}
	}
	if t == nil || slices.ContainsFunc(ch.turns, func(other *turn) bool { return other.ID == t.ID }) {
		h.sessions.storageFailed(live.Clear())
		ch.log.live = nil
		return
	}
	end := turnEndAction{Type: "chat/error", TurnID: t.ID, Duration: max(0, ch.session.modified.Sub(t.started).Milliseconds()),
		Part: &errorPart{Kind: "error", Error: TurnError{errorInterrupted, "The host ended during this turn. What the agent had said and done until then is above."}}}
	t.end(end)
	ch.turns = append(ch.turns, t)
	ch.failed, ch.interrupted, ch.status = true, true, statusError
	ch.session.status = ch.session.status&statusArchived | ch.session.chatsStatus() // and unread
	ch.turnStoredLocked()
}

// reduceStored applies a stored action. A text whose beginning the log has dropped begins with its
// next piece.
func (t *turn) reduceStored(action any) {
	if a, ok := action.(DeltaAction); ok && t.text(a.PartID) == nil {
		t.ResponseParts = append(t.ResponseParts, newText(a.PartID, a.Type == actionReasoning, ""))
	}
	t.reduce(action)
}

// storedAction reads an action of a turn, or returns nil if it is unreadable. Each type has
// its branch.
func storedAction(raw []byte) any {
	switch kind := actionType(raw); kind {
	case "chat/turnStarted":
		return decodeAction[turnStartedAction](raw)
	case "chat/responsePart":
		var a struct {
			TurnID string          `json:"turnId"`
			Part   json.RawMessage `json:"part"`
		}
		if json.Unmarshal(raw, &a) != nil {
			return nil
		}
		return PartAction{kind, a.TurnID, storedPart(a.Part)}
	case "chat/delta", actionReasoning:
		return decodeAction[DeltaAction](raw)
	case actionUsage:
		return decodeAction[usageAction](raw)
	case "chat/toolCallStart":
		return decodeAction[ToolStartAction](raw)
	case "chat/toolCallReady":
		return decodeAction[ToolReadyAction](raw)
	case "chat/toolCallConfirmed":
		if a, ok := decodeAction[toolConfirmedAction](raw).(toolConfirmedAction); ok && a.Approved != nil {
			return a
		}
		return nil
	case "chat/toolCallContentChanged":
		return decodeAction[ToolContentAction](raw)
	case "chat/toolCallComplete":
		return decodeAction[ToolCompleteAction](raw)
	case "chat/inputRequested":
		return decodeAction[InputRequestedAction](raw)
	case "chat/inputCompleted":
		return decodeAction[inputCompletedAction](raw)
	case "chat/inputAnswerChanged":
		return decodeAction[inputAnswerChangedAction](raw)
	}
	return nil
}

func decodeAction[T any](raw []byte) any {
	var a T
	if json.Unmarshal(raw, &a) != nil {
		return nil
	}
	return a
}

// storedPart reads a part of a turn.
func storedPart(raw json.RawMessage) any {
	var p struct {
		Kind    string `json:"kind"`
		ID      string `json:"id"`
		Content any    `json:"content"`
	}
	text, ok := "", false
	if json.Unmarshal(raw, &p) == nil {
		text, ok = p.Content.(string)
	}
	if ok && (p.Kind == "markdown" || p.Kind == "reasoning") {
		return newText(p.ID, p.Kind == "reasoning", text)
	}
	return raw
}
