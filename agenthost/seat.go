package agenthost

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
)

// A provider is one of the host's agents.
type provider struct {
	agent Agent
	name  string

	// Guarded by the host's lock.
	info    AgentInfo
	options []Option // as last reported by a conversation, for new sessions
}

// A seat connects a chat with its agent. It opens the agent's conversation before the
// first prompt, and again after the conversation has ended.
type seat struct {
	// Set at its creation, then read-only.
	host     *Host
	chat     *chat
	provider *provider
	handle   *Chat
	busy     chan struct{} // capacity 1: full while the agent opens the conversation or runs a turn

	// Guarded by the host's lock.
	id        string // the agent's name for the conversation; "" before the first one
	forkOf    string // begin as a copy of this conversation
	replay    bool   // the agent has a history that the host lacks
	conv      Conversation
	used      bool  // since conv was opened, a turn has begun or a client has chosen an option
	turn      *Turn // nil between turns
	options   []Option
	chosen    map[string]any // option values that clients have chosen, for the next opening
	kept      []Option       // options stored by the previous run of the host
	commands  []Command
	replaying bool
	told      []*turn       // history that the agent reports while it opens
	lost      error         // why the conversation that opens has ended already; nil: it has not
	copied    chan struct{} // closed when the requested copies of this conversation are made; nil: none requested
}

func (p *provider) newSeat(ch *chat) *seat {
	st := &seat{host: ch.session.host, chat: ch, provider: p, busy: make(chan struct{}, 1), chosen: map[string]any{}}
	st.handle = &Chat{seat: st}
	ch.seat = st
	return st
}

// startLocked gives the active turn to the agent.
func (st *seat) startLocked() {
	ch := st.chat
	t := newTurn(ch, ch.active, false)
	st.turn, st.used = t, true
	prompt, id, copied := promptOf(ch.active.Message), ch.active.ID, st.copied
	ch.session.host.goLocked(func() {
		if copied != nil {
			select {
			case <-copied:
			case <-t.ctx.Done():
				return
			}
		}
		select {
		case st.busy <- struct{}{}:
		case <-t.ctx.Done():
			return
		}
		defer func() { <-st.busy }()
		tree := st.beforeTurn(t.ctx)
		end, err := st.run(t, prompt)
		t.update(func() { t.endLocked(end, err) })
		st.afterTurn(id, tree)
	})
}

// stopLocked cancels the agent's turn, and ignores what the agent still reports about
// it.
func (st *seat) stopLocked() {
	if st.turn != nil {
		st.turn.stopLocked(context.Canceled)
		st.turn = nil
	}
}

// endUnaskedLocked ends a turn that the agent began without a prompt.
func (st *seat) endUnaskedLocked() {
	if t := st.turn; t != nil && t.unasked {
		st.turn = nil // queued messages are not started
		t.endLocked(End{}, nil)
	}
}

// run runs a turn; the caller holds busy. If the conversation has continued elsewhere,
// run opens it again first.
func (st *seat) run(t *Turn, prompt Prompt) (End, error) {
	conv, err := st.open(t.ctx, t)
	if err != nil {
		return End{}, err
	}
	end, err := st.play(t, conv, prompt)
	if !errors.Is(err, ErrBusy) {
		return end, err
	}
	st.forget(conv)
	_ = conv.Close()
	if conv, err = st.open(t.ctx, t); err != nil {
		return End{}, err
	}
	t.Notice("This conversation went on outside of this page, for example in the agent's own terminal. The agent remembers those messages, but this page does not show them.")
	return st.play(t, conv, prompt)
}

// play gives a prompt to a conversation. It returns when the agent has finished, or
// CancelGrace after the turn's end.
func (st *seat) play(t *Turn, conv Conversation, prompt Prompt) (End, error) {
	type outcome struct {
		end End
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		if err := st.chooseModel(t.ctx, conv, prompt.Model); err != nil {
			done <- outcome{End{}, err}
			return
		}
		end, err := conv.Prompt(t.ctx, prompt, t)
		done <- outcome{end, err}
	}()
	select {
	case o := <-done:
		return o.end, o.err
	case <-t.ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(CancelGrace):
		st.drop(conv, fmt.Errorf("the agent did not stop within %v", CancelGrace))
	case <-st.host.done:
	}
	return End{Reason: EndCancelled}, nil
}

