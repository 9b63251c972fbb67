package canvas

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// A browser opens a canvas, and the client's token is revoked. The client gets a new token, and the
// browser opens the same canvas with a new ticket. It must get a new session, because its present
// one shows nothing any more.
func TestNewTicketReplacesARevokedSession(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	revoked, err := registry.LoadRevocations("", nil)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{
		Origin: Origin{Scheme: "https", Domain: "canvas.example.com"}, Draining: func() bool { return false },
		Caller: authn.New(authn.Config{
			Keys: keys, Revoked: revoked, Limits: admission.New(admission.Limits{}.WithDefaults(), 1<<20), Audit: audit.New(slog.New(slog.DiscardHandler), nil),
			Count: func(string) {}, Proved: func(*http.Request) {},
		}),
		Borrow: func(context.Context, string, string) (Link, func(), error) { return Link{}, nil, ErrHostAway },
	})
	defer c.Close()
	now := time.Now()
	grant := auth.CanvasGrant{Tenant: "t", Subject: "ada", Expires: now.Add(auth.CanvasSessionTTL), CanvasClaims: auth.CanvasClaims{
		Host: "h", Token: "1", Issued: now.Add(-2 * time.Hour).Unix(), TokenEnds: now.Add(time.Hour).Unix(), Until: now.Add(auth.CanvasSessionTTL).Unix(),
		ClientID: "phone", Channel: "ahp-canvas:/c", Instance: "i",
	}}
	var cookies []*http.Cookie
	get := func(address string) int {
		r := httptest.NewRequest("GET", address, nil)
		for _, cookie := range cookies {
			r.AddCookie(cookie)
		}
		w := httptest.NewRecorder()
		c.Handler(nil).ServeHTTP(w, r)
		if set := w.Result().Cookies(); len(set) > 0 {
			cookies = set
		}
		return w.Code
	}
	page := c.Origin.Of(keys.Canvases().Name(&grant)) + "/"
	open := func() {
		t.Helper()
		at, err := c.address(grant, "")
		if err != nil {
			t.Fatal(err)
		}
		if status := get(at.URL); status != http.StatusSeeOther {
			t.Fatalf("a new ticket: HTTP %d; want 303", status)
		}
	}
	open()
	if status := get(page); status != http.StatusServiceUnavailable {
		t.Fatalf("the page: HTTP %d; want 503, because the host is away", status)
	}
	if err := revoked.Add(auth.Revocation{Tenant: "t", Subject: "ada", At: now.Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if status := get(page); status != http.StatusGone {
		t.Fatalf("after the revocation: HTTP %d; want 410", status)
	}
	grant.Token, grant.Issued = "2", now.Unix()
	open()
	if status := get(page); status != http.StatusServiceUnavailable {
		t.Errorf("with the new token: HTTP %d; want 503, because the host is away", status)
	}
}
