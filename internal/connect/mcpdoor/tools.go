package mcpdoor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"ahprelay/auth"
	"ahprelay/internal/connect/client"
)

// The tools' arguments.
type (
	noInput   struct{}
	hostInput struct {
		Host string `json:"host" jsonschema:"name of the host, from list_hosts"`
	}
	readInput struct {
		Host    string `json:"host" jsonschema:"name of the host"`
		Session string `json:"session" jsonschema:"address of the session, from list_sessions"`
		Turns   int    `json:"turns,omitempty" jsonschema:"number of turns from the end; default 5, at most 50"`
	}
	sayInput struct {
		Host    string `json:"host" jsonschema:"name of the host"`
		Session string `json:"session" jsonschema:"address of the session"`
		Text    string `json:"text" jsonschema:"message to the agent"`
	}
	startInput struct {
		Host     string `json:"host" jsonschema:"name of the host"`
		Provider string `json:"provider" jsonschema:"the agent's provider, as in list_sessions"`
		Folder   string `json:"folder,omitempty" jsonschema:"working directory at the host, as a file: URI"`
		Text     string `json:"text" jsonschema:"first message to the agent"`
	}
	waitInput struct {
		Host    string `json:"host" jsonschema:"name of the host"`
		Session string `json:"session" jsonschema:"address of the session"`
		Seconds int    `json:"seconds" jsonschema:"longest wait, at most 600"`
	}
	answerInput struct {
		Host     string `json:"host" jsonschema:"name of the host"`
		Session  string `json:"session" jsonschema:"address of the session"`
		Question string `json:"question" jsonschema:"id of the question"`
		Digest   string `json:"digest" jsonschema:"digest of the question as it was shown"`
		Option   string `json:"option,omitempty" jsonschema:"id of the chosen option"`
		Text     string `json:"text,omitempty" jsonschema:"answer to a question without options"`
	}
)

func add[In any](s *mcp.Server, name, description string, readOnly bool, call func(context.Context, In) (string, error)) {
	mcp.AddTool(s, &mcp.Tool{Name: name, Description: description, Annotations: &mcp.ToolAnnotations{ReadOnlyHint: readOnly}},
		func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
			text, err := call(ctx, in)
			if err != nil {
				return nil, nil, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
		})
}

func (d *Door) addTools(s *mcp.Server) {
	add(s, "list_hosts", "List the hosts with agents that may be watched.", true, d.listHosts)
	add(s, "list_sessions", "List a host's sessions.", true, d.listSessions)
	add(s, "read_session", "Read the end of a session, and its open questions.", true, func(ctx context.Context, in readInput) (string, error) {
		return d.read(ctx, in.Host, in.Session, cmp.Or(in.Turns, defaultTurns))
	})
	add(s, "wait_for_question", "Wait until a session asks a question or stops working.", true, d.wait)
	if !d.may(auth.AccessTalk) {
		return
	}
	add(s, "send_message", "Send a message to a session's agent. While it works, the message waits for the turn's end.", false, d.say)
	add(s, "answer_question", "Answer a session's question. All answers but those to an agent's questions need the level approve.", false, d.answer)
	if d.may(auth.AccessWrite) {
		add(s, "start_session", "Start a session with a first message.", false, d.start)
	}
}

func (d *Door) listHosts(ctx context.Context, _ noInput) (string, error) {
	hosts, missing := d.cfg.Relays.Hosts(ctx)
	if len(hosts) == 0 && missing != nil {
		return "", missing
	}
	var b strings.Builder
	for _, h := range hosts {
		fmt.Fprintf(&b, "%s/%s: %s\n", h.Relay, h.Name, h.State)
	}
	if missing != nil {
		fmt.Fprintf(&b, "not all relays answer: %v\n", missing)
	}
	return b.String(), nil
}

func (d *Door) listSessions(ctx context.Context, in hostInput) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	h, err := d.host(ctx, in.Host)
	if err != nil {
		return "", err
	}
	list, err := h.Sessions(ctx)
	if err != nil {
		return "", err
	}
	if len(list) == 0 {
		return "No sessions.", nil
	}
	// Hosts list sessions in different orders. The latest are shown, the last of them at the end.
	slices.SortStableFunc(list, func(a, b client.Summary) int { return strings.Compare(a.Modified, b.Modified) })
	var b strings.Builder
	for _, s := range list[max(0, len(list)-maxSessions):] {
		fmt.Fprintf(&b, "%s (%s, %s): %s\n", s.Session, s.Provider, client.Words(s.Status), s.Title)
	}
	return data(b.String()), nil
}

func (d *Door) say(ctx context.Context, in sayInput) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if strings.TrimSpace(in.Text) == "" {
		return "", errors.New("the message is empty")
	}
	h, err := d.host(ctx, in.Host)
	if err != nil {
		return "", err
	}
	s, leave, err := h.use(ctx, in.Session)
	if err != nil {
		return "", err
	}
	defer leave()
	running := client.Words(s.Status) != "idle" && client.Words(s.Status) != "failed"
	changed := h.change(in.Session)
	if err := h.Say(ctx, s.DefaultChat, rand.Text(), client.Message{Text: in.Text}, running); err != nil {
		return "", err
	}
	if running {
		return "Queued: the agent gets the message at the end of its turn.", nil
	}
	select {
	case <-changed:
		return "Sent. wait_for_question returns when the agent asks or stops.", nil
	case <-h.Done():
		return "", h.Err()
	case <-ctx.Done():
		return "", errors.New("the host has not confirmed the message; read the session")
	}
}

func (d *Door) start(ctx context.Context, in startInput) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	h, err := d.host(ctx, in.Host)
	if err != nil {
		return "", err
	}
	session, err := h.Create(ctx, in.Provider, in.Folder)
	if err != nil {
		return "", err
	}
	said, err := d.say(ctx, sayInput{in.Host, session, in.Text})
	if err != nil {
		return "", fmt.Errorf("session %s was started, but: %w", session, err)
	}
	return "Started " + session + ". " + said, nil
}
