package test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A gitHost is a host with one session. The session's changeset names a file in a git
// revision. The host itself serves a file in any revision.
type gitHost struct {
	mu   sync.Mutex
	read []string // URIs that clients have requested
}

const (
	gitSession   = "mock:/s"
	gitChangeset = gitSession + "/changeset/session"
)

// gitBlob is the URI of a file in a revision, as VS Code's host writes it.
func gitBlob(sha, path string) string {
	return fmt.Sprintf("git-blob:/w/%[2]s?%%7B%%22sessionUri%%22%%3A%%22mock%%3A%%2Fs%%22%%2C%%22sha%%22%%3A%%22%[1]s%%22%%2C%%22repoRelativePath%%22%%3A%%22%[2]s%%22%%7D", sha, path)
}

// ServeHTTP implements [http.Handler].
func (h *gitHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	for {
		_, message, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		env, err := ahp.Peek(message)
		if err != nil || env.Kind != ahp.Request {
			continue
		}
		answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, env.ID, h.result(&env))
		if ws.Write(context.Background(), websocket.MessageText, []byte(answer)) != nil {
			return
		}
	}
}

func (h *gitHost) result(env *ahp.Envelope) string {
	switch string(env.Method) {
	case "initialize":
		return `{"protocolVersion":"0.9.0","serverSeq":1,"snapshots":[]}`
	case "subscribe":
		state := `{}`
		switch string(env.Channel) {
		case gitSession:
			state = `{"workingDirectories":["file:///w"],"chats":[]}`
		case gitChangeset:
			state = fmt.Sprintf(`{"status":"ready","files":[{"id":"x","edit":{"before":{"uri":"file:///w/a.txt","content":{"uri":%q}}}}]}`, gitBlob("a1b2", "a.txt"))
		}
		return fmt.Sprintf(`{"snapshot":{"resource":%q,"state":%s,"fromSeq":1}}`, env.Channel, state)
	case "resourceRead":
		h.mu.Lock()
		defer h.mu.Unlock()
		h.read = append(h.read, ahp.TextOf(env.Params, "uri"))
		return `{"data":"text","encoding":"utf-8"}`
	}
	return "null"
}

// Viewers with two links request files in git revisions. The relay permits a file only
// after the host has named it to the link's viewers, and only to a link with files.
func TestOnlyNamedRevisionsAreReadThroughAnAudience(t *testing.T) {
	t.Parallel()
	host := new(gitHost)
	server, err := stack.Serve(host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	viewer := func(link, name string, files bool) *refclient.Client {
		token, err := s.Token(func(c *auth.Client) {
			c.Subject, c.Access, c.Channels, c.Files, c.Audience = link, auth.AccessRead, []string{gitSession}, files, link
		})
		if err != nil {
			t.Fatal(err)
		}
		c := dialWith(t, s, token, refclient.Options{})
		if _, err := c.Call(t.Context(), "initialize", map[string]any{"channel": "ahp-root://", "clientId": name, "protocolVersions": []string{"0.9.0"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Subscribe(t.Context(), gitSession); err != nil {
			t.Fatal(err)
		}
		return c
	}
	reads := func(when string, c *refclient.Client, uri string, want bool) {
		t.Helper()
		_, err := c.Call(t.Context(), "resourceRead", map[string]any{"channel": "ahp-root://", "uri": uri})
		if (err == nil) != want {
			t.Errorf("%s: %.60s: %v; want it read: %v", when, uri, err, want)
		}
	}
	named, secret := gitBlob("a1b2", "a.txt"), gitBlob("HEAD~1", "secret.env")
	one, two, other := viewer("link-1", "one", true), viewer("link-1", "two", true), viewer("link-2", "three", false)
	for name, c := range map[string]*refclient.Client{"one": one, "two": two, "the other link's": other} {
		reads("before it is named, "+name, c, named, false)
		reads("before it is named, "+name, c, secret, false)
	}
	for _, c := range []*refclient.Client{one, other} {
		if _, err := c.Subscribe(t.Context(), gitChangeset); err != nil {
			t.Fatal(err)
		}
	}
	reads("a viewer who is told", one, named, true)
	reads("a viewer on the same connection", two, named, true) // both have the same link, so the host-agent treats them alike
	reads("a link without files", other, named, false)
	for _, c := range []*refclient.Client{one, two, other} {
		for _, uri := range []string{secret, gitBlob("a1b2", "secret.env"), gitBlob("c3d4", "a.txt"), strings.Replace(named, "git-blob", "Git-Blob", 1), strings.Replace(named, "%22", "%2522", 1)} {
			reads("what was not named", c, uri, false)
		}
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	if got := slices.Compact(host.read); !slices.Equal(got, []string{named}) {
		t.Errorf("the host was asked for %q; want %s alone", got, named)
	}
}
