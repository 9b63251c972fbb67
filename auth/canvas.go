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

// A CanvasGrant says that a browser may see a canvas, as a client with a token
// may. Relays sign it, once for a ticket, which is used once to begin, and once
// for a session, which the browser keeps: any relay of the cluster takes it, and
// nothing has to be kept.
type CanvasGrant struct {
	ID      string    // of this grant, unique
	Tenant  string    // name of the tenant
	Subject string    // of the client's token
	Expires time.Time // of the ticket or session

	Origins []Origin // the grants from which it was derived, see [Client.Derive]

	CanvasClaims
}

// CanvasClaims are what a [CanvasGrant] says beside other tokens.
type CanvasClaims struct {
	Host      string `json:"host,omitempty"`
	Token     string `json:"token,omitempty"` // the client's, by its ID
	Device    string `json:"device,omitempty"`
	Issued    int64  `json:"tokenIssued,omitempty"`
	TokenEnds int64  `json:"tokenExpires,omitempty"` // when that expires; 0 in what older relays sign, with which the session ends then
	Until     int64  `json:"until,omitempty"`        // when the session expires, in a ticket
	ClientID  string `json:"clientId,omitempty"`
	Channel   string `json:"channel,omitempty"`
	Instance  string `json:"instance,omitempty"`
	Authority string `json:"authority,omitempty"` // see routing.Open.Authority
	Page      string `json:"page,omitempty"`      // origin of the page that shows the canvas; "": it is not known
	Preview   bool   `json:"preview,omitempty"`   // it is no canvas, but a port of the host's machine: see routing.Canvas
}

// CanvasSessionTTL is the longest time from a ticket to the end of its session. A session is bound to its client, which
// renews its token meanwhile: the host-agent ends it earlier when that client has gone.
const CanvasSessionTTL = 7 * 24 * time.Hour

// TokenExpires returns when the token expires that the client had when it asked.
func (g *CanvasGrant) TokenExpires() time.Time {
	if g.TokenEnds == 0 {
		return g.Expires
	}
	return time.Unix(g.TokenEnds, 0)
}

// Client returns the client whose token the grant follows from, as far as
// revocations want to know it.
func (g *CanvasGrant) Client() Client {
	return Client{ID: g.Token, Device: g.Device, Tenant: g.Tenant, Subject: g.Subject, IssuedAt: time.Unix(g.Issued, 0), Expires: g.Expires, Origins: g.Origins}
}

// The two kinds of it.
const (
	ticketKind  tokenKind = "ahp-canvas-ticket+jwt"
	sessionKind tokenKind = "ahp-canvas+jwt"
)

// CanvasTicketTTL is how long a ticket is good.
const CanvasTicketTTL = time.Minute

// IssueCanvasTicket signs a ticket. An empty ID is filled in.
func (k *Keys) IssueCanvasTicket(g CanvasGrant) (string, error) {
	if soon := k.now().Add(CanvasTicketTTL); soon.Before(g.Expires) {
		g.Expires = soon
	}
	return k.issueCanvas(ticketKind, g)
}

// IssueCanvasSession signs a session.
func (k *Keys) IssueCanvasSession(g CanvasGrant) (string, error) {
	return k.issueCanvas(sessionKind, g)
}

// VerifyCanvasTicket checks a ticket. Expires is the ticket's.
func (k *Keys) VerifyCanvasTicket(token string) (CanvasGrant, error) {
	return verified(k, ticketKind, token, (*claims).canvas)
}

// VerifyCanvasSession checks a session.
func (k *Keys) VerifyCanvasSession(token string) (CanvasGrant, error) {
	return verified(k, sessionKind, token, (*claims).canvas)
}

func (k *Keys) issueCanvas(kind tokenKind, g CanvasGrant) (string, error) {
	cl := k.newClaims(g.ID, g.Subject, g.Tenant, time.Time{}, g.Expires)
	cl.Canvas, cl.Origins = &g.CanvasClaims, g.Origins
	if _, err := cl.canvas(); err != nil {
		return "", fmt.Errorf("canvas grant: %w", err)
	}
	return k.issue(kind, cl)
}

// canvas returns the grant that the claims describe.
func (cl *claims) canvas() (CanvasGrant, error) {
	if err := cl.check(); err != nil {
		return CanvasGrant{}, err
	}
	if cl.Canvas == nil {
		return CanvasGrant{}, errors.New("no canvas in it")
	}
	if err := ahp.CheckName("host", cl.Canvas.Host); err != nil {
		return CanvasGrant{}, err
	}
	return CanvasGrant{
		ID: cl.ID, Tenant: cl.Tenant, Subject: cl.Subject, Expires: cl.ExpiresAt.UTC(), Origins: cl.Origins, CanvasClaims: *cl.Canvas,
	}, nil
}

// CanvasName returns the name of a canvas's origin below the canvas domain: the
// same for the same client's same canvas, whichever relay says it, and nobody
// else can tell it. It opens nothing by itself.
func (k *Keys) CanvasName(g *CanvasGrant) string {
	mac := hmac.New(sha256.New, k.oldest().canvases)
	for _, part := range []string{g.Tenant, g.Host, g.Subject, g.ClientID, g.Channel, g.Instance, g.Authority} {
		fmt.Fprintf(mac, "%d %s", len(part), part)
	}
	return "c" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(mac.Sum(nil)[:20]))
}
