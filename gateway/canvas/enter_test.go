package canvas

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// A browser opens a canvas of a host that is away.
type browser struct {
	*testing.T
	keysDir string
	keys    *auth.Keys
	revoked *registry.Revocations
	c       *Canvases
	grant   auth.CanvasGrant
	cookies []*http.Cookie
}

func newBrowser(t *testing.T, revocations string) *browser {
	t.Helper()
	b := &browser{T: t, keysDir: t.TempDir()}
	var err error
	if b.keys, err = auth.LoadKeys(b.keysDir); err != nil {
		t.Fatal(err)
	}
	if b.revoked, err = registry.LoadRevocations(revocations, nil); err != nil {
		t.Fatal(err)
	}
	b.c = New(Config{
		Origin: Origin{Scheme: "https", Domain: "canvas.example.com"}, Draining: func() bool { return false },
		Caller: authn.New(authn.Config{
			Keys: b.keys, Revoked: b.revoked, Limits: admission.New(admission.Limits{}.WithDefaults(), 1<<20), Audit: audit.New(slog.New(slog.DiscardHandler), nil),
			Count: func(string) {}, Proved: func(*http.Request) {},
		}),
		Borrow: func(context.Context, string, string) (Link, func(), error) { return Link{}, nil, ErrHostAway },
	})
	t.Cleanup(b.c.Close)
	now := time.Now()
	b.grant = auth.CanvasGrant{Tenant: "t", Subject: "ada", Expires: now.Add(auth.CanvasSessionTTL), CanvasClaims: auth.CanvasClaims{
		Host: "h", Token: "1", Issued: now.Add(-2 * time.Hour).Unix(), TokenEnds: now.Add(time.Hour).Unix(), Until: now.Add(auth.CanvasSessionTTL).Unix(),
		ClientID: "phone", Channel: "ahp-canvas:/c", Instance: "i",
	}}
	return b
}

func (b *browser) want(what, address string, want int) {
	b.Helper()
	r := httptest.NewRequest("GET", address, nil)
	for _, cookie := range b.cookies {
		r.AddCookie(cookie)
	}
	w := httptest.NewRecorder()
	b.c.Handler(nil).ServeHTTP(w, r)
	if set := w.Result().Cookies(); len(set) > 0 {
		b.cookies = set
	}
	if w.Code != want {
		b.Fatalf("%s: HTTP %d; want %d", what, w.Code, want)
	}
}

// open uses a new ticket, and returns the ticket's address and the page's.
func (b *browser) open() (ticket, page string) {
	b.Helper()
	at, err := b.c.address(b.grant, "")
	if err != nil {
		b.Fatal(err)
	}
	b.want("a new ticket", at.URL, http.StatusSeeOther)
	return at.URL, at.Origin + "/"
}

// A browser opens a canvas, and the client's token is revoked. The client gets a new token, and the
// browser opens the same canvas with a new ticket. It must get a new session, because its present
// one shows nothing any more.
func TestNewTicketReplacesARevokedSession(t *testing.T) {
	b, now := newBrowser(t, ""), time.Now()
	_, page := b.open()
	b.want("the page of a host that is away", page, http.StatusServiceUnavailable)
	if err := b.revoked.Add(auth.Revocation{Tenant: "t", Subject: "ada", At: now.Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	b.want("after the revocation", page, http.StatusGone)
	b.grant.Token, b.grant.Issued = "2", now.Unix()
	b.open()
	b.want("with the new token", page, http.StatusServiceUnavailable)
}

// TestRetiredKeysEndSessions: a browser shows a canvas, and the relays' keys that have signed its
// session are retired.
func TestRetiredKeysEndSessions(t *testing.T) {
	b, now := newBrowser(t, ""), time.Now()
	_, page := b.open()
	b.want("the page of a host that is away", page, http.StatusServiceUnavailable)
	first := b.keys.SetIDs()[0]
	if _, err := auth.AddKeys(b.keysDir, now, now); err != nil {
		t.Fatal(err)
	}
	if err := auth.RetireKeys(b.keysDir, first, now, true); err != nil {
		t.Fatal(err)
	}
	if changed, err := b.keys.Reload(); !changed || err != nil {
		t.Fatalf("Reload = %v, %v; want a change", changed, err)
	}
	b.want("after its keys are retired", page, http.StatusGone)
}

// TestTicketWorksOnAFullDisk uses a ticket while the relay cannot record that it is used. It must
// work once.
func TestTicketWorksOnAFullDisk(t *testing.T) {
	b := newBrowser(t, filepath.Join(t.TempDir(), "gone", "revocations.json"))
	ticket, _ := b.open()
	b.cookies = nil
	b.want("the ticket once more", ticket, http.StatusForbidden)
}

// TestFullRevocationsAreNoUsedTicket uses a ticket while the relay has no room to record that it is used. The
// answer must not claim that the ticket is used.
func TestFullRevocationsAreNoUsedTicket(t *testing.T) {
	b, at := newBrowser(t, ""), time.Now()
	for i, err := 0, error(nil); err == nil; i++ {
		_, err = b.revoked.Spend("t", fmt.Sprint(i), at.Add(time.Hour))
	}
	to, err := b.c.address(b.grant, "")
	if err != nil {
		t.Fatal(err)
	}
	b.want("a ticket without room for its use", to.URL, http.StatusServiceUnavailable)
}
