package test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/test/refclient"
)

// portOf returns the port in a URL.
func portOf(t testing.TB, address string) uint16 {
	t.Helper()
	n, err := strconv.ParseUint(mustURL(t, address).Port(), 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(n)
}

// A previewWorld is a canvasWorld with an application that no canvas shows. Clients open
// it by its port.
type previewWorld struct {
	*canvasWorld
	app     *app
	control hostagent.Control
}

// newPreviewWorld starts a host-agent that permits previews of three ports. The first
// belongs to the application, the second to an application that the owner denies, and
// the third to the AHP host itself.
func newPreviewWorld(t *testing.T, change func(*hostagent.Config)) (w *previewWorld, denied, own uint16) {
	w = &previewWorld{app: newApp(t), control: hostagent.Control{Path: t.TempDir() + "/control"}}
	port := portOf(t, w.app.URL)
	denied = portOf(t, newApp(t).URL)
	w.canvasWorld = newCanvasWorldWith(t, func(cfg *hostagent.Config) {
		own = portOf(t, strings.Replace(cfg.Upstream.URL, "ws://", "http://", 1))
		cfg.PreviewPorts = []hostagent.PortRange{{From: port, To: port}, {From: denied, To: denied}, {From: own, To: own}}
		cfg.Canvas.DenyPorts = []string{strconv.Itoa(int(denied))}
		cfg.Control = w.control.Path
		change(cfg)
	})
	return w, denied, own
}

// operator connects a client and subscribes it to the session.
func (w *previewWorld) operator(id string, change func(*auth.Client)) *refclient.Client {
	w.t.Helper()
	c := w.clientWith(id, change)
	w.call(c, "subscribe", map[string]any{"channel": w.session})
	return c
}

// A preview is the relay's answer to a client that opens a preview.
type preview struct {
	ID, URL, Origin, Access string
	Port                    uint16
}

func (w *previewWorld) preview(c *refclient.Client) (p preview) {
	w.t.Helper()
	raw := w.call(c, "relay/preview", map[string]any{"channel": w.session, "port": portOf(w.t, w.app.URL), "path": "/start?x=1#part"})
	if err := json.Unmarshal(raw, &p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// open returns the IDs of the open previews that a client may list on a channel.
func (w *previewWorld) open(c *refclient.Client, channel string) (ids []string) {
	w.t.Helper()
	var list struct{ Previews []hostagent.Preview }
	if err := json.Unmarshal(w.call(c, "relay/previews", map[string]any{"channel": channel}), &list); err != nil {
		w.t.Fatal(err)
	}
	for _, one := range list.Previews {
		ids = append(ids, one.ID)
	}
	return ids
}

// TestPreviewOpensAPortOfTheHost opens an application's port on the host's machine as a
// preview, uses it in a browser, and closes it.
func TestPreviewOpensAPortOfTheHost(t *testing.T) {
	t.Parallel()
	w, _, _ := newPreviewWorld(t, func(*hostagent.Config) {})
	c := w.operator("c", nil)
	p := w.preview(c)
	if again := w.preview(c); again.ID != p.ID || again.Origin != p.Origin || again.URL == p.URL || p.Access != "use" {
		t.Errorf("a preview opened twice: %+v and %+v; want one preview with two tickets", p, again)
	}
	b := w.browser()
	page := b.open(p.URL)
	if page.status != http.StatusOK || page.body != "<p>app /start?x=1" || !strings.HasPrefix(page.url, p.Origin+"/") {
		t.Fatalf("the page %s: HTTP %d %q; want 200 with the program's start", page.url, page.status, page.body)
	}
	if echo := b.send("POST", p.Origin+"/echo", map[string]string{"Origin": p.Origin}, strings.NewReader("said")); !strings.Contains(echo.body, `"body":"said"`) ||
		!strings.Contains(echo.body, `"host":"localhost:`) {
		t.Errorf("a form's answer: HTTP %d %q; want its content at localhost", echo.status, echo.body)
	}
	events, ws := w.events(b, p.Origin), b.socket(p.Origin)
	events.next()
	if got := ws.say("x"); got != "echo x" {
		t.Errorf("the socket answers %q; want the echo", got)
	}

	// All clients of the subject may list and use the preview. A different subject may
	// neither list nor close it.
	other, stranger := w.operator("other", nil), w.operator("stranger", func(c *auth.Client) { c.Subject = "bob" })
	for _, channel := range []string{w.session, "ahp-root://"} {
		if ids := w.open(other, channel); len(ids) != 1 || ids[0] != p.ID {
			t.Errorf("%s: another client sees %q; want %q", channel, ids, p.ID)
		}
		if ids := w.open(stranger, channel); len(ids) != 0 {
			t.Errorf("%s: a different subject sees the previews %q; want none", channel, ids)
		}
	}
	if same := w.preview(other); same.ID != p.ID || same.Origin != p.Origin {
		t.Errorf("a second client opens %+v; want the same preview", same)
	}
	if theirs := w.preview(stranger); theirs.ID == p.ID || theirs.Origin == p.Origin {
		t.Errorf("a different subject opens %+v; want a preview of its own", theirs)
	}
	ask := map[string]any{"channel": w.session, "id": p.ID}
	_, err := w.try(stranger, "relay/previewClose", ask)
	wantRPCError(t, err, ahp.CodeNotFound)

	// The client loses its connection, and the preview stays open. Then the client closes
	// the preview, and its page ends.
	_ = c.Abort()
	w.app.release <- struct{}{}
	if line := events.next(); line != "data: 1" {
		t.Errorf("an event after the client's connection has ended: %q; want data: 1", line)
	}
	w.call(other, "relay/previewClose", ask)
	events.ends()
	ws.ends()
	if got := b.open(p.Origin + "/start"); got.status != http.StatusGone {
		t.Errorf("after the preview's end: HTTP %d %q; want 410", got.status, got.body)
	}
	// A second preview has a new ID and a new origin.
	c = w.operator("c", nil)
	if next := w.preview(c); next.ID == p.ID || next.Origin == p.Origin {
		t.Errorf("the second preview is %+v; want a new ID and origin", next)
	}
	if got := b.open(p.Origin + "/start"); got.status != http.StatusGone {
		t.Errorf("the closed preview, while a new one is open: HTTP %d; want 410", got.status)
	}
}

// Clients with too few rights and requests for forbidden ports get no preview.
func TestOnlyOperatorsOpenPreviews(t *testing.T) {
	t.Parallel()
	w, denied, own := newPreviewWorld(t, func(*hostagent.Config) {})
	port := portOf(t, w.app.URL)
	refused := func(c *refclient.Client, what string, port any, code int) {
		t.Helper()
		answer, err := w.try(c, "relay/preview", map[string]any{"channel": w.session, "port": port})
		if err == nil {
			t.Errorf("%s gets the preview %s; want a refusal", what, answer)
			return
		}
		wantRPCError(t, err, code)
	}
	for name, change := range map[string]func(*auth.Client){
		"looks":     func(c *auth.Client) { c.Access = auth.AccessRead },
		"talks":     func(c *auth.Client) { c.Access = auth.AccessTalk },
		"approves":  func(c *auth.Client) { c.Access = auth.AccessApprove },
		"a session": func(c *auth.Client) { c.Channels = []string{w.session} },
		"methods":   func(c *auth.Client) { c.Methods = []string{"dispatchAction", "relay/preview"} },
	} {
		c := w.operator(name, change)
		refused(c, name, port, ahp.CodePermissionDenied)
		_, err := w.try(c, "relay/previews", map[string]any{"channel": w.session})
		wantRPCError(t, err, ahp.CodePermissionDenied)
	}
	c := w.operator("c", nil)
	refused(c, "a port that is denied", denied, ahp.CodePermissionDenied)
	refused(c, "the AHP host's own port", own, ahp.CodePermissionDenied)
	refused(c, "a port that is not named", port-1, ahp.CodePermissionDenied)
	for _, port := range []any{0, 65536, -1, "80", 80.5, nil} {
		refused(c, "no port", port, ahp.CodeInvalidParams)
	}
	for _, path := range []string{"x", "//example.com/", "http://example.com/", "/\x00", "/" + strings.Repeat("x", 5000)} {
		_, err := w.try(c, "relay/preview", map[string]any{"channel": w.session, "port": port, "path": path})
		wantRPCError(t, err, ahp.CodeInvalidParams)
	}
	refused(w.client("not subscribed"), "not subscribed", port, ahp.CodePermissionDenied)

	// None of the refused requests opened a preview.
	if ids := w.open(c, "ahp-root://"); len(ids) != 0 {
		t.Errorf("the previews %q are open; want none", ids)
	}

	// A client that may open raw TCP connections and nothing else may open a preview.
	may := w.operator("may", func(c *auth.Client) {
		c.Channels, c.Methods = []string{w.session, "ahp-tcp:*"}, []string{"createTcpConnection"}
	})
	if got := w.browser().open(w.preview(may).URL); got.status != http.StatusOK {
		t.Errorf("a preview by a client that may open raw connections: HTTP %d; want 200", got.status)
	}
}

// TestPreviewEndsInEachWay opens a preview and ends it: by the owner, by a revocation,
// by a kick, and with its session. TestPreviewOpensAPortOfTheHost covers the client
// that closes it.
func TestPreviewEndsInEachWay(t *testing.T) {
	t.Parallel()
	w, _, _ := newPreviewWorld(t, func(*hostagent.Config) {})
	for _, c := range []struct {
		name string
		end  func(preview) error
	}{ // run in this order, because the last removes the session
		{"the owner closes it", func(p preview) error {
			list, err := w.control.Clients(t.Context())
			if err != nil || !slices.ContainsFunc(list.Previews, func(one hostagent.Preview) bool { return one.ID == p.ID && one.Subject == "the owner closes it" }) {
				t.Errorf("the owner's list has the previews %+v, %v; want the open one", list.Previews, err)
			}
			_, err = w.control.Kick(t.Context(), hostagent.Kick{Preview: p.ID})
			return err
		}},
		{"the token is revoked", func(preview) error {
			return w.stack.Relay.Revocations().Add(auth.Revocation{Tenant: "default", Subject: "the token is revoked", At: time.Now()})
		}},
		{"the owner kicks the subject", func(preview) error {
			ended, err := w.control.Kick(t.Context(), hostagent.Kick{Subject: "the owner kicks the subject", For: time.Hour})
			if ended != 2 {
				t.Errorf("the kick has ended %d; want 2, the connection and the preview", ended)
			}
			return err
		}},
		{"the session is removed", func(preview) error {
			w.call(w.client("remover"), "disposeSession", map[string]any{"channel": w.session})
			return nil
		}},
	} {
		w.ends(c.name, c.end)
	}
}

func (w *previewWorld) ends(name string, end func(preview) error) {
	w.t.Helper()
	c := w.operator(name, func(c *auth.Client) { c.Subject = name })
	p, b := w.preview(c), w.browser()
	if page := b.open(p.URL); page.status != http.StatusOK {
		w.t.Fatalf("%s: the page before the end: HTTP %d; want 200", name, page.status)
	}
	events := w.events(b, p.Origin)
	events.next()
	if err := end(p); err != nil {
		w.t.Fatalf("%s: %v; want no error", name, err)
	}
	events.ends()
	eventually(w.t, name+": the browser is told", func() bool {
		got := b.open(p.Origin + "/start")
		if got.status == http.StatusOK {
			w.t.Fatalf("%s: the browser is shown the page: %q; want a refusal", name, got.body)
		}
		return got.status == http.StatusGone || got.status == http.StatusForbidden // a status for ended previews, not only the end of the stream
	})
}

// TestPreviewEndsWithItsOrigin derives a token from a stolen token, and opens a preview
// with it. The stolen token is revoked. The client's connection, the open page and an
// unused ticket must end.
func TestPreviewEndsWithItsOrigin(t *testing.T) {
	t.Parallel()
	w, _, _ := newPreviewWorld(t, func(*hostagent.Config) {})
	stolen, err := w.stack.Token(func(c *auth.Client) { c.ID, c.Access = "stolen", auth.AccessAdmin })
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.stack.Relay.URL()+"/api/tokens", strings.NewReader(`{"level":"operate","seconds":2592000}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+stolen)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var made struct{ Token string }
	if err := json.NewDecoder(response.Body).Decode(&made); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("following the link: HTTP %d, %v; want 200 with a token", response.StatusCode, err)
	}
	c := w.clientOf("thief", made.Token)
	w.call(c, "subscribe", map[string]any{"channel": w.session})
	p, b := w.preview(c), w.browser()
	if page := b.open(p.URL); page.status != http.StatusOK {
		t.Fatalf("the page before the end: HTTP %d; want 200", page.status)
	}
	events, unused := w.events(b, p.Origin), w.preview(c).URL
	events.next()
	if err := w.stack.Relay.Revocations().Add(auth.Revocation{Token: "stolen", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, c, ahp.CloseTokenEnded, "token revoked")
	events.ends()
	for name, url := range map[string]string{"open page": p.Origin + "/start", "unused ticket": unused} {
		if got := b.open(url); got.status != http.StatusGone && got.status != http.StatusForbidden {
			t.Errorf("the %s: HTTP %d %q; want 410 or 403", name, got.status, got.body)
		}
	}
}

// The host's owner permits no ports, or turns canvas pages off: no client can open a
// preview. With pages at read, a client can open a preview and only read it.
func TestOwnerForbidsPreviews(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*hostagent.Config){
		"no ports": func(cfg *hostagent.Config) { cfg.PreviewPorts = nil },
		"off":      func(cfg *hostagent.Config) { cfg.CanvasLive = hostagent.CanvasOff },
		"read":     func(cfg *hostagent.Config) { cfg.CanvasLive = hostagent.CanvasRead },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _, _ := newPreviewWorld(t, change)
			c := w.operator("c", nil)
			if name == "read" {
				p, b := w.preview(c), w.browser()
				if page := b.open(p.URL); page.status != http.StatusOK || p.Access != "look" {
					t.Errorf("a preview with the access %s: HTTP %d; want look and 200", p.Access, page.status)
				}
				if got := b.send("POST", p.Origin+"/echo", map[string]string{"Origin": p.Origin}, nil); got.status != http.StatusMethodNotAllowed {
					t.Errorf("a POST where the owner allows reading: HTTP %d; want 405", got.status)
				}
				return
			}
			_, err := w.try(c, "relay/preview", map[string]any{"channel": w.session, "port": portOf(t, w.app.URL)})
			wantRPCError(t, err, ahp.CodePermissionDenied)
		})
	}
}
