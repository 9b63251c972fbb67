package remembering

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/remember"
	"ahprelay/hostagent/watch"
)

// Bounds of a read.
const (
	mostTurns = 20
	readTime  = 20 * time.Second // longest time for reading a session
)

// A reader reads sessions from the host on its own connection.
type reader struct {
	sock watch.Socket
	id   int
}

// openReader connects to the host and initializes the connection.
func openReader(ctx context.Context, dial func(ctx context.Context) (watch.Socket, error)) (*reader, error) {
	sock, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"channel":"ahp-root://","clientId":%q,` +
		`"clientInfo":{"name":"ahp-host-agent","version":"1"},"protocolVersions":%s,"capabilities":{}}}`
	r := &reader{sock: sock}
	stop := r.limit(ctx)
	defer stop()
	err = sock.Write(fmt.Appendf(nil, hello, "ahp-remember-"+strings.ToLower(rand.Text()), watch.Versions), false)
	if err == nil {
		var env ahp.Envelope
		if env, err = watch.FirstAnswer(sock); err == nil && env.Error != nil {
			err = errors.New("the host refused the connection for remembered sessions")
		}
	}
	if err != nil {
		sock.Close("unusable")
		return nil, err
	}
	return r, nil
}

// limit closes the connection when ctx ends or readTime is over. stop ends that limit.
func (r *reader) limit(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	end := context.AfterFunc(ctx, func() { r.sock.Close("too slow") })
	return func() {
		end()
		cancel()
	}
}

// Shows returns an error if the host does not show a session to the host-agent.
func Shows(ctx context.Context, dial func(ctx context.Context) (watch.Socket, error), session string) error {
	r, err := openReader(ctx, dial)
	if err != nil {
		return err
	}
	defer r.close()
	defer r.limit(ctx)()
	_, err = r.subscribe(session, "")
	return err
}

func (r *reader) close() { r.sock.Close("read") }

// errNoState reports a session that the host does not show.
var errNoState = errors.New("the host sent no state")

// subscribe returns the state of a channel, and unsubscribes again.
func (r *reader) subscribe(channel, more string) (json.RawMessage, error) {
	r.id++
	uri, _ := json.Marshal(channel) // a string always encodes
	if err := r.sock.Write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"subscribe","params":{"channel":%s%s}}`, r.id, uri, more), false); err != nil {
		return nil, err
	}
	for {
		message, _, err := r.sock.Read()
		if err != nil {
			return nil, err
		}
		env, err := ahp.Peek(message)
		switch {
		case err != nil:
		case env.Kind == ahp.Request:
			if err := r.sock.Write(ahp.AppendError(nil, env.ID, ahp.CodeMethodNotFound, "this client only reads", nil), false); err != nil {
				return nil, err
			}
		case env.Kind != ahp.Response || !ahp.SameID(env.ID, fmt.Append(nil, r.id)):
		case env.Error != nil:
			return nil, errNoState
		default:
			state := ahp.RawOf(env.Result, "snapshot", "state")
			if !ahp.IsObject(state) {
				return nil, errNoState
			}
			return json.RawMessage(strings.Clone(string(state))), r.sock.Write(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":%s}}`, uri), false)
		}
	}
}

// A content is the content of a session's record.
type content struct {
	Session string                     `json:"session"`
	Summary map[string]json.RawMessage `json:"summary"`
	Chat    string                     `json:"chat"`
	State   chatState                  `json:"state"`
}

// A chatState is the end of a conversation.
type chatState struct {
	Title  json.RawMessage   `json:"title,omitempty"`
	Turns  []json.RawMessage `json:"turns"`
	Active json.RawMessage   `json:"activeTurn,omitempty"`
}

// read returns the content of a session's record.
func (r *reader) read(ctx context.Context, uri string, summary map[string]json.RawMessage) ([]byte, error) {
	defer r.limit(ctx)()
	session, err := r.subscribe(uri, "")
	if err != nil {
		return nil, err
	}
	c := content{Session: uri, Summary: summary, Chat: ChatOf(session)}
	if c.Chat == "" {
		return nil, errNoState
	}
	chat, err := r.subscribe(c.Chat, fmt.Sprintf(`,"view":{"turns":%d}`, mostTurns))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(chat, &c.State); err != nil {
		return nil, errNoState
	}
	return c.fit()
}

// ChatOf returns the default chat in a session's state, or else its first chat.
func ChatOf(session []byte) string {
	if chat := ahp.TextOf(session, "defaultChat"); chat != "" {
		return chat
	}
	for _, e := range ahp.ElementsOf(ahp.RawOf(session, "chats")) {
		return ahp.TextOf(e.Raw, "resource")
	}
	return ""
}

// fit encodes the content with as many of the last turns as fit. If even the last turn
// is too long, only the end of its answer is kept.
func (c *content) fit() ([]byte, error) {
	if n := len(c.State.Turns) - mostTurns; n > 0 {
		c.State.Turns = c.State.Turns[n:]
	}
	for {
		data, err := json.Marshal(c)
		if err != nil || len(data) <= remember.MaxContent {
			return data, err
		}
		over := len(data) - remember.MaxContent
		active := string(c.State.Active) != "" && string(c.State.Active) != "null"
		switch n := len(c.State.Turns); {
		case n > 1 || n == 1 && active:
			c.State.Turns = c.State.Turns[1:]
		case active:
			c.State.Active = cutTurn(c.State.Active, over)
		case n == 1:
			if c.State.Turns[0] = cutTurn(c.State.Turns[0], over); c.State.Turns[0] == nil {
				c.State.Turns = nil
			}
		default:
			return nil, fmt.Errorf("session summary of %d bytes; want at most %d", len(data), remember.MaxContent)
		}
	}
}

// cutTurn removes at least the given number of bytes from the beginning of a turn's
// answer. It returns nil if nothing of the answer would be left.
func cutTurn(turn json.RawMessage, bytes int) json.RawMessage {
	var members map[string]json.RawMessage
	var parts []json.RawMessage
	if json.Unmarshal(turn, &members) != nil || json.Unmarshal(members["responseParts"], &parts) != nil {
		return nil
	}
	for bytes > 0 && len(parts) > 0 {
		bytes -= len(parts[0])
		parts = parts[1:]
	}
	if bytes > 0 || len(parts) == 0 {
		return nil
	}
	members["responseParts"], _ = json.Marshal(parts) // they were parsed
	cut, _ := json.Marshal(members)
	return cut
}
