package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/hostagent/watch"
)

// Bounds of CheckSession.
const (
	sessionPatience = 5 * time.Second
	maxSessionFrame = 128 << 20 // bytes of an answer
	mostListed      = 8         // sessions named in an error
)

// errRefused reports a host's error answer.
type errRefused struct {
	Code    int64
	Message string
}

func (e *errRefused) Error() string { return e.Message }

// CheckSession returns an error if an online host does not know a session, refuses the
// client, or is sealed. It connects to the host through the relay at a base URL, with a client's token. Without
// an answer, the session counts as known.
func CheckSession(ctx context.Context, client *http.Client, relay, token, host, session string) error {
	ctx, cancel := context.WithTimeout(ctx, sessionPatience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, strings.TrimSuffix(relay, "/")+"/ahp/"+host, &websocket.DialOptions{
		HTTPClient: client, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}},
	})
	if err != nil {
		return nil
	}
	defer ws.CloseNow()
	ws.SetReadLimit(maxSessionFrame)
	const root = "ahp-root://"
	id := "share-" + rand.Text()[:8]
	if _, err := ask(ctx, ws, "initialize", map[string]any{"channel": root, "clientId": id, "protocolVersions": json.RawMessage(watch.Versions)}); err != nil {
		switch closed, _ := errors.AsType[websocket.CloseError](err); {
		case ahp.CloseCode(closed.Code) != ahp.CloseForbidden:
			return nil
		case strings.Contains(closed.Reason, "host is sealed"):
			return fmt.Errorf("%s: host %s is sealed, so only the host-agent on its machine makes its links: run host-agent share there, with --control if that host-agent has this flag", session, host)
		default:
			return fmt.Errorf("%s: host %s refuses viewers: %s", session, host, closed.Reason)
		}
	}
	var refused *errRefused
	if _, err := ask(ctx, ws, "subscribe", map[string]any{"channel": session}); !errors.As(err, &refused) || refused.Code == ahp.CodeAuthRequired {
		return nil
	}
	known := ""
	if result, err := ask(ctx, ws, "listSessions", map[string]any{"channel": root}); err == nil {
		known = namesOf(result)
	}
	return fmt.Errorf("%s: host %s has no such session (%s)%s", session, host, refused.Message, known)
}

// namesOf returns the first sessions in a result of listSessions, as the end of a
// sentence; "" if there are none.
func namesOf(result json.RawMessage) string {
	var list struct {
		Items      []struct{ Resource, Title string }
		NextCursor string // of the next page; empty behind the last
	}
	if json.Unmarshal(result, &list) != nil || len(list.Items) == 0 {
		return ""
	}
	var names []string
	for _, s := range list.Items[:min(len(list.Items), mostListed)] {
		names = append(names, fmt.Sprintf("%s (%q)", s.Resource, s.Title))
	}
	if more := len(list.Items) - len(names); list.NextCursor != "" {
		names = append(names, "and more")
	} else if more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return "; known are: " + strings.Join(names, ", ")
}

// ask sends a request, and returns the result. It skips all other messages.
func ask(ctx context.Context, ws *websocket.Conn, method string, params any) (json.RawMessage, error) {
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": method, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	if err := ws.Write(ctx, websocket.MessageText, text); err != nil {
		return nil, err
	}
	for {
		_, frame, err := ws.Read(ctx)
		if err != nil {
			return nil, err
		}
		switch env, err := ahp.Peek(frame); {
		case err != nil:
			return nil, err
		case env.Kind != ahp.Response || string(env.ID) != `"`+method+`"`:
		case env.Error != nil:
			return nil, &errRefused{ahp.IntegerOf(ahp.RawOf(env.Error, "code")), ahp.TextOf(env.Error, "message")}
		default:
			return env.Result, nil
		}
	}
}
