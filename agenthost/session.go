package agenthost

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"ahprelay/agenthost/transcript"
	"ahprelay/ahp"
)

// A session is a group of chats with one agent. The host's lock guards its state.
type session struct {
	host        *Host
	uri         string
	title       string
	status      int
	created     time.Time
	modified    time.Time
	directories []string // nil if none were given
	chat        *chat    // the default chat
	listed      []*chat  // all chats, in list order
	waiting     []inputRequest
	clients     catalog[*activeClient]
	provider    *provider
	disk        *transcript.Session // nil before the session is stored
	lifecycle   string              // "": ready
	named       bool                // a person has set the title
	mcp         []*mcpServer
	changed     *changeset // nil before the first change
	sum         changes    // totals of changed
	turnsOpen   []string   // turns with an open changeset, oldest first
	work        *work      // nil without a repository
	announced   summary    // summary that was published last
	announcer   *timer     // publishes the next root/sessionSummaryChanged; nil if nothing has changed
}

type summary struct {
	Resource           string          `json:"resource"`
	Provider           string          `json:"provider"`
	Title              string          `json:"title"`
	Status             int             `json:"status"`
	CreatedAt          string          `json:"createdAt"`
	ModifiedAt         string          `json:"modifiedAt"`
	WorkingDirectories []string        `json:"workingDirectories,omitzero"`
	Changes            *changes        `json:"changes,omitempty"`
	Meta               json.RawMessage `json:"_meta,omitempty"`

	// Since 1.0.
	Chats       []chatSummary `json:"chats,omitzero"`
	DefaultChat string        `json:"defaultChat,omitempty"`
}

// as returns the summary in the form for a client with this offer.
func (sum summary) as(o offer) summary {
	if o.version.compare(firstStable) < 0 {
		sum.Chats, sum.DefaultChat = nil, ""
	}
	return sum
}

type changes struct {
	Additions int `json:"additions"`
	Deletions int `json:"deletions"`
	Files     int `json:"files"`
}

type sessionState struct {
	Provider           string            `json:"provider"`
	Title              string            `json:"title"`
	Status             int               `json:"status"`
	Lifecycle          string            `json:"lifecycle"`
	ActiveClients      []json.RawMessage `json:"activeClients"`
	Chats              []chatSummary     `json:"chats"`
	DefaultChat        string            `json:"defaultChat"`
	WorkingDirectories []string          `json:"workingDirectories,omitempty"`
	Config             *Schema           `json:"config,omitempty"`
	Meta               json.RawMessage   `json:"_meta,omitempty"`
	InputNeeded        []inputRequest    `json:"inputNeeded,omitempty"`
	ServerTools        json.RawMessage   `json:"serverTools"`
	Changesets         []changesetInfo   `json:"changesets,omitempty"`

	// Only on hosts with MCP servers.
	Customizations []any `json:"customizations,omitzero"`

	// Only for clients with canvases.
	Canvases     []canvasDeclaration `json:"canvases,omitzero"`
	OpenCanvases []canvasRef         `json:"openCanvases,omitzero"`
}

// workspaceless is the _meta of a session without working directories.
var workspaceless = json.RawMessage(`{"workspaceless":true}`)

// state returns the session for a client with this offer.
func (s *session) state(o offer) sessionState {
	state := sessionState{
		Provider:           s.provider.name,
		Title:              s.title,
		Status:             s.status,
		Lifecycle:          cmp.Or(s.lifecycle, "ready"),
		ActiveClients:      s.activeClients(),
		Chats:              s.chatSummaries(),
		DefaultChat:        s.chat.uri,
		WorkingDirectories: s.directories,
		InputNeeded:        s.waiting,
		ServerTools:        s.serverTools(),
		Changesets:         s.changesets(),
	}
	state.Config = s.config()
	state.Meta = metaOf(s)
	state.Customizations = s.customizations(o.mcpApps)
	if o.seeds() {
		state.Canvases, state.OpenCanvases = s.declarations(), s.refs()
	}
	return state
}

