package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"ahprelay/ahp"
	"ahprelay/hostagent/watch"
)

// RootChannel is the channel for commands to the host itself.
const RootChannel = "ahp-root://"

// A Summary is a session in a host's list.
type Summary struct {
	Session  string  `json:"resource"`
	Provider string  `json:"provider"`
	Title    string  `json:"title"`
	Activity string  `json:"activity"`
	Status   ahp.Int `json:"status"`
	Modified string  `json:"modifiedAt"`

	Folders []string `json:"workingDirectories"` // URIs
}

// Session status bits.
const (
	statusError       = 2
	statusRunning     = 8
	statusInputNeeded = 16
)

// Words returns a session's status as text.
func Words(status ahp.Int) string {
	switch {
	case status&statusInputNeeded != 0:
		return "waits for an answer"
	case status&statusRunning != 0:
		return "working"
	case status&statusError != 0:
		return "failed"
	}
	return "idle"
}

// mostSessions bounds the sessions that Sessions requests. Each page counts, too.
const mostSessions = 4096

// Sessions lists the host's sessions. The host may list them in pages.
func (c *Client) Sessions(ctx context.Context) (all []Summary, err error) {
	params := map[string]any{"channel": RootChannel}
	for pages := 1; ; pages++ {
		result, err := c.Call(ctx, "listSessions", params)
		if err != nil {
			return nil, err
		}
		var page struct{ Items []Summary }
		if err := json.Unmarshal(result, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		next := ahp.TextOf(result, "nextCursor")
		if next == "" || len(all)+pages >= mostSessions {
			return all, nil
		}
		params["cursor"] = next
	}
}

// A Session is a session's state.
type Session struct {
	Title       string            `json:"title"`
	Status      ahp.Int           `json:"status"`
	Provider    string            `json:"provider"`
	DefaultChat string            `json:"defaultChat"`
	InputNeeded []json.RawMessage `json:"inputNeeded"`
	Config      json.RawMessage   `json:"config"`
}

// Session returns a session's state, and stays subscribed.
func (c *Client) Session(ctx context.Context, session string) (s Session, err error) {
	state, err := c.Subscribe(ctx, session)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(state, &s); err != nil {
		return s, fmt.Errorf("%s: unreadable state: %w", session, err)
	}
	if s.DefaultChat == "" {
		return s, fmt.Errorf("%s has no chat yet", session)
	}
	return s, nil
}

// Questions returns the session's questions to a person.
func (s *Session) Questions(session string) (list []watch.Pending) {
	for _, raw := range s.InputNeeded {
		if p, ok := watch.ReadPending(session, raw); ok {
			list = append(list, p)
		}
	}
	return list
}

// A Chat is a chat's state.
type Chat struct {
	Turns  []Turn `json:"turns"`
	Active *Turn  `json:"activeTurn"`
	Older  string `json:"turnsNextCursor"` // cursor for fetchTurns to get earlier turns; "": there are none

	Queued []Queued `json:"queuedMessages"`
}

// A Queued is a message that waits for the end of a turn.
type Queued struct {
	ID string `json:"id"`
}

// A Turn is a message and its answer.
type Turn struct {
	ID      string          `json:"id"`
	Message Message         `json:"message"`
	Parts   []Part          `json:"responseParts"`
	Usage   json.RawMessage `json:"usage"`
	State   string          `json:"state"`
	Error   json.RawMessage `json:"error"`
}

// A Message is a message to an agent.
type Message struct {
	Text        string       `json:"text"`
	Origin      Origin       `json:"origin"`
	Attachments []Attachment `json:"attachments,omitempty"`
	Model       *ModelChoice `json:"model,omitempty"`
}

// An Origin tells what kind of author a message has.
type Origin struct {
	Kind string `json:"kind"`
}

// A ModelChoice selects the model for a message.
type ModelChoice struct {
	ID string `json:"id"`
}

// An Attachment is part of a message: a resource by address, or embedded data.
type Attachment struct {
	Type        string `json:"type"` // resource, embeddedResource or another
	Label       string `json:"label"`
	URI         string `json:"uri,omitempty"`
	ContentType string `json:"contentType,omitempty"`
	Data        []byte `json:"data,omitempty"`
}

// A Part is a part of an answer.
type Part struct {
	Kind     string          `json:"kind"`
	ID       string          `json:"id"`
	Content  json.RawMessage `json:"content"`
	URI      string          `json:"uri"`
	ToolCall *ToolCall       `json:"toolCall"`
	Error    json.RawMessage `json:"error"`
}

// A ToolCall is a use of a tool.
type ToolCall struct {
	ID         string          `json:"toolCallId"`
	Name       string          `json:"toolName"`
	Display    string          `json:"displayName"`
	Status     string          `json:"status"`
	Invocation json.RawMessage `json:"invocationMessage"`
	Past       json.RawMessage `json:"pastTenseMessage"`
	Input      json.RawMessage `json:"toolInput"`
	Title      json.RawMessage `json:"confirmationTitle"`
	Edits      json.RawMessage `json:"edits"`
	Success    *bool           `json:"success"`
	Error      json.RawMessage `json:"error"`
	Content    json.RawMessage `json:"content"`
	Meta       json.RawMessage `json:"_meta"`
}

// ReadChat reads a chat's state.
func ReadChat(state []byte) (chat Chat, err error) { return chat, json.Unmarshal(state, &chat) }

// Chat returns a chat's state, and ends the subscription.
func (c *Client) Chat(ctx context.Context, channel string) (Chat, error) {
	state, err := c.Subscribe(ctx, channel)
	if gone := c.Unsubscribe(ctx, channel); err == nil { // a cancelled request may have reached the host
		err = gone
	}
	if err != nil {
		return Chat{}, err
	}
	return ReadChat(state)
}

// Transcript returns the last turns of a chat as text, at most the given number of
// bytes. If earlier text is left out, a note precedes them.
func (chat *Chat) Transcript(turns, most int) string {
	all := chat.Turns
	if chat.Active != nil {
		all = append(all[:len(all):len(all)], *chat.Active)
	}
	left := max(0, len(all)-turns)
	var b strings.Builder
	for _, turn := range all[left:] {
		turn.write(&b)
	}
	text := b.String()
	note := ""
	if left > 0 {
		note = fmt.Sprintf("(%d earlier turns)\n", left)
	}
	if len(note)+len(text) > most {
		note = "(the beginning is left out)\n"
		cut := min(len(note)+len(text)-most, len(text))
		for cut < len(text) && !utf8.RuneStart(text[cut]) {
			cut++
		}
		text = text[cut:]
	}
	return note + text
}

func (turn *Turn) write(b *strings.Builder) {
	fmt.Fprintf(b, "USER: %s\n", turn.Message.Text)
	for _, part := range turn.Parts {
		switch {
		case part.ToolCall != nil:
			call := part.ToolCall
			fmt.Fprintf(b, "TOOL %s (%s): %s\n", call.Display, call.Status, ahp.WordsOf(call.Invocation))
			if input, ok := ahp.Text(call.Input); ok && input != "" {
				fmt.Fprintf(b, "  input: %s\n", input)
			}
		case part.Kind == "markdown":
			fmt.Fprintf(b, "AGENT: %s\n", ahp.WordsOf(part.Content))
		}
	}
	if len(turn.Error) > 0 {
		fmt.Fprintf(b, "ERROR: %s\n", ahp.TextOf(turn.Error, "message"))
	}
}

// Say sends a message to a chat. It starts a turn with the given id or, while a turn is
// running, queues the message under that id.
func (c *Client) Say(ctx context.Context, chat, id string, message Message, running bool) error {
	message.Origin = Origin{"user"}
	if running {
		return c.Dispatch(ctx, chat, map[string]any{"type": "chat/pendingMessageSet", "kind": "queued", "id": id, "message": message})
	}
	return c.Dispatch(ctx, chat, map[string]any{"type": "chat/turnStarted", "turnId": id, "startedAt": time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), "message": message})
}

// Create starts a session of a provider in a folder ("": none), and returns its address.
func (c *Client) Create(ctx context.Context, provider, folder string) (session string, err error) {
	session = provider + ":/" + strings.ToLower(rand.Text())
	params := map[string]any{"channel": session, "provider": provider}
	if folder != "" {
		params["workingDirectories"] = []string{folder}
	}
	_, err = c.Call(ctx, "createSession", params)
	return session, err
}
