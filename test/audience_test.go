package test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// Twelve viewers with one link's token watch a chat. The host gets one connection for
// all viewers. Each viewer receives a snapshot, and from there on the chat's bytes as
// the host sends them.
func TestViewersOfALinkShareAConnection(t *testing.T) {
	t.Parallel()
	const viewers, actions = 12, 200
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	vars := flowVars("demo", "00000000")
	driver := join(t, throughRelay(t, s), "driver", vars)
	create(t, driver, vars)
	watch(t, driver, vars)
	token, err := s.Token(func(c *auth.Client) {
		c.Subject, c.Access, c.Channels, c.Audience = "link-1", auth.AccessRead, []string{vars["session"]}, "link-1"
	})
	if err != nil {
		t.Fatal(err)
	}
	say(t, driver, vars["chat"], 1, fmt.Sprintf("stream %d 2 100", actions))
	var all []*refclient.Client
	var from []int64
	for i := range viewers {
		c := dialWith(t, s, token, refclient.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		answer, err := c.Initialize(ctx, refclient.InitializeParams{
			ClientID: fmt.Sprintf("viewer-%d", i), ProtocolVersions: []string{"0.9.0"}, InitialSubscriptions: []string{"ahp-root://", vars["session"]},
		})
		if err != nil || len(answer.Snapshots) != 2 {
			t.Fatalf("initialize: %d snapshots, %v; want 2", len(answer.Snapshots), err)
		}
		snapshot, err := c.Subscribe(ctx, vars["chat"])
		cancel()
		if err != nil || snapshot == nil {
			t.Fatalf("subscribing to the chat: %v; want a snapshot", err)
		}
		all, from = append(all, c), append(from, snapshot.FromSeq)
	}
	awaitDeltas(t, []*refclient.Client{driver}, actions)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if _, err := driver.WaitFor(ctx, refclient.IsAction(vars["chat"], "chat/turnComplete")); err != nil {
		t.Fatal(err)
	}
	for i, c := range all {
		want := chatActions(driver, vars["chat"], from[i])
		n := 0
		for range want {
			_, seen, err := c.WaitAfter(ctx, n, func(frame []byte) bool { return onChat(frame, vars["chat"], 0) })
			if err != nil {
				t.Fatalf("viewer %d: %v; want the turn's messages", i, err)
			}
			n = seen
		}
		wantSameFrames(t, fmt.Sprint("viewer ", i), chatActions(c, vars["chat"], 0), want)
	}
	conns := s.Tap.Conns()
	if len(conns) != 2 {
		t.Errorf("the host has %d connections; want the driver's and the audience's", len(conns))
	}
	asked := bytes.Join(conns[1].ToHost(), []byte("\n"))
	if strings.Contains(string(asked), "viewer-") {
		t.Errorf("the host received a viewer's name; want none:\n%s", asked)
	}

	// Viewers cannot change anything, and see no other session.
	if _, err := all[0].Call(ctx, "createSession", map[string]any{"channel": "demo:/x", "provider": "demo"}); err == nil || !strings.Contains(err.Error(), "-32009") {
		t.Errorf("a viewer's createSession: %v; want error -32009", err)
	}
	if _, err := all[0].Subscribe(ctx, "demo:/another"); err == nil || !strings.Contains(err.Error(), "-32009") {
		t.Errorf("subscribe to a different session: %v; want error -32009", err)
	}
}

// chatActions returns the chat's actions with a serverSeq above from that a client
// received.
func chatActions(c *refclient.Client, chat string, from int64) (list [][]byte) {
	for _, frame := range c.Frames() {
		if onChat(frame, chat, from) {
			list = append(list, frame)
		}
	}
	return list
}

func onChat(frame []byte, chat string, from int64) bool {
	a, ok := refclient.ReadAction(frame)
	return ok && a.Channel == chat && a.ServerSeq > from
}

// Each viewer of a link opens a live canvas in a browser. The page is shown, and the
// viewer cannot change it.
func TestAudienceSeesCanvases(t *testing.T) {
	t.Parallel()
	change := func(c *auth.Client) {
		c.Subject, c.Access, c.Audience, c.Channels = "link-1", auth.AccessRead, "link-1", []string{flowVars("demo", "ca17a500")["session"]}
	}
	a := newApp(t)
	w := newCanvasWorldWith(t, func(*hostagent.Config) {}, agenthost.Canvas{ID: "app", URL: a.URL + "/start?x=1#frag"})
	channel := w.open("app")
	for _, name := range []string{"first", "second"} {
		c, viewer := w.clientWith(name, change), w.browser()
		w.call(c, "subscribe", map[string]any{"channel": w.session})
		page := viewer.open(w.ticket(c, map[string]any{"channel": channel, "uri": w.show(c, channel)}))
		if page.status != http.StatusOK || page.body != "<p>app /start?x=1" {
			t.Fatalf("the page of the %s viewer: HTTP %d, %q; want 200, and the app's page", name, page.status, page.body)
		}
		base := strings.TrimSuffix(page.url, "/start?x=1")
		if got := viewer.open(base + "/large"); got.body != string(large) {
			t.Errorf("the %s viewer got %d bytes, HTTP %d; want the large file", name, len(got.body), got.status)
		}
		if got := viewer.send("POST", base+"/echo", nil, strings.NewReader("x")); got.status != http.StatusForbidden && got.status != http.StatusMethodNotAllowed {
			t.Errorf("POST by the %s viewer: HTTP %d; want 403 or 405", name, got.status)
		}
	}
}