// maxSignIns bounds the sign-ins for one prompt.
const maxSignIns = 3

// open returns the conversation, and opens it if it is not open. The caller holds busy.
// Questions and notices go to t, which may be nil.
func (st *seat) open(ctx context.Context, t *Turn) (Conversation, error) {
	h := st.host
	h.mu.Lock()
	conv, start := st.conv, st.startOfLocked()
	h.mu.Unlock()
	if conv != nil {
		return conv, nil
	}
	for signIns := 0; ; signIns++ {
		h.mu.Lock()
		st.told, st.lost = nil, nil
		h.mu.Unlock()
		conv, err := st.provider.agent.Open(ctx, start, st.handle)
		switch {
		case err == nil:
			if err := st.opened(conv, start); err != nil {
				_ = conv.Close()
				return nil, err
			}
			return conv, nil
		case errors.Is(err, ErrUnknown) && start.ID != "" && t != nil:
			t.Notice("The agent no longer has this conversation. It begins a new conversation, and remembers nothing of the messages above.")
			start.ID, start.Replay = "", false
		case errors.Is(err, ErrSignIn) && t != nil && signIns < maxSignIns:
			if err := st.signIn(ctx, t); err != nil {
				return nil, err
			}
		default:
			return nil, err
		}
	}
}

// copyLocked makes the agent copy the source's conversation before the source's
// next turn.
func (st *seat) copyLocked(source *seat) {
	before, done := source.copied, make(chan struct{})
	st.forkOf, source.copied = source.id, done
	st.host.goLocked(func() {
		defer close(done)
		if before != nil {
			<-before
		}
		st.copyFrom(source)
	})
}

// copyFrom makes the agent copy the source's conversation while neither chat runs a
// turn.
func (st *seat) copyFrom(source *seat) {
	ctx := st.host.ctx
	for _, busy := range []chan struct{}{source.busy, st.busy} {
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		case <-ctx.Done():
			return
		}
	}
	if _, err := st.open(ctx, nil); err != nil && ctx.Err() == nil {
		st.host.log.Warn("conversation not copied", "effect", "the next prompt tries again", "chat", st.chat.uri, "error", err)
	}
}

