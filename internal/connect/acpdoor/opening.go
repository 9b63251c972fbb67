package acpdoor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
)

// A show selects which turns of a state to show.
type show int

const (
	showAll  show = iota // all turns
	showLive             // only the running turn
	showRest             // turns not shown yet, after an interruption
)

func (d *Door) create(ctx context.Context, r *acp.Request, p params) (any, error) {
	if d.cfg.Session != "" {
		return d.open(ctx, r, d.cfg.Session, showAll)
	}
	c, err := d.host(ctx)
	if err != nil {
		return nil, err
	}
	folder := cmp.Or(d.cfg.Folder, p.Cwd)
	if !strings.HasPrefix(folder, "/") {
		return nil, fmt.Errorf("%q is no folder at the host: give its absolute path there with --folder", folder)
	}
	d.mu.Lock()
	provider := d.cfg.Agent
	if provider == "" && len(d.agents) > 0 {
		provider = d.agents[0].Provider
	}
	d.mu.Unlock()
	if provider == "" {
		return nil, errors.New("the host has no agent")
	}
	id, err := c.Create(ctx, provider, fileURI(folder))
	if err != nil && d.cfg.Folder == "" {
		return nil, fmt.Errorf("%w: if the editor's folder does not exist at the host, name one there with --folder", err)
	}
	if err != nil {
		return nil, err
	}
	return d.open(ctx, r, id, showLive)
}