// summary returns the session's list entry.
func (s *session) summary() summary {
	sum := summary{
		Resource:           s.uri,
		Provider:           s.provider.name,
		Title:              s.title,
		Status:             s.status,
		CreatedAt:          timestamp(s.created),
		ModifiedAt:         timestamp(s.modified),
		WorkingDirectories: append([]string{}, s.directories...),
		Changes:            new(s.sum),
		Chats:              s.chatSummaries(),
		DefaultChat:        s.chat.uri,
	}
	sum.Meta = metaOf(s)
	return sum
}

type createSessionParams struct {
	Channel            string   `json:"channel"`
	Provider           string   `json:"provider"`
	WorkingDirectories []string `json:"workingDirectories"`

	Config map[string]any `json:"config"`
}

// createSessionLocked answers createSession. If the session exists, it is reported as
// ready again.
func (ss *sessionTable) createSessionLocked(_ *conn, params createSessionParams) (any, error) {
	h := ss.host
	p, err := ss.providerLocked(params.Provider)
	if err != nil {
		return nil, err
	}
	if s, ok := ss.get(params.Channel); ok {
		h.emitLocked(params.Channel, struct {
			Type  string          `json:"type"`
			Tools json.RawMessage `json:"tools"`
		}{"session/serverToolsChanged", s.serverTools()})
		h.emitLocked(params.Channel, plainAction{"session/ready"})
		return nil, nil
	}
	if err := ss.checkSessionURI(params.Channel); err != nil {
		return nil, err
	}
	s := ss.addSessionLocked(p, params.Channel, params.WorkingDirectories, h.cfg.Now())
	s.saveLocked()
	ss.announceLocked(s)
	return nil, nil
}

// openTimeout bounds the opening of a conversation without a prompt.
const openTimeout = 2 * time.Minute

