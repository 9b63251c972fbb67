package test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// TestCanvasLastsAsLongAsItsClient opens a canvas for two clients with tokens that expire
// soon. The first client renews its token, and keeps its page and event stream. The
// second client does not: the relay closes its connection, and its page ends. Then the
// first client's new token is revoked, and its page ends, too.
func TestCanvasLastsAsLongAsItsClient(t *testing.T) {
	t.Parallel()
	soon := sync.OnceValue(func() time.Time { return time.Now().Add(15 * time.Second) }) // after the stack's start
	short := func(c *auth.Client) { c.Expires, c.Subject = soon(), "ann" }
	w, a, c, channel, b, base := liveApp(t, short)
	other := w.clientWith("other", short)
	page := w.browser()
	address := w.ticket(other, map[string]any{"channel": channel, "uri": w.show(other, channel)})
	otherBase := strings.TrimSuffix(page.open(address).url, "/start?x=1")
	events, ended := w.events(b, base), w.events(page, otherBase)
	events.next()
	ended.next()
	renewed, err := w.stack.Token(func(c *auth.Client) { c.ID, c.Subject = "renewed", "ann" })
	if err != nil {
		t.Fatal(err)
	}
	w.call(c, "relay/refreshToken", map[string]any{"channel": "ahp-root://", "token": renewed})

	awaitClosed(t, other, ahp.CloseTokenEnded, "token expired") // the relay closes this client
	ended.ends()
	if got := page.open(otherBase + "/start"); got.status != http.StatusForbidden {
		t.Errorf("a page after the client's token has expired: HTTP %d, %q; want 403", got.status, got.body)
	}
	a.release <- struct{}{}
	if line := events.next(); line != "data: 1" {
		t.Errorf("an event for the client with a renewed token: %q; want data: 1", line)
	}
	if got := b.open(base + "/start"); got.status != http.StatusOK {
		t.Errorf("a page of the client with a renewed token: HTTP %d, %q; want 200", got.status, got.body)
	}

	if err := w.stack.Relay.Revocations().Add(auth.Revocation{Token: "renewed", At: time.Now(), Until: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	awaitClosed(t, c, ahp.CloseTokenEnded, "token revoked")
	events.ends()
	if got := b.open(base + "/start"); got.status != http.StatusForbidden {
		t.Errorf("a page after the renewed token was revoked: HTTP %d, %q; want 403", got.status, got.body)
	}
}
