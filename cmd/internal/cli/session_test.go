package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"ahprelay/ahp"
)

// TestKnownSessionsOfAPage names the sessions in an answer to listSessions. A first page does not count those
// of further pages.
func TestKnownSessionsOfAPage(t *testing.T) {
	items := func(n int) string {
		return strings.TrimSuffix(strings.Repeat(`{"resource":"x:/1","title":"T"},`, n), ",")
	}
	named := func(n int) string {
		return "; known are: " + strings.TrimSuffix(strings.Repeat(`x:/1 ("T"), `, n), ", ")
	}
	for _, test := range []struct{ answer, want string }{
		{`{"items":[` + items(2) + `]}`, named(2)},
		{`{"items":[` + items(10) + `]}`, named(8) + ", and 2 more"},
		{`{"items":[` + items(2) + `],"nextCursor":"2"}`, named(2) + ", and more"},
		{`{"items":[` + items(10) + `],"nextCursor":"10"}`, named(8) + ", and more"},
		{`{"items":[]}`, ""},
	} {
		if got := namesOf(json.RawMessage(test.answer)); got != test.want {
			t.Errorf("namesOf(%s) = %q; want %q", test.answer, got, test.want)
		}
	}
}

// TestUnknownSessionIsNamed has a host that refuses a session, and writes the error's code as an integer and as
// floating point. The check must fail, except for a host that wants a sign-in first.
func TestUnknownSessionIsNamed(t *testing.T) {
	for code, known := range map[string]bool{"-32001": false, "-32001.0": false, "-32007": true, "-32007.0": true} {
		host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ws, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer ws.CloseNow()
			for {
				_, frame, err := ws.Read(r.Context())
				if err != nil {
					return
				}
				answer := `"result":{}`
				if strings.Contains(string(frame), "subscribe") {
					answer = fmt.Sprintf(`"error":{"code":%s,"message":"no such session"}`, code)
				}
				env, err := ahp.Peek(frame)
				if err != nil {
					return
				}
				_ = ws.Write(r.Context(), websocket.MessageText, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,%s}`, env.ID, answer))
			}
		}))
		if err := CheckSession(t.Context(), http.DefaultClient, host.URL, "token", "laptop", "x:/1"); (err == nil) != known {
			t.Errorf("with the code %s, the check of a session ends with %v; want an error: %v", code, err, !known)
		}
		host.Close()
	}
}

// TestSealedHostIsNamed has a sealed host, which closes the connection. relay share has no flag for its control socket, so
// the error must name the command that makes the link.
func TestSealedHostIsNamed(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err == nil {
			_ = ws.Close(websocket.StatusCode(ahp.CloseForbidden), "this host is sealed: pair this device")
		}
	}))
	defer host.Close()
	err := CheckSession(t.Context(), http.DefaultClient, host.URL, "token", "laptop", "x:/1")
	if err == nil || !strings.HasPrefix(err.Error(), "x:/1: host laptop is sealed") || !strings.Contains(err.Error(), "run host-agent share there") {
		t.Errorf("the check of a sealed host's session ends with %v; want an error that names the session, the host and the command", err)
	}
}

// TestRefusedViewerIsNamed has a host-agent refuse the link's first viewer, as for a private session. The check must fail
// with the reason: otherwise share would print a link that admits no viewer.
func TestRefusedViewerIsNamed(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err == nil {
			_ = ws.Close(websocket.StatusCode(ahp.CloseForbidden), "forbidden: the session is private")
		}
	}))
	defer host.Close()
	err := CheckSession(t.Context(), http.DefaultClient, host.URL, "token", "laptop", "x:/1")
	if err == nil || !strings.HasPrefix(err.Error(), "x:/1: host laptop refuses") || !strings.Contains(err.Error(), "the session is private") {
		t.Errorf("the check of a session whose viewers are refused ends with %v; want an error that names the session, the host and the reason", err)
	}
}
