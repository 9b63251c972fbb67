package gateway

import (
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/canvas"
	"ahprelay/routing/audience"
)

// tickets answers a client's requests for tickets (a canvas's URL), and its requests about
// previews.
type tickets struct {
	canvases *canvas.Canvases
	asked    atomic.Int32 // requests in progress
}

// answer handles a request for a ticket or about previews. It returns false for other
// messages.
func (t *tickets) answer(c *client, env *ahp.Envelope) bool {
	if !t.canvases.Asks(env) {
		return false
	}
	answer, err := t.canvases.Answer(env, canvas.Asker{
		Remote: c.remote, Grant: func(channel string) (auth.CanvasGrant, error) { return t.grant(c, channel) },
	})
	id := append([]byte(nil), env.ID...)
	if err == nil && t.asked.Add(1) > canvas.MaxAsked {
		t.asked.Add(-1)
		err = canvas.ErrTooMany
	} else if err == nil && c.spawn(func() {
		defer t.asked.Add(-1)
		result, err := answer(c.ctx)
		c.answer(canvas.AppendAnswer(nil, id, result, err))
	}) {
		return true
	}
	c.answer(canvas.AppendAnswer(nil, id, nil, err))
	return true
}

// grant returns the authority for a browser to show a canvas on behalf of a client.
func (t *tickets) grant(c *client, channel string) (grant auth.CanvasGrant, err error) {
	clientID := c.beginning.clientID
	if moved := c.introduced.Load(); clientID == "" && moved != nil {
		clientID = *moved
	}
	if clientID == "" {
		return grant, canvas.ErrNoClientID
	}
	if !t.canvases.MayAsk(c.token.first.Tenant, c.token.first.Subject) {
		return grant, canvas.ErrTooOften
	}
	who := c.token.now()
	authority, origins := c.openAs(who), who.Derive()
	ends := time.Now().Add(auth.CanvasSessionTTL)
	if viewer, ok := c.toHost().(*audience.Viewer); ok { // the host-agent knows the audience, but not its viewers
		who.Subject, clientID = who.Audience, viewer.HostClient()
		ends = who.Expires
	} else if ends.Before(who.Expires) {
		ends = who.Expires
	}
	return auth.CanvasGrant{
		Tenant: who.Tenant, Subject: who.Subject, Expires: ends, Origins: origins,
		CanvasClaims: auth.CanvasClaims{
			Host: c.host.name, Token: who.ID, Device: who.Device, Issued: who.IssuedAt.Unix(), TokenEnds: who.Expires.Unix(), Until: ends.Unix(), ClientID: clientID,
			Channel: channel, Authority: authority.Authority(), Page: c.page,
		},
	}, nil
}