// openAlone opens the conversation while no turn and no copy uses it. It waits for that
// until ctx ends.
func (st *seat) openAlone(ctx context.Context) error {
	select {
	case st.busy <- struct{}{}:
		defer func() { <-st.busy }()
		_, err := st.open(ctx, nil)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// startOfLocked returns the Start for the chat's conversation.
func (st *seat) startOfLocked() Start {
	folders := folderPaths(st.chat.session.directories)
	start := Start{ID: st.id, ForkOf: st.forkOf, Replay: st.replay, Options: maps.Clone(st.chosen)}
	if len(folders) > 0 {
		start.Folder, start.Folders = folders[0], folders[1:]
	} else {
		start.Folder = filePath(st.host.resources.files.defaultDirectory())
	}
	return start
}

// opened records a newly opened conversation, and gives it the options that clients have chosen since
// start. It returns an error if the conversation or its chat has ended.
func (st *seat) opened(conv Conversation, start Start) error {
	h := st.host
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed || h.chats[st.chat.uri] != st.chat:
		return ErrEnded
	case st.lost != nil:
		return st.lost
	}
	st.conv, st.id, st.forkOf, st.replay, st.used = conv, conv.ID(), "", false, st.turn != nil
	st.toldLocked()
	st.chat.session.saveLocked()
	late := maps.Clone(st.chosen)
	maps.DeleteFunc(late, func(id string, value any) bool { return reflect.DeepEqual(value, start.Options[id]) })
	h.goLocked(func() { st.setOptions(conv, late) })
	return nil
}

// toldLocked puts the history that the agent has reported before the chat's turns,
// and publishes it.
func (st *seat) toldLocked() {
	ch, told := st.chat, st.told
	st.told = nil
	if len(told) == 0 {
		return
	}
	for _, t := range told {
		ch.storeTurnLocked(t)
	}
	ch.turns = append(told, ch.turns...)
	ch.session.host.emitLocked(ch.uri, turnsLoadedAction{Type: "chat/turnsLoaded", Turns: told})
}

// drop closes a conversation that has ended or does not answer. The next prompt opens it
// again.
func (st *seat) drop(conv Conversation, why error) {
	h := st.host
	h.log.Warn("conversation dropped", "chat", st.chat.uri, "error", why)
	h.mu.Lock()
	defer h.mu.Unlock()
	st.forgetLocked(conv)
	h.goLocked(func() { _ = conv.Close() }) // may hang like the turn; on a closed host, Close has closed it
}

func (st *seat) forget(conv Conversation) {
	st.host.mu.Lock()
	defer st.host.mu.Unlock()
	st.forgetLocked(conv)
}

func (st *seat) forgetLocked(conv Conversation) {
	if st.conv == conv {
		st.conv = nil
	}
}

// closeLocked ends the conversation with its chat.
func (st *seat) closeLocked() {
	st.stopLocked()
	if conv := st.conv; conv != nil {
		st.conv = nil
		st.host.goLocked(func() { _ = conv.Close() })
	}
}

// rest waits until the agent has stopped, at most CancelGrace.
func (st *seat) rest() {
	select {
	case st.busy <- struct{}{}:
		<-st.busy
	case <-time.After(CancelGrace):
	case <-st.host.done:
	}
}

// signIn offers the agent's sign-in methods and runs the chosen one.
func (st *seat) signIn(ctx context.Context, t *Turn) error {
	h := st.host
	h.mu.Lock()
	info := st.provider.info
	h.mu.Unlock()
	if len(info.SignIn) == 0 {
		return ErrSignIn
	}
	field := Field{ID: "method", Kind: FieldOne, Title: "Sign in", Message: "How do you want to sign in?", Required: true}
	for _, m := range info.SignIn {
		field.Choices = append(field.Choices, Choice{ID: m.ID, Label: m.Name, Description: m.Description})
	}
	answer, err := t.Question(ctx, Question{Message: info.Name + " needs a sign-in.", Fields: []Field{field}})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(info.SignIn, func(m SignInMethod) bool { return m.ID == answer.Values["method"] })
	if answer.Response != "accept" || i < 0 {
		return ErrSignIn
	}
	if method := info.SignIn[i]; len(method.Command) > 0 {
		return st.signInTerminal(ctx, t, method)
	}
	in, ok := st.provider.agent.(SignerIn)
	if !ok {
		return ErrSignIn
	}
	return in.SignIn(ctx, info.SignIn[i].ID)
}

// signInTerminal runs a sign-in command in a terminal that the person uses.
func (st *seat) signInTerminal(ctx context.Context, t *Turn, method SignInMethod) error {
	term, err := st.handle.OpenTerminal(ProcessSpec{Command: method.Command[0], Args: method.Command[1:], Env: method.Env})
	if err != nil {
		return err
	}
	defer term.Kill()
	t.Tool(ToolUpdate{ID: "agenthost-sign-in", Title: "Sign in: " + method.Name, Kind: ToolExecute, Status: ToolRunning, Content: []ToolContent{{Terminal: term}}})
	code, err := term.Wait(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("the sign-in ended with the exit code %d", code)
	}
	status := ToolCompleted
	if err != nil {
		status = ToolFailed
	}
	t.Tool(ToolUpdate{ID: "agenthost-sign-in", Status: status})
	return err
}

// chooseModel sets the model that a person has chosen with a prompt.
func (st *seat) chooseModel(ctx context.Context, conv Conversation, model string) error {
	config, ok := conv.(Configurable)
	if model == "" || !ok {
		return nil
	}
	h := st.host
	h.mu.Lock()
	i := slices.IndexFunc(st.options, func(o Option) bool { return o.Category == "model" })
	var option Option
	if i >= 0 {
		option = st.options[i]
	}
	h.mu.Unlock()
	if i < 0 || option.Value == model {
		return nil
	}
	return config.SetOption(ctx, option.ID, model)
}

// steers reports whether the agent accepts messages during its turn.
func (st *seat) steers() bool {
	_, ok := st.conv.(Steerer)
	return ok && st.turn != nil && st.turn.prompted
}

// steerLocked gives a message to the agent during its turn. A message that the agent does not take waits again.
func (st *seat) steerLocked(m pendingMessage) {
	steerer, t := st.conv.(Steerer), st.turn
	st.host.goLocked(func() {
		if err := steerer.Steer(t.ctx, promptOf(m.Message), t); err != nil {
			st.host.log.Info("steering message refused", "effect", "it waits for the turn's end", "chat", st.chat.uri, "error", err)
			st.handle.update(func(ch *chat, _ *Host) { ch.waitAgainLocked(m) })
		}
	})
}

// promptOf translates a message into a prompt.
func promptOf(message json.RawMessage) Prompt {
	var m struct {
		Text  string `json:"text"`
		Model struct {
			ID string `json:"id"`
		} `json:"model"`
		Attachments []struct {
			Label       string `json:"label"`
			URI         string `json:"uri"`
			Resource    string `json:"resource"`
			ContentType string `json:"contentType"`
			Data        string `json:"data"`
			Text        string `json:"text"`
		} `json:"attachments"`
	}
	if json.Unmarshal(message, &m) != nil {
		return Prompt{Text: textOf(message)}
	}
	prompt := Prompt{Text: m.Text, Model: m.Model.ID}
	for _, a := range m.Attachments {
		made := Attachment{Name: a.Label, URI: cmp.Or(a.URI, a.Resource), MIMEType: a.ContentType, Text: a.Text}
		if data, err := base64.StdEncoding.DecodeString(a.Data); err == nil && len(data) > 0 {
			made.Data = data
		}
		prompt.Attachments = append(prompt.Attachments, made)
	}
	return prompt
}

// messageOf translates a prompt into a message, for turns that the agent reports.
func messageOf(p Prompt) json.RawMessage {
	message := map[string]any{"text": p.Text, "origin": plainOrigin{"user"}}
	var attachments []map[string]any
	for _, a := range p.Attachments {
		if len(a.Data) > 0 {
			attachments = append(attachments, map[string]any{"type": "embeddedResource", "label": a.Name, "contentType": a.MIMEType, "data": base64.StdEncoding.EncodeToString(a.Data)})
		} else if a.URI != "" {
			attachments = append(attachments, map[string]any{"type": "resource", "label": a.Name, "uri": a.URI})
		}
	}
	if attachments != nil {
		message["attachments"] = attachments
	}
	return encode(message)
}

// filePath returns the path of a file: URI, or "" for other URIs.
func filePath(uri string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Host != "" && u.Host != "localhost" {
		return ""
	}
	return u.Path
}

func folderPaths(uris []string) []string {
	var paths []string
	for _, uri := range uris {
		if path := filePath(uri); path != "" {
			paths = append(paths, path)
		}
	}
	return paths
}

// providerLocked returns the agent with this name; for an empty name, the first agent.
func (ss *sessionTable) providerLocked(name string) (*provider, error) {
	for _, p := range ss.providers {
		if name == "" || p.name == name {
			return p, nil
		}
	}
	return nil, fail(ahp.CodeProviderNotFound, "No agent provider registered for: %s", name)
}

// AgentChanged reads an agent's information again and publishes it.
func (h *Host) AgentChanged(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.sessions.providers {
		if p.name == name {
			p.info = p.agent.Info()
		}
	}
	h.sessions.agentsChangedLocked()
}

func (ss *sessionTable) agentsChangedLocked() {
	ss.host.emitLocked(rootChannel, struct {
		Type   string  `json:"type"`
		Agents []agent `json:"agents"`
	}{"root/agentsChanged", ss.agentsLocked()})
}

// describeLocked returns the agent's entry in the root state.
func (p *provider) describeLocked() agent {
	described := agent{Provider: p.name, DisplayName: p.info.Name, Description: p.info.Description, Models: []model{}, Capabilities: json.RawMessage(`{}`)}
	if p.info.Forks {
		described.Capabilities = json.RawMessage(`{"multipleChats":{"fork":true}}`)
	}
	for _, m := range p.info.Models {
		described.Models = append(described.Models, model{ID: m.ID, Provider: p.name, Name: m.Name, MaxContextWindow: m.ContextWindow, SupportsVision: m.Vision})
	}
	if len(p.info.Models) > 0 {
		return described
	}
	for _, o := range p.options {
		if o.Category == "model" {
			for _, c := range o.Choices {
				described.Models = append(described.Models, model{ID: c.ID, Provider: p.name, Name: c.Label})
			}
		}
	}
	return described
}

// providerOfLocked reports whether a URI has the scheme of an agent's sessions.
func (ss *sessionTable) providerOfLocked(uri string) bool {
	name, _, _ := strings.Cut(uri, ":")
	return slices.ContainsFunc(ss.providers, func(p *provider) bool { return p.name == name })
}
