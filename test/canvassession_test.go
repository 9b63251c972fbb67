package test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// TestCanvasLastsAsLongAsItsClient has two clients open a canvas with tokens that expire soon. The client that renews
// its token keeps its page, its event stream included. The relay closes the connection of the client that does
// not, and its page ends with it. When the renewed token is revoked, the first page ends too.
func TestCanvasLastsAsLongAsItsClient(t *testing.T) {
	t.Parallel()
	soon := time.Now().Add(10 * time.Second)
	short := func(c *auth.Client) { c.Expires, c.Subject = soon, "ann" }
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

	awaitClosed(t, other, ahp.CloseTokenEnded, "token expired") // by the relay: its token has expired
	ended.ends()
	if got := page.open(otherBase + "/start"); got.status != http.StatusForbidden {
		t.Errorf("the client's token has expired: %d %q", got.status, got.body)
	}
	a.release <- struct{}{}
	if line := events.next(); line != "data: 1" {
		t.Errorf("an event for the client that has renewed its token: %q", line)
	}
	if got := b.open(base + "/start"); got.status != http.StatusOK {
		t.Errorf("a page of the client that has renewed its token: %d %q", got.status, got.body)
	}

	if err := w.stack.Relay.Revocations().Add(auth.Revocation{Token: "renewed", At: time.Now(), Until: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	awaitClosed(t, c, ahp.CloseTokenEnded, "token revoked")
	events.ends()
	if got := b.open(base + "/start"); got.status != http.StatusForbidden {
		t.Errorf("the renewed token is revoked: %d %q", got.status, got.body)
	}
}
