package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"time"

	"ahprelay/ahp"
)

// A CanvasGrant permits a browser to see a canvas with the authority of a client's token.
// It exists in two signed forms: a ticket, which starts a session and is valid once, and
// a session, which the browser keeps. All relays in the cluster accept both. They store
// only the IDs of used tickets.
type CanvasGrant struct {
	ID      string    // unique ID of this grant
	Tenant  string    // name of the tenant
	Subject string    // subject of the client's token
	Expires time.Time // when the ticket or session expires

	Origins []Origin // the grants from which it was derived, see [Client.Derive]
	Signer  string   // as in [Client]

	CanvasClaims
}

// CanvasClaims are the claims that only canvas grants have.
type CanvasClaims struct {
	Host      string `json:"host,omitempty"`
	Token     string `json:"token,omitempty"` // ID of the client's token
	Device    string `json:"device,omitempty"`
	Issued    int64  `json:"tokenIssued,omitempty"`
	TokenEnds int64  `json:"tokenExpires,omitempty"` // when the client's token expires
	Until     int64  `json:"until,omitempty"`        // in a ticket: when the session expires
	ClientID  string `json:"clientId,omitempty"`
	Channel   string `json:"channel,omitempty"`
	Instance  string `json:"instance,omitempty"`
	Authority string `json:"authority,omitempty"` // see routing.Open.Authority
	Page      string `json:"page,omitempty"`      // origin of the page that shows the canvas; "": unknown
	Preview   bool   `json:"preview,omitempty"`   // the grant is for a port on the host's machine, not a canvas: see routing.Canvas
}

// CanvasSessionTTL is the time from a ticket to the end of its session, unless the client's
// token lives longer. An audience's session ends with its token. The host-agent ends a session
// earlier when its client has disconnected.
const CanvasSessionTTL = 7 * 24 * time.Hour

// TokenExpires returns when the client's token expires, as known when the grant was made.
func (g *CanvasGrant) TokenExpires() time.Time { return time.Unix(g.TokenEnds, 0) }

// Client returns the fields with which a relay checks whether the client's token is
// revoked.
func (g *CanvasGrant) Client() Client {
	return Client{ID: g.Token, Device: g.Device, Tenant: g.Tenant, Subject: g.Subject, IssuedAt: time.Unix(g.Issued, 0), Expires: g.Expires, Origins: g.Origins, Signer: g.Signer}
}

// The kinds of canvas grants.
const (
	ticketKind  tokenKind = "ahp-canvas-ticket+jwt"
	sessionKind tokenKind = "ahp-canvas+jwt"
)

// CanvasTicketTTL is the lifetime of a ticket.
const CanvasTicketTTL = time.Minute

// Canvases issues and verifies canvas grants, and names canvases.
// [Keys.Canvases] returns it.
type Canvases struct{ keys *Keys }

// IssueTicket signs a ticket, which expires after CanvasTicketTTL or at g.Expires, whichever
// is earlier. It generates an ID if g has none.
func (c Canvases) IssueTicket(g CanvasGrant) (string, error) {
	if soon := c.keys.now().Add(CanvasTicketTTL); soon.Before(g.Expires) {
		g.Expires = soon
	}
	return c.issue(ticketKind, g)
}

// IssueSession signs a session.
func (c Canvases) IssueSession(g CanvasGrant) (string, error) {
	return c.issue(sessionKind, g)
}

// VerifyTicket verifies a ticket. Expires in the result is the ticket's own expiry.
func (c Canvases) VerifyTicket(token string) (CanvasGrant, error) {
	return verified(c.keys.Tokens(), ticketKind, token, (*claims).canvas)
}

// VerifySession verifies a session.
func (c Canvases) VerifySession(token string) (CanvasGrant, error) {
	return verified(c.keys.Tokens(), sessionKind, token, (*claims).canvas)
}

func (c Canvases) issue(kind tokenKind, g CanvasGrant) (string, error) {
	cl := c.keys.Tokens().newClaims(g.ID, g.Subject, g.Tenant, time.Time{}, g.Expires)
	cl.Canvas, cl.Origins = &g.CanvasClaims, g.Origins
	if _, err := cl.canvas(); err != nil {
		return "", fmt.Errorf("canvas grant: %w", err)
	}
	return c.keys.Tokens().issue(kind, cl)
}

func (cl *claims) canvas() (CanvasGrant, error) {
	if err := cl.check(); err != nil {
		return CanvasGrant{}, err
	}
	if cl.Canvas == nil {
		return CanvasGrant{}, errors.New("no canvas claim")
	}
	if err := ahp.CheckName("host", cl.Canvas.Host); err != nil {
		return CanvasGrant{}, err
	}
	return CanvasGrant{
		ID: cl.ID, Tenant: cl.Tenant, Subject: cl.Subject, Expires: cl.ExpiresAt.UTC(), Origins: cl.Origins, Signer: cl.signer, CanvasClaims: *cl.Canvas,
	}, nil
}

// Name returns the first label of a canvas's host name below the canvas domain. All
// relays compute the same name for a client's canvas. It cannot be guessed without the
// keys, but gives no access by itself.
func (c Canvases) Name(g *CanvasGrant) string {
	mac := hmac.New(sha256.New, c.keys.oldest().canvases)
	for _, part := range []string{g.Tenant, g.Host, g.Subject, g.ClientID, g.Channel, g.Instance, g.Authority} {
		fmt.Fprintf(mac, "%d %s", len(part), part)
	}
	return "c" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(mac.Sum(nil)[:20]))
}
