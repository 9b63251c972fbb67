package acpdoor

import (
	"encoding/json"
	"sync"

	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
)

type session struct {
	door *Door
	id   string // the address at the host

	mu        sync.Mutex // guards the fields below
	chat      string
	ready     bool            // the host's state was read; earlier actions wait in early
	early     []client.Action // bounded by maxEarly
	provider  string
	options   options
	title     string
	last      string // the last completed turn that was shown
	turn      *turn  // the running turn
	prompts   []*prompt
	sending   chan struct{}        // closed when the latest prompt was sent, or could not be
	dropped   []string             // ids of the latest queued messages that the editor has cancelled; at most maxSessions
	asked     map[string]*question // open questions, by the host's id
	changes   []chan error         // config changes the host has not confirmed
	commands  string               // the commands shown last, as JSON
	terminals map[string]*terminal
	files     map[string]string // content of files in edits, by URI
	fetching  map[string]bool
}

// maxEarly bounds the actions stored until the state is read.
const maxEarly = 10_000

// An action has the members of actions which the door uses.
type action struct {
	Type       string          `json:"type"`
	TurnID     string          `json:"turnId"`
	QueuedID   string          `json:"queuedMessageId"`
	ID         string          `json:"id"`
	Message    *client.Message `json:"message"`
	Part       *client.Part    `json:"part"`
	PartID     string          `json:"partId"`
	Content    json.RawMessage `json:"content"`
	ToolCallID string          `json:"toolCallId"`
	Usage      json.RawMessage `json:"usage"`
	Title      string          `json:"title"`
	Config     json.RawMessage `json:"config"`
	Request    json.RawMessage `json:"request"`
	Turns      []client.Turn   `json:"turns"`
	Older      string          `json:"turnsNextCursor"`
}

func (s *session) update(kind string, v any) {
	text, err := acp.Update(kind, v)
	if err == nil {
		err = s.door.conn.Notify("session/update", acp.SessionNotification{SessionID: s.id, Update: text})
	}
	if err != nil {
		s.door.cfg.Log.Debug("update not sent", "kind", kind, "error", err)
	}
}

// client returns the latest connection, which may have ended; nil if there was none.
func (s *session) client() *client.Client {
	s.door.mu.Lock()
	defer s.door.mu.Unlock()
	return s.door.client
}

// answered marks a request which was already replied to.
var answered any = new(struct{ _ int })

// params has the parameters which [Door.answer] reads.
type params struct {
	SessionID string          `json:"sessionId"`
	Cwd       string          `json:"cwd"`
	ModeID    string          `json:"modeId"`
	ConfigID  string          `json:"configId"`
	Value     json.RawMessage `json:"value"`
}

var errNoSession = &acp.Error{Code: acp.CodeNotFound, Message: "the session is not open: load or resume it first"}