// createAgentSession answers createSession on a host with agents. It answers when the
// conversation is open, because only then the session's state has the agent's
// options.
func (ss *sessionTable) createAgentSession(c *conn, params createSessionParams) (any, error) {
	h := ss.host
	if err := h.resources.checkFolders(params); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(h.ctx, openTimeout)
	defer cancel()
	created, err := ss.reserve(ctx, params.Channel)
	if err != nil {
		return nil, err
	}
	defer created()
	h.mu.Lock()
	_, exists := ss.get(params.Channel)
	if exists {
		_, err = ss.createSessionLocked(c, params)
	}
	h.mu.Unlock()
	if exists {
		return nil, err
	}
	w, err := ss.addWorktree(ctx, &params)
	if err != nil {
		return nil, err
	}
	s, err := ss.beginAgentSession(params, w)
	if err != nil {
		w.leaveWorktree(h)
		return nil, err
	}
	err = s.chat.seat.openAlone(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil && !errors.Is(err, ErrSignIn) && s.chat.active == nil && len(s.chat.turns) == 0 {
		ss.removeSessionLocked(s)
		return nil, fail(ahp.CodeInternalError, "%s did not start: %v", s.provider.info.Name, err)
	}
	s.lifecycle = ""
	s.saveLocked()
	h.emitLocked(s.uri, plainAction{"session/ready"})
	return nil, nil
}

// scripted reports whether all agents are scripted. createSession then waits for no
// agent.
func (ss *sessionTable) scripted() bool {
	return !slices.ContainsFunc(ss.providers, func(p *provider) bool { return p.info.Scripted == nil })
}

// reserve waits until no other request creates this session. The caller calls the
// returned function when it has finished.
func (ss *sessionTable) reserve(ctx context.Context, uri string) (func(), error) {
	h := ss.host
	for {
		h.mu.Lock()
		other := ss.creating[uri]
		if other == nil {
			mine := make(chan struct{})
			ss.creating[uri] = mine
			h.mu.Unlock()
			return func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				delete(ss.creating, uri)
				close(mine)
			}, nil
		}
		h.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// beginAgentSession adds a session and announces it to clients.
func (ss *sessionTable) beginAgentSession(params createSessionParams, w *work) (*session, error) {
	h := ss.host
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := ss.providerLocked(params.Provider)
	if err != nil {
		return nil, err
	}
	if _, ok := ss.get(params.Channel); ok {
		return nil, fail(ahp.CodeAlreadyExists, "Session already exists: %s", params.Channel)
	}
	if err := ss.checkSessionURI(params.Channel); err != nil {
		return nil, err
	}
	chosen, err := p.optionsOf(h, params.Config)
	if err != nil {
		return nil, err
	}
	s := ss.addSessionLocked(p, params.Channel, params.WorkingDirectories, h.cfg.Now())
	s.lifecycle, s.work = "creating", w
	s.chat.seat.chosen = chosen
	ss.announceLocked(s)
	return s, nil
}

func (ss *sessionTable) checkSessionURI(uri string) error {
	_, isTerminal := ss.host.terminals.get(uri)
	scheme, _, ok := strings.Cut(uri, ":")
	switch {
	case !ok || isTerminal || slices.Contains([]string{"ahp-root", "ahp-chat", "ahp-otlp", "ahp-resource-watch", "ahp-canvas"}, scheme):
		return fail(ahp.CodeInvalidParams, "Not a session URI: %s", uri)
	case len(ss.keys) >= maxSessions:
		return fail(ahp.CodeInternalError, "More than %d sessions", maxSessions)
	}
	return nil
}

// addSessionLocked adds a session without publishing it.
func (ss *sessionTable) addSessionLocked(p *provider, uri string, directories []string, now time.Time) *session {
	return ss.addSessionWithLocked(p, uri, directories, now, &chat{uri: defaultChat(uri), status: statusIdle, modified: now})
}

// addSessionWithLocked adds a session with a chat. A chat that was moved keeps the URI
// from its previous session.
func (ss *sessionTable) addSessionWithLocked(p *provider, uri string, directories []string, now time.Time, ch *chat) *session {
	h := ss.host
	s := &session{
		host:        h,
		provider:    p,
		uri:         uri,
		status:      statusIdle,
		created:     now,
		modified:    now,
		directories: directories,
	}
	s.chat, s.listed = ch, []*chat{ch}
	if ch.session == nil {
		ch.session = s
		p.newSeat(ch)
	}
	s.addMCPLocked()
	ss.add(uri, s)
	h.chats[s.chat.uri] = s.chat
	ss.deleted = slices.DeleteFunc(ss.deleted, func(d string) bool { return d == uri })
	return s
}

// announceLocked publishes a new session to every client.
func (ss *sessionTable) announceLocked(s *session) {
	h := ss.host
	sum := s.summary()
	if len(sum.WorkingDirectories) == 0 {
		sum.WorkingDirectories = nil
	}
	sum.Changes = nil // not known yet
	s.announced = sum
	h.logLocked(levelInfo, "Session created: %s", s.uri)
	h.notifyEachLocked("root/sessionAdded", func(o offer) any {
		return struct {
			Channel string  `json:"channel"`
			Summary summary `json:"summary"`
		}{rootChannel, sum.as(o)}
	})
}

func (s *session) serverTools() json.RawMessage {
	if script := s.provider.info.Scripted; script != nil {
		return script.Tools
	}
	return json.RawMessage(`[]`)
}

type channelParams struct {
	Channel string `json:"channel"`
}

// disposeSessionLocked answers disposeSession. A missing session is no error.
// Subscriptions remain, and receive nothing.
func (ss *sessionTable) disposeSessionLocked(_ *conn, params channelParams) (any, error) {
	if s, ok := ss.get(params.Channel); ok {
		ss.removeSessionLocked(s)
	}
	return nil, nil
}

// removeSessionLocked ends a session and notifies every client.
func (ss *sessionTable) removeSessionLocked(s *session) {
	h := ss.host
	s.announcer.stopLocked()
	for _, ch := range s.listed {
		ch.stopLocked()
		ch.seat.closeLocked()
		if ch.active != nil {
			ch.active = nil
			h.announceActiveLocked(ss.activeLocked())
		}
		ss.storageFailed(ch.log.close())
		delete(h.chats, ch.uri)
	}
	for _, v := range s.canvases() {
		h.canvases.remove(v.channel)
	}
	if s.changed != nil {
		delete(h.changesets.open, s.changed.uri)
	}
	for _, uri := range s.turnsOpen {
		delete(h.changesets.open, uri)
	}
	if w := s.work; w != nil && w.Worktree != "" {
		chats := slices.Clone(s.listed)
		h.goLocked(func() {
			for _, ch := range chats {
				ch.seat.rest()
			}
			w.leaveWorktree(h)
		})
	}
	ss.remove(s.uri)
	s.forgetLocked()
	ss.deleted = append(ss.deleted, s.uri)
	if len(ss.deleted) > maxDeleted {
		ss.deleted = ss.deleted[1:]
	}
	h.notifyAllLocked("root/sessionRemoved", struct {
		Channel string `json:"channel"`
		Session string `json:"session"`
	}{rootChannel, s.uri})
}

func (ss *sessionTable) deletedLocked(uri string) bool {
	return slices.Contains(ss.deleted, uri)
}

// listSessionsLocked answers listSessions with a single page.
func (ss *sessionTable) listSessionsLocked(c *conn, _ json.RawMessage) (any, error) {
	ss.startListsLocked()
	items := []summary{}
	for _, s := range ss.all() {
		items = append(items, s.summary().as(c.offer))
	}
	return struct {
		Items []summary `json:"items"`
	}{items}, nil
}

// resolveSessionConfigLocked answers resolveSessionConfig for scripted agents.
func (ss *sessionTable) resolveSessionConfigLocked(_ *conn, params createSessionParams) (any, error) {
	p, err := ss.providerLocked(params.Provider)
	if err != nil {
		return nil, err
	}
	return p.info.Scripted.Config, nil
}

// setTitleLocked renames the session without publishing an action.
func (s *session) setTitleLocked(title string) {
	s.title = title
	s.touchLocked()
}

// announceDelay is how long changes of a summary are collected before they are
// published.
const announceDelay = 100 * time.Millisecond

// touchLocked schedules the publication of summary changes.
func (s *session) touchLocked() {
	if s.announcer == nil {
		s.announcer = s.host.afterLocked(announceDelay, s.announceChangesLocked)
	}
}

// summaryChanges holds the changed fields of a summary.
type summaryChanges struct {
	Title      *string  `json:"title,omitempty"`
	Status     *int     `json:"status,omitempty"`
	ModifiedAt *string  `json:"modifiedAt,omitempty"`
	Changes    *changes `json:"changes,omitempty"`

	Meta json.RawMessage `json:"_meta,omitempty"`

	// Since 1.0.
	Chats []chatSummary `json:"chats,omitzero"`
}

// as returns the changes in the form for a client with this offer, or nil if there are
// none.
func (diff summaryChanges) as(o offer) *summaryChanges {
	if o.version.compare(firstStable) < 0 {
		diff.Chats = nil
	}
	if diff.Title == nil && diff.Status == nil && diff.ModifiedAt == nil && diff.Changes == nil && diff.Meta == nil && diff.Chats == nil {
		return nil
	}
	return &diff
}

func (s *session) announceChangesLocked() {
	s.announcer = nil
	old, now := s.announced, s.summary()
	var diff summaryChanges
	if now.Title != old.Title {
		diff.Title = &now.Title
	}
	if now.Status != old.Status {
		diff.Status = &now.Status
	}
	if now.ModifiedAt != old.ModifiedAt {
		diff.ModifiedAt = &now.ModifiedAt
	}
	if old.Changes == nil || *old.Changes != *now.Changes {
		diff.Changes = now.Changes
	}
	if !bytes.Equal(now.Meta, old.Meta) {
		diff.Meta = now.Meta
		if diff.Meta == nil {
			diff.Meta = json.RawMessage("{}")
		}
	}
	if !slices.Equal(now.Chats, old.Chats) {
		diff.Chats = now.Chats
	}
	s.announced = now
	s.host.notifyEachLocked("root/sessionSummaryChanged", func(o offer) any {
		changes := diff.as(o)
		if changes == nil {
			return nil
		}
		return struct {
			Channel string          `json:"channel"`
			Session string          `json:"session"`
			Changes *summaryChanges `json:"changes"`
		}{rootChannel, s.uri, changes}
	})
}