func (d *Door) open(ctx context.Context, r *acp.Request, id string, how show) (any, error) {
	c, err := d.host(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	old := d.sessions[id]
	full := len(d.sessions) >= maxSessions && old == nil
	d.mu.Unlock()
	switch {
	case full:
		return nil, errors.New("too many open sessions: close some")
	case old != nil:
		old.leave(errors.New("the session was opened again"))
	}
	s := &session{door: d, id: id, asked: map[string]*question{}, terminals: map[string]*terminal{}, files: map[string]string{}, fetching: map[string]bool{}}
	d.mu.Lock()
	d.sessions[id] = s
	d.mu.Unlock()
	reply := func() {
		r.Reply(acp.NewSessionResponse{SessionID: id, Modes: s.options.modes(), ConfigOptions: s.options.list(d, s.provider)}, nil)
	}
	before, after := reply, func() {}
	if r.Method == "session/load" {
		before, after = after, func() {
			r.Reply(acp.LoadSessionResponse{Modes: s.options.modes(), ConfigOptions: s.options.list(d, s.provider)}, nil)
		}
	}
	if err := s.sync(ctx, c, how, before); err != nil {
		s.leave(err)
		return nil, err
	}
	s.mu.Lock()
	after()
	s.mu.Unlock()
	s.showCommands()
	return answered, nil
}

// sync reads the session's state, and shows what the editor does not have. It calls before
// under the lock, before showing anything.
func (s *session) sync(ctx context.Context, c *client.Client, how show, before func()) error {
	s.mu.Lock()
	s.ready, s.early = false, nil
	s.mu.Unlock()
	s.door.follow(s.id, s)
	state, seq, err := c.SubscribeAt(ctx, s.id)
	if err != nil {
		return err
	}
	var at client.Session
	if err := json.Unmarshal(state, &at); err != nil {
		return fmt.Errorf("%s: unreadable state: %w", s.id, err)
	}
	if at.DefaultChat == "" {
		return fmt.Errorf("%s has no chat yet", s.id)
	}
	s.door.follow(at.DefaultChat, s)
	raw, chatSeq, err := c.SubscribeAt(ctx, at.DefaultChat)
	if err != nil {
		return err
	}
	chat, err := client.ReadChat(raw)
	if err != nil {
		return fmt.Errorf("%s: unreadable state: %w", at.DefaultChat, err)
	}
	if how == showAll {
		if err := s.older(ctx, c, at.DefaultChat, &chat); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chat, s.provider = at.DefaultChat, at.Provider
	readOptions(s, at, chat.Turns, how)
	before()
	s.showChat(chat, how)
	s.readQuestions(at.InputNeeded)
	early := s.early
	s.ready, s.early = true, nil
	for _, a := range early {
		if a.Channel == s.id && a.Seq > seq || a.Channel == s.chat && a.Seq > chatSeq {
			s.apply(a)
		}
	}
	if len(early) >= maxEarly {
		return errors.New("too many actions arrived while the session's state was read")
	}
	return nil
}

// readOptions reads the session's options and title. After an interruption, it shows their changes.
func readOptions(s *session, at client.Session, turns []client.Turn, how show) {
	title, mode, list := s.title, string(s.options.value(s.options.mode())), s.options.list(s.door, s.provider)
	s.title = at.Title
	s.options.read(at.Config, turns)
	if how == showRest && at.Title != title {
		s.update(acp.UpdateSessionInfoUpdate, acp.SessionInfoUpdate{Title: at.Title})
	}
	if how == showRest && !reflect.DeepEqual(s.options.list(s.door, s.provider), list) {
		showOptions(s, mode)
	}
}

// Bounds for turns missing in a state.
const (
	maxPages = 500      // requests for missing turns
	maxOlder = 64 << 20 // bytes of missing turns
)

// older fetches the earlier turns if the host's state contains only the last ones. Each page
// arrives as an action for all subscribers, before the answer to fetchTurns. Beyond the
// bounds, earlier turns are omitted.
func (s *session) older(ctx context.Context, c *client.Client, channel string, chat *client.Chat) error {
	bytes := 0
	for page := 0; chat.Older != "" && page < maxPages && bytes < maxOlder; page++ {
		cursor := chat.Older
		if _, err := c.Call(ctx, "fetchTurns", map[string]any{"channel": channel, "cursor": cursor}); err != nil {
			return fmt.Errorf("the earlier turns of %s: %w", s.id, err)
		}
		chat.Older = ""
		for _, a := range takePages(s, channel) {
			var act action
			if json.Unmarshal(a.Raw, &act) != nil {
				continue // newer than this program
			}
			bytes += len(a.Raw)
			fresh := slices.DeleteFunc(act.Turns, func(t client.Turn) bool {
				return slices.ContainsFunc(chat.Turns, func(shown client.Turn) bool { return shown.ID == t.ID })
			})
			chat.Turns = append(fresh, chat.Turns...)
			if len(fresh) > 0 {
				chat.Older = act.Older
			}
		}
	}
	return nil
}

// takePages removes the pages with a chat's earlier turns from the session's stored actions.
func takePages(s *session, channel string) (pages []client.Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early = slices.DeleteFunc(s.early, func(a client.Action) bool {
		kind := ahp.TextOf(a.Raw, "type")
		if a.Channel != channel || kind != "chat/turnsLoaded" {
			return false
		}
		pages = append(pages, a)
		return true
	})
	return pages
}

// showChat shows the turns which the editor does not have.
func (s *session) showChat(chat client.Chat, how show) {
	from := len(chat.Turns)
	switch {
	case how == showAll:
		from = 0
	case how == showRest:
		if i := slices.IndexFunc(chat.Turns, func(t client.Turn) bool { return t.ID == s.last }); i >= 0 || s.last == "" {
			from = i + 1
		}
	}
	if how == showRest {
		beginQueued(s, chat, from)
	}
	for i := range chat.Turns {
		t := &chat.Turns[i]
		if i >= from || s.turn != nil && s.turn.id == t.ID {
			s.showTurn(t)
			s.endTurn(t.ID, endOf(t))
		}
		s.last = t.ID
	}
	if s.turn != nil && (chat.Active == nil || chat.Active.ID != s.turn.id) {
		s.endTurn(s.turn.id, ending{err: errors.New("the turn was lost in an interruption")})
	}
	if chat.Active != nil {
		s.showTurn(chat.Active)
	}
	if how == showRest {
		endLostPrompts(s, chat)
		continueTerminals(s)
	}
}

// beginQueued finds the turns of the editor's queued messages that have begun in an interruption: the new turns with their
// texts. A turn in a state does not name its queued message.
func beginQueued(s *session, chat client.Chat, from int) {
	turns := chat.Turns[from:len(chat.Turns):len(chat.Turns)]
	if chat.Active != nil {
		turns = append(turns, *chat.Active)
	}
	for _, p := range s.prompts {
		if p.queued == "" || !p.sent || waits(chat, p) {
			continue
		}
		i := slices.IndexFunc(turns, func(t client.Turn) bool {
			return t.Message.Text == p.text && !slices.ContainsFunc(s.prompts, func(other *prompt) bool { return other.turn == t.ID })
		})
		if i >= 0 {
			p.turn, p.queued = turns[i].ID, ""
		}
	}
}

func waits(chat client.Chat, p *prompt) bool {
	return p.queued != "" && slices.ContainsFunc(chat.Queued, func(q client.Queued) bool { return q.ID == p.queued })
}

// endLostPrompts ends prompts which were sent, but are missing in the chat. It cancels those again whose
// cancellation may not have reached the host.
func endLostPrompts(s *session, chat client.Chat) {
	for _, p := range slices.Clone(s.prompts) {
		if p.sent && !waits(chat, p) && (s.turn == nil || p.turn != s.turn.id) {
			s.finish(p, p.lost())
		}
	}
	if slices.ContainsFunc(s.prompts, func(p *prompt) bool { return p.sent && p.cancelled }) {
		s.door.spawn(func() { sendCancels(s) })
	}
}

func (s *session) take(a client.Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.terminals[a.Channel]; t != nil {
		t.take(a)
		return
	}
	if s.ready {
		s.apply(a)
	} else if len(s.early) < maxEarly {
		a.Raw = slices.Clone(a.Raw)
		s.early = append(s.early, a)
	}
}

func (s *session) apply(a client.Action) {
	var act action
	if json.Unmarshal(a.Raw, &act) != nil {
		return // newer than this program
	}
	if a.Rejected != "" {
		s.rejected(a, act)
		return
	}
	switch act.Type {
	case "chat/turnStarted":
		s.beginTurn(act)
	case "chat/turnsLoaded":
		if s.turn == nil && s.last == "" {
			s.showChat(client.Chat{Turns: act.Turns}, showAll)
		}
	case "session/titleChanged":
		s.title = act.Title
		s.update(acp.UpdateSessionInfoUpdate, acp.SessionInfoUpdate{Title: act.Title})
	case "session/configChanged":
		s.optionsChanged(act.Config)
		if a.Mine {
			s.changed(nil)
		}
	case "session/inputNeededSet":
		s.ask(act.Request)
	case "session/inputNeededRemoved":
		s.withdraw(act.ID)
	case "chat/turnComplete", "chat/turnCancelled", "chat/error":
		s.endTurn(act.TurnID, endBy(act))
		s.door.spawn(s.showCommands)
	default:
		if s.turn != nil && act.TurnID == s.turn.id {
			s.turn.apply(act, a.Raw)
		}
	}
}

func (s *session) rejected(a client.Action, act action) {
	if !a.Mine {
		return
	}
	why := errors.New(a.Rejected)
	switch act.Type {
	case "session/configChanged":
		s.changed(why)
	case "chat/turnStarted", "chat/pendingMessageSet":
		for _, p := range slices.Clone(s.prompts) {
			if p.turn != "" && p.turn == act.TurnID || p.queued != "" && p.queued == act.ID {
				s.finish(p, ending{err: why})
			}
		}
	}
}

func (s *session) close(ctx context.Context) error {
	s.leave(errors.New("the session was closed"))
	c := s.client()
	s.mu.Lock()
	channels := []string{s.id, s.chat}
	s.mu.Unlock()
	for _, channel := range channels {
		if c != nil && c.Err() == nil {
			if err := c.Unsubscribe(ctx, channel); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) leave(why error) {
	d := s.door
	d.mu.Lock()
	if d.sessions[s.id] == s {
		delete(d.sessions, s.id)
	}
	maps.DeleteFunc(d.channels, func(_ string, other *session) bool { return other == s })
	d.mu.Unlock()
	s.lose(why)
}

// lose ends all waiting prompts, questions and config changes of a session.
func (s *session) lose(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Clone(s.prompts) {
		s.finish(p, ending{err: why})
	}
	for id := range s.asked {
		s.withdraw(id)
	}
	for len(s.changes) > 0 {
		s.changed(why)
	}
}

// showCommands shows the slash commands, if they have changed.
func (s *session) showCommands() {
	c := s.client()
	s.mu.Lock()
	chat := s.chat
	s.mu.Unlock()
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.door.life, callTime)
	defer cancel()
	result, err := c.Call(ctx, "completions", map[string]any{"channel": chat, "kind": "userMessage", "text": "/", "offset": 1})
	if err != nil {
		return // the host has no completions
	}
	list := []acp.AvailableCommand{}
	for _, item := range ahp.ElementsOf(ahp.RawOf(result, "items")) {
		name, ok := strings.CutPrefix(strings.TrimSpace(ahp.TextOf(item.Raw, "insertText")), "/")
		if !ok || name == "" || strings.Contains(name, " ") {
			continue
		}
		command := acp.AvailableCommand{Name: name, Description: ahp.TextOf(item.Raw, "attachment", "_meta", "description")}
		if hint := ahp.TextOf(item.Raw, "attachment", "_meta", "hint"); hint != "" {
			command.Input = &acp.AvailableCommandInput{Hint: hint}
		}
		list = append(list, command)
	}
	text, err := json.Marshal(list)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || string(text) == s.commands || s.commands == "" && len(list) == 0 {
		return
	}
	s.commands = string(text)
	s.update(acp.UpdateAvailableCommandsUpdate, acp.AvailableCommandsUpdate{AvailableCommands: list})
}
